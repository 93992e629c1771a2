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

    /// Whether the watch works, so that the Pods are all there are.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The Pod `uid`.
    pub(super) fn pod(&self, uid: &str) -> Option<&PodState> {
        self.pods.get(uid)
    }

    /// Every Pod but `uid`.
    pub(super) fn others(&self, uid: &str) -> impl Iterator<Item = &PodState> {
        self.pods.values().filter(move |pod| pod.uid != uid)
    }

    /// Whether it is known that none but the Pod `uid` is that of a standby.
    pub(super) fn has_no_standby_but(&self, uid: &str) -> bool {
        self.complete && !self.others(uid).any(PodState::stands_by)
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

#[cfg(test)]
mod tests {
    use super::super::note::TermNote;
    use super::super::tests::samples::{at, note, pod, tenure, terminated};
    use super::*;
    use crate::election::Term;

    /// All Pods there are.
    fn view(pods: &[PodState]) -> View {
        let mut view = View::default();
        view.apply(Event::Init);
        for pod in pods {
            view.apply(Event::InitApply(pod.clone()));
        }
        view.apply(Event::InitDone);
        view
    }

    fn leader(name: &str, number: u64) -> PodState {
        pod(name, "leader", Some(&note(number)), Some("100"))
    }

    #[test]
    fn it_is_what_was_listed_and_what_has_changed_since() {
        let names = |view: &View| view.others("uid-a").map(|pod| pod.name.clone()).collect::<Vec<_>>();
        let mut view = view(&[leader("a", 7), leader("b", 6)]);
        view.apply(Event::Apply(leader("c", 5)));
        assert_eq!(names(&view), ["b", "c"]);
        view.apply(Event::Delete(leader("b", 6)));
        assert_eq!(names(&view), ["c"]);
        // A new list replaces the old one when it is whole, not before.
        view.apply(Event::Init);
        view.apply(Event::InitApply(leader("d", 4)));
        assert_eq!(names(&view), ["c"]);
        view.apply(Event::InitDone);
        assert_eq!((names(&view), view.pod("uid-a")), (vec!["d".to_owned()], None));
        // One that was broken off leaves nothing behind.
        view.apply(Event::Init);
        view.apply(Event::InitApply(leader("e", 3)));
        view.apply(Event::Init);
        view.apply(Event::InitDone);
        assert_eq!(names(&view), Vec::<String>::new());
    }

    #[test]
    fn a_standby_is_a_pod_that_is_ready_stays_and_says_so() {
        let alone = |pods: &[PodState]| view(pods).has_no_standby_but("uid-a");
        let standby = |name| pod(name, "standby", None, None);
        assert!(alone(&[]) && alone(&[standby("a")]) && alone(&[standby("a"), leader("b", 6)]));
        assert!(!alone(&[standby("a"), leader("b", 6), standby("c")]));
        assert!(alone(&[PodState { role: None, ..standby("c") }]), "no replica has labelled it yet");
        assert!(alone(&[PodState { stays: false, ..standby("c") }]), "it starts, or ends");
        assert!(!View::default().has_no_standby_but("uid-a"), "nothing is known");
    }

    #[test]
    fn a_leader_gives_up_by_its_label_its_marker_or_the_end_of_its_container() {
        let was = leader("b", 6);
        let vacant = |is: &[PodState]| view(is).has_vacancy_since(&view(std::slice::from_ref(&was)), "uid-a");
        assert!(!vacant(std::slice::from_ref(&was)));
        assert!(vacant(&[]), "it is gone");
        assert!(vacant(&[pod("b", "standby", Some(&note(6)), None)]), "its label is gone");
        let marked = TermNote { withdrawn: true, ..note(6) };
        assert!(vacant(&[pod("b", "leader", Some(&marked), None)]), "its marker has come");
        let with = |container| PodState { containers: vec![container], ..was.clone() };
        assert!(vacant(&[with(terminated("containerd://one", at(20)))]), "its container has ended");
        assert!(!vacant(&[with(terminated("containerd://two", at(20)))]), "another container has ended");
        assert!(!vacant(&[with(terminated("containerd://one", at(9)))]), "it had ended before the term");
        assert!(!vacant(&[PodState { cost: None, ..was.clone() }]), "the cost is nothing");
        let later = TermNote { withdrawn: true, ..note(7) };
        assert!(!vacant(&[pod("b", "leader", Some(&later), None)]), "the marker of a term that nobody saw");
    }

    #[test]
    fn an_occasion_is_seen_once_and_never_in_the_own_pod_or_in_a_standby() {
        let marked = TermNote { withdrawn: true, ..note(6) };
        let (over, gone) = (view(&[pod("b", "standby", Some(&marked), None)]), view(&[]));
        assert!(!over.has_vacancy_since(&over, "uid-a") && !gone.has_vacancy_since(&over, "uid-a"));
        let ended = view(&[PodState { containers: vec![terminated("containerd://one", at(20))], ..leader("b", 6) }]);
        assert!(!ended.has_vacancy_since(&ended, "uid-a"));
        assert!(!gone.has_vacancy_since(&view(&[leader("b", 6)]), "uid-b"), "its own");
        assert!(!view(&[leader("b", 6)]).has_vacancy_since(&gone, "uid-a"), "a leader that comes is none that goes");
    }

    #[test]
    fn lock_and_label_agree_when_the_one_labelled_pod_is_that_of_the_holder() {
        use Agreement::{None as Nobody, One, Two, Wrong};
        let (own, other) = (tenure(7), Holder::Other(Some(Term { timeline: 1, number: 6 })));
        let (standby, theirs, mine) = (pod("c", "standby", None, None), leader("b", 6), leader("a", 7));
        let unnoted = pod("b", "leader", None, None);
        type Case<'a> = (&'a [&'a PodState], Option<Tenure>, Holder, Option<Agreement>);
        let cases: [Case<'_>; 12] = [
            (&[], None, Holder::Unknown, Some(Nobody)),
            (&[&standby], Some(own), Holder::Own, Some(Nobody)),
            (&[&standby], None, other, Some(Nobody)),
            (&[&mine, &standby], Some(own), Holder::Own, Some(One)),
            (&[&theirs, &standby], None, other, Some(One)),
            (&[&theirs], Some(own), Holder::Own, Some(Wrong)),
            (&[&mine], None, other, Some(Wrong)),
            (&[&unnoted], None, other, Some(Wrong)),
            // Somebody who is no collector of this program, such as Retsu's own.
            (&[&theirs], None, Holder::Other(None), Some(Wrong)),
            (&[&unnoted], None, Holder::Other(None), Some(Wrong)),
            (&[&mine, &theirs], Some(own), Holder::Own, Some(Two)),
            (&[&theirs], None, Holder::Unknown, None),
        ];
        for (pods, tenure, holder, agreement) in cases {
            let pods: Vec<_> = pods.iter().copied().cloned().collect();
            assert_eq!(view(&pods).agreement("uid-a", tenure, holder), agreement, "{pods:?} {holder:?}");
        }
    }

    #[test]
    fn whoever_has_lost_the_watch_does_not_know_until_all_pods_were_listed_again() {
        let mut view = view(&[leader("a", 7)]);
        assert!(view.interrupted() && !view.interrupted(), "told once");
        let agreement = |view: &View| view.agreement("uid-a", Some(tenure(7)), Holder::Own);
        view.apply(Event::Apply(leader("a", 7)));
        assert_eq!(agreement(&view), None);
        assert!(view.pod("uid-a").is_some(), "what was known is known");
        view.apply(Event::Init);
        view.apply(Event::InitDone);
        assert_eq!(
            (agreement(&view), View::default().agreement("uid-a", None, Holder::Unknown)),
            (Some(Agreement::None), None)
        );
    }
}
