//! The real program takes the configuration that the chart gives it, in the environment and with the files that its
//! container has.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::getuid;
use serde_json::{Value, json};

use super::helm::{Rendering, cases};
use super::objects::{Objects, name, namespace};
use crate::support::EXECUTABLE;

/// Where mounts of the container begin; nothing of the machine is there.
const RUN: &str = "/run/";

fn container(deployment: &Value) -> &Value {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    containers.iter().find(|container| container["name"] == "retsu-collector").unwrap()
}

/// A certificate and its key, or the text of any other file.
fn content(path: &str) -> String {
    let certified = rcgen::generate_simple_self_signed(["db.example.com".to_owned()]).unwrap();
    match path.rsplit('/').next().unwrap() {
        "ca.crt" | "tls.crt" => certified.cert.pem(),
        "tls.key" => certified.signing_key.serialize_pem(),
        "url" => "postgres://retsu:p%40ss@db.example.com/queues".to_owned(),
        _ => "text".to_owned(),
    }
}

/// Writes what a kubelet mounts below `/run`, into a directory that stands for it.
fn mount(deployment: &Value, root: &Path) {
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    for mount in container(deployment)["volumeMounts"].as_array().unwrap() {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let path = mount["mountPath"].as_str().unwrap().replace("/var/run/", RUN);
        let Some(path) = path.strip_prefix(RUN) else { continue };
        fs::create_dir_all(root.join(path)).unwrap();
        for file in files(volume) {
            fs::write(root.join(path).join(&file), content(&file)).unwrap();
        }
    }
}

/// The files of a volume.
fn files(volume: &Value) -> Vec<String> {
    let items = |source: &Value| source["items"].as_array().cloned().unwrap_or_default();
    let projected = volume["projected"]["sources"].as_array().cloned().unwrap_or_default();
    let tokens = projected.iter().map(|source| source["serviceAccountToken"].clone()).filter(|token| !token.is_null());
    let projected_items =
        projected.iter().flat_map(|source| [items(&source["configMap"]), items(&source["downwardAPI"])].concat());
    let items = [items(&volume["secret"]), items(&volume["configMap"])].concat();
    let all = items.into_iter().chain(projected_items).chain(tokens);
    all.map(|item| item["path"].as_str().unwrap().to_owned()).collect()
}

/// `retsu-collector check` as the container would run it: exit code, and what it says.
fn check(objects: &Objects) -> (Option<i32>, String) {
    let deployment = objects.only("Deployment");
    let directory = tempfile::tempdir().unwrap();
    let (run, configuration) = (directory.path().join("run"), directory.path().join("config.yaml"));
    fs::create_dir(&run).unwrap();
    mount(deployment, &run);
    fs::write(&configuration, objects.configuration()).unwrap();

    let user: &[&str] = if getuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let script = format!("mount -t tmpfs tmpfs /run && cp -r {}/. /run/ && exec \"$@\"", run.display());
    let mut command = Command::new("unshare");
    command
        .args(user)
        .args(["--mount", "sh", "-c", &script, "sh", EXECUTABLE, "check", "--config"])
        .arg(&configuration);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.envs([("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]);
    for variable in container(deployment)["env"].as_array().unwrap() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => "retsu-0",
            Some("metadata.namespace") => namespace(deployment),
            Some("metadata.uid") => "7d9b1d5e-6c1b-4a57-9d2c-0f6c1f3f4f4f",
            Some(path) => panic!("{path}"),
            None => variable["value"].as_str().unwrap(),
        };
        command.env(variable["name"].as_str().unwrap(), value);
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn the_program_takes_the_configuration_of_every_case_and_works_with_kubernetes() {
    for case in cases() {
        let objects = Rendering::case(&case).objects();
        let (code, said) = check(&objects);
        assert_eq!(code, Some(0), "{}: {said}", case.display());
        let last = said.lines().last().unwrap();
        assert!(last.to_lowercase().contains("kubernetes"), "{}: {last}", case.display());
        assert!(!said.contains("warn"), "{}: {said}", case.display());
    }
}

#[test]
fn the_program_refuses_what_is_missing_of_what_the_chart_mounts() {
    let objects = Rendering::named("parts-tls").objects();
    let changed = objects.changed("Deployment", |deployment| {
        let environment = &mut deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        environment.as_array_mut().unwrap().retain(|variable| variable["name"] != "POD_UID");
    });
    let (code, said) = check(&changed);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("POD_UID"), "{said}");
}

#[test]
fn a_verified_server_is_asked_for_as_soon_as_an_authority_is_given() {
    for (case, verified) in [("minimal", false), ("parts-tls", true), ("everything", true)] {
        let objects = Rendering::named(case).objects();
        let environment = container(objects.only("Deployment"))["env"].as_array().unwrap();
        let mode = environment.iter().find(|variable| variable["name"] == "PGSSLMODE").map(|mode| &mode["value"]);
        assert_eq!(mode, verified.then_some(&json!("verify-full")), "{case}");
        assert!(!objects.configuration().contains("disable"), "{}", name(objects.only("Deployment")));
    }
}
