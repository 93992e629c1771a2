//! What the rest of this module looks at in a Pod.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use super::note::TermNote;
use crate::config::{DELETION_COST, KubernetesSettings};
use crate::election::Role;

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
    /// Whether the kubelet, or who watches over its node, says that the Pod is not ready: no Service leads to it.
    pub(super) unready: bool,
    /// Whether it says that it is ready, and nobody has asked it to go.
    pub(super) stays: bool,
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
        let conditions = || {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.filter(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str())
        };
        Self {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            resource_version: pod.resource_version(),
            role: pod.labels().get(&settings.role_label).cloned(),
            note: pod.annotations().get(&settings.term_annotation).cloned(),
            cost: pod.annotations().get(DELETION_COST).cloned(),
            unready: conditions().any(|status| status != "True"),
            stays: conditions().any(|status| status == "True") && pod.metadata.deletion_timestamp.is_none(),
            containers: statuses.map(ContainerState::of).collect(),
        }
    }

    /// Whether the Pod carries the leader label.
    pub(super) fn is_leader(&self) -> bool {
        self.role.as_deref() == Some(Role::Leader.as_str())
    }

    /// Whether the Pod is that of a standby which may take over at any time.
    pub(super) fn stands_by(&self) -> bool {
        self.stays && self.role.as_deref() == Some(Role::Standby.as_str())
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

    /// Whether the kubelet says that the container `id` has ended.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.ends(id).next().is_some()
    }

    /// Whether the kubelet says that the container of `note` has ended, after the note's term was granted: the
    /// process has gone, and the term with it.
    pub(super) fn has_terminated(&self, note: &TermNote) -> bool {
        note.container.as_ref().is_some_and(|id| self.ends(id).any(|at| at > note.granted))
    }

    /// When the container `id` ended, as often as the kubelet says so.
    fn ends(&self, id: &str) -> impl Iterator<Item = SystemTime> {
        let terminated = self.containers.iter().flat_map(|container| &container.terminated);
        terminated.filter(move |(terminated, _)| terminated == id).map(|(_, at)| *at)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    #![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is used")]

    use serde_json::{Value, json};

    use super::super::tests::samples::{at, note, settings};
    use super::*;

    /// A Pod with this status, as the API server writes it.
    fn pod(status: Value) -> PodState {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "b", "uid": "uid-b", "resourceVersion": "12",
                "labels": {"retsu.io/collector-role": "leader", "app": "x"},
                "annotations": {
                    "retsu.io/collector-term": "text", "controller.kubernetes.io/pod-deletion-cost": "100", "x": "y",
                },
            },
            "status": status,
        }))
        .unwrap();
        PodState::of(&pod, &settings())
    }

    /// The status of a container; the instants are seconds of `at`.
    fn container(name: &str, id: &str, state: Value, last_state: Value) -> Value {
        json!({
            "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": id, "state": state, "lastState": last_state,
        })
    }

    #[test]
    fn a_pod_is_unready_when_its_condition_says_anything_but_true() {
        for (ready, unready) in [("True", false), ("False", true), ("Unknown", true)] {
            let conditions = json!([{"type": "Initialized", "status": "False"}, {"type": "Ready", "status": ready}]);
            let read = pod(json!({ "conditions": conditions }));
            assert_eq!((read.unready, read.stays), (unready, !unready), "{ready}");
        }
        let silent = pod(json!({}));
        assert!(!silent.unready && !silent.stays, "nothing is said of it yet");
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let leaving: Pod = serde_json::from_value(json!({
            "metadata": {"name": "b", "deletionTimestamp": "2026-11-30T00:00:00Z"}, "status": ready,
        }))
        .unwrap();
        assert!(!PodState::of(&leaving, &settings()).stays, "it was asked to go");
    }

    fn time(seconds: u64) -> String {
        humantime::format_rfc3339_seconds(at(seconds)).to_string()
    }

    fn running(since: u64) -> Value {
        json!({"running": {"startedAt": time(since)}})
    }

    fn ended(id: &str, reason: &str, at: u64) -> Value {
        json!({"terminated": {"containerID": id, "exitCode": 1, "reason": reason, "finishedAt": time(at)}})
    }

    #[test]
    fn keeps_name_identity_version_label_annotations_and_containers() {
        let status = json!({
            "containerStatuses": [container("worker", "c://w", running(3), json!({}))],
            "initContainerStatuses": [container("retsu-collector", "c://2", running(8), ended("c://1", "Error", 7))],
        });
        let read = pod(status);
        let of = |name: &str, running: (&str, u64), terminated: &[(&str, u64)]| ContainerState {
            name: name.into(),
            running: Some((running.0.into(), at(running.1))),
            terminated: terminated.iter().map(|&(id, end)| (id.into(), at(end))).collect(),
        };
        let wanted = PodState {
            name: "b".into(),
            uid: "uid-b".into(),
            resource_version: Some("12".into()),
            role: Some("leader".into()),
            note: Some("text".into()),
            cost: Some("100".into()),
            unready: false,
            stays: false,
            containers: vec![of("worker", ("c://w", 3), &[]), of("retsu-collector", ("c://2", 8), &[("c://1", 7)])],
        };
        assert_eq!(read, wanted);
        assert!(read.is_leader() && read.note().is_none());
        assert_eq!(pod(json!(null)).containers, []);
    }

    #[test]
    fn the_own_container_is_one_that_runs_since_the_start_of_the_process_and_no_earlier() {
        let of = |state: Value| {
            let status = json!({"containerStatuses": [
                container("worker", "c://w", running(99), json!({})),
                container("retsu-collector", "c://1", state, json!({})),
            ]});
            let pod = pod(status);
            let started = at(20) + std::time::Duration::from_millis(700);
            pod.container_of("retsu-collector", started).map(str::to_owned)
        };
        let known = Some("c://1".to_owned());
        // The kubelet tells whole seconds, and a little later than it starts a container.
        assert_eq!([of(running(20)), of(running(21)), of(running(60))], [known.clone(), known.clone(), known]);
        assert_eq!(of(running(19)), None, "the one before, of a status that is late");
        assert_eq!([of(ended("c://1", "Error", 30)), of(json!({"waiting": {}})), of(json!({}))], [None, None, None]);
    }

    #[test]
    fn a_container_has_ended_when_the_kubelet_says_so_after_the_grant() {
        let note = note(7);
        let ends = |status: Value| pod(json!({"containerStatuses": [status]})).has_terminated(&note);
        let one = "containerd://one";
        let with = |state, last| container("retsu-collector", one, state, last);
        assert!(ends(with(ended(one, "Error", 11), json!({}))));
        assert!(ends(with(running(12), ended(one, "Completed", 11))), "and another runs in its place");
        assert!(!ends(with(ended(one, "ContainerStatusUnknown", 11), json!({}))), "it may run still");
        assert!(!ends(with(ended("containerd://two", "Error", 11), json!({}))), "another");
        assert!(!ends(with(ended("", "Error", 11), json!({}))), "nobody knows which");
        assert!(!ends(with(ended(one, "Error", 10), json!({}))), "not after the grant");
        assert!(!ends(with(json!({"terminated": {"containerID": one, "exitCode": 1}}), json!({}))), "no time");
        assert!(!ends(with(running(3), json!({}))));
        let unknown = TermNote { container: None, ..note.clone() };
        let status = json!({"containerStatuses": [with(ended(one, "Error", 11), json!({}))]});
        assert!(!pod(status).has_terminated(&unknown));
    }
}
