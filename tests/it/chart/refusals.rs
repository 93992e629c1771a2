//! Bad input: each is refused by the schema or a template, with a sentence that names the value and says what to set.

use serde_json::{Value, json};

use super::helm::{Rendering, defaults};
use super::nulls::at;

/// On top of a database; what the sentence names, and what of the way out.
fn refused(values: Value, said: &[&str]) {
    let rendering = Rendering::named("minimal").with(values);
    let refusal = rendering.refusal();
    for part in said {
        assert!(refusal.contains(part), "{rendering:?}: {part:?} is not in: {refusal}");
    }
}

#[test]
fn no_database_is_refused_and_both_ways_to_give_one_are_named() {
    let refusal = Rendering::bare().refusal();
    for way in ["database.existingSecret.name", "config.database.host"] {
        assert!(refusal.contains(way), "{refusal}");
    }
}

#[test]
fn a_disruption_budget_that_is_contradictory_or_allows_no_disruption_is_refused() {
    let budget = |replicas: u32, max: Value, min: Value| json!({"replicaCount": replicas, "podDisruptionBudget": {"maxUnavailable": max, "minAvailable": min}});
    refused(budget(2, json!(1), json!(1)), &["podDisruptionBudget", "minAvailable", "maxUnavailable: null"]);
    for max in [json!(0), json!("0"), json!("0%")] {
        refused(budget(2, max, Value::Null), &["podDisruptionBudget", "maxUnavailable"]);
    }
    for min in [json!(2), json!("2"), json!(3), json!("100%"), json!("51%"), json!("99%")] {
        refused(budget(2, Value::Null, min), &["podDisruptionBudget", "minAvailable"]);
    }
    refused(budget(1, Value::Null, json!("1%")), &["podDisruptionBudget", "minAvailable"]);
    refused(budget(2, Value::Null, Value::Null), &["podDisruptionBudget"]);

    for (replicas, max, min) in [
        (1, json!(1), Value::Null),
        (2, json!("1%"), Value::Null),
        (2, Value::Null, json!(1)),
        (2, Value::Null, json!("50%")),
        (3, Value::Null, json!("66%")),
        (2, Value::Null, json!(0)),
    ] {
        let objects = Rendering::named("minimal").with(budget(replicas, max.clone(), min.clone())).objects();
        let spec = &objects.only("PodDisruptionBudget")["spec"];
        assert_eq!([&spec["maxUnavailable"], &spec["minAvailable"]], [&max, &min]);
    }
}

#[test]
fn no_replicas_and_numbers_out_of_range_are_refused() {
    for replicas in [json!(0), json!(-1), json!("two"), json!(1.5)] {
        refused(json!({"replicaCount": replicas}), &["replicaCount"]);
    }
    let beyond = json!(2_147_483_648_u64);
    for (value, key) in
        [("podDisruptionBudget", "maxUnavailable"), ("updateStrategy", "maxSurge"), ("livenessProbe", "periodSeconds")]
    {
        refused(json!({value: {key: beyond}}), &[key]);
    }
    refused(json!({"replicaCount": beyond}), &["replicaCount"]);
    refused(json!({"revisionHistoryLimit": beyond}), &["revisionHistoryLimit"]);
    for port in [json!(0), json!(65536), json!(-1), json!("http")] {
        refused(json!({"config": {"worker": {"management": {"port": port}}}}), &["port"]);
        refused(json!({"leaderService": {"port": port}}), &["port"]);
        refused(json!({"networkPolicy": {"enabled": true, "databasePorts": [port]}}), &["databasePorts"]);
        refused(json!({"networkPolicy": {"enabled": true, "apiServerPorts": [port]}}), &["apiServerPorts"]);
        refused(json!({"config": {"database": {"port": port}}}), &["port"]);
    }
}

/// Maps whose keys are the user's, or those of a type of Kubernetes.
const OPEN: [&str; 27] = [
    "affinity",
    "commonAnnotations",
    "commonLabels",
    "dnsConfig",
    "grafanaDashboard.annotations",
    "grafanaDashboard.labels",
    "leaderService.annotations",
    "leaderService.labels",
    "livenessProbe",
    "metricsService.annotations",
    "metricsService.labels",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "podMonitor.annotations",
    "podMonitor.labels",
    "podSecurityContext",
    "prometheusRule.alertLabels",
    "prometheusRule.annotations",
    "prometheusRule.labels",
    "readinessProbe",
    "resources",
    "securityContext",
    "serviceAccount.annotations",
    "serviceMonitor.annotations",
    "serviceMonitor.labels",
    "startupProbe",
];

/// The paths of all maps whose keys are the chart's.
fn maps(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    if OPEN.contains(&path.join(".").as_str()) || !value.is_object() {
        return;
    }
    found.push(path.clone());
    for (key, value) in value.as_object().into_iter().flatten() {
        path.push(key.clone());
        maps(value, path, found);
        path.pop();
    }
}

#[test]
fn an_unknown_key_is_refused_at_every_level_and_named() {
    let mut all = Vec::new();
    maps(&defaults(), &mut Vec::new(), &mut all);
    assert!(all.len() > 20, "{all:?}");
    for mut path in all {
        path.push("unknownKey".to_owned());
        refused(at(&path, json!(true)), &["unknownKey"]);
    }
}

