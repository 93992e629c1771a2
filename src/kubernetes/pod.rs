//! What the rest of this module looks at in a Pod.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::note::TermNote;
use crate::config::KubernetesSettings;

/// The annotation by which a ReplicaSet chooses the Pods that it deletes: those of lower cost first.
pub(super) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The value of the role label on the leader.
pub(super) const LEADER: &str = "leader";

/// The value of the role label on every other.
pub(super) const STANDBY: &str = "standby";

/// The reason that the kubelet gives for a container that it has lost track of: it may still run.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// One Pod of the instance, as it was read last.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct PodState {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: Option<String>,
    /// Value of the role label.
    pub(super) role: Option<String>,
    /// Text of the term annotation.
    pub(super) note: Option<String>,
    /// Text of the deletion cost.
    pub(super) cost: Option<String>,
    pub(super) containers: Vec<ContainerState>,
}

/// One container of a Pod, as its kubelet tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ContainerState {
    pub(super) name: String,
    /// Id of the container that runs, and since when.
    pub(super) running: Option<(String, SystemTime)>,
    /// Containers that have ended, with the time of their end.
    pub(super) terminated: Vec<(String, SystemTime)>,
}

impl PodState {
    /// Reads `pod` by the keys of `settings`.
    pub(super) fn of(pod: &Pod, settings: &KubernetesSettings) -> Self {
        let statuses = pod.status.iter().flat_map(|status| {
            [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten()
        });
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version(),
            role: pod.labels().get(&settings.role_label).cloned(),
            note: pod.annotations().get(&settings.term_annotation).cloned(),
            cost: pod.annotations().get(DELETION_COST).cloned(),
            containers: statuses.map(ContainerState::of).collect(),
        }
    }

    /// Whether the Pod carries the leader label.
    pub(super) fn is_leader(&self) -> bool {
        self.role.as_deref() == Some(LEADER)
    }

    /// What it says of its last term.
    pub(super) fn note(&self) -> Option<TermNote> {
        TermNote::parse(self.note.as_deref()?)
    }

    /// The id of the container `name`, in which this process was started at `started` by the node's clock.
    ///
    /// A status may be late and name the container that was there before: that one was running before this process
    /// was. `None` until the kubelet names one that was not.
    pub(super) fn container_of(&self, name: &str, started: SystemTime) -> Option<&str> {
        // The kubelet tells whole seconds.
        const GRANULARITY: std::time::Duration = std::time::Duration::from_secs(1);
        let container = self.containers.iter().find(|container| container.name == name)?;
        let (id, since) = container.running.as_ref()?;
        (*since + GRANULARITY >= started).then_some(id)
    }

    /// Whether the kubelet says that the container of `note` has ended, after the note's term was granted: the
    /// process has gone, and the term with it.
    pub(super) fn has_terminated(&self, note: &TermNote) -> bool {
        let Some(id) = &note.container else { return false };
        let ended = |(terminated, at): &(String, SystemTime)| terminated == id && *at > note.granted;
        self.containers.iter().any(|container| container.terminated.iter().any(ended))
    }
}

impl ContainerState {
    fn of(status: &ContainerStatus) -> Self {
        let running = status.state.as_ref().and_then(|state| state.running.as_ref());
        let since = running.and_then(|running| running.started_at.as_ref());
        let terminated = [&status.state, &status.last_state].into_iter().flatten().filter_map(|state| {
            let terminated = state.terminated.as_ref()?;
            let known = terminated.reason.as_deref() != Some(STATUS_UNKNOWN);
            let at = SystemTime::from(terminated.finished_at.as_ref()?.0);
            terminated.container_id.clone().filter(|id| known && !id.is_empty()).map(|id| (id, at))
        });
        Self {
            name: status.name.clone(),
            running: status.container_id.clone().zip(since.map(|since| SystemTime::from(since.0))),
            terminated: terminated.collect(),
        }
    }
}
