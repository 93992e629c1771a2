//! What the processes learn of each other through the platform, and when it lets a new leader skip its wait.

use retsu_collector::election::State;

use super::cluster::{Cluster, Guard};
use super::system::{Lock, Message, Process, System};

/// What a new leader needs to skip its wait, besides having seen a holder a short while ago which had exported and
/// has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Skip {
    /// The wait is always served.
    Never,
    /// It removes the annotation that says so: of two that try, one succeeds.
    Claim,
    /// It has written its own annotation, and reads nobody's of a higher term.
    List,
}

/// What the Pod of a process says. A write that is lost is one that is never made, one that is late is `late`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Annotation {
    /// The term that it is about.
    pub term: u8,
    /// The process was free to export.
    pub exported: bool,
    /// The process has withdrawn and said so, or the container that wrote this was killed. That the kubelet says
    /// so much later is that nobody reads it until then.
    pub ended: bool,
}

/// The holder that refused an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// Its term; 0 for none.
    pub term: u8,
    /// What is left of the time for which this counts, by the own clock; stands still from the grant on.
    pub left: u8,
    /// A Pod has vanished from the platform since the attempt was sent.
    pub missed: bool,
}

impl Sighting {
    pub const NONE: Self = Self { term: 0, left: 0, missed: false };
}

impl<const N: usize> Cluster<N> {
    pub fn skips(&self) -> bool {
        self.skip != Skip::Never
    }

    /// What the Pod of `process` should say by now.
    pub fn due_annotation(&self, process: &Process) -> Option<Annotation> {
        let Process { term, state, .. } = *process;
        let write = self.skips() && term > 0 && !process.vanished;
        let due = match state {
            State::Preparing { waited: exported, .. } => Annotation { term, exported, ended: false },
            State::Leading(_) => Annotation { term, exported: true, ended: false },
            State::Leaving(_) if !process.marked || !self.has(Guard::MarkedOnce) => {
                Annotation { term, exported: process.exported, ended: true }
            }
            State::Standby | State::Attempting | State::Leaving(_) => return None,
        };
        (write && process.annotation != Some(due)).then_some(due)
    }

    /// The platform stores what `index` wrote just now.
    pub fn annotate(&self, system: &mut System<N>, index: usize) {
        let Some(due) = self.due_annotation(&system.processes[index]) else { unreachable!("nothing to write") };
        self.sent(&mut system.processes[index]);
        self.store(&mut system.processes[index], due);
    }

    /// `index` writes, and that is late.
    pub fn annotate_late(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        process.late = self.due_annotation(process);
        self.sent(process);
    }

    fn sent(&self, process: &mut Process) {
        process.marked = matches!(process.state, State::Leaving(_)) && self.has(Guard::MarkedOnce);
    }

    /// The platform stores what came late.
    pub fn store_late(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        let late = process.late.take().expect("a late write");
        self.store(process, late);
    }

    fn store(&self, process: &mut Process, annotation: Annotation) {
        process.annotation = Some(Annotation { ended: annotation.ended || process.died, ..annotation });
        self.changed(process);
        if self.skip == Skip::List && process.is_waiting() && annotation.term == process.term {
            process.annotated = true;
            self.skip_if_proven(process);
        }
    }

    /// Whatever was written before this change is refused when it arrives.
    fn changed(&self, process: &mut Process) {
        if self.has(Guard::Precondition) {
            process.late = None;
        }
    }

    /// The process that proves that the holder has ended whom `process` saw.
    fn proof(&self, system: &System<N>, process: &Process) -> Option<usize> {
        let Sighting { term, left, .. } = process.sighting;
        let in_time = left > 0 || !self.has(Guard::SightingAge);
        system.processes.iter().position(|other| {
            other.annotation.is_some_and(|annotation| {
                let exported = annotation.exported || !self.has(Guard::Exported);
                let same = annotation.term == term || !self.has(Guard::SameTerm) && other.term == term;
                term > 0 && in_time && same && exported && annotation.ended
            })
        })
    }

    /// Whether `index` may claim the end of the holder that it saw.
    pub fn may_claim(&self, system: &System<N>, index: usize) -> bool {
        let process = &system.processes[index];
        self.skip == Skip::Claim && process.is_waiting() && self.proof(system, process).is_some()
    }

