//! What the tests of the pure modules begin with.

use std::time::{Duration, SystemTime};

use super::super::note::TermNote;
use super::super::pod::{ContainerState, PodState};
use crate::config::{KubernetesSettings, OwnPod};
use crate::election::{Tenure, Term};

pub(in crate::kubernetes) const SYSTEM: u64 = 7_300_000_000_000_000_001;

pub(in crate::kubernetes) fn settings() -> KubernetesSettings {
    KubernetesSettings {
        pod: OwnPod { name: "a".into(), namespace: "ns".into(), uid: "uid-a".into() },
        instance_selector: "app=x".into(),
        container_name: "retsu-collector".into(),
        role_label: "retsu.io/collector-role".into(),
        term_annotation: "retsu.io/collector-term".into(),
        leader_deletion_cost: 100,
        request_timeout: Duration::from_secs(5),
        kubeconfig: None,
        required: true,
    }
}

/// So many seconds after some instant.
pub(in crate::kubernetes) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// Term `1/number`, granted at second 10.
pub(in crate::kubernetes) fn tenure(number: u64) -> Tenure {
    let term = Term { timeline: 1, number };
    Tenure { term, system_identifier: SYSTEM, granted: at(10), exported: true, ended: None }
}

/// The note of [`tenure`].
pub(in crate::kubernetes) fn note(number: u64) -> TermNote {
    TermNote::new(&tenure(number), Some("containerd://one"))
}

/// A Pod with these three.
pub(in crate::kubernetes) fn pod(name: &str, role: &str, note: Option<&TermNote>, cost: Option<&str>) -> PodState {
    PodState {
        name: name.into(),
        uid: format!("uid-{name}"),
        resource_version: Some("5".into()),
        role: Some(role.into()),
        note: note.map(ToString::to_string),
        cost: cost.map(str::to_owned),
        unready: false,
        stays: true,
        containers: Vec::new(),
    }
}

/// A container that has terminated.
pub(in crate::kubernetes) fn terminated(id: &str, finished: SystemTime) -> ContainerState {
    ContainerState { name: "retsu-collector".into(), running: None, terminated: vec![(id.into(), finished)] }
}
