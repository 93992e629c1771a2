use super::*;

const SELECTOR: &str = "app.kubernetes.io/instance=retsu";
const UID: &str = "0c0e7f6a-5b51-4a7e-9f9e-0d9f6b1c2d3e";

/// What a Pod with a service account tells its container, besides a database.
const POD: [(&str, &str); 4] =
    [("POD_NAME", "retsu-0"), ("POD_NAMESPACE", "queues"), ("POD_UID", UID), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")];

/// A Pod where everything is there but the variables `without`.
fn pod(mode: &str, without: &[&str]) -> Sources {
    let variables: Vec<_> = POD.into_iter().filter(|(name, _)| !without.contains(name)).collect();
    let mut sources = with_database(environment(&variables));
    sources.service_account_token = true;
    sources.flags = vec![flag("kubernetes.mode", mode), flag("kubernetes.instance_selector", SELECTOR)];
    sources
}

fn decided(sources: &Sources) -> KubernetesMode {
    load(sources).unwrap_or_else(|error| panic!("{error}")).settings.kubernetes
}

fn on(sources: &Sources) -> KubernetesSettings {
    match decided(sources) {
        KubernetesMode::On(settings) => settings,
        KubernetesMode::Off { reason } => panic!("off: {reason}"),
    }
}

fn why_off(sources: &Sources) -> String {
    match decided(sources) {
        KubernetesMode::Off { reason } => reason,
        KubernetesMode::On(settings) => panic!("on: {settings:?}"),
    }
}

#[test]
fn auto_is_on_where_pod_selector_and_service_account_are_there() {
    for mode in ["auto", "on", "true"] {
        let settings = KubernetesSettings {
            pod: OwnPod { name: "retsu-0".into(), namespace: "queues".into(), uid: UID.into() },
            instance_selector: SELECTOR.into(),
            container_name: "retsu-collector".into(),
            role_label: "retsu.io/collector-role".into(),
            term_annotation: "retsu.io/collector-term".into(),
            leader_deletion_cost: 100,
            request_timeout: std::time::Duration::from_secs(5),
            kubeconfig: None,
            required: mode != "auto",
        };
        assert_eq!(on(&pod(mode, &[])), settings, "{mode}");
    }
}

#[test]
fn auto_is_off_and_names_each_thing_that_is_missing() {
    for (variable, _) in POD {
        let reason = why_off(&pod("auto", &[variable]));
        assert_eq!(reason, format!("kubernetes.mode is auto and these are missing: {variable}"));
    }
    let mut sources = pod("auto", &[]);
    sources.service_account_token = false;
    assert!(why_off(&sources).ends_with("missing: the service account's token"), "{}", why_off(&sources));
    let mut sources = pod("auto", &[]);
    sources.flags.pop();
    assert!(why_off(&sources).ends_with("missing: kubernetes.instance_selector"), "{}", why_off(&sources));
    assert_eq!(
        why_off(&with_database(Sources::default())),
        "kubernetes.mode is auto and these are missing: POD_NAME, POD_NAMESPACE, POD_UID, kubernetes.instance_selector, \
         KUBERNETES_SERVICE_HOST, the service account's token"
    );
}

#[test]
fn auto_takes_no_kubeconfig_for_a_service_account_and_no_other_text_for_a_pod() {
    let mut sources = pod("auto", &["KUBERNETES_SERVICE_HOST"]);
    sources.environment.push(("KUBECONFIG".into(), "/k".into()));
    assert!(why_off(&sources).contains("KUBERNETES_SERVICE_HOST"));
    let mut sources = pod("auto", &[]);
    sources.environment.push(("KUBECONFIG".into(), "/k".into()));
    assert!(on(&sources).kubeconfig.is_none());
    let mut sources = pod("auto", &["POD_NAME"]);
    sources.environment.push(("POD_NAME".into(), "a/b".into()));
    assert!(why_off(&sources).ends_with("missing: POD_NAME (it must be `metadata.name` of this Pod)"));
}

#[test]
fn off_is_off_wherever_it_runs() {
    for mode in ["off", "false"] {
        assert_eq!(why_off(&pod(mode, &[])), "kubernetes.mode is off");
        assert_eq!(why_off(&pod(mode, &["POD_UID", "KUBERNETES_SERVICE_HOST"])), "kubernetes.mode is off");
    }
}

#[test]
fn on_refuses_the_configuration_for_each_thing_that_is_missing() {
    let rules = [
        ("POD_NAME", "must be `metadata.name` of this Pod"),
        ("POD_NAMESPACE", "must be `metadata.namespace` of this Pod"),
        ("POD_UID", "must be `metadata.uid` of this Pod"),
        ("KUBERNETES_SERVICE_HOST", "must be set by the kubelet, or else `KUBECONFIG`"),
    ];
    for (variable, rule) in rules {
        let text = problem(&pod("on", &[variable]));
        assert_eq!(text, format!("{variable}: {rule}, because `kubernetes.mode` is on (flag --set)"));
    }
    let mut sources = pod("on", &[]);
    sources.service_account_token = false;
    assert!(problem(&sources).starts_with("the service account's token: must be mounted"), "{}", problem(&sources));
    let mut sources = pod("on", &[]);
    sources.flags.pop();
    assert!(problem(&sources).starts_with("kubernetes.instance_selector: must select"), "{}", problem(&sources));
    for (variable, value) in [("POD_NAME", "a/../b"), ("POD_NAMESPACE", "Queues"), ("POD_UID", "a b"), ("POD_UID", "")]
    {
        let mut sources = pod("on", &[variable]);
        sources.environment.push((variable.into(), value.into()));
        let text = problem(&sources);
        assert!(text.starts_with(&format!("{variable} = \"{value}\" (environment {variable}): must be")), "{text}");
    }
    let all = load(&with_database(environment(&[("RETSU_KUBERNETES__MODE", "on")]))).unwrap_err();
    assert_eq!(all.problems().len(), 6, "{all}");
}

#[test]
fn on_takes_a_kubeconfig_that_is_set_before_the_service_account() {
    let mut sources = pod("on", &[]);
    sources.environment.push(("KUBECONFIG".into(), "/home/me/config".into()));
    assert!(on(&sources).kubeconfig.is_some());
    let mut sources = pod("on", &["KUBERNETES_SERVICE_HOST"]);
    sources.service_account_token = false;
    sources.environment.push(("KUBECONFIG".into(), "/home/me/config".into()));
    assert!(on(&sources).kubeconfig.is_some());
    // An empty one is none, and that of the home directory never counts.
    let mut sources = pod("on", &[]);
    sources.environment.extend([("KUBECONFIG".into(), "".into()), ("HOME".into(), "/home/me".into())]);
    assert!(on(&sources).kubeconfig.is_none());
}

#[test]
fn a_selector_that_looks_at_the_role_label_is_refused() {
    for (selector, label) in [
        ("retsu.io/collector-role=leader", "retsu.io/collector-role"),
        ("app=retsu, retsu.io/collector-role in (leader, standby)", "retsu.io/collector-role"),
        ("app=retsu,!role", "role"),
    ] {
        let mut sources = pod("auto", &[]);
        sources.flags[1] = flag("kubernetes.instance_selector", selector);
        sources.flags.push(flag("kubernetes.role_label", label));
        let text = problem(&sources);
        let start = format!("kubernetes.instance_selector = \"{selector}\" (flag --set): must not look at `{label}`");
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn the_term_does_not_go_into_the_annotation_of_the_deletion_cost() {
    let mut sources = pod("auto", &[]);
    sources.flags.push(flag("kubernetes.term_annotation", "controller.kubernetes.io/pod-deletion-cost"));
    assert!(problem(&sources).starts_with("kubernetes.term_annotation = "), "{}", problem(&sources));
}

#[test]
fn nothing_is_missing_because_of_a_value_that_was_refused() {
    let mut sources = pod("on", &["POD_UID"]);
    sources.flags[1] = flag("kubernetes.instance_selector", "app in");
    let text = problem(&sources);
    assert!(text.starts_with("kubernetes.instance_selector = \"app in\" (flag --set): must be a Kubernetes"), "{text}");
}

#[test]
fn on_and_off_may_have_been_made_booleans_on_the_way() {
    for (yaml, collection) in [("true", true), ("on", true), ("'on'", true), ("false", false), ("off", false)] {
        let yaml = format!("worker: {{queue: {{state_metrics_collector: {{collection: {yaml}}}}}}}\n");
        let loaded = load(&with_database(file(&yaml))).unwrap();
        assert_eq!(loaded.settings.collector.collection, collection, "{yaml}");
        let printed = format!("collection: \"{}\" #", if collection { "on" } else { "off" });
        assert!(loaded.report.to_string().contains(&printed), "{}", loaded.report);
    }
    assert_eq!(why_off(&with_database(file("kubernetes: {mode: false}"))), "kubernetes.mode is off");
    assert!(problem(&with_database(file("logging: {format: true}"))).contains("not a boolean"));
}
