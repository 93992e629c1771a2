//! Text in values arrives as it was given, whatever is in it, or is refused.

use proptest::prelude::{ProptestConfig, any};
use proptest::{prop_assert, proptest};
use serde_json::{Value, json};

use super::helm::{Rendering, defaults, is_own};
use super::nulls::at;
use super::objects::{Objects, strings};

/// Quotes, a template, a comment, a mapping, a list, a document's end, and more than ASCII.
const HOSTILE: &str = "it's \"quoted\" \\ {{ .Values }} {{ fail }} : # no comment, é 列 🦀\n---\n- next: 'line'\n\ttab";

/// Text that YAML of one version or another takes for something else.
const SCALARS: [&str; 16] = [
    "yes",
    "on",
    "No",
    "null",
    "~",
    "true",
    "1e3",
    "0x10",
    "012",
    "0o7",
    "1_000",
    "12:30:45",
    "2026-01-01",
    ".inf",
    "=",
    "",
];

/// Where any text may stand, and whether in a map, a list or by itself.
fn free() -> Vec<(&'static str, Value)> {
    vec![
        ("commonAnnotations", json!({})),
        ("podAnnotations", json!({})),
        ("leaderService.annotations", json!({})),
        ("metricsService.annotations", json!({})),
        ("serviceAccount.annotations", json!({})),
        ("serviceMonitor.annotations", json!({})),
        ("prometheusRule.annotations", json!({})),
        ("prometheusRule.alertLabels", json!({})),
        ("grafanaDashboard.annotations", json!({})),
        ("extraEnv", json!([])),
        ("config.database.user", json!("")),
        ("config.database.dbname", json!("")),
        ("config.logging.filter", json!("")),
    ]
}

/// The chart with everything on, its database given in parts.
fn base() -> Rendering {
    Rendering::named("everything").with(json!({
        "database": {"existingSecret": null, "passwordSecret": {"name": "retsu-password"}},
        "config": {"database": {"host": "db.example.com"}},
    }))
}

/// With a text at every place where any may stand, each told apart by its number.
fn with_text(text: &str) -> (Rendering, Vec<String>) {
    let (mut rendering, mut given) = (base(), Vec::new());
    for (number, (path, shape)) in free().into_iter().enumerate() {
        let mut text = format!("{text}{number}");
        // The program takes no control characters, so neither does the schema.
        text.retain(|letter| !path.starts_with("config.") || !letter.is_control());
        let value = match shape {
            Value::Object(_) => json!({"hostile": text}),
            Value::Array(_) => json!([{"name": "HOSTILE", "value": text}]),
            _ => json!(text),
        };
        let path: Vec<_> = path.split('.').map(str::to_owned).collect();
        rendering = rendering.with(at(&path, value));
        given.push(text);
    }
    (rendering, given)
}

/// Every string of all objects, and of the configuration in the ConfigMap.
fn everything_said(objects: &Objects) -> Vec<String> {
    let configuration: Value = serde_yaml::from_str(objects.configuration()).unwrap();
    let all = objects.iter().flat_map(strings).chain(strings(&configuration));
    all.map(str::to_owned).collect()
}

/// Of `given`, what is nowhere in a rendering as it was given.
fn lost(rendering: &Rendering, given: &[String]) -> Vec<String> {
    let said = everything_said(&rendering.objects());
    given.iter().filter(|text| !said.contains(text)).cloned().collect()
}

#[test]
fn hostile_text_and_64_kib_of_it_arrive_as_they_were_given() {
    let long = "αβ {{ x }}: \"#' \n".repeat(64 * 1024 / 18 + 1);
    assert!(long.len() >= 64 * 1024);
    for text in [
        HOSTILE,
        &format!("  {HOSTILE}\n\n"),
        &long,
        "{{",
        "}}",
        "- ",
        "%YAML",
        "@",
        "`",
        "|",
        ">",
        "&a",
        "*a",
        "!!str",
    ] {
        let (rendering, given) = with_text(text);
        assert_eq!(lost(&rendering, &given), Vec::<String>::new(), "{:?}", text.get(..80).unwrap_or(text));
    }
}

#[test]
fn text_that_looks_like_another_type_stays_text() {
    for text in SCALARS {
        let values = json!({
            "podAnnotations": {"scalar": text},
            "commonAnnotations": {"scalar": text},
            "podLabels": {"scalar": "yes"},
            "commonLabels": {"other": "012"},
            "extraEnv": [{"name": "SCALAR", "value": text}],
        });
        let objects = base().with(values).objects();
        let pod = &objects.only("Deployment")["spec"]["template"];
        assert_eq!(pod["metadata"]["annotations"]["scalar"], text);
        assert_eq!(pod["metadata"]["labels"]["scalar"], "yes");
        assert_eq!(objects.only("Deployment")["metadata"]["labels"]["other"], "012");
        let environment = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        assert!(environment.iter().any(|variable| variable["name"] == "SCALAR" && variable["value"] == text), "{text}");
    }
}

/// The paths of all values that are text.
fn texts(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    if value.is_string() {
        found.push(path.clone());
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        path.push(key.clone());
        texts(value, path, found);
        path.pop();
    }
}

#[test]
fn hostile_text_in_any_single_value_is_refused_or_arrives_and_none_is_ignored() {
    let mut paths = Vec::new();
    texts(&defaults(), &mut Vec::new(), &mut paths);
    assert!(paths.len() > 30, "{paths:?}");
    let without_digest = json!({"image": {"digest": ""}});
    let bases = [
        Rendering::named("everything").with(without_digest),
        base(),
        Rendering::named("parts-tls"),
        Rendering::named("pod-monitor"),
    ];
    for path in paths {
        let mut arrived = false;
        for base in &bases {
            let rendering = base.clone().with(at(&path, json!(HOSTILE)));
            match rendering.text() {
                Err(complaint) => {
                    assert!(is_own(&complaint), "{}: {complaint}", path.join("."));
                    arrived = true;
                }
                Ok(text) => {
                    let said = everything_said(&Objects::parse(&text));
                    arrived |= said.iter().any(|said| said.contains(HOSTILE));
                }
            }
            if arrived {
                break;
            }
        }
        assert!(arrived, "{} is ignored, or changed on its way", path.join("."));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_arrives_as_it_was_given(text in "[\\PC\n\t ]{0,60}", last in any::<bool>()) {
        let text = if last { format!("{text}\n") } else { text };
        let (rendering, given) = with_text(&text);
        let lost = lost(&rendering, &given);
        prop_assert!(lost.is_empty(), "{:?}", lost);
    }
}
