//! The objects of a rendering.

use serde::Deserialize;
use serde_json::{Map, Value};

/// All documents that Helm has rendered, in its order.
#[derive(Clone, Debug)]
pub(super) struct Objects(Vec<Value>);

/// What Pods are made of: a template of a workload, or a Pod.
pub(super) struct Template<'a> {
    /// Kind and name of the object that it is in.
    pub(super) owner: (&'a str, &'a str),
    pub(super) labels: Map<String, Value>,
    pub(super) spec: &'a Value,
}

impl Objects {
    /// Reads all documents; a key that is there twice, or is no string, is an error.
    pub(super) fn parse(text: &str) -> Self {
        let documents = serde_yaml::Deserializer::from_str(text)
            .map(|document| serde_yaml::Value::deserialize(document).unwrap_or_else(|error| panic!("{error}\n{text}")));
        let objects =
            documents.filter(|document| !document.is_null()).map(|document| Value::deserialize(document).unwrap());
        Self(objects.collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.iter()
    }

    /// Those of one kind.
    pub(super) fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The only one of a kind.
    pub(super) fn only(&self, kind: &str) -> &Value {
        let all: Vec<_> = self.of(kind).collect();
        let [object] = all[..] else { panic!("{} objects of kind {kind}", all.len()) };
        object
    }

    /// Every template of Pods, and every Pod.
    pub(super) fn templates(&self) -> Vec<Template<'_>> {
        self.0.iter().filter_map(template).collect()
    }

    /// The program's configuration.
    pub(super) fn configuration(&self) -> &str {
        let maps = self.of("ConfigMap").filter_map(|map| map["data"]["config.yaml"].as_str());
        let all: Vec<_> = maps.collect();
        let [text] = all[..] else { panic!("{} configurations", all.len()) };
        text
    }

    /// With a change of every object of a kind.
    pub(super) fn changed(&self, kind: &str, change: impl Fn(&mut Value)) -> Self {
        let mut objects = self.clone();
        objects.0.iter_mut().filter(|object| object["kind"] == kind).for_each(change);
        objects
    }

    /// Kind, namespace and name of each.
    pub(super) fn identities(&self) -> Vec<[&str; 3]> {
        self.0.iter().map(identity).collect()
    }
}

pub(super) fn identity(object: &Value) -> [&str; 3] {
    [kind(object), namespace(object), name(object)]
}

fn template(object: &Value) -> Option<Template<'_>> {
    let template = match kind(object) {
        "Pod" => object,
        "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => object.pointer("/spec/template")?,
    };
    let labels = template["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    Some(Template { owner: (kind(object), name(object)), labels, spec: &template["spec"] })
}

pub(super) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Empty for an object that is in none.
pub(super) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

pub(super) fn labels(object: &Value) -> Map<String, Value> {
    object["metadata"]["labels"].as_object().cloned().unwrap_or_default()
}

/// Whether labels have all that a selector asks for. One that asks for nothing selects everything, and is an error.
pub(super) fn selects(selector: &Value, labels: &Map<String, Value>) -> bool {
    let selector = selector.as_object().unwrap();
    assert!(!selector.is_empty(), "a selector of everything");
    selector.iter().all(|(label, value)| labels.get(label) == Some(value))
}

/// The labels that a `labelSelector` asks for.
pub(super) fn match_labels(selector: &Value) -> &Value {
    let members: Vec<_> = selector.as_object().unwrap().keys().collect();
    assert_eq!(members, ["matchLabels"], "{selector}");
    &selector["matchLabels"]
}

/// Every string in a value: not the keys.
pub(super) fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(members) => members.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}
