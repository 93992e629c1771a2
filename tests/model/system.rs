//! The states of a cluster: its processes, what is in flight, and who holds the lock.

use std::hash::{Hash, Hasher};

use retsu_collector::election::{State, Term};

use super::platform::{Annotation, Sighting};

/// The model has no use for the value of a term: leases are told apart by where they are.
pub const TERM: Term = Term { timeline: 1, number: 1 };

/// Where the one request of a process is, and with which answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message {
    /// On its way to the server.
    Asked,
    /// Granted, or a proof that is good; on its way back.
    Good,
    /// Held by a session that advertises one fence while its process waits for another; each is 0 unless it is longer
    /// than the own one. Its term is 0 unless waits may be skipped. Or a session that has lost the lock.
    Bad { advertised: u8, awaited: u8, term: u8 },
    /// Lost on either way, and the process still waits for it. Only after the last fault: until then a lost
    /// message is one that is still on its way.
    Lost,
}

impl Message {
    /// That the own session has lost the lock.
    pub const BAD: Self = Self::Bad { advertised: 0, awaited: 0, term: 0 };

    /// The term of the holder.
    pub const fn term(self) -> u8 {
        if let Self::Bad { term, .. } = self { term } else { 0 }
    }
}

/// An attempt or a proof whose answer the process waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    pub message: Message,
    /// What would be left of a fence that counts from just before this was sent, by the own clock.
    pub left: u8,
    /// A proof that was sent after the end of the wait.
    pub opening: bool,
}

impl Request {
    /// The server has answered. From a bad answer no fence counts, so that states which differ in it are one, unless
    /// it matters since when the holder was seen.
    pub fn answered(&mut self, answer: Message) {
        self.message = answer;
        if matches!(answer, Message::Bad { term: 0, .. }) {
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
    /// The longest fence that a holder had or waited for which has refused this process since it started, where it is
    /// longer than the own one: what `seen` is with every guard.
    pub told: u8,
    /// Ticks until the next attempt at the latest; kept once faults have ended.
    pub rest: u8,
    /// The term that it was granted last, as long as its Pod may say something of it that matters; 0 otherwise.
    pub term: u8,
    /// It leaves, and was free to export.
    pub exported: bool,
    /// It leaves, and has written so.
    pub marked: bool,
    /// It has skipped its wait; kept until it leads.
    pub skipped: bool,
    pub sighting: Sighting,
    /// It has seen that the holder has ended. Kept only where that counts without another look.
    pub judged: bool,
    /// What its Pod says.
    pub annotation: Option<Annotation>,
    /// What it has written and the platform has not stored yet.
    pub late: Option<Annotation>,
    /// A container of its Pod was killed. Kept only where it is taken for that of the term.
    pub died: bool,
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
            term: 0,
            exported: false,
            marked: false,
            skipped: false,
            sighting: Sighting::NONE,
            judged: false,
            annotation: None,
            late: None,
            died: false,
        }
    }

    /// Whether it believes that it holds the lock.
    pub fn believes(&self) -> bool {
        self.state.term().is_some()
    }

    /// Whether it holds the lock and has not begun to serve, but for the first refresh.
    pub fn is_opening(&self) -> bool {
        matches!(self.state, State::Preparing { waited: false, .. })
    }

    pub fn is_waiting(&self) -> bool {
        self.is_opening() && self.wait > 0
    }

    /// Lets its clock advance.
    pub fn advance(&mut self, units: u8) {
        self.fence = self.fence.saturating_sub(units);
        self.wait = self.wait.saturating_sub(units);
        if let Some(request) = &mut self.request {
            request.left = request.left.saturating_sub(units);
        }
    }

    /// Whether the rate of its clock matters.
    pub fn counts(&self) -> bool {
        self.fence > 0 || self.wait > 0 || self.request.is_some_and(|request| request.left > 0)
    }

    /// Everything about this process in two numbers.
    fn packed(&self) -> (u64, u64) {
        let state = match self.state {
            State::Standby => 0,
            State::Attempting => 1,
            State::Leading(_) => 2,
            State::Leaving(_) => 3,
            State::Preparing { waited, refreshed, .. } => 4 | u64::from(waited) << 1 | u64::from(refreshed),
        };
        let (message, left) = match self.request {
            None => (0, 0),
            Some(Request { message, left, .. }) => (
                match message {
                    Message::Asked => 1,
                    Message::Lost => 2,
                    Message::Good => 3,
                    Message::Bad { advertised, awaited, .. } => {
                        4 | u64::from(advertised) << 3 | u64::from(awaited) << 7
                    }
                },
                left,
            ),
        };
        let flags = u64::from(self.paused) << 2 | u64::from(self.abandoned) << 1;
        // Seven bits for each span, four for each fence in a message.
        let first = flags
            | state << 3
            | message << 6
            | u64::from(left) << 17
            | u64::from(self.fence) << 24
            | u64::from(self.wait) << 31
            | u64::from(self.seen) << 38
            | u64::from(self.told) << 45
            | u64::from(self.rest) << 52;
        (first, self.packed_terms())
    }

    /// What has to do with the platform.
    fn packed_terms(&self) -> u64 {
        let (opening, term) = self.request.map_or((false, 0), |request| (request.opening, request.message.term()));
        let flags = [opening, self.exported, self.marked, self.skipped, self.judged, self.died];
        let annotation = |annotation: Option<Annotation>| {
            annotation.map_or(0, |Annotation { term, exported, ended }| {
                u64::from(term) << 2 | u64::from(exported) << 1 | u64::from(ended)
            })
        };
        // Five bits for each term.
        flags.iter().fold(0, |packed, &flag| packed << 1 | u64::from(flag))
            | u64::from(term) << 6
            | u64::from(self.term) << 11
            | u64::from(self.sighting.term) << 16
            | u64::from(self.sighting.left) << 21
            | annotation(self.annotation) << 28
            | annotation(self.late) << 35
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
    /// The fence that this session advertises.
    pub advertised: u8,
    /// The longest fence that the owner knows to have been there before it, while it waits for that; its own one after.
    pub awaited: u8,
    /// The term; 0 unless waits may be skipped.
    pub term: u8,
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
        self.processes = order.map(|index| self.processes[index]);
    }
}

// By hand and in few numbers, because the tests are compiled without optimization.
impl<const N: usize> Hash for System<N> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for process in &self.processes {
            let (first, second) = process.packed();
            hasher.write_u64(first);
            hasher.write_u64(second);
        }
        let lock = self.lock.map_or(0, |lock| {
            1 | u64::from(lock.attached) << 1
                | u64::from(lock.closing) << 2
                | u64::from(lock.idle) << 4
                | (lock.owner as u64) << 8
                | u64::from(lock.advertised) << 12
                | u64::from(lock.awaited) << 16
                | u64::from(lock.term) << 20
        });
        let calm = match self.phase {
            Phase::Faults => 0,
            Phase::Calm { ticks } => 1 + u64::from(ticks),
        };
        hasher.write_u64(lock << 16 | calm);
    }
}
