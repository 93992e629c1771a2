//! Which actions a state offers: anything while faults go on, what is due after the last one.

use retsu_collector::election::State;

use super::cluster::{Cluster, Guard, RATES};
use super::system::{Message, Process, Request, System};

/// One step. The number is that of the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action<const N: usize> {
    Attempt(usize),
    Prove(usize),
    Receive(usize),
    GiveUp(usize),
    /// The first refresh of a term succeeds.
    Refresh(usize),
    Withdraw(usize),
    Close(usize),
    /// The server runs what a process has asked.
    Answer(usize),
    /// The server runs an attempt whose process no longer waits for it.
    AnswerAbandoned(usize),
    /// The server ends the holder's session: it reads its close, its idle limit is over, somebody terminates it,
    /// the clock of the server steps, or a pooler in between lets go.
    EndSession,
    /// A tick of true time, in which each clock advances by so many units.
    Tick([u8; N]),
    /// Every session ends, and what was asked and not yet answered fails.
    RestartServer,
    Pause(usize),
    Continue(usize),
    /// The process ends and is started again. One that takes no step until then is down meanwhile.
    Restart(usize),
    /// The platform stores what the process writes of its term by now.
    Annotate(usize),
    /// The process writes that, and it is stored later or never.
    AnnotateLate(usize),
    StoreLate(usize),
    /// The process claims the end of the holder that it saw.
    Claim(usize),
    /// From here on nothing fails and nobody is late. Of what is in flight this is lost for good.
    EndFaults(Losses),
}

/// Of what is in flight when faults end, what never arrives. Until then a message that is lost is one that is
/// still on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Losses(u8);

impl Losses {
    pub const CLOSE: Self = Self(1);

    pub const fn request(index: usize) -> Self {
        Self(2 << (2 * index))
    }

    pub const fn abandoned(index: usize) -> Self {
        Self(4 << (2 * index))
    }

    pub const fn contains(self, loss: Self) -> bool {
        self.0 & loss.0 != 0
    }

    /// Every subset of what is in flight.
    fn possible<const N: usize>(system: &System<N>) -> impl Iterator<Item = Self> {
        let close = system.lock.filter(|lock| !lock.attached).map(|_| Self::CLOSE);
        let requests = system.processes.iter().enumerate();
        let in_flight = requests.fold(close.map_or(0, |close| close.0), |in_flight, (index, process)| {
            let request = if process.request.is_some() { Self::request(index).0 } else { 0 };
            let abandoned = if process.abandoned { Self::abandoned(index).0 } else { 0 };
            in_flight | request | abandoned
        });
        (0..=in_flight).filter(move |losses| losses & !in_flight == 0).map(Self)
    }
}

impl<const N: usize> Cluster<N> {
    /// Every action that `system` offers.
    pub fn offer(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        if !system.is_calm() {
            for index in 0..N {
                self.steps_of(system, index, actions);
                self.steps_for(system, index, actions);
            }
            self.faults(system, actions);
            self.offer_of_platform(system, actions);
            ticks(system, actions);
            return;
        }
        // Nobody is late. What processes do on their own commutes with what others do, so that one order is
        // as good as any; the order in which the server comes to requests is the checker's to choose.
        for index in 0..N {
            self.steps_of(system, index, actions);
            if !actions.is_empty() {
                return;
            }
        }
        for index in 0..N {
            self.steps_for(system, index, actions);
        }
        // A dropped session may end at any time until its limit: it has been silent for a while.
        if system.lock.is_some_and(|lock| lock.closing || !lock.attached && self.has(Guard::IdleLimit)) {
            actions.push(Action::EndSession);
        }
        if !self.is_due(system) {
            ticks(system, actions);
        }
    }

