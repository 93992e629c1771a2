//! The states of a cluster: its processes, what is in flight, and who holds the lock.

use std::hash::{Hash, Hasher};

use retsu_collector::election::{State, Term};

/// The model has no use for the value of a term: leases are told apart by where they are.
pub const TERM: Term = Term { timeline: 1, number: 1 };

/// Where the one request of a process is, and with which answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message {
    /// On its way to the server.
    Asked,
    /// Granted, or a proof that is good; on its way back. A grant may come with the proof that whoever held
    /// the lock before has ended.
    Good { end_proven: bool },
    /// Held by a process that advertises this fence, if it is larger than the own one; or a session that has
    /// lost the lock.
    Bad { advertised: u8 },
    /// Lost on either way, and the process still waits for it. Only after the last fault: until then a lost
    /// message is one that is still on its way.
    Lost,
}

/// An attempt or a proof whose answer the process waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    pub message: Message,
    /// What would be left of a fence that counts from just before this was sent, by the own clock.
    pub left: u8,
}

impl Request {
    /// The server has answered. From a bad answer no fence counts, so that states which differ in it are one.
    pub fn answered(&mut self, answer: Message) {
        self.message = answer;
        if matches!(answer, Message::Bad { .. }) {
            self.left = 0;
        }
    }
}

/// One replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Process {
    /// Stopped by SIGSTOP: answers no scrape and takes no step, while its clock goes on.
    pub paused: bool,
    /// The collector's own state machine.
    pub state: State,
    /// What is left until the fence, by the own clock.
    pub fence: u8,
    /// What is left of the take-over wait, by the own clock.
    pub wait: u8,
    pub request: Option<Request>,
    /// An attempt that the process has given up still travels to the server, which may grant it.
    pub abandoned: bool,
    /// The longest fence that a holder was seen to advertise, where it is longer than the own one; 0 otherwise.
    pub seen: u8,
    /// The longest fence that a holder has advertised to this process since it started, whatever it makes of it.
    pub told: u8,
    /// Ticks until the next attempt at the latest; kept once faults have ended.
    pub rest: u8,
}

impl Process {
    pub const fn starting() -> Self {
        Self {
            paused: false,
            state: State::starting(),
            fence: 0,
            wait: 0,
            request: None,
            abandoned: false,
            seen: 0,
            told: 0,
            rest: 0,
        }
    }

    /// Whether it believes that it holds the lock.
    pub fn believes(&self) -> bool {
        self.state.term().is_some()
    }

    /// So much is left of the take-over wait. Its end is no step of its own: every answer reads the lease, whatever
    /// the process gets round to.
    pub fn await_for(&mut self, wait: u8) {
        self.wait = wait;
        if wait == 0 && matches!(self.state, State::Preparing { waited: false, .. }) {
            self.state.waited();
        }
    }

    /// Lets its clock advance.
    pub fn advance(&mut self, units: u8) {
        self.fence = self.fence.saturating_sub(units);
        self.await_for(self.wait.saturating_sub(units));
        if let Some(request) = &mut self.request {
            request.left = request.left.saturating_sub(units);
        }
    }

    /// Whether the rate of its clock matters.
    pub fn counts(&self) -> bool {
        self.fence > 0 || self.wait > 0 || self.request.is_some_and(|request| request.left > 0)
    }

    /// Everything about this process in one number.
    fn packed(&self) -> u64 {
        let state = match self.state {
            State::Standby => 0,
            State::Attempting => 1,
            State::Leading(_) => 2,
            State::Leaving(_) => 3,
            State::Preparing { waited, refreshed, .. } => 4 | u64::from(waited) << 1 | u64::from(refreshed),
        };
        let (message, left) = match self.request {
            None => (0, 0),
            Some(Request { message, left }) => (
                match message {
                    Message::Asked => 1,
                    Message::Lost => 2,
                    Message::Good { end_proven } => 3 + u64::from(end_proven),
                    Message::Bad { advertised } => 5 + u64::from(advertised),
                },
                left,
            ),
        };
        let flags = u64::from(self.paused) << 2 | u64::from(self.abandoned) << 1;
        // Seven bits for each span.
        flags
            | state << 3
            | message << 6
            | u64::from(left) << 16
            | u64::from(self.fence) << 23
            | u64::from(self.wait) << 30
            | u64::from(self.seen) << 37
            | u64::from(self.told) << 44
            | u64::from(self.rest) << 51
    }
}

/// The session that holds the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lock {
    pub owner: usize,
    /// Whether the owner still uses this session. One that was dropped holds the lock until the server
    /// finds out.
    pub attached: bool,
    /// After the last fault: the close of a dropped session is on its way to the server.
    pub closing: bool,
    /// Ticks until the server ends the session for its silence.
    pub idle: u8,
}

/// What is true of the session that held the lock last, whether it still does or not. Kept only where a proof of
/// its end matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Holder {
    pub owner: usize,
    /// It has exported.
    pub exported: bool,
    /// Its process has withdrawn, given it up or ended.
    pub ended: bool,
}

/// Ticks since the last fault, or faults go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    Faults,
    Calm { ticks: u8 },
}

/// A state of the whole cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct System<const N: usize> {
    pub processes: [Process; N],
    pub lock: Option<Lock>,
    pub latest: Option<Holder>,
    pub phase: Phase,
}

impl<const N: usize> System<N> {
    pub fn is_calm(&self) -> bool {
        self.phase != Phase::Faults
    }

    /// Brings the processes into an order that does not depend on which of them is which.
    pub fn sort(&mut self) {
        if self.processes.is_sorted_by(|one, other| one.packed() < other.packed()) {
            return;
        }
        let mut order: [usize; N] = std::array::from_fn(|index| index);
        order.sort_by_key(|&index| (self.processes[index].packed(), self.lock.is_some_and(|lock| lock.owner == index)));
        let rank = |owner: usize| order.iter().position(|&index| index == owner).expect("an owner is a process");
        if let Some(lock) = &mut self.lock {
            lock.owner = rank(lock.owner);
        }
        if let Some(latest) = &mut self.latest {
            latest.owner = rank(latest.owner);
        }
        self.processes = order.map(|index| self.processes[index]);
    }
}

// By hand and in few numbers, because the tests are compiled without optimization.
impl<const N: usize> Hash for System<N> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for process in &self.processes {
            hasher.write_u64(process.packed());
        }
        let lock = self.lock.map_or(0, |lock| {
            1 | u64::from(lock.attached) << 1
                | u64::from(lock.closing) << 2
                | u64::from(lock.idle) << 8
                | (lock.owner as u64) << 16
        });
        let latest = self.latest.map_or(0, |holder| {
            1 | u64::from(holder.exported) << 1 | u64::from(holder.ended) << 2 | (holder.owner as u64) << 3
        });
        let calm = match self.phase {
            Phase::Faults => 0,
            Phase::Calm { ticks } => 1 + u64::from(ticks),
        };
        hasher.write_u64(lock << 40 | latest << 16 | calm);
    }
}
