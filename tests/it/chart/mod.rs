//! The chart and what is rendered from it, with the tools that `make chart` builds.

mod manifests;
mod schema;

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the chart is, from the root.
const CHART: &str = "charts/retsu-collector";

/// What a tool says; it has to succeed.
fn output(tool: &str, arguments: &[&str]) -> String {
    let program = root().join("target/tools").join(tool);
    let output = Command::new(&program).args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{}, which `make tools` builds: {error}", program.display()));
    assert!(output.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The objects of a stream of YAML.
fn objects(yaml: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(yaml).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|object| !object.is_null()).collect()
}
