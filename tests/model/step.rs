//! The transitions: what each action does.

use retsu_collector::election::State;
use stateright::{Model, Property};

use super::action::{Action, Losses};
use super::cluster::{Cluster, Guard};
use super::platform::{Annotation, Sighting};
use super::properties;
use super::system::{Lock, Message, Phase, Process, Request, System, TERM};

impl<const N: usize> Model for Cluster<N> {
    type State = System<N>;
    type Action = Action<N>;

    fn init_states(&self) -> Vec<System<N>> {
        let mut system = System { processes: [Process::starting(); N], lock: None, phase: Phase::Faults };
        for &action in &self.after {
            self.step(&mut system, action);
        }
        vec![system]
    }

    fn actions(&self, system: &System<N>, actions: &mut Vec<Action<N>>) {
        self.offer(system, actions);
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

impl<const N: usize> Cluster<N> {
    fn step(&self, system: &mut System<N>, action: Action<N>) {
        for process in system.processes.iter_mut().filter(|process| matches!(process.state, State::Leading(_))) {
            process.skipped = false;
        }
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
            Action::Refresh(index) => _ = system.processes[index].state.refreshed(),
            Action::Withdraw(index) => withdraw(&mut system.processes[index]),
            Action::Close(index) => {
                self.drop_session(system, index);
                let process = &mut system.processes[index];
                process.state.released();
                process.rest = self.rest(system.phase);
                (process.term, process.exported, process.marked) = (0, false, false);
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
                        request.answered(Message::BAD);
                    }
                }
            }
            Action::Pause(index) => system.processes[index].paused = true,
            Action::Continue(index) => system.processes[index].paused = false,
            Action::Restart(index) => {
                self.drop_session(system, index);
                self.restart(&mut system.processes[index]);
            }
            Action::EndFaults(losses) => self.end_faults(system, losses),
            Action::Annotate(index) => self.annotate(&mut system.processes[index]),
            Action::AnnotateLate(index) => self.annotate_late(&mut system.processes[index]),
            Action::StoreLate(index) => self.store_late(&mut system.processes[index]),
            Action::Claim(index) => self.claim(system, index),
        }
        if !self.has(Guard::OpeningProof) {
            for process in system.processes.iter_mut().filter(|process| process.is_opening() && process.wait == 0) {
                process.state.waited();
            }
        }
        if let Some(lock) = system.lock.as_mut().filter(|lock| lock.attached)
            && matches!(system.processes[lock.owner].state, State::Leading(_))
        {
            (lock.advertised, lock.awaited) = (self.fences[lock.owner], self.fences[lock.owner]);
        }
        self.tidy(system);
    }

    /// The process ends, and with it its container; another one begins in the same Pod.
    fn restart(&self, process: &mut Process) {
        let ended = |annotation: Annotation| Annotation { ended: true, ..annotation };
        let &mut Process { abandoned, annotation, late, .. } = process;
        *process = Process {
            abandoned,
            annotation: annotation.map(ended),
            late: late.map(ended),
            died: !self.has(Guard::ContainerOfTerm),
            ..Process::starting()
        };
    }

    fn ask(&self, process: &mut Process, index: usize) {
        process.rest = 0;
        let opening = process.is_opening() && process.wait == 0;
        let left = self.fences[index] + self.sighting_slack;
        process.request = Some(Request { message: Message::Asked, left, opening });
    }

    /// The server answers a request on the session that a process still uses.
    fn answer(&self, system: &mut System<N>, index: usize) {
        let answer = if system.processes[index].state == State::Attempting {
            match system.lock {
                None => self.grant(system, index, true),
                Some(lock) => {
                    // Only a longer fence than its own means anything to a process.
                    let longer = |fence: u8| if fence > self.fences[index] { fence } else { 0 };
                    let (advertised, awaited) = (longer(lock.advertised), longer(lock.awaited));
                    Message::Bad { advertised, awaited, term: lock.term }
                }
            }
        } else {
            match system.lock.as_mut().filter(|lock| lock.owner == index && lock.attached) {
                Some(lock) => {
                    lock.idle = self.idle_limit;
                    Message::Good
                }
                None if self.has(Guard::ExclusiveProofs) => Message::BAD,
                None => Message::Good,
            }
        };
        if let Some(request) = &mut system.processes[index].request {
            request.answered(answer);
        }
    }

    fn grant(&self, system: &mut System<N>, owner: usize, attached: bool) -> Message {
        let (own, Process { seen, told, .. }) = (self.fences[owner], system.processes[owner]);
        let advertised = if self.has(Guard::AdvertisedWhileWaiting) { own.max(seen) } else { own };
        let (closing, idle, awaited) = (false, self.idle_limit, own.max(told));
        let term = if self.skips { system.next_term() } else { 0 };
        system.lock = Some(Lock { owner, attached, closing, idle, advertised, awaited, term });
        if attached {
            system.processes[owner].term = term;
        }
        Message::Good
    }

    fn receive(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        let Some(Request { message, left: counts, opening }) = process.request.take() else { return };
        let own = self.fences[index];
        let left = counts.saturating_sub(self.sighting_slack);
        let fence = if self.has(Guard::FenceFromSending) { left } else { own };
        match (process.state, message) {
            (State::Attempting, Message::Good) => {
                process.state.granted(TERM);
                process.fence = fence;
                let wait = self.take_over_wait(own, process.seen);
                if !self.has(Guard::RememberedFences) {
                    process.seen = 0;
                }
                let travelled = if self.has(Guard::WaitFromReceipt) { 0 } else { own - left };
                process.wait = wait.saturating_sub(travelled);
            }
            (State::Attempting, Message::Bad { advertised, awaited, term }) => {
                let left = if self.has(Guard::SightingFromSending) { counts } else { own };
                process.sighting = Sighting { term, left };
                process.told = process.told.max(awaited);
                if self.has(Guard::AdvertisedFence) {
                    process.seen = process.seen.max(advertised);
                }
                self.reject(process, system.phase);
            }
            (_, Message::Good) => {
                process.fence = fence;
                if opening && process.is_opening() {
                    process.state.waited();
                }
            }
            (_, Message::Bad { .. }) => withdraw(process),
            (_, Message::Asked | Message::Lost) => unreachable!("only an answer is received"),
        }
    }

    fn reject(&self, process: &mut Process, phase: Phase) {
        (process.request, process.term) = (None, 0);
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
    }

    fn tick(&self, system: &mut System<N>, rates: [u8; N]) {
        for (process, units) in system.processes.iter_mut().zip(rates) {
            if !process.paused || self.has(Guard::ClockThroughPauses) {
                process.advance(units);
                let asks = process.state == State::Attempting && self.has(Guard::SightingUntilReceipt);
                if asks || process.state == State::Standby {
                    process.sighting.left = process.sighting.left.saturating_sub(units);
                }
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
    process.exported =
        process.term > 0 && matches!(process.state, State::Preparing { waited: true, .. } | State::Leading(_));
    process.skipped = false;
    process.state.withdrawn();
    (process.fence, process.wait, process.request) = (0, 0, None);
}
