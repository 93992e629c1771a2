//! The transitions: what each action does.

use retsu_collector::election::State;
use stateright::{Model, Property};

use super::action::{Action, Losses};
use super::cluster::{Cluster, Guard, ProofOfEnd};
use super::properties;
use super::system::{Holder, Lock, Message, Phase, Process, Request, System, TERM};

impl<const N: usize> Model for Cluster<N> {
    type State = System<N>;
    type Action = Action<N>;

    fn init_states(&self) -> Vec<System<N>> {
        vec![System { processes: [Process::starting(); N], lock: None, latest: None, phase: Phase::Faults }]
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
                        request.answered(Message::Bad { advertised: 0 });
                    }
                }
            }
            Action::Pause(index) => system.processes[index].paused = true,
            Action::Continue(index) => system.processes[index].paused = false,
            Action::Restart(index) => {
                self.drop_session(system, index);
                let abandoned = system.processes[index].abandoned;
                system.processes[index] = Process { abandoned, ..Process::starting() };
            }
            Action::EndFaults(losses) => self.end_faults(system, losses),
        }
        if let Some(latest) = system.latest.as_mut().filter(|latest| !latest.ended) {
            latest.exported |= self.exports(&system.processes[latest.owner]);
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
            request.answered(answer);
        }
    }

    fn grant(&self, system: &mut System<N>, owner: usize, attached: bool) -> Message {
        system.lock = Some(Lock { owner, attached, closing: false, idle: self.idle_limit });
        let end_proven = system.latest.is_some_and(|before| match self.proof_of_end {
            ProofOfEnd::Never => false,
            ProofOfEnd::LastHolder => before.ended,
            ProofOfEnd::SomeExporter | ProofOfEnd::LastExporter => before.ended && before.exported,
        });
        let proof_stays = self.proof_of_end == ProofOfEnd::SomeExporter && end_proven;
        if self.proof_of_end != ProofOfEnd::Never && !proof_stays {
            system.latest = Some(Holder { owner, exported: false, ended: !attached });
        }
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
                let wait = if end_proven { 0 } else { self.take_over_wait(own, process.seen) };
                if !self.has(Guard::RememberedFences) {
                    process.seen = 0;
                }
                let travelled = if self.has(Guard::WaitFromReceipt) { 0 } else { own - left };
                process.await_for(wait.saturating_sub(travelled));
            }
            (State::Attempting, Message::Bad { advertised }) => {
                process.told = process.told.max(advertised);
                if self.has(Guard::AdvertisedFence) {
                    let remembered = if self.has(Guard::RememberedFences) { process.seen } else { 0 };
                    process.seen = remembered.max(advertised);
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
