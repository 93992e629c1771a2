//! The Pods of the instance, as the watch tells of them: pure.

use std::collections::BTreeMap;
use std::mem;

use kube::runtime::watcher::Event;

use super::pod::PodState;
use crate::election::{Holder, Tenure};
use crate::exposition::Agreement;

/// The Pods of the instance by uid.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pods: BTreeMap<String, PodState>,
    /// Pods of the list that is being read.
    listed: BTreeMap<String, PodState>,
    /// Whether the watch works, so that `pods` are all there are.
    complete: bool,
}

impl View {
    /// Takes an event of the watch into account.
    pub(super) fn apply(&mut self, event: Event<PodState>) {
        match event {
            Event::Apply(pod) => {
                self.pods.insert(pod.uid.clone(), pod);
            }
            Event::Delete(pod) => {
                self.pods.remove(&pod.uid);
            }
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                self.listed.insert(pod.uid.clone(), pod);
            }
            Event::InitDone => {
                self.pods = mem::take(&mut self.listed);
                self.complete = true;
            }
        }
    }

    /// The watch has failed: what is known may be old, until all Pods have been listed again.
    /// Returns whether they were not before.
    pub(super) fn interrupted(&mut self) -> bool {
        std::mem::take(&mut self.complete)
    }

    /// The Pod `uid`.
    pub(super) fn pod(&self, uid: &str) -> Option<&PodState> {
        self.pods.get(uid)
    }

    /// Every Pod but `uid`.
    pub(super) fn others(&self, uid: &str) -> impl Iterator<Item = &PodState> {
        self.pods.values().filter(move |pod| pod.uid != uid)
    }

    /// Whether a Pod other than `uid` seems to have given up the lead between `before` and this.
    pub(super) fn has_vacancy_since(&self, before: &Self, uid: &str) -> bool {
        before.others(uid).any(|was| vacated(was, self.pod(&was.uid)))
    }

    /// Whether the leader label is on the Pod of the session that holds the lock. `tenure` and `holder` are what the
    /// process of the Pod `uid` knows. `None` while it is not known.
    pub(super) fn agreement(&self, uid: &str, tenure: Option<Tenure>, holder: Holder) -> Option<Agreement> {
        if !self.complete {
            return None;
        }
        let mut labelled = self.pods.values().filter(|pod| pod.is_leader());
        let (first, second) = (labelled.next(), labelled.next());
        match (first, second, holder) {
            (None, ..) => Some(Agreement::None),
            (Some(_), Some(_), _) => Some(Agreement::Two),
            (Some(pod), None, Holder::Own) => Some(one(pod.uid == uid && tenure.is_some())),
            (Some(pod), None, Holder::Other(term)) => {
                Some(one(pod.uid != uid && term.is_some() && pod.note().map(|note| note.term) == term))
            }
            (Some(_), None, Holder::Unknown) => None,
        }
    }
}

const fn one(right: bool) -> Agreement {
    if right { Agreement::One } else { Agreement::Wrong }
}

/// Whether the leader `was` gives up its place by what it `is` now: its label goes, its marker comes, or its container
/// ends.
fn vacated(was: &PodState, is: Option<&PodState>) -> bool {
    let Some(is) = is else { return was.is_leader() };
    let note = was.note();
    let marked = is
        .note()
        .is_some_and(|is| is.withdrawn && note.as_ref().is_some_and(|was| !was.withdrawn && was.term == is.term));
    let ended = note.is_some_and(|note| was.is_leader() && is.has_terminated(&note) && !was.has_terminated(&note));
    (was.is_leader() && !is.is_leader()) || marked || ended
}
