//! How the program of the image is compiled.

use std::process::{Command, Output};

/// `make static`, with a Cargo that prints its environment.
fn make_static(argument: &str) -> Output {
    let mut make = Command::new("make");
    make.current_dir(env!("CARGO_MANIFEST_DIR")).args(["--no-print-directory", "static", "CARGO=env #", argument]);
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
