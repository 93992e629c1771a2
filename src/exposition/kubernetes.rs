//! Metrics of what this process says to Kubernetes, and of what it sees there.

use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::MetricsError;
use super::registry::{counter, counters, gauges};
use crate::election::Role;

/// Whether the holder of the lock and the Pods with the leader label agree.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Agreement {
    /// No Pod has the label.
    None,
    /// One Pod has it: that of the holder.
    One,
    /// More than one Pod has it.
    Two,
    /// One Pod has it, and it is not that of the holder.
    Wrong,
}

impl Agreement {
    const ALL: [Self; 4] = [Self::None, Self::One, Self::Two, Self::Wrong];

    /// The value of the label `state`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One => "one",
            Self::Two => "two",
            Self::Wrong => "wrong",
        }
    }
}

/// The metrics of a process that tells Kubernetes who leads; a process that does not has none of them. Every method is
/// safe to call from any thread and waits for nothing.
pub struct KubernetesMetrics {
    registry: Registry,
    requests: IntCounterVec,
    denied: IntGaugeVec,
    leader_label: IntGaugeVec,
    repairs: IntCounterVec,
    sweeps: IntCounter,
    agreement: IntGaugeVec,
    events_dropped: IntCounter,
}

impl KubernetesMetrics {
    /// Metrics of a process that has sent and seen nothing yet.
    ///
    /// # Errors
    /// Only when a constant of this module is no valid name.
    pub fn new() -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let metrics = Self {
            requests: counters(
                &registry,
                "kubernetes_requests_total",
                "Requests to the Kubernetes API, by verb, resource and outcome.",
                &["verb", "resource", "outcome"],
            )?,
            denied: gauges(
                &registry,
                "kubernetes_denied_info",
                "What the Kubernetes API does not permit this process, always 1; absent when it does.",
                &["verb", "resource"],
            )?,
            leader_label: gauges(
                &registry,
                "leader_label",
                "Whether the Pod of this process had the leader label when it was last read; absent while unknown.",
                &[],
            )?,
            repairs: counters(
                &registry,
                "label_repairs_total",
                "Times that somebody else had changed the role label of this Pod and it was set again, by the role set.",
                &["to"],
            )?,
            sweeps: counter(&registry, "label_sweeps_total", "Leader labels that this process took off other Pods.")?,
            agreement: gauges(
                &registry,
                "label_agreement",
                "Whether the holder of the lock and the Pods with the leader label agree: no Pod has it, one and rightly, \
                 more than one, or the wrong one; absent while unknown.",
                &["state"],
            )?,
            events_dropped: counter(
                &registry,
                "events_dropped_total",
                "Events for Kubernetes that were not sent, or that it did not take.",
            )?,
            registry,
        };
        // Rates need a first sample.
        for role in [Role::Leader, Role::Standby] {
            metrics.repairs.with_label_values(&[role.as_str()]);
        }
        Ok(metrics)
    }

    /// A request ended. All three come from closed sets: the verb and resource of the API, and how it ended.
    pub fn request(&self, verb: &'static str, resource: &'static str, outcome: &'static str) {
        self.requests.with_label_values(&[verb, resource, outcome]).inc();
    }

    /// These verbs on these resources are refused at present, and no others.
    pub fn denied(&self, denied: &[(&'static str, &'static str)]) {
        self.denied.reset();
        for (verb, resource) in denied {
            self.denied.with_label_values(&[verb, resource]).set(1);
        }
    }

    /// Whether the own Pod has the leader label, as last read; `None` while that is unknown.
    pub fn leader_label(&self, labelled: Option<bool>) {
        match labelled {
            Some(labelled) => self.leader_label.with_label_values::<&str>(&[]).set(labelled.into()),
            None => self.leader_label.reset(),
        }
    }

    /// The role label of the own Pod was changed by somebody else, and is now `role` again.
    pub fn repaired(&self, role: Role) {
        self.repairs.with_label_values(&[role.as_str()]).inc();
    }

    /// The leader label of another Pod was removed.
    pub fn swept(&self) {
        self.sweeps.inc();
    }

    /// What was seen last of lock and labels; `None` while that is unknown.
    pub fn agreement(&self, agreement: Option<Agreement>) {
        match agreement {
            Some(agreement) => {
                for state in Agreement::ALL {
                    self.agreement.with_label_values(&[state.label()]).set((state == agreement).into());
                }
            }
            None => self.agreement.reset(),
        }
    }

    /// An Event was left out.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }
}