#[test]
fn one_family_of_addresses_where_there_are_to_be_two_is_refused_because_no_upgrade_would_pass() {
    for service in ["leaderService", "metricsService"] {
        for policy in ["PreferDualStack", "RequireDualStack"] {
            let one = json!({service: {"ipFamilyPolicy": policy, "ipFamilies": ["IPv6"]}});
            refused(one, &[&format!("{service}.ipFamilies"), "both"]);
        }
    }
}

#[test]
fn two_families_of_addresses_need_a_policy_that_has_two() {
    for service in ["leaderService", "metricsService"] {
        for policy in ["", "SingleStack"] {
            let two = json!({service: {"ipFamilyPolicy": policy, "ipFamilies": ["IPv4", "IPv6"]}});
            refused(two, &[&format!("{service}.ipFamilyPolicy"), "PreferDualStack"]);
        }
    }
}

#[test]
fn what_the_chart_has_already_is_refused_among_what_is_added() {
    for (value, field, names) in [
        ("extraContainers", "name", &["retsu-collector"][..]),
        ("extraVolumes", "name", &["config", "token", "database-url", "database-ca"]),
        ("extraVolumeMounts", "mountPath", &["/etc/retsu-collector", "/run/secrets/retsu-collector/url"]),
        ("extraEnv", "name", &["POD_NAME", "POD_UID", "PGSSLMODE", "RETSU_KUBERNETES__TERM_ANNOTATION"]),
    ] {
        for taken in names {
            let mut added = json!({"name": "other", "image": "other"});
            added[field] = json!(taken);
            let rendering = Rendering::named("everything").with(json!({value: [added]}));
            let refusal = rendering.refusal();
            assert!(refusal.contains(value) && refusal.contains(taken), "{refusal}");
        }
        let mut twice = json!({"name": "other"});
        twice[field] = json!("/other");
        refused(json!({value: [twice, twice]}), &[value, "/other"]);
    }
}

#[test]
fn two_monitors_for_the_same_replicas_are_refused() {
    let both = json!({"serviceMonitor": {"enabled": true}, "podMonitor": {"enabled": true}});
    refused(both, &["serviceMonitor.enabled", "podMonitor.enabled"]);
}

#[test]
fn a_scrape_that_the_operator_or_the_alerts_have_no_use_for_is_refused() {
    for monitor in ["serviceMonitor", "podMonitor"] {
        for (interval, timeout) in [("10s", "11s"), ("1m", "1m1ms"), ("500ms", "1s")] {
            let values = json!({monitor: {"enabled": true, "interval": interval, "scrapeTimeout": timeout}});
            refused(values, &[&format!("{monitor}.scrapeTimeout"), interval, timeout]);
        }
        for (interval, timeout) in [("1m", "60s"), ("", "5m"), ("0", "10s"), ("1m30s", "")] {
            let values = json!({monitor: {"enabled": true, "interval": interval, "scrapeTimeout": timeout}});
            Rendering::named("minimal").with(values).objects();
        }
        let with_alerts = |interval: &str| json!({monitor: {"enabled": true, "interval": interval}, "prometheusRule": {"enabled": true}});
        for interval in ["5m", "2m1s", "1h", "1d", "1w", "1y"] {
            refused(with_alerts(interval), &["prometheusRule.enabled", "2m"]);
        }
        for interval in ["2m", "1m30s", "500ms", "0", ""] {
            Rendering::named("minimal").with(with_alerts(interval)).objects();
        }
    }
}

#[test]
fn a_secret_in_the_configuration_is_refused_and_not_repeated() {
    let secret = "postgres://u:tops3cret@db/q";
    for (key, instead) in [("url", "database.existingSecret"), ("password", "database.passwordSecret")] {
        for rendering in [Rendering::named("minimal"), Rendering::named("parts-tls")] {
            let refusal = rendering.with(json!({"config": {"database": {key: secret}}})).refusal();
            assert!(refusal.contains(&format!("config.database.{key}")) && refusal.contains(instead), "{refusal}");
            assert!(!refusal.contains("tops3cret"), "{refusal}");
        }
    }
}

#[test]
fn a_label_that_something_selects_by_is_refused_as_one_of_the_users() {
    for labels in ["commonLabels", "podLabels"] {
        for reserved in
            ["app.kubernetes.io/name", "app.kubernetes.io/instance", "pod-template-hash", "retsu.io/collector-role"]
        {
            refused(json!({labels: {reserved: "leader"}}), &[labels, reserved]);
        }
        let changed = json!({labels: {"example.com/role": "leader"}, "config": {"kubernetes": {"role_label": "example.com/role"}}});
        refused(changed, &[labels, "example.com/role"]);
    }
}

#[test]
fn the_role_label_cannot_be_one_that_workloads_are_selected_by() {
    for label in ["app.kubernetes.io/name", "app.kubernetes.io/instance", "pod-template-hash"] {
        refused(json!({"config": {"kubernetes": {"role_label": label}}}), &["role_label"]);
    }
}

#[test]
fn what_the_chart_sets_itself_is_refused_in_the_configuration() {
    for key in ["mode", "instance_selector", "container_name"] {
        refused(json!({"config": {"kubernetes": {key: "auto"}}}), &[&format!("config.kubernetes.{key}")]);
    }
}

#[test]
fn the_admission_policy_is_refused_where_kubernetes_has_none() {
    let refusal = Rendering::named("policy").kubernetes(super::OLDEST).refusal();
    assert!(refusal.contains("admissionPolicy.enabled") && refusal.contains("1.30"), "{refusal}");
}
