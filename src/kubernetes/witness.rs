//! What the election learns from the cluster: that an old holder has ended, and that a place seems to be free.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::label::claim;
use super::pod::PodState;
use super::requests::Requests;
use super::view::View;
use crate::config::KubernetesSettings;
use crate::election::{Grant, Platform, Sighting, Term};

/// The cluster that this process runs in.
pub(super) struct Witness {
    pub(super) settings: Arc<KubernetesSettings>,
    pub(super) requests: Requests,
    pub(super) view: watch::Receiver<View>,
    pub(super) vacancies: watch::Receiver<u64>,
    /// The term whose end the own Pod tells, or that can't be told.
    pub(super) told: watch::Receiver<Told>,
}

/// How far the own Pod follows the election.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Told {
    /// The last term that is over, and of which the Pod says so.
    pub(super) ended: Option<Term>,
    /// Whether the Pod cannot be patched: it is forbidden, or the Pod is another.
    pub(super) hopeless: bool,
}

impl Platform for Witness {
    fn predecessors_ended(&self, grant: Grant, last: Sighting) -> BoxFuture<'static, ()> {
        let (settings, requests, mut view) = (Arc::clone(&self.settings), self.requests.clone(), self.view.clone());
        async move {
            loop {
                let ended =
                    view.borrow_and_update().others(&settings.pod.uid).find(|pod| ends(pod, grant, last)).cloned();
                if let Some(pod) = ended {
                    // Whoever takes the note may use it, and nobody after that: a leader that has skipped its wait
                    // leaves no proof of an end behind but its own.
                    match requests.json_patch(&pod.name, claim(&pod, &settings)).await {
                        Ok(_) => {
                            tracing::info!(
                                predecessor = pod.name,
                                term = %last.term,
                                "the last holder of the lock has ended, the take-over wait is over"
                            );
                            return;
                        }
                        Err(error) => {
                            tracing::debug!(%error, predecessor = pod.name, "the end of the last holder proves nothing");
                        }
                    }
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
            _ = told.wait_for(|told| told.hopeless || told.ended == Some(term)).await;
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
