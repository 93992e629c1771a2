//! What is known of the label of the own Pod, for others to read.

use std::time::SystemTime;

use serde::Serialize;

use crate::election::Role;

/// How the label of the own Pod stands to what it should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LabelState {
    /// Kubernetes is off: there is no label.
    Off,
    /// It is not known to be what it should be, and is being set.
    Pending,
    /// It was read back as what it should be.
    Set,
    /// Kubernetes does not permit what is needed to set it.
    Denied(Permission),
    /// The Pod was replaced by another of the same name; its label is left alone.
    Replaced,
}

/// What a Role permits: a verb on a resource.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Permission {
    /// The verb of the API, such as `patch`.
    pub verb: &'static str,
    /// The resource, such as `pods`.
    pub resource: &'static str,
}

/// The label of the own Pod, published on a watch channel at every change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LabelReport {
    /// How it stands to what it should be.
    pub state: LabelState,
    /// What it said when it was last read; `None` when it said nothing, or was never read.
    pub role: Option<Role>,
    /// Since when `state` is so, by the wall clock.
    pub since: SystemTime,
}

impl LabelReport {
    /// That of a process which has read nothing yet.
    #[must_use]
    pub(super) fn pending() -> Self {
        Self { state: LabelState::Pending, ..Self::off() }
    }

    /// That of a process which says nothing to Kubernetes.
    #[must_use]
    pub fn off() -> Self {
        Self { state: LabelState::Off, role: None, since: SystemTime::now() }
    }
}
