//! From the role of this process to what its Pod should say, and to the patch that makes it so: pure.

use serde_json::{Map, Value, json};

use super::note::TermNote;
use super::pod::PodState;
use crate::config::{DELETION_COST, KubernetesSettings};
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
    /// all the same; the annotation is not, because others act on what it says. `marked` says that the withdrawal marker
    /// of the term was sent before.
    pub(super) fn patch(
        &self,
        own: Option<&PodState>,
        container: Option<&str>,
        marked: bool,
        settings: &KubernetesSettings,
    ) -> Option<Value> {
        let cost = (self.role == Role::Leader).then(|| settings.leader_deletion_cost.to_string());
        let (mut labels, mut annotations) = (Map::new(), Map::new());
        if own.is_none_or(|own| own.role.as_deref() != Some(self.role.as_str())) {
            labels.insert(settings.role_label.clone(), self.role.as_str().into());
        }
        if own.is_none_or(|own| own.cost != cost) {
            annotations.insert(DELETION_COST.to_owned(), cost.into());
        }
        if let Some(note) = own.and_then(|own| self.note(own, container, marked)) {
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
    fn note(&self, own: &PodState, container: Option<&str>, marked: bool) -> Option<String> {
        let tenure = self.tenure?;
        let last = own.note().filter(|note| is_of(note, &tenure));
        // A new leader may have taken the marked note away, and used it: it must not come back.
        if tenure.ended.is_some() && marked && last.is_none() {
            return None;
        }
        // The container of a term stays the same, also when the kubelet does not name it any more. One that has ended
        // never was that of this process, which goes on.
        let known = last.and_then(|note| note.container).filter(|id| !own.has_ended(id));
        let text = TermNote::new(&tenure, known.as_deref().or(container)).to_string();
        (own.note.as_ref() != Some(&text)).then_some(text)
    }
}

fn is_of(note: &TermNote, tenure: &Tenure) -> bool {
    (note.term, note.system_identifier) == (tenure.term, tenure.system_identifier)
}

/// The Pod, if any, to which a leader of `tenure` yields the label: it carries the label as well, and a higher term of
/// the same server. The server decides between the two; until it has, the later one is reached. No Service reaches a Pod
/// that is not ready.
pub(super) fn superior<'a>(tenure: &Tenure, others: impl Iterator<Item = &'a PodState>) -> Option<&'a PodState> {
    let higher = |note: TermNote| {
        note.system_identifier == tenure.system_identifier && note.term > tenure.term && !note.withdrawn
    };
    others.into_iter().find(|other| other.is_leader() && !other.unready && other.note().is_some_and(higher))
}

/// The JSON patch that takes the leader label off `other`, with its term and deletion cost, if it still carries it.
pub(super) fn sweep_patch(other: &PodState, settings: &KubernetesSettings) -> Value {
    sweep(other, settings).into()
}

/// The JSON patch that takes the term annotation off `other`, if it is still the same, word by word. The API server
/// lets one of those succeed who try. It sweeps a Pod that still has the leader label, which is then without it before
/// the next leader exports.
pub(super) fn claim_patch(other: &PodState, settings: &KubernetesSettings) -> Value {
    let path = annotation(&settings.term_annotation);
    let text = json!({"op": "test", "path": path, "value": other.note});
    let mut operations = if other.is_leader() {
        sweep(other, settings)
    } else {
        vec![json!({"op": "test", "path": "/metadata/uid", "value": other.uid}), json!({"op": "remove", "path": path})]
    };
    operations.insert(0, text);
    operations.into()
}

fn sweep(other: &PodState, settings: &KubernetesSettings) -> Vec<Value> {
    let role = format!("/metadata/labels/{}", escaped(&settings.role_label));
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": other.uid}),
        json!({"op": "test", "path": role, "value": Role::Leader.as_str()}),
        json!({"op": "remove", "path": role}),
    ];
    for (key, present) in [(settings.term_annotation.as_str(), &other.note), (DELETION_COST, &other.cost)] {
        if present.is_some() {
            operations.push(json!({"op": "remove", "path": annotation(key)}));
        }
    }
    operations
}

fn annotation(key: &str) -> String {
    format!("/metadata/annotations/{}", escaped(key))
}