    pub fn claim(&self, system: &mut System<N>, index: usize) {
        let of = self.proof(system, &system.processes[index]).expect("a proof to claim");
        if self.has(Guard::ClaimedOnce) {
            system.processes[of].annotation = None;
            self.changed(&mut system.processes[of]);
        }
        skip(&mut system.processes[index]);
    }

    /// Whether a list that `index` reads would let it skip its wait.
    pub fn may_list(&self, system: &System<N>, index: usize) -> bool {
        let process = &system.processes[index];
        let fresh = process.is_waiting() || !self.has(Guard::FreshList) && !process.believes();
        let higher = system.processes.iter().enumerate().any(|(other, process_of)| {
            other != index && process_of.annotation.is_some_and(|annotation| annotation.term > process.sighting.term)
        });
        let missed = process.sighting.missed && self.has(Guard::NobodyVanished);
        self.skip == Skip::List
            && !process.listed
            && fresh
            && !higher
            && !missed
            && self.proof(system, process).is_some()
    }

    pub fn list(&self, system: &mut System<N>, index: usize) {
        system.processes[index].listed = true;
        self.skip_if_proven(&mut system.processes[index]);
    }

    /// In which order the list was read and the own annotation stored makes no difference.
    pub fn skip_if_proven(&self, process: &mut Process) {
        let annotated = process.annotated || !self.has(Guard::OwnAnnotation);
        if process.is_waiting() && process.listed && annotated {
            skip(process);
        }
    }

    /// The Pod of `index` is deleted by force, while its process goes on.
    pub fn vanish(&self, system: &mut System<N>, index: usize) {
        let process = &mut system.processes[index];
        (process.vanished, process.annotation, process.late) = (true, None, None);
        for process in &mut system.processes {
            process.sighting.missed = process.sighting.term > 0;
            if let Some(request) = &mut process.request {
                request.missed = process.state == State::Attempting;
            }
        }
    }

    /// Drops what can no longer make a difference, and numbers the terms that are left from 1, so that there are
    /// finitely many states.
    pub fn tidy(&self, system: &mut System<N>) {
        if !self.skips() {
            return;
        }
        let mut sighted = system.lock.map_or(0, |lock| bit(lock.term));
        let mut annotated = 0;
        for process in &mut system.processes {
            if process.believes() && !process.is_waiting() {
                (process.sighting, process.annotated, process.listed) = (Sighting::NONE, false, false);
            }
            if process.sighting.left == 0 && self.has(Guard::SightingAge) {
                process.sighting = Sighting::NONE;
            }
            sighted |= bit(process.sighting.term) | process.request.map_or(0, |request| bit(request.message.term()));
            annotated |= bit(process.term) | process.annotation.map_or(0, |annotation| bit(annotation.term));
            annotated |= process.late.map_or(0, |annotation| bit(annotation.term));
        }
        let lowest = if self.skip == Skip::List { sighted.trailing_zeros() } else { u32::BITS };
        let matters = |term: u8| sighted & bit(term) != 0 || u32::from(term) > lowest;
        for process in &mut system.processes {
            if annotated & bit(process.sighting.term) == 0 {
                process.sighting = Sighting::NONE;
            }
            let old = |annotation: &Annotation| matters(annotation.term) || !self.has(Guard::SameTerm);
            process.annotation = process.annotation.filter(old);
            process.late = process.late.filter(|annotation| matters(annotation.term));
            if !matters(process.term) {
                (process.term, process.exported, process.marked) = (0, false, false);
            }
        }
        let mut used = 0_u32;
        system.each_term(|term| used |= bit(*term));
        system.each_term(|term| {
            if *term > 0 {
                *term = u8::try_from((used & (bit(*term) - 1)).count_ones() + 1).expect("few terms");
            }
        });
    }
}

fn skip(process: &mut Process) {
    (process.skipped, process.wait) = (true, 0);
}

/// 0 for no term.
fn bit(term: u8) -> u32 {
    if term == 0 { 0 } else { 1 << term }
}

impl<const N: usize> System<N> {
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

    /// A term above every other.
    pub fn next_term(&mut self) -> u8 {
        let mut highest = 0;
        self.each_term(|term| highest = highest.max(*term));
        highest + 1
    }
}
