//! The transitions: which actions a state offers, and what each of them does.

use retsu_collector::election::State;
use stateright::{Model, Property};

use super::cluster::{Cluster, Guard, Memory, ProofOfEnd, RATES};
use super::properties;
use super::system::{Holder, Lock, Message, Phase, Process, Request, System, TERM};

/// One step. The number is that of the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action<const N: usize> {
    Attempt(usize),
    Prove(usize),
    Receive(usize),
    GiveUp(usize),
    Serve(usize),
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
    /// From here on nothing fails and nobody is late. Of what is in flight this is lost for good.
    EndFaults(Losses),
}

/// Of what is in flight when faults end, what never arrives. Until then a message that is lost is one that is
/// still on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Losses(u8);

impl Losses {
    const CLOSE: Self = Self(1);

    const fn request(index: usize) -> Self {
        Self(2 << (2 * index))
    }

    const fn abandoned(index: usize) -> Self {
        Self(4 << (2 * index))
    }

    const fn contains(self, loss: Self) -> bool {
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

impl<const N: usize> Model for Cluster<N> {
    type State = System<N>;
    type Action = Action<N>;

    fn init_states(&self) -> Vec<System<N>> {
        let processes = std::array::from_fn(|index| self.starting(index));
        vec![System { processes, lock: None, latest: None, phase: Phase::Faults }]
    }

    fn actions(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        if !system.is_calm() {
            for index in 0..N {
                self.steps_of(system, index, actions);
                self.steps_for(system, index, actions);
            }
            self.faults(system, actions);
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

    fn next_state(&self, system: &System<N>, action: Action<N>) -> Option<System<N>> {
        let mut next = *system;
        self.step(&mut next, action);
        if self.interchangeable {
            next.sort();
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
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

impl<const N: usize> Cluster<N> {
    fn starting(&self, index: usize) -> Process {
        Process::starting(if self.seen > self.fences[index] { self.seen } else { 0 })
    }

    /// What a process may do next: anything that its state allows while faults go on, what is due after that.
    fn steps_of(&self, system: &System<N>, index: usize, actions: &mut Vec<Action<N>>) {
        let process = &system.processes[index];
        let calm = system.is_calm();
        if process.paused {
            return;
        }
        if let Some(request) = process.request {
            if matches!(request.message, Message::Good { .. } | Message::Bad { .. }) {
                actions.push(Action::Receive(index));
            }
            if !calm || request.message == Message::Lost && self.is_timed_out(index, request) {
                actions.push(Action::GiveUp(index));
            }
        }
        match process.state {
            State::Standby if !calm || process.rest == 0 => actions.push(Action::Attempt(index)),
            State::Standby | State::Attempting => {}
            State::Preparing(_) | State::Leading(_) => {
                if process.request.is_none() && process.fence < self.fences[index] {
                    actions.push(Action::Prove(index));
                }
                if self.is_ready(process) {
                    actions.push(Action::Serve(index));
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

    fn faults(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        actions.push(Action::RestartServer);
        if system.lock.is_some() {
            actions.push(Action::EndSession);
        }
        for (index, process) in system.processes.iter().enumerate() {
            if process.paused {
                actions.push(Action::Continue(index));
            } else if matches!(process.state, State::Leading(_)) {
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
        self.fences[index] - request.left >= self.timeout
    }

    fn is_ready(&self, process: &Process) -> bool {
        matches!(process.state, State::Preparing(_)) && process.wait == 0 && self.may_export(process)
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

    fn step(&self, system: &mut System<N>, action: Action<N>) {
        match action {
            Action::Attempt(index) => {
                system.processes[index].state.attempt();
                self.ask(&mut system.processes[index], index);
            }
            Action::Prove(index) => self.ask(&mut system.processes[index], index),
            Action::Receive(index) => self.receive(system, index),
            Action::GiveUp(index) => {
                if system.processes[index].state == State::Attempting {
                    self.drop_session(system, index);
                    self.reject(&mut system.processes[index], system.phase);
                } else {
                    withdraw(&mut system.processes[index]);
                }
            }
            Action::Serve(index) => {
                system.processes[index].state.refreshed();
                if let Some(latest) = system.latest.as_mut().filter(|latest| latest.owner == index && !latest.ended) {
                    latest.exported = true;
                }
            }
            Action::Withdraw(index) => withdraw(&mut system.processes[index]),
            Action::Close(index) => {
                self.drop_session(system, index);
                system.processes[index].state.released();
                system.processes[index].rest = self.rest(system.phase);
            }
            Action::Answer(index) => self.answer(system, index),
            Action::AnswerAbandoned(index) => {
                system.processes[index].abandoned = false;
                if system.lock.is_none() {
                    self.grant(system, index, false);
                }
            }
            Action::EndSession => system.lock = None,
            Action::Tick(rates) => self.tick(system, rates),
            Action::RestartServer => {
                system.lock = None;
                for process in &mut system.processes {
                    process.abandoned = false;
                    if let Some(request) = process.request.as_mut().filter(|request| request.message == Message::Asked)
                    {
                        request.message = Message::Bad { advertised: 0 };
                    }
                }
            }
            Action::Pause(index) => system.processes[index].paused = true,
            Action::Continue(index) => system.processes[index].paused = false,
            Action::Restart(index) => {
                self.drop_session(system, index);
                let abandoned = system.processes[index].abandoned;
                let unseen = self.fences.into_iter().any(|fence| fence > self.fences[index]);
                system.processes[index] = Process { abandoned, unseen, ..self.starting(index) };
            }
            Action::EndFaults(losses) => self.end_faults(system, losses),
        }
    }

    fn ask(&self, process: &mut Process, index: usize) {
        process.rest = 0;
        process.request = Some(Request { message: Message::Asked, left: self.fences[index] });
    }

    /// The server answers a request on the session that a process still uses.
    fn answer(&self, system: &mut System<N>, index: usize) {
        let answer = if system.processes[index].state == State::Attempting {
            match system.lock {
                None => self.grant(system, index, true),
                // Only a larger fence than its own means anything to a process.
                Some(lock) if self.fences[lock.owner] > self.fences[index] => {
                    Message::Bad { advertised: self.fences[lock.owner] }
                }
                Some(_) => Message::Bad { advertised: 0 },
            }
        } else {
            match system.lock.as_mut().filter(|lock| lock.owner == index && lock.attached) {
                Some(lock) => {
                    lock.idle = self.idle_limit;
                    Message::Good { end_proven: false }
                }
                None if self.has(Guard::ExclusiveProofs) => Message::Bad { advertised: 0 },
                None => Message::Good { end_proven: false },
            }
        };
        if let Some(request) = &mut system.processes[index].request {
            request.message = answer;
        }
    }

    fn grant(&self, system: &mut System<N>, owner: usize, attached: bool) -> Message {
        system.lock = Some(Lock { owner, attached, closing: false, idle: self.idle_limit });
        for (process, fence) in system.processes.iter_mut().zip(self.fences) {
            process.unseen |= fence < self.fences[owner];
        }
        let before = system.latest;
        if self.proof_of_end != ProofOfEnd::Never {
            system.latest = Some(Holder { owner, exported: false, ended: !attached });
        }
        let end_proven = before.is_some_and(|before| match self.proof_of_end {
            ProofOfEnd::Never => false,
            ProofOfEnd::AnyHolder => before.ended,
            ProofOfEnd::Exporter => before.ended && before.exported,
        });
        Message::Good { end_proven }
    }

    fn receive(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        let Some(Request { message, left }) = process.request.take() else { return };
        let own = self.fences[index];
        let fence = if self.has(Guard::FenceFromSending) { left } else { own };
        match (process.state, message) {
            (State::Attempting, Message::Good { end_proven }) => {
                process.state.granted(TERM);
                process.fence = fence;
                if self.has(Guard::AdvertisedFence) {
                    process.earlier = process.earlier.max(self.wait_for(process.seen));
                }
                if self.memory == Memory::Replaced {
                    process.seen = 0;
                }
                let wait = if end_proven { 0 } else { process.earlier.max(self.wait_for(own)) };
                if !self.has(Guard::EarlierFences) {
                    process.earlier = 0;
                }
                let travelled = if self.has(Guard::WaitFromReceipt) { 0 } else { own - left };
                process.wait = wait.saturating_sub(travelled);
            }
            (State::Attempting, Message::Bad { advertised }) => {
                if advertised > 0 {
                    (process.seen, process.unseen) = (advertised, false);
                }
                self.reject(process, system.phase);
            }
            (_, Message::Good { .. }) => process.fence = fence,
            (_, Message::Bad { .. }) => withdraw(process),
            (_, Message::Asked | Message::Lost) => unreachable!("only an answer is received"),
        }
    }

    fn reject(&self, process: &mut Process, phase: Phase) {
        process.request = None;
        process.state.rejected();
        process.rest = self.rest(phase);
    }

    /// While faults go on, an attempt may come at any time and as late as the checker likes.
    fn rest(&self, phase: Phase) -> u8 {
        if phase == Phase::Faults { 0 } else { self.poll }
    }

    fn end_faults(&self, system: &mut System<N>, losses: Losses) {
        system.phase = Phase::Calm { ticks: 0 };
        for (index, process) in system.processes.iter_mut().enumerate() {
            process.paused = false;
            process.rest = if process.state == State::Standby { self.poll } else { 0 };
            process.abandoned &= !losses.contains(Losses::abandoned(index));
            if let Some(request) = process.request.as_mut().filter(|_| losses.contains(Losses::request(index))) {
                request.message = Message::Lost;
            }
        }
        if let Some(lock) = &mut system.lock {
            lock.closing = !lock.attached && !losses.contains(Losses::CLOSE);
        }
    }

    /// The process no longer uses its session. The server is told, unless that is lost.
    fn drop_session(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        let asked = process.request.is_some_and(|request| request.message == Message::Asked);
        process.abandoned |= self.abandoned_attempts && process.state == State::Attempting && asked;
        if let Some(lock) = system.lock.as_mut().filter(|lock| lock.owner == index && lock.attached) {
            (lock.attached, lock.closing) = (false, system.phase != Phase::Faults);
        }
        if let Some(latest) = system.latest.as_mut().filter(|latest| latest.owner == index) {
            latest.ended = true;
        }
    }

    fn tick(&self, system: &mut System<N>, rates: [u8; N]) {
        for (process, units) in system.processes.iter_mut().zip(rates) {
            if !process.paused || self.has(Guard::ClockThroughPauses) {
                process.advance(units);
            }
            process.rest = process.rest.saturating_sub(1);
        }
        let (Phase::Calm { ticks }, Some(bound)) = (system.phase, self.bound) else { return };
        system.phase = Phase::Calm { ticks: (ticks + 1).min(bound) };
        if let Some(lock) = system.lock.as_mut().filter(|_| self.has(Guard::IdleLimit)) {
            lock.idle = lock.idle.saturating_sub(1);
            if lock.idle == 0 {
                system.lock = None;
            }
        }
    }
}

/// The process stops exporting and believing, and closes its session next.
fn withdraw(process: &mut Process) {
    process.state.withdrawn();
    (process.fence, process.wait, process.request) = (0, 0, None);
}
