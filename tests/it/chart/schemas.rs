//! What is rendered is what Kubernetes knows: by the schemas of the oldest and the newest, and by a real API server.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::api::{cluster, dry_run};
use super::helm::{Rendering, cases, read_by_yaml_1_1};
use super::objects::{kind, name};
use super::{NEWEST, OLDEST, OLDEST_WITH_POLICY};

/// What the schemas do not have: the API server validates it.
const CUSTOM: [&str; 3] = ["ServiceMonitor", "PodMonitor", "PrometheusRule"];

/// Validates every document of some files strictly. Returns how many were, or what is wrong with the first.
fn validate(kubernetes: &str, files: &[PathBuf]) -> Result<usize, String> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/venv/bin/python");
    let mut command = Command::new(python);
    command.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", kubernetes]).args(files);
    let output = command.output();
    let said = String::from_utf8(output.expect("no kubernetes-validate: run `make tools`").stdout).unwrap();
    let is_custom = |line: &str| CUSTOM.iter().any(|kind| line.contains(&format!("schema for kind {kind} ")));
    let (valid, other): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.starts_with("INFO "));
    match other.into_iter().find(|line| !line.starts_with("WARN ") || !is_custom(line)) {
        Some(line) => Err(line.to_owned()),
        None => Ok(valid.len()),
    }
}

/// Renders into files, one for each case that this Kubernetes has all for, and counts what the schemas have to know.
fn write(kubernetes: &'static str, directory: &Path, oldest: &[&str]) -> (Vec<PathBuf>, usize) {
    let (mut files, mut known) = (Vec::new(), 0);
    for case in cases() {
        let rendering = Rendering::case(&case).kubernetes(kubernetes);
        if !oldest.contains(&rendering.oldest()) {
            continue;
        }
        let text = rendering.text().unwrap_or_else(|complaint| panic!("{}: {complaint}", case.display()));
        assert_eq!(Ok(&text), rendering.text().as_ref(), "{} is not rendered twice alike", case.display());
        known += rendering.objects().iter().filter(|object| !CUSTOM.contains(&kind(object))).count();
        let file = directory.join(case.file_name().unwrap());
        std::fs::write(&file, text).unwrap();
        files.push(file);
    }
    (files, known)
}

#[test]
fn every_case_is_valid_by_the_schemas_of_the_oldest_and_the_newest_kubernetes_and_rendered_twice_alike() {
    let every = [OLDEST, OLDEST_WITH_POLICY];
    for (kubernetes, oldest) in [(OLDEST, &every[..1]), (OLDEST_WITH_POLICY, &every[1..]), (NEWEST, &every[..])] {
        let directory = tempfile::tempdir().unwrap();
        let (files, known) = write(kubernetes, directory.path(), oldest);
        assert!(!files.is_empty(), "no case for {kubernetes}");
        assert_eq!(validate(kubernetes, &files), Ok(known), "{kubernetes}");
    }
}

#[test]
fn every_case_is_the_same_to_readers_of_yaml_1_1_and_1_2() {
    for case in cases() {
        let rendering = Rendering::case(&case);
        let objects: Vec<_> = rendering.objects().iter().cloned().collect();
        assert_eq!(read_by_yaml_1_1(&rendering.text().unwrap()), objects, "{}", case.display());
    }
}

#[test]
fn the_schemas_refuse_a_field_that_kubernetes_does_not_know() {
    let directory = tempfile::tempdir().unwrap();
    let text = Rendering::named("minimal").text().unwrap();
    for (kubernetes, known, unknown) in [(OLDEST, "replicas:", "replicaz:"), (NEWEST, "selector:", "selektor:")] {
        let file = directory.path().join("changed.yaml");
        std::fs::write(&file, text.replace(known, unknown)).unwrap();
        let complaint = validate(kubernetes, &[file]).unwrap_err();
        assert!(complaint.contains(unknown.trim_end_matches(':')), "{complaint}");
    }
}

#[tokio::test]
async fn a_real_api_server_takes_every_document_of_every_case_with_all_its_fields() {
    let cluster = cluster().await;
    let client = cluster.admin().await;
    for case in cases() {
        for object in Rendering::case(&case).namespace(cluster.namespace()).objects().iter() {
            let answer = dry_run(&client, object).await;
            assert!(answer.is_ok(), "{}, {} {}: {answer:?}", case.display(), kind(object), name(object));
        }
    }
}

#[tokio::test]
async fn the_api_server_refuses_a_field_of_a_monitor_that_the_operator_does_not_know() {
    let cluster = cluster().await;
    let objects = Rendering::named("everything").namespace(cluster.namespace()).objects();
    let mut monitor: Value = objects.of("ServiceMonitor").next().unwrap().clone();
    monitor["spec"]["endpoints"][0]["intervall"] = "1s".into();
    let error = dry_run(&cluster.admin().await, &monitor).await.unwrap_err().to_string();
    assert!(error.contains("intervall"), "{error}");
}