/// `key` as one step of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::tests::samples::{SYSTEM, at, note, pod, settings, tenure, terminated};
    use super::*;
    use crate::election::Term;

    const CONTAINER: Option<&str> = Some("containerd://one");

    fn leader(number: u64) -> Desired {
        Desired { role: Role::Leader, tenure: Some(tenure(number)) }
    }

    fn ended(number: u64) -> Desired {
        Desired { role: Role::Standby, tenure: Some(Tenure { ended: Some("stopping"), ..tenure(number) }) }
    }

    const NO_TERM: Desired = Desired { role: Role::Standby, tenure: None };

    fn patch(desired: &Desired, own: Option<&PodState>) -> Option<Value> {
        desired.patch(own, CONTAINER, false, &settings())
    }

    #[test]
    fn a_leader_says_label_cost_and_term_in_one_patch_with_both_preconditions() {
        let own = pod("a", "standby", None, None);
        let wanted = json!({"metadata": {
            "uid": "uid-a", "resourceVersion": "5",
            "labels": {"retsu.io/collector-role": "leader"},
            "annotations": {
                "controller.kubernetes.io/pod-deletion-cost": "100",
                "retsu.io/collector-term": note(7).to_string(),
            },
        }});
        assert_eq!(patch(&leader(7), Some(&own)), Some(wanted));
    }

    #[test]
    fn what_is_so_already_is_not_patched() {
        let own = pod("a", "leader", Some(&note(7)), Some("100"));
        assert_eq!(patch(&leader(7), Some(&own)), None);
        assert_eq!(patch(&NO_TERM, Some(&pod("a", "standby", None, None))), None);
        let marked = TermNote { withdrawn: true, ..note(7) };
        assert_eq!(patch(&ended(7), Some(&pod("a", "standby", Some(&marked), None))), None);
    }

    #[test]
    fn only_what_differs_is_patched() {
        let metadata = |own: &PodState| patch(&leader(7), Some(own)).unwrap()["metadata"].clone();
        let own = pod("a", "leader", Some(&note(7)), Some("7"));
        assert_eq!(
            metadata(&own),
            json!({"uid": "uid-a", "resourceVersion": "5",
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "100"}})
        );
        let own = pod("a", "other", Some(&note(7)), Some("100"));
        assert_eq!(
            metadata(&own),
            json!({"uid": "uid-a", "resourceVersion": "5", "labels": {"retsu.io/collector-role": "leader"}})
        );
    }

    #[test]
    fn a_start_takes_the_label_and_the_cost_of_the_last_container_and_leaves_its_term() {
        let own = pod("a", "leader", Some(&note(7)), Some("100"));
        let wanted = json!({"metadata": {
            "uid": "uid-a", "resourceVersion": "5",
            "labels": {"retsu.io/collector-role": "standby"},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": null},
        }});
        assert_eq!(patch(&NO_TERM, Some(&own)), Some(wanted));
    }

    #[test]
    fn a_pod_that_cannot_be_read_is_labelled_all_the_same_and_says_nothing_of_the_term() {
        let wanted = json!({"metadata": {
            "uid": "uid-a",
            "labels": {"retsu.io/collector-role": "leader"},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": "100"},
        }});
        assert_eq!(patch(&leader(7), None), Some(wanted));
    }

    #[test]
    fn the_end_of_a_term_is_marked_and_a_mark_that_somebody_took_away_does_not_come_back() {
        let settings = settings();
        let marked = TermNote { withdrawn: true, ..note(7) }.to_string();
        let written = |own: &PodState, sent| {
            let patch = ended(7).patch(Some(own), CONTAINER, sent, &settings)?;
            patch["metadata"]["annotations"].get(&settings.term_annotation)?.as_str().map(str::to_owned)
        };
        let own = pod("a", "leader", Some(&note(7)), Some("100"));
        assert_eq!([false, true].map(|sent| written(&own, sent)), [Some(marked.clone()), Some(marked.clone())]);
        let foreign = TermNote { system_identifier: SYSTEM + 1, ..note(7) };
        let mut unreadable = pod("a", "leader", None, Some("100"));
        unreadable.note = Some("{}".into());
        for own in [
            // Claimed by a new leader, or taken away by a hand, or never there.
            pod("a", "leader", None, Some("100")),
            pod("a", "leader", Some(&note(6)), Some("100")),
            pod("a", "leader", Some(&foreign), Some("100")),
            unreadable,
        ] {
            assert_eq!(written(&own, true), None, "{own:?}");
            // It also makes whatever patch is under way one of an old resource version.
            assert_eq!(written(&own, false), Some(marked.clone()), "{own:?}");
        }
    }

    #[test]
    fn a_container_is_named_once_it_is_known_and_stays_that_of_the_term() {
        let (desired, settings) = (leader(7), settings());
        let text = |own: &PodState, container| {
            let patch = desired.patch(Some(own), container, false, &settings)?;
            let text = patch["metadata"]["annotations"][&settings.term_annotation].as_str().map(str::to_owned);
            text.and_then(|text| TermNote::parse(&text)).map(|note| note.container)
        };
        let unknown = TermNote { container: None, ..note(7) };
        assert_eq!(text(&pod("a", "standby", None, None), None), Some(None));
        assert_eq!(text(&pod("a", "leader", Some(&unknown), Some("100")), CONTAINER), Some(note(7).container));
        // A status that does not name it any more, or another one, does not take the name away.
        assert_eq!(text(&pod("a", "leader", Some(&note(7)), Some("100")), Some("containerd://other")), None);
        assert_eq!(text(&pod("a", "leader", Some(&note(7)), Some("100")), None), None);
        // What the kubelet says has ended was never that of this process: its status was late, and the clock set back.
        let ended = |own: PodState| PodState { containers: vec![terminated("containerd://one", at(20))], ..own };
        let two = Some("containerd://two");
        assert_eq!(text(&ended(pod("a", "leader", Some(&note(7)), Some("100"))), two), Some(two.map(str::to_owned)));
        assert_eq!(text(&ended(pod("a", "leader", Some(&note(7)), Some("100"))), None), Some(None));
        // That of an earlier term in this Pod was another one.
        assert_eq!(text(&pod("a", "leader", Some(&note(6)), Some("100")), None), Some(None));
    }

    #[test]
    fn a_leader_yields_to_the_label_of_a_later_term_of_the_same_server_that_is_not_over() {
        let yields = |other: &PodState| superior(&tenure(7), [other].into_iter()).is_some();
        assert!(yields(&pod("b", "leader", Some(&note(8)), None)));
        let timeline = TermNote { term: Term { timeline: 2, number: 1 }, ..note(8) };
        assert!(yields(&pod("b", "leader", Some(&timeline), None)));
        for note in [
            note(7),
            note(6),
            TermNote { withdrawn: true, ..note(8) },
            TermNote { system_identifier: SYSTEM + 1, ..note(8) },
        ] {
            assert!(!yields(&pod("b", "leader", Some(&note), None)), "{note}");
        }
        assert!(
            !yields(&PodState { unready: true, ..pod("b", "leader", Some(&note(8)), None) }),
            "it is gone for Services"
        );
        assert!(!yields(&pod("b", "standby", Some(&note(8)), None)) && !yields(&pod("b", "leader", None, None)));
    }

    #[test]
    fn a_sweep_tests_uid_and_label_and_removes_what_is_there() {
        let (role, test) = ("/metadata/labels/retsu.io~1collector-role", "test");
        let begin = [
            json!({"op": test, "path": "/metadata/uid", "value": "uid-b"}),
            json!({"op": test, "path": role, "value": "leader"}),
            json!({"op": "remove", "path": role}),
        ];
        assert_eq!(sweep_patch(&pod("b", "leader", None, None), &settings()), json!(begin));
        let all = begin.into_iter().chain([
            json!({"op": "remove", "path": "/metadata/annotations/retsu.io~1collector-term"}),
            json!({"op": "remove", "path": "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost"}),
        ]);
        let labelled = pod("b", "leader", Some(&note(6)), Some("100"));
        assert_eq!(sweep_patch(&labelled, &settings()), Value::from_iter(all));
    }

    #[test]
    fn a_claim_tests_uid_and_text_and_removes_the_note_and_the_label_of_a_leader() {
        let path = "/metadata/annotations/retsu.io~1collector-term";
        let marked = TermNote { withdrawn: true, ..note(6) };
        let text = json!({"op": "test", "path": path, "value": marked.to_string()});
        let uid = json!({"op": "test", "path": "/metadata/uid", "value": "uid-b"});
        let wanted = json!([text, uid, {"op": "remove", "path": path}]);
        assert_eq!(claim_patch(&pod("b", "standby", Some(&marked), None), &settings()), wanted);
        let labelled = pod("b", "leader", Some(&marked), Some("100"));
        let wanted: Vec<_> = std::iter::once(text).chain(sweep(&labelled, &settings())).collect();
        assert_eq!(claim_patch(&labelled, &settings()), Value::from(wanted));
        assert_eq!(escaped("a~b/c"), "a~0b~1c");
    }
}
