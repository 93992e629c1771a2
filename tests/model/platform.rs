//! What the processes learn of each other through the platform, and when a new leader may skip its wait for it.

use retsu_collector::election::State;

use super::cluster::{Cluster, Guard};
use super::system::{Lock, Message, Process, System};

/// What the Pod of a process says. A write that is lost is one that is never made, one that is late is `late`, and
/// an annotation that somebody removes is one that nobody claims.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Annotation {
    /// The term that it is about.
    pub term: u8,
    /// The process was free to export.
    pub exported: bool,
    /// The process has withdrawn and said so, or the container that wrote this was killed. That the kubelet says
    /// the latter much later is that nobody claims it until then.
    pub ended: bool,
}

/// The holder that refused an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// Its term; 0 for none.
    pub term: u8,
    /// What is left of the time for which this counts, by the own clock. It stands still from the grant on, with
    /// which the sighting is used up.
    pub left: u8,
}

impl Sighting {
    pub const NONE: Self = Self { term: 0, left: 0 };
}

impl<const N: usize> Cluster<N> {
    /// What the Pod of `process` should say by now, where it does not say that yet.
    pub fn due_annotation(&self, process: &Process) -> Option<Annotation> {
        let Process { term, .. } = *process;
        let due = match process.state {
            State::Preparing { waited: exported, .. } => Annotation { term, exported, ended: false },
            State::Leading(_) => Annotation { term, exported: true, ended: false },
            State::Leaving(_) if !process.marked => Annotation { term, exported: process.exported, ended: true },
            State::Standby | State::Attempting | State::Leaving(_) => return None,
        };
        // That of a term without an export proves nothing, and hides what was there no better than a claim does.
        let tells = due.exported || !self.has(Guard::Exported) || !self.has(Guard::ClaimOfJudged);
        (term > 0 && tells && process.annotation != Some(due)).then_some(due)
    }

    /// The platform stores what the process writes just now.
    pub fn annotate(&self, process: &mut Process) {
        let due = self.due_annotation(process).expect("something to write");
        self.sent(process);
        self.store(process, due);
    }

    /// The process writes, and that is late.
    pub fn annotate_late(&self, process: &mut Process) {
        process.late = self.due_annotation(process);
        self.sent(process);
    }

    fn sent(&self, process: &mut Process) {
        process.marked = matches!(process.state, State::Leaving(_)) && self.has(Guard::MarkedOnce);
    }

    /// The platform stores what came late.
    pub fn store_late(&self, process: &mut Process) {
        let late = process.late.take().expect("a late write");
        self.store(process, late);
    }

    fn store(&self, process: &mut Process, annotation: Annotation) {
        process.annotation = Some(Annotation { ended: annotation.ended || process.died, ..annotation });
        self.changed(process);
    }

    /// Whatever was written before this change is refused when it arrives.
    fn changed(&self, process: &mut Process) {
        if self.has(Guard::Precondition) {
            process.late = None;
        }
    }

    /// The Pod that proves that the holder has ended which `process` saw.
    fn proof(&self, system: &System<N>, process: &Process) -> Option<usize> {
        let Sighting { term, left } = process.sighting;
        let proves = |other: &Process| {
            other.annotation.is_some_and(|annotation| {
                let same = annotation.term == term || !self.has(Guard::SameTerm) && other.term == term;
                same && annotation.ended && (annotation.exported || !self.has(Guard::Exported))
            })
        };
        let counts = term > 0 && (left > 0 || !self.has(Guard::SightingAge));
        system.processes.iter().position(proves).filter(|_| counts)
    }

    /// The Pod whose annotation `index` may remove to skip its wait.
    pub fn claimable(&self, system: &System<N>, index: usize) -> Option<usize> {
        let process = &system.processes[index];
        let any = || system.processes.iter().position(|other| other.annotation.is_some());
        let proof = if process.judged { any() } else { self.proof(system, process) };
        proof.filter(|_| process.is_waiting())
    }

    /// The platform removes the annotation, if it is still there, and the process skips its wait.
    pub fn claim(&self, system: &mut System<N>, index: usize) {
        let of = self.claimable(system, index).expect("an annotation to claim");
        if self.has(Guard::ClaimedOnce) {
            system.processes[of].annotation = None;
            self.changed(&mut system.processes[of]);
        }
        let process = &mut system.processes[index];
        (process.skipped, process.wait) = (true, 0);
    }

    /// Drops what can no longer make a difference, and numbers the terms that are left from 1, so that there are
    /// finitely many states.
    pub fn tidy(&self, system: &mut System<N>) {
        if !self.skips {
            return;
        }
        if !self.has(Guard::ClaimOfJudged) {
            let judged = system.processes.map(|process| self.proof(system, &process).is_some());
            for (process, judged) in system.processes.iter_mut().zip(judged) {
                process.judged = process.sighting.term > 0 && (process.judged || judged);
            }
        }
        let mut sighted = system.lock.map_or(0, |lock| bit(lock.term));
        let mut told = 0;
        for process in &mut system.processes {
            let used_up = !matches!(process.state, State::Standby | State::Attempting) && !process.is_waiting();
            if used_up || process.sighting.left == 0 && self.has(Guard::SightingAge) {
                process.sighting = Sighting::NONE;
            }
            sighted |= bit(process.sighting.term) | process.request.map_or(0, |request| bit(request.message.term()));
            let annotations = process.annotation.into_iter().chain(process.late);
            told |= annotations.fold(bit(process.term), |told, annotation| told | bit(annotation.term));
        }
        let matters = |term: u8| sighted & bit(term) != 0;
        for process in &mut system.processes {
            if told & bit(process.sighting.term) == 0 && !process.judged {
                process.sighting = Sighting::NONE;
            }
            let any_term = !self.has(Guard::SameTerm) || !self.has(Guard::ClaimOfJudged);
            let kept = |annotation: &Annotation| matters(annotation.term) || any_term;
            process.annotation = process.annotation.filter(kept);
            process.late = process.late.filter(kept);
            let silent = matches!(process.state, State::Leaving(_))
                && (process.marked || !process.exported && self.has(Guard::Exported));
            if silent || !matters(process.term) {
                (process.term, process.exported, process.marked) = (0, false, false);
            }
        }
        let mut used = 0;
        system.each_term(|term| used |= bit(*term));
        system.each_term(|term| {
            if *term > 0 {
                *term = u8::try_from((used & (bit(*term) - 1)).count_ones() + 1).expect("few terms");
            }
        });
    }
}

/// A set of this term; of none for 0.
fn bit(term: u8) -> u32 {
    if term == 0 { 0 } else { 1 << term }
}

impl<const N: usize> System<N> {
    /// A term above every other.
    pub fn next_term(&mut self) -> u8 {
        let mut highest = 0;
        self.each_term(|term| highest = highest.max(*term));
        highest + 1
    }

    fn each_term(&mut self, mut visit: impl FnMut(&mut u8)) {
        if let Some(Lock { term, .. }) = &mut self.lock {
            visit(term);
        }
        for process in &mut self.processes {
            visit(&mut process.term);
            visit(&mut process.sighting.term);
            if let Some(Message::Bad { term, .. }) = process.request.as_mut().map(|request| &mut request.message) {
                visit(term);
            }
            for annotation in [&mut process.annotation, &mut process.late].into_iter().flatten() {
                visit(&mut annotation.term);
            }
        }
    }
}
