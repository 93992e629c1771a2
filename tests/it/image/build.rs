//! How the program of the image is compiled, and when an engine is started for it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// `make static`, with a Cargo that prints its environment.
fn make_static(argument: &str) -> Output {
    let mut make = Command::new("make");
    make.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "--silent",
        "--no-print-directory",
        "static",
        "CARGO=env #",
        argument,
    ]);
    for inherited in ["MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"] {
        make.env_remove(inherited);
    }
    make.output().unwrap()
}

#[test]
fn a_directory_with_a_space_in_its_path_is_one_flag_of_the_compiler() {
    let output = make_static("CURDIR=/a b");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let flags = said.lines().find_map(|line| line.strip_prefix("CARGO_ENCODED_RUSTFLAGS=")).unwrap();
    let flags: Vec<_> = flags.split('\x1f').collect();
    assert_eq!(flags[..2], ["-C", "target-feature=+crt-static"]);
    assert_eq!((flags.len(), flags[3]), (4, "--remap-path-prefix=/a b=/src"));
}

#[test]
fn an_architecture_that_docker_calls_otherwise_is_refused_before_anything_is_compiled() {
    let output = make_static("ARCH=x86_64");
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("ARCH is x86_64: set amd64 or arm64"), "{said}");
}

/// What `engine` complains of, when it is run by `command` from a place that everybody may read.
fn engine(command: &[&str], docker: &str) -> String {
    let directory = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let (of, cluster) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/cluster"), directory.path().join("e2e/cluster"));
    std::fs::create_dir_all(&cluster).unwrap();
    std::fs::copy(of.join("engine"), cluster.join("engine")).unwrap();
    let mut engine = Command::new(command[0]);
    engine.args(&command[1..]).arg(cluster.join("engine"));
    let output = engine.env("DOCKER", docker).env("DOCKER_HOST", "tcp://127.0.0.1:1").output().unwrap();
    assert!(!output.status.success() && !directory.path().join("target").exists(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn no_engine_is_started_that_the_client_would_not_ask_or_that_only_root_can_start() {
    let docker = std::env::var("DOCKER").unwrap_or_else(|_| "docker".to_owned());
    let elsewhere = engine(&["bash"], &docker);
    assert!(elsewhere.contains("no Docker engine answers at tcp://127.0.0.1:1"), "{elsewhere}");
    let unprivileged = engine(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash"], &docker);
    assert!(unprivileged.contains("only root starts one"), "{unprivileged}");
}