    /// What a process may do next: anything that its state allows while faults go on, what is due after that.
    fn steps_of(&self, system: &System<N>, index: usize, actions: &mut Vec<Action<N>>) {
        let process = &system.processes[index];
        let calm = system.is_calm();
        if process.paused {
            return;
        }
        if let Some(request) = process.request {
            if matches!(request.message, Message::Good | Message::Bad { .. }) {
                actions.push(Action::Receive(index));
            }
            if !calm || request.message == Message::Lost && self.is_timed_out(index, request) {
                actions.push(Action::GiveUp(index));
            }
        }
        match process.state {
            State::Standby if !calm || process.rest == 0 => actions.push(Action::Attempt(index)),
            State::Standby | State::Attempting => {}
            State::Preparing { .. } | State::Leading(_) => {
                let opens = self.has(Guard::OpeningProof) && process.is_opening() && process.wait == 0;
                if process.request.is_none() && (opens || process.fence < self.fences[index]) {
                    actions.push(Action::Prove(index));
                }
                // A refresh that ends beyond the fence ends the term instead.
                if matches!(process.state, State::Preparing { waited, refreshed: false, .. } if waited || self.early_refreshes)
                    && self.may_export(process)
                {
                    actions.push(Action::Refresh(index));
                }
                if !calm || process.fence == 0 {
                    actions.push(Action::Withdraw(index));
                }
            }
            State::Leaving(_) => actions.push(Action::Close(index)),
        }
    }

    /// What the server may do next for a process, and, after the last fault, an attempt before it is due.
    fn steps_for(&self, system: &System<N>, index: usize, actions: &mut Vec<Action<N>>) {
        let process = &system.processes[index];
        if process.request.is_some_and(|request| request.message == Message::Asked) {
            actions.push(Action::Answer(index));
        }
        if process.abandoned {
            actions.push(Action::AnswerAbandoned(index));
        }
        if system.is_calm() && process.state == State::Standby && process.rest < self.poll {
            actions.push(Action::Attempt(index));
        }
    }

    /// Nothing that has to do with the platform ever has to happen.
    fn offer_of_platform(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        for (index, process) in system.processes.iter().enumerate().filter(|_| self.skips) {
            if self.claimable(system, index).is_some() {
                actions.push(Action::Claim(index));
            }
            if process.late.is_some() {
                actions.push(Action::StoreLate(index));
            }
            if !process.paused && self.due_annotation(process).is_some() {
                actions.push(Action::Annotate(index));
                if self.late_writes && process.late.is_none() {
                    actions.push(Action::AnnotateLate(index));
                }
            }
        }
    }

    fn faults(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        actions.push(Action::RestartServer);
        if system.lock.is_some() {
            actions.push(Action::EndSession);
        }
        for (index, process) in system.processes.iter().enumerate() {
            if process.paused {
                actions.push(Action::Continue(index));
            } else if self.pauses && matches!(process.state, State::Leading(_)) {
                // Elsewhere a process that is stopped differs in nothing from one that takes no step.
                actions.push(Action::Pause(index));
            }
            actions.push(Action::Restart(index));
        }
        if self.bound.is_some() {
            actions.extend(Losses::possible(system).map(Action::EndFaults));
        }
    }

    fn is_timed_out(&self, index: usize, request: Request) -> bool {
        self.fences[index] + self.sighting_slack - request.left >= self.timeout
    }

    fn may_export(&self, process: &Process) -> bool {
        process.fence > 0 || !self.has(Guard::Fence)
    }

    /// Whether a scrape at this instant would be answered with state gauges.
    pub fn exports(&self, process: &Process) -> bool {
        !process.paused && matches!(process.state, State::Leading(_)) && self.may_export(process)
    }

    /// Whether something has to happen before time may go on, once nobody is late any more.
    pub fn is_due(&self, system: &System<N>) -> bool {
        let mut due = Vec::new();
        system.lock.is_some_and(|lock| lock.closing)
            || (0..N).any(|index| {
                let process = &system.processes[index];
                self.steps_of(system, index, &mut due);
                let asked = process.request.is_some_and(|request| request.message == Message::Asked);
                asked || process.abandoned || !due.is_empty()
            })
    }
}

/// A tick for each choice of rates that makes a difference.
fn ticks<const N: usize>(system: &System<N>, actions: &mut Vec<Action<N>>) {
    let first = actions.len();
    actions.push(Action::Tick([RATES[0]; N]));
    for (index, process) in system.processes.iter().enumerate() {
        if process.counts() {
            for at in first..actions.len() {
                let Action::Tick(mut rates) = actions[at] else { unreachable!("only ticks from `first` on") };
                rates[index] = RATES[1];
                actions.push(Action::Tick(rates));
            }
        }
    }
}
