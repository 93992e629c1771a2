//! The schema of the values, as a whole; `charts/retsu-collector/tests/schema*_test.yaml` have what it says to single ones.

use serde_json::{Value, json};

use super::helm::{Rendering, chart, defaults, read};
use super::nulls::nulled;
use super::subchart::parent;

fn schema() -> Value {
    read(&chart().join("values.schema.json"))
}

/// A part of the schema, or the definition that it refers to.
fn resolved<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    part["$ref"].as_str().map_or(part, |definition| &schema["definitions"][definition.rsplit_once('/').unwrap().1])
}

/// Looks at each value below `path` that the schema describes.
fn walk<'a>(schema: &'a Value, part: &'a Value, path: &str, look: &mut impl FnMut(&str, &'a Value)) {
    let part = resolved(schema, part);
    look(path, part);
    for (name, below) in part["properties"].as_object().into_iter().flatten() {
        walk(schema, below, &format!("{path}/{name}"), look);
    }
}

#[test]
fn every_value_may_be_null_and_every_mapping_of_ours_is_closed() {
    let schema = schema();
    let mut seen = 0;
    walk(&schema, &schema, "", &mut |path, part| {
        seen += 1;
        // What has neither is left to a sentence of the chart.
        let open = part["type"].is_null() && part["enum"].is_null();
        let nullable = [&part["type"], &part["enum"]].iter().any(|list| {
            list.as_array().is_some_and(|list| list.iter().any(|member| *member == "null" || member.is_null()))
        });
        assert!(open || nullable || path.is_empty(), "{path} refuses null");
        let ours = ["properties", "patternProperties"].iter().any(|members| part[members].is_object());
        if ours && path != "/global" {
            assert_eq!(part["additionalProperties"], false, "{path} takes unknown keys");
        }
    });
    assert!(seen > 150, "{seen}");
}

#[test]
fn the_schema_knows_no_value_that_the_chart_does_not_have() {
    let (schema, values) = (schema(), defaults());
    let mut unknown = Vec::new();
    walk(&schema, &schema, "", &mut |path, _| {
        // A parent chart sets these two, and the program has more settings than the chart gives defaults.
        let elsewhere = ["/global", "/enabled", "/config"].iter().any(|prefix| path.starts_with(prefix));
        let of_a_probe = path.split('/').nth(1).is_some_and(|name| name.ends_with("Probe"));
        if !elsewhere && !of_a_probe && values.pointer(path).is_none() {
            unknown.push(path.to_owned());
        }
    });
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn a_parent_chart_may_set_everything_to_null_and_has_values_of_its_own() {
    let parent = parent(&["queues"]);
    let mut values = nulled(&defaults());
    values["enabled"] = true.into();
    values["database"]["existingSecret"]["name"] = "retsu-database".into();
    // An account that the chart does not make has a name.
    values["serviceAccount"]["name"] = "retsu".into();
    let global = json!({"imagePullSecrets": ["one", {"name": "two"}], "of": {"another": ["chart"]}});
    let values = json!({"tags": {"unrelated": true}, "global": global, "queues": values});
    let objects = Rendering::bare().chart(parent.path()).with(values).objects();
    let deployment = &objects.only("Deployment")["spec"];
    assert_eq!(deployment["replicas"], 2);
    assert_eq!(deployment["template"]["spec"]["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]));
}
