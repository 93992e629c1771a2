//! Names: short enough, and different wherever two things are.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::helm::{LONGEST_RELEASE, Rendering, read_by_yaml_1_1};
use super::objects::{Objects, kind, labels, name, namespace};
use super::subchart::parent;

/// The longest name of a label's value, of a Service, and of nearly everything.
const LONGEST: usize = 63;

fn longest(letter: &str, length: usize) -> String {
    letter.repeat(length)
}

/// Renderings with the longest names there are.
fn renderings() -> Vec<Rendering> {
    let all = |values: Value| Rendering::named("everything").with(json!({"nameOverride": ""})).with(values);
    let release = longest("r", LONGEST_RELEASE);
    vec![
        all(json!({})),
        all(json!({})).release(&release).namespace(&longest("n", LONGEST)),
        // A dash where the name is cut.
        all(json!({})).release(&format!("{}-b", longest("a", LONGEST_RELEASE - 2))),
        all(json!({})).release(&longest("r", LONGEST_RELEASE - 1)),
        all(json!({"nameOverride": longest("o", LONGEST)})).release(&release),
        all(json!({"nameOverride": longest("o", LONGEST)})),
        all(json!({"fullnameOverride": longest("f", LONGEST_RELEASE)})),
        all(json!({"fullnameOverride": "f"})).release(&release),
        all(json!({"fullnameOverride": "f", "nameOverride": "o"})),
        Rendering::named("pod-monitor").release(&release),
    ]
}

fn check(objects: &Objects) {
    let mut identities = BTreeSet::new();
    for object in objects.iter() {
        let (kind, name) = (kind(object), name(object));
        // Where releases of other namespaces have names, too, a name carries its own: no Service and no Pod is there.
        let carries = name.contains('.') && !["Service", "Pod"].contains(&kind);
        assert!(name.len() <= if carries { 253 } else { LONGEST }, "{kind} {name}");
        assert!(name.starts_with(char::is_alphanumeric) && name.ends_with(char::is_alphanumeric), "{kind} {name}");
        assert!(identities.insert((kind, namespace(object), name)), "two of {kind} {name}");
        for (label, value) in labels(object) {
            assert!(value.as_str().unwrap().len() <= LONGEST, "{kind} {name}: {label}");
        }
    }
}

#[test]
fn no_name_and_no_label_is_too_long_and_no_two_objects_have_one_name() {
    for rendering in renderings() {
        check(&rendering.objects());
    }
}

#[test]
fn two_releases_whose_long_names_differ_in_the_last_character_share_no_name() {
    for length in [LONGEST_RELEASE, LONGEST_RELEASE - 1, 40, 38, 30] {
        let of = |last: &str| {
            Rendering::named("everything").release(&format!("{}{last}", longest("r", length - 1))).objects()
        };
        let (one, other) = (of("a"), of("b"));
        let shared: Vec<_> =
            one.identities().into_iter().filter(|identity| other.identities().contains(identity)).collect();
        assert_eq!(shared, Vec::<[&str; 3]>::new(), "{length}");
    }
}

/// Helm deletes what has the name of a hook before it makes the hook, whoever it belongs to.
#[test]
fn a_test_deletes_nothing_of_another_release() {
    let of =
        |release: &str| Rendering::named("everything").with(json!({"nameOverride": ""})).release(release).objects();
    let tested = of("retsu-collector");
    let hooks: Vec<_> =
        tested.iter().filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "test").collect();
    assert_eq!(hooks.len(), 4);
    for suffix in ["test", "leader", "metrics", "dashboard"] {
        let other = of(&format!("retsu-collector-{suffix}"));
        for hook in &hooks {
            let hit = |object: &&Value| [kind(object), name(object)] == [kind(hook), name(hook)];
            assert_eq!(other.iter().find(hit), None, "{suffix}");
        }
    }
}

