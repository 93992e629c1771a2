//! Values that are not there: `null`, and what an upgrade with `--reuse-values` has of an older release.

use serde_json::{Map, Value, json};

use super::helm::{Rendering, defaults, is_own};

/// The paths of all values, maps among them.
fn paths(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        path.push(key.clone());
        found.push(path.clone());
        paths(value, path, found);
        path.pop();
    }
}

/// A value at a path, within nothing else.
pub(super) fn at(path: &[String], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| json!({key: value}))
}

/// Renders, or is refused with a sentence that the chart means.
fn stands(rendering: &Rendering, what: &str) {
    if let Err(complaint) = rendering.text() {
        assert!(is_own(&complaint), "{what}: {complaint}");
    }
}

#[test]
fn without_any_single_value_the_chart_renders_or_says_what_to_set() {
    let mut all = Vec::new();
    paths(&defaults(), &mut Vec::new(), &mut all);
    assert!(all.len() > 100, "{}", all.len());
    std::thread::scope(|scope| {
        for name in ["everything", "parts-tls"] {
            let all = &all;
            scope.spawn(move || {
                for path in all {
                    stands(&Rendering::named(name).with(at(path, Value::Null)), &format!("{name}, {}", path.join(".")));
                }
            });
        }
    });
}

/// The same maps, with null for everything in them.
pub(super) fn nulled(value: &Value) -> Value {
    match value {
        Value::Object(members) if !members.is_empty() => {
            members.iter().map(|(key, value)| (key.clone(), nulled(value))).collect::<Map<_, _>>().into()
        }
        _ => Value::Null,
    }
}

#[test]
fn with_null_in_place_of_every_value_but_the_database_the_chart_renders() {
    let deep = nulled(&defaults());
    let shallow: Map<_, _> = deep.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect();
    for nulls in [shallow.into(), deep] {
        let given = json!({
            "database": {"existingSecret": {"name": "retsu-database"}},
            // One that nobody makes has to be named.
            "serviceAccount": {"name": "named"},
        });
        let objects = Rendering::bare().with(nulls).with(given).objects();
        assert_eq!(objects.only("Deployment")["spec"]["template"]["spec"]["serviceAccountName"], "named");
    }
}
