//! From the role of this process to what its Pod should say, and to the patch that makes it so: pure.

use serde_json::{Map, Value, json};

use super::note::TermNote;
use super::pod::{DELETION_COST, LEADER, PodState, STANDBY};
use crate::config::KubernetesSettings;
use crate::election::{Role, Status, Tenure};

/// What the own Pod should say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Desired {
    /// The role label, with the deletion cost.
    pub(super) role: Role,
    /// The term annotation; without a term it is left as it is.
    pub(super) tenure: Option<Tenure>,
}

impl Desired {
    /// What a process with this `status` wants.
    pub(super) const fn of(status: &Status) -> Self {
        Self { role: status.role, tenure: status.tenure }
    }

    /// The merge patch that brings the own Pod there. `None` when it is there, or when nothing is known of it that
    /// a patch could do.
    ///
    /// `own` is the Pod as it was read last. With it comes its resource version as a precondition, so that a patch
    /// that arrives late, after a newer one, changes nothing. When it could not be read, label and cost are patched
    /// all the same; the annotation is not, because others act on what it says.
    pub(super) fn patch(
        &self,
        own: Option<&PodState>,
        container: Option<&str>,
        settings: &KubernetesSettings,
    ) -> Option<Value> {
        let cost = (self.role == Role::Leader).then(|| settings.leader_deletion_cost.to_string());
        let (mut labels, mut annotations) = (Map::new(), Map::new());
        if own.is_none_or(|own| own.role.as_deref() != Some(label(self.role))) {
            labels.insert(settings.role_label.clone(), label(self.role).into());
        }
        if own.is_none_or(|own| own.cost != cost) {
            annotations.insert(DELETION_COST.to_owned(), cost.into());
        }
        if let Some(note) = own.and_then(|own| self.note(own, container)) {
            annotations.insert(settings.term_annotation.clone(), note.into());
        }
        if labels.is_empty() && annotations.is_empty() {
            return None;
        }
        let mut metadata = Map::new();
        // Without it a Pod that was made again under the same name would be labelled.
        metadata.insert("uid".to_owned(), settings.pod.uid.clone().into());
        if let Some(version) = own.and_then(|own| own.resource_version.as_ref()) {
            metadata.insert("resourceVersion".to_owned(), version.clone().into());
        }
        for (name, entries) in [("labels", labels), ("annotations", annotations)] {
            if !entries.is_empty() {
                metadata.insert(name.to_owned(), entries.into());
            }
        }
        Some(json!({ "metadata": metadata }))
    }

    /// The annotation to be written, when it is not there.
    fn note(&self, own: &PodState, container: Option<&str>) -> Option<String> {
        let tenure = self.tenure?;
        // A term that is over is marked where it stands. Once the mark was used by a new leader, or anybody else
        // has taken the note away, it must not come back.
        if tenure.ended.is_some() && own.note().is_none_or(|note| !is_of(&note, &tenure)) {
            return None;
        }
        // The container stays the one of the term.
        let known = own.note().filter(|note| is_of(note, &tenure)).and_then(|note| note.container);
        let text = TermNote::new(&tenure, container.or(known.as_deref())).to_string();
        (own.note.as_ref() != Some(&text)).then_some(text)
    }

    /// Whether `own` says that the term `tenure` is over, as far as it says anything of it.
    pub(super) fn is_told(own: &PodState, tenure: &Tenure) -> bool {
        !own.is_leader() && own.note().is_none_or(|note| !is_of(&note, tenure) || note.withdrawn)
    }
}

fn is_of(note: &TermNote, tenure: &Tenure) -> bool {
    (note.term, note.system_identifier) == (tenure.term, tenure.system_identifier)
}

/// The value of the role label.
pub(super) const fn label(role: Role) -> &'static str {
    match role {
        Role::Leader => LEADER,
        Role::Standby => STANDBY,
    }
}

/// The Pod, if any, to which a leader of `tenure` yields the label: it carries the label as well, and a higher term of
/// the same server. The server decides between the two; until it has, the later one is reached.
pub(super) fn superior<'a>(tenure: &Tenure, others: impl Iterator<Item = &'a PodState>) -> Option<&'a PodState> {
    let higher = |note: TermNote| {
        note.system_identifier == tenure.system_identifier && note.term > tenure.term && !note.withdrawn
    };
    others.into_iter().find(|other| other.is_leader() && other.note().is_some_and(higher))
}

/// The JSON patch that takes the leader label off `other`, with its term and deletion cost, if it still carries it.
pub(super) fn sweep(other: &PodState, settings: &KubernetesSettings) -> Value {
    let role = format!("/metadata/labels/{}", escaped(&settings.role_label));
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": other.uid}),
        json!({"op": "test", "path": role, "value": LEADER}),
        json!({"op": "remove", "path": role}),
    ];
    for (key, present) in [(settings.term_annotation.as_str(), &other.note), (DELETION_COST, &other.cost)] {
        if present.is_some() {
            operations.push(json!({"op": "remove", "path": annotation(key)}));
        }
    }
    operations.into()
}

/// The JSON patch that takes the term annotation off `other`, if it is still the same, word by word. The API server
/// lets one of those succeed who try.
pub(super) fn claim(other: &PodState, settings: &KubernetesSettings) -> Value {
    let path = annotation(&settings.term_annotation);
    json!([
        {"op": "test", "path": "/metadata/uid", "value": other.uid},
        {"op": "test", "path": path, "value": other.note},
        {"op": "remove", "path": path},
    ])
}

fn annotation(key: &str) -> String {
    format!("/metadata/annotations/{}", escaped(key))
}

/// `key` as one step of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