#[test]
fn policies_of_two_namespaces_and_releases_are_two_also_where_both_run_together() {
    let policy = |namespace: &str, release: &str| {
        let objects = Rendering::named("policy").namespace(namespace).release(release).objects();
        name(objects.only("ValidatingAdmissionPolicy")).to_owned()
    };
    assert_ne!(policy("team", "a-retsu"), policy("team-a", "retsu"));
    assert_ne!(policy("team", "a"), policy("team", "b"));
    assert_ne!(policy("a", "team"), policy("b", "team"));
}

#[test]
fn in_a_namespace_that_releases_share_each_has_names_of_its_own() {
    let elsewhere = json!({"enabled": true, "namespace": "monitoring"});
    let leader = json!({"enabled": true, "namespace": "monitoring", "leader": {"enabled": true}});
    for monitors in [json!({"serviceMonitor": leader}), json!({"podMonitor": elsewhere})] {
        let of = |namespace: &str| {
            let rendering = Rendering::named("minimal").namespace(namespace).with(monitors.clone());
            rendering.with(json!({"prometheusRule": elsewhere, "grafanaDashboard": elsewhere})).objects()
        };
        let (staging, production) = (of("staging"), of("production"));
        assert!(staging.iter().any(|object| namespace(object) == "monitoring"));
        for identity in staging.identities() {
            assert!(!production.identities().contains(&identity), "{identity:?}");
        }
    }
}

#[test]
fn a_name_that_no_service_may_have_is_refused_also_where_it_comes_from_an_alias() {
    for alias in ["queueMetrics", "queue_metrics"] {
        let parent = parent(&[alias]);
        let values = json!({alias: {"database": {"existingSecret": {"name": "retsu-database"}}}});
        let refusal = Rendering::bare().chart(parent.path()).with(values).refusal();
        assert!(refusal.contains(alias) && refusal.contains("fullnameOverride"), "{refusal}");

        let named = json!({alias: {
            "database": {"existingSecret": {"name": "retsu-database"}},
            "admissionPolicy": {"enabled": true},
            "fullnameOverride": "queues",
        }});
        for object in Rendering::bare().chart(parent.path()).with(named).objects().iter() {
            assert_eq!(name(object), name(object).to_lowercase().replace('_', "-"), "{}", kind(object));
        }
    }
}

#[test]
fn names_that_are_too_long_are_refused_or_cut_and_never_rendered_as_they_are() {
    for (value, length) in [("fullnameOverride", LONGEST_RELEASE + 1), ("nameOverride", LONGEST + 1)] {
        let rendering = Rendering::named("everything").with(json!({value: longest("x", length)}));
        match rendering.text() {
            Ok(text) => check(&Objects::parse(&text)),
            Err(_) => assert!(rendering.refusal().contains(value)),
        }
    }
}

#[test]
fn names_that_yaml_takes_for_something_else_stay_names() {
    // A Service's name begins with a letter.
    let prefix = |text: &str| if text.starts_with(char::is_alphabetic) { text.to_owned() } else { "null".to_owned() };
    for text in ["1234", "1e3", "0x10", "012", "on", "yes", "null", "true", "1.5"] {
        let secrets = json!({
            "existingSecret": {"name": text},
            "tls": {"ca": {"secretName": text}, "clientCertificate": {"secretName": text}},
        });
        let values = json!({
            "nameOverride": text.replace('.', "-"),
            "fullnameOverride": prefix(text),
            "serviceAccount": {"name": text},
            "database": secrets,
            "priorityClassName": text,
            "serviceMonitor": {"namespace": text.replace('.', "-")},
            "commonLabels": {"label": text},
            "podLabels": {"label": text},
            "config": {"kubernetes": {"role_label": text}},
        });
        let rendering = Rendering::named("everything").with(values).release(text).namespace(&text.replace('.', "-"));
        let objects = rendering.objects();
        check(&objects);
        let read: Vec<_> = objects.iter().cloned().collect();
        assert_eq!(read_by_yaml_1_1(&rendering.text().unwrap()), read, "{text}");
    }
}
