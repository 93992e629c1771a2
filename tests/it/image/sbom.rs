//! The list of what the program is made of, against what Cargo resolves and what the program itself names.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::contents::{Layers, PROGRAM};

/// Where the sources of crates are, in the program's messages of panics.
const SOURCES: &str = "/cargo/registry/src/";

/// Name and version of each crate, with its scope.
fn components() -> BTreeMap<String, String> {
    let file = std::env::var("RETSU_TEST_SBOM").expect("no RETSU_TEST_SBOM: run `make image-test`");
    let bom: Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))).unwrap();
    assert_eq!((&bom["bomFormat"], &bom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let program = &bom["metadata"]["component"];
    assert_eq!(
        (&program["name"], &program["version"]),
        (&env!("CARGO_PKG_NAME").into(), &env!("CARGO_PKG_VERSION").into())
    );
    let text = |component: &Value, field: &str| component[field].as_str().unwrap().to_owned();
    let components = bom["components"].as_array().unwrap().iter();
    components.map(|one| (format!("{}-{}", text(one, "name"), text(one, "version")), text(one, "scope"))).collect()
}

#[test]
fn it_lists_every_crate_that_cargo_resolves_for_the_program_and_no_other() {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let features = ["--no-default-features", "--features", "otlp", "--target", &target];
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--prefix", "none", "--edges", "normal"])
        .args(features)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let mut resolved: Vec<_> = String::from_utf8(tree.stdout)
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| {
            let (name, rest) = line.split_once(" v").unwrap();
            format!("{name}-{}", rest.split(' ').next().unwrap())
        })
        .collect();
    resolved.sort_unstable();
    resolved.dedup();
    assert!(resolved.len() > 100, "{resolved:?}");
    assert_eq!(components().into_keys().collect::<Vec<_>>(), resolved);
}

#[test]
fn every_crate_that_the_program_names_is_in_it_as_part_of_the_program() {
    let components = components();
    let program = fs::read(Layers::of_the_image().file(PROGRAM)).unwrap();
    let program = String::from_utf8_lossy(&program);
    let mut named: Vec<_> =
        program.split(SOURCES).skip(1).map(|rest| rest.split('/').nth(1).unwrap().to_owned()).collect();
    named.sort_unstable();
    named.dedup();
    println!("the program names {} crates of {}", named.len(), components.len());
    assert!(named.len() > 50, "{named:?}");
    for name in named {
        assert_eq!(components.get(&name).map(String::as_str), Some("required"), "{name}");
    }
}
