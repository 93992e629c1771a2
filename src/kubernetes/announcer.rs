//! Which changes of the role, and which refusals, become Events.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::denials::Denied;
use super::events::Events;
use super::report::Permission;
use crate::election::{Status, Term};
use crate::exposition::KubernetesMetrics;

/// Tells [`Events`] what has changed.
pub(super) struct Announcer {
    pub(super) status: watch::Receiver<Status>,
    pub(super) denied: watch::Receiver<Denied>,
    pub(super) events: Events,
    pub(super) metrics: Arc<KubernetesMetrics>,
}

/// What was told last.
#[derive(Debug, Default)]
struct Announced {
    acquired: Option<Term>,
    lost: Option<Term>,
    refusal: Option<&'static str>,
    denied: BTreeSet<Permission>,
}

impl Announcer {
    /// Runs until `stop` is cancelled; what has changed by then is told.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut announced = Announced::default();
        loop {
            let stopping = stop.is_cancelled();
            self.tell(&mut announced);
            if stopping {
                return;
            }
            // A channel that is closed changes no more.
            tokio::select! {
                () = stop.cancelled() => {}
                Ok(()) = self.status.changed() => {}
                Ok(()) = self.denied.changed() => {}
            }
        }
    }

    fn tell(&mut self, announced: &mut Announced) {
        let status = self.status.borrow_and_update();
        if let Some(tenure) = status.tenure {
            let term = Some(tenure.term);
            if tenure.exported && announced.acquired != term {
                announced.acquired = term;
                self.events.acquired(tenure.term);
            }
            if let Some(reason) = tenure.ended
                && announced.lost != term
            {
                announced.lost = term;
                self.events.lost(reason, reason == "stopping");
            }
        }
        if status.refusal != announced.refusal {
            announced.refusal = status.refusal;
            if let Some(refusal) = status.refusal {
                self.events.refused(refusal);
            }
        }
        drop(status);
        let denied = self.denied.borrow_and_update();
        for (permission, denial) in denied.iter().filter(|(permission, _)| !announced.denied.contains(permission)) {
            self.events.denied(*permission, denial);
        }
        announced.denied = denied.keys().copied().collect();
        let labels: Vec<_> = denied.keys().map(|permission| (permission.verb, permission.resource)).collect();
        self.metrics.denied(&labels);
    }
}
