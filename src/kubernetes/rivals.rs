//! Other Pods with the leader label: which of the two keeps it.

use tokio::time::Instant;

use super::backoff::pause;
use super::label::{Desired, superior, sweep_patch};
use super::reconciler::{Reconciler, Step};
use super::request_error::RequestErrorKind;
use crate::election::Role;

impl Reconciler {
    /// Whether the label is left to the Pod of a later term.
    pub(super) fn yields(&mut self, desired: &Desired) -> bool {
        let tenure = desired.tenure.filter(|_| desired.role == Role::Leader);
        let name = tenure.and_then(|tenure| {
            let view = self.view.borrow();
            superior(&tenure, view.others(&self.settings.pod.uid)).map(|pod| pod.name.clone())
        });
        if name != self.known.yielded {
            if let Some(pod) = &name {
                tracing::warn!(
                    pod,
                    "another Pod has the leader label and a later term, this one leaves the label to it"
                );
            }
            self.known.yielded = name;
        }
        self.known.yielded.is_some()
    }

    /// Takes the leader label off other Pods. Only an exporting leader gets here: its take-over wait is over.
    pub(super) async fn sweep(&mut self, desired: &Desired) -> Step {
        let other = {
            let view = self.view.borrow();
            // What the watch does not see any more may have gone.
            let rival = view.others(&self.settings.pod.uid).find(|pod| pod.is_leader());
            rival.filter(|_| desired.role == Role::Leader && view.is_complete()).cloned()
        };
        let Some(other) = other else {
            (self.known.swept, self.known.failed_sweeps, self.known.sweep_due) = (None, 0, None);
            return Step::Settled;
        };
        let version = Some((other.uid.clone(), other.resource_version.clone()));
        if self.known.swept == version {
            // The watch has not told of it yet.
            return Step::Settled;
        }
        // The own label is looked at meanwhile.
        let now = Instant::now();
        let due = self.known.sweep_due.take().unwrap_or_else(|| now + self.known.sweeps.wait(now, rand::random()));
        if due > now {
            self.known.sweep_due = Some(due);
            return Step::Settled;
        }
        let (requests, patch) = (self.requests.clone(), sweep_patch(&other, &self.settings));
        match self.unless_changed(requests.json_patch(&other.name, patch)).await {
            None => return Step::Again,
            Some(Ok(_)) => {
                self.metrics.swept();
                let now = Instant::now();
                self.known.sweeps.made(now);
                if self.known.sweeps.tells(now) {
                    tracing::warn!(pod = other.name, "the leader label was taken off another Pod");
                }
            }
            Some(Err(error)) if error.kind.is_outage() || error.kind == RequestErrorKind::Denied => {
                let pause = pause(self.known.failed_sweeps, error.wait(), rand::random());
                self.known.failed_sweeps = self.known.failed_sweeps.saturating_add(1);
                self.known.sweep_due = Some(Instant::now() + pause);
                return Step::Settled;
            }
            // It has changed since it was read, or has gone.
            Some(Err(_)) => {}
        }
        (self.known.swept, self.known.failed_sweeps) = (version, 0);
        Step::Again
    }
}
