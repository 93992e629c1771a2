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

#[test]
fn with_null_in_place_of_every_value_but_the_database_the_chart_renders() {
    let values = defaults();
    let of_nulls = |value: &Value| match value {
        Value::Object(members) => members.keys().map(|key| (key.clone(), Value::Null)).collect::<Map<_, _>>().into(),
        _ => Value::Null,
    };
    let database = json!({"database": {"existingSecret": {"name": "retsu-database"}}});
    let shallow: Map<_, _> = values.as_object().unwrap().keys().map(|key| (key.clone(), Value::Null)).collect();
    let deep: Map<_, _> =
        values.as_object().unwrap().iter().map(|(key, value)| (key.clone(), of_nulls(value))).collect();
    for (nulls, unnamed) in [(shallow, true), (deep, true)] {
        let mut nulls = Value::Object(nulls);
        nulls.as_object_mut().unwrap().remove("database");
        if unnamed {
            // A ServiceAccount that nobody makes has to be named.
            nulls["serviceAccount"] = json!({"create": null, "name": "named", "annotations": null});
        }
        let objects = Rendering::bare().with(database.clone()).with(nulls).objects();
        assert_eq!(objects.of("Deployment").count(), 1);
    }
}
