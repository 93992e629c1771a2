//! What the election learns from the cluster: that an old holder has ended, and that a place seems to be free.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::sleep;

use super::backoff::pause;
use super::label::claim_patch;
use super::pod::PodState;
use super::requests::Requests;
use super::view::View;
use crate::config::KubernetesSettings;
use crate::election::{Grant, Platform, Sighting, Term};
use crate::exposition::KubernetesMetrics;

/// The cluster that this process runs in.
pub(super) struct Witness {
    pub(super) settings: Arc<KubernetesSettings>,
    pub(super) requests: Requests,
    pub(super) view: watch::Receiver<View>,
    pub(super) vacancies: watch::Receiver<u64>,
    /// The term whose end the own Pod tells, or that can't be told.
    pub(super) told: watch::Receiver<Told>,
    pub(super) metrics: Arc<KubernetesMetrics>,
}

/// How far the own Pod follows the election.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Told {
    /// The last term that is over, and of which the Pod says so.
    pub(super) ended: Option<Term>,
    /// The last term that is over, when the Pod could not be made to say so because the server refuses.
    pub(super) refused: Option<Term>,
    /// Whether the Pod is another one.
    pub(super) replaced: bool,
}

impl Platform for Witness {
    fn predecessors_ended(&self, grant: Grant, last: Sighting) -> BoxFuture<'static, ()> {
        let (settings, requests, mut view) = (Arc::clone(&self.settings), self.requests.clone(), self.view.clone());
        let metrics = Arc::clone(&self.metrics);
        async move {
            let mut failures = 0;
            loop {
                let ended =
                    view.borrow_and_update().others(&settings.pod.uid).find(|pod| ends(pod, grant, last)).cloned();
                if let Some(pod) = ended {
                    // Whoever takes the note may use it, and nobody after that: a leader that has skipped its wait
                    // leaves no proof of an end behind but its own.
                    let asked = match requests.json_patch(&pod.name, claim_patch(&pod, &settings)).await {
                        Ok(answer) if PodState::of(&answer, &settings).note.is_none() => {
                            if pod.is_leader() {
                                metrics.swept();
                            }
                            tracing::info!(
                                predecessor = pod.name,
                                term = %last.term,
                                "the last holder of the lock has ended, the take-over wait is over"
                            );
                            return;
                        }
                        Ok(_) => {
                            tracing::debug!(predecessor = pod.name, "the end of the last holder was put back");
                            None
                        }
                        Err(error) => {
                            tracing::debug!(%error, predecessor = pod.name, "the end of the last holder proves nothing");
                            error.wait()
                        }
                    };
                    // Not sooner, whatever happens to Pods meanwhile.
                    sleep(pause(failures, asked, rand::random())).await;
                    failures = failures.saturating_add(1);
                }
                if view.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
        .boxed()
    }

    fn withdrawal_told(&self, term: Term) -> BoxFuture<'static, ()> {
        let mut told = self.told.clone();
        async move {
            // An error says that nobody tells any more.
            _ = told.wait_for(|told| told.replaced || [told.ended, told.refused].contains(&Some(term))).await;
        }
        .boxed()
    }

    fn nobody_stands_by(&self) -> BoxFuture<'static, ()> {
        let (settings, mut view) = (Arc::clone(&self.settings), self.view.clone());
        async move {
            // An error says that nothing is watched any more.
            _ = view.wait_for(|view| view.has_no_standby_but(&settings.pod.uid)).await;
        }
        .boxed()
    }

    fn vacancies(&self) -> watch::Receiver<u64> {
        self.vacancies.clone()
    }
}

/// Whether `pod` proves that the holder `last` has ended, and with it everybody who was granted the lock before it.
fn ends(pod: &PodState, grant: Grant, last: Sighting) -> bool {
    pod.note().is_some_and(|note| {
        note.term == last.term
            && note.term.timeline == grant.term.timeline
            && note.system_identifier == grant.system_identifier
            && note.exported
            && (note.withdrawn || pod.has_terminated(&note))
    })
}

#[cfg(test)]
mod tests {
    use super::super::note::TermNote;
    use super::super::tests::samples::{SYSTEM, at, note, pod, terminated};
    use super::*;
    use crate::clock::BootInstant;

    fn proves(pod: &PodState) -> bool {
        let last = Sighting { term: Term { timeline: 1, number: 7 }, asked_at: BootInstant::BOOT };
        ends(pod, Grant { term: Term { timeline: 1, number: 9 }, system_identifier: SYSTEM }, last)
    }

    #[test]
    fn the_marker_or_the_end_of_the_container_of_the_last_term_is_a_proof() {
        let marked = TermNote { withdrawn: true, ..note(7) };
        for role in ["standby", "leader"] {
            assert!(proves(&pod("b", role, Some(&marked), None)), "{role}");
        }
        let mut ended = pod("b", "leader", Some(&note(7)), Some("100"));
        assert!(!proves(&ended), "it may go on");
        ended.containers = vec![terminated("containerd://one", at(11))];
        assert!(proves(&ended));
    }

    #[test]
    fn nothing_else_is() {
        let marked = TermNote { withdrawn: true, ..note(7) };
        for (what, note) in [
            ("never exported", TermNote { exported: false, ..marked.clone() }),
            ("an earlier term", TermNote { withdrawn: true, ..note(6) }),
            ("a later term", TermNote { withdrawn: true, ..note(8) }),
            ("another timeline", TermNote { term: Term { timeline: 2, number: 7 }, ..marked.clone() }),
            ("another server", TermNote { system_identifier: SYSTEM + 1, ..marked.clone() }),
        ] {
            assert!(!proves(&pod("b", "standby", Some(&note), None)), "{what}");
        }
        assert!(!proves(&pod("b", "standby", None, None)), "no annotation");
        let mut unreadable = pod("b", "standby", None, None);
        unreadable.note = Some(marked.to_string().replace("1/7", "1/7 "));
        assert!(!proves(&unreadable), "an annotation that is none");
        for (what, container) in [
            ("another container", terminated("containerd://two", at(11))),
            ("the end of the container was before the grant", terminated("containerd://one", at(9))),
        ] {
            let pod = PodState { containers: vec![container], ..pod("b", "leader", Some(&note(7)), None) };
            assert!(!proves(&pod), "{what}");
        }
        let unknown = TermNote { container: None, ..note(7) };
        let pod = PodState { containers: vec![terminated("", at(11))], ..pod("b", "leader", Some(&unknown), None) };
        assert!(!proves(&pod), "the container is not known");
    }

    #[test]
    fn a_grant_on_another_timeline_proves_nothing_of_terms_before_it() {
        let marked = pod("b", "standby", Some(&TermNote { withdrawn: true, ..note(7) }), None);
        let last = Sighting { term: Term { timeline: 1, number: 7 }, asked_at: BootInstant::BOOT };
        let grant = Grant { term: Term { timeline: 2, number: 9 }, system_identifier: SYSTEM };
        assert!(!ends(&marked, grant, last));
    }
}
