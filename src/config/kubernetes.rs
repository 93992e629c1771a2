//! Whether Kubernetes is told who leads, and as which Pod.

use super::error::{Problem, ProblemKind};
use super::labels::{is_dns_label, is_dns_subdomain, keys_of_selector};
use super::load::{Effective, shown_text};
use super::settings::{KubernetesMode, KubernetesSettings, OwnPod};
use super::source::{Source, Sources};

const SECTION: &str = "kubernetes.";
const MODE: &str = "kubernetes.mode";
const SELECTOR: &str = "kubernetes.instance_selector";
const ROLE_LABEL: &str = "kubernetes.role_label";
const TERM_ANNOTATION: &str = "kubernetes.term_annotation";

/// The annotation of a Pod that says how late it is taken when its ReplicaSet shrinks.
pub(crate) const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Decides from what was read whether Kubernetes is on. What `on` lacks is a problem; what `auto` lacks is the reason
/// for being off.
pub(super) fn decide(effective: &Effective, sources: &Sources, problems: &mut Vec<Problem>) -> KubernetesMode {
    let mode: String = effective.always(MODE);
    // A value that was refused has left its default behind, against which nothing is to be held.
    if mode == "off" || problems.iter().any(|problem| problem.subject().starts_with(SECTION)) {
        return KubernetesMode::Off { reason: format!("{MODE} is off") };
    }
    problems.extend(clashes(effective));
    let on = mode == "on";
    let kubeconfig = sources.variable("KUBECONFIG").filter(|paths| on && !paths.is_empty());
    let mut lacks = Vec::new();
    let pod = own_pod(sources, &mut lacks);
    let selector: Option<String> = effective.get(SELECTOR);
    if selector.is_none() {
        lacks.push(Lack { subject: SELECTOR, value: None, rule: "must select the Pods of this instance" });
    }
    if kubeconfig.is_none() {
        lacks.extend(service_account(sources));
    }
    match (pod, selector) {
        (Some(pod), Some(instance_selector)) if lacks.is_empty() => KubernetesMode::On(KubernetesSettings {
            pod,
            instance_selector,
            container_name: effective.always("kubernetes.container_name"),
            role_label: effective.always(ROLE_LABEL),
            term_annotation: effective.always(TERM_ANNOTATION),
            leader_deletion_cost: effective.always("kubernetes.leader_deletion_cost"),
            request_timeout: effective.always("kubernetes.request_timeout_seconds"),
            kubeconfig: kubeconfig.map(ToOwned::to_owned),
            required: on,
        }),
        _ => {
            let names = lacks.iter().map(Lack::name).collect::<Vec<_>>().join(", ");
            if on {
                let source = effective.source(MODE).unwrap_or(Source::Default).to_string();
                problems.extend(lacks.into_iter().map(|lack| lack.into_problem(&source)));
            }
            KubernetesMode::Off { reason: format!("{MODE} is auto and these are missing: {names}") }
        }
    }
}

/// The rules between the keys of the section.
fn clashes(effective: &Effective) -> Vec<Problem> {
    let (role_label, annotation): (String, String) = (effective.always(ROLE_LABEL), effective.always(TERM_ANNOTATION));
    let refuse = |path: &'static str, value: &str, rule: String| {
        Problem::new(ProblemKind::Conflict, path, effective.source(path), rule).with_value(shown_text(value))
    };
    let mut problems = Vec::new();
    if let Some(selector) = effective.get::<String>(SELECTOR)
        && keys_of_selector(&selector).is_some_and(|keys| keys.contains(&role_label.as_str()))
    {
        let rule = format!(
            "must not look at `{role_label}`, which is `{ROLE_LABEL}`: the Pods that it selects must not depend on who leads"
        );
        problems.push(refuse(SELECTOR, &selector, rule));
    }
    if annotation == DELETION_COST {
        let rule = "must be another annotation: Kubernetes reads this one as a number".to_owned();
        problems.push(refuse(TERM_ANNOTATION, &annotation, rule));
    }
    problems
}

/// Something that Kubernetes cannot be on without.
struct Lack {
    /// The variable, key or file.
    subject: &'static str,
    /// What is there instead.
    value: Option<String>,
    /// What has to be there.
    rule: &'static str,
}

impl Lack {
    fn name(&self) -> String {
        match &self.value {
            None => self.subject.to_owned(),
            Some(_) => format!("{} (it {})", self.subject, self.rule),
        }
    }

    fn into_problem(self, mode: &str) -> Problem {
        let rule = format!("{}, because `{MODE}` is on ({mode})", self.rule);
        let (kind, source) = match &self.value {
            None => (ProblemKind::Missing, None),
            Some(_) => (ProblemKind::InvalidValue, Some(Source::Environment(self.subject.into()))),
        };
        Problem::new(kind, self.subject, source, rule).with_value(self.value.as_deref().map(shown_text))
    }
}

/// The Pod that the downward API names.
fn own_pod(sources: &Sources, lacks: &mut Vec<Lack>) -> Option<OwnPod> {
    let mut named = |subject: &'static str, valid: fn(&str) -> bool, rule: &'static str| {
        let value = sources.variable(subject).map(|value| value.to_string_lossy().into_owned());
        let valid = value.as_deref().is_some_and(valid);
        if !valid {
            lacks.push(Lack { subject, value: value.clone(), rule });
        }
        value.filter(|_| valid)
    };
    let name = named("POD_NAME", is_dns_subdomain, "must be `metadata.name` of this Pod");
    let namespace = named("POD_NAMESPACE", is_dns_label, "must be `metadata.namespace` of this Pod");
    let uid = named("POD_UID", is_uid, "must be `metadata.uid` of this Pod");
    Some(OwnPod { name: name?, namespace: namespace?, uid: uid? })
}

/// A UUID, or what the kubelet makes for a Pod of its own.
fn is_uid(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// What a service account lacks.
fn service_account(sources: &Sources) -> Vec<Lack> {
    let mut lacks = Vec::new();
    if sources.variable("KUBERNETES_SERVICE_HOST").is_none_or(|host| host.is_empty()) {
        let rule = "must be set by the kubelet, or else `KUBECONFIG`";
        lacks.push(Lack { subject: "KUBERNETES_SERVICE_HOST", value: None, rule });
    }
    if !sources.service_account_token {
        let rule = "must be mounted, or else `KUBECONFIG` set";
        lacks.push(Lack { subject: "the service account's token", value: None, rule });
    }
    lacks
}
