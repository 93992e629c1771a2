//! What is in the image, and what it says of itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::docker::{image, run, told};

pub(super) const PROGRAM: &str = "usr/local/bin/retsu-collector";
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// The layers of the image, unpacked from what Docker saves.
pub(super) struct Layers {
    directory: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Layers {
    pub(super) fn of_the_image() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let saved = directory.path().join("image.tar");
        told(&["save", "--output", saved.to_str().unwrap(), &image()]);
        tar(&["--extract", "--file", saved.to_str().unwrap(), "--directory", directory.path().to_str().unwrap()]);
        let manifest = fs::read_to_string(directory.path().join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        let layers = manifest[0]["Layers"].as_array().unwrap();
        let files = layers.iter().map(|layer| directory.path().join(layer.as_str().unwrap())).collect();
        Self { directory, files }
    }

    /// Mode, owner, time and path of everything in them, as `tar` lists it.
    fn list(&self) -> Vec<[String; 4]> {
        let list = |layer: &PathBuf| {
            let format = ["--list", "--verbose", "--numeric-owner", "--utc", "--full-time"];
            tar(&[&format[..], &["--file", layer.to_str().unwrap()]].concat())
        };
        let entry = |line: &str| {
            let [mode, owner, _size, date, time, path] =
                line.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
            [mode.to_owned(), owner.to_owned(), format!("{date}T{time}Z"), path.to_owned()]
        };
        self.files.iter().flat_map(|layer| list(layer).lines().map(entry).collect::<Vec<_>>()).collect()
    }

    /// Unpacks a file.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        for layer in &self.files {
            let (layer, directory) = (layer.to_str().unwrap(), self.directory.path().to_str().unwrap());
            tar(&["--extract", "--file", layer, "--directory", directory, path]);
        }
        self.directory.path().join(path)
    }
}

fn tar(arguments: &[&str]) -> String {
    said("tar", arguments)
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn inspect(field: &str) -> Value {
    serde_json::from_str(&told(&["image", "inspect", "--format", &format!("{{{{json {field}}}}}"), &image()])).unwrap()
}

/// The commit's date, which `make image` takes for everything that it makes.
fn source_date() -> String {
    let seconds = std::env::var("RETSU_TEST_SOURCE_DATE").expect("no RETSU_TEST_SOURCE_DATE: run `make image-test`");
    let date = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.parse().unwrap());
    humantime::format_rfc3339_seconds(date).to_string()
}

#[test]
fn it_has_the_program_and_the_authorities_and_no_other_file() {
    let list = Layers::of_the_image().list();
    let (directories, files): (Vec<_>, Vec<_>) = list.iter().partition(|[mode, ..]| mode.starts_with('d'));
    let mut files: Vec<_> = files.iter().map(|[mode, owner, _, path]| [&**mode, owner, path]).collect();
    files.sort_unstable_by_key(|[.., path]| *path);
    let expected = [["-rw-r--r--", "0/0", AUTHORITIES], ["-rwxr-xr-x", "0/0", PROGRAM]];
    assert_eq!(files, expected);
    for [mode, owner, _, path] in directories {
        assert_eq!((&**mode, &**owner), ("drwxr-xr-x", "0/0"), "{path}");
        assert!(expected.iter().any(|[.., file]| file.starts_with(&**path)), "{path} leads to none of the files");
    }
}

#[test]
fn everything_in_it_has_the_date_of_the_commit_so_that_builds_repeat() {
    let date = source_date();
    for [.., time, path] in Layers::of_the_image().list() {
        assert_eq!(time, date, "{path}");
    }
}

#[test]
fn it_is_not_larger_than_twenty_megabytes() {
    let size = inspect(".Size").as_u64().unwrap();
    println!("the image has {:.1} MB", size as f64 / 1e6);
    assert!(size <= 20_000_000, "{size}");
}

#[test]
fn the_program_needs_neither_an_interpreter_nor_a_library_and_is_loaded_anywhere() {
    let layers = Layers::of_the_image();
    let program = layers.file(PROGRAM);
    let headers =
        said("readelf", &["--wide", "--file-header", "--program-headers", "--dynamic", program.to_str().unwrap()]);
    for absent in ["INTERP", "(NEEDED)"] {
        assert!(!headers.contains(absent), "{absent} in\n{headers}");
    }
    let kind = headers.lines().find(|line| line.trim_start().starts_with("Type:")).unwrap();
    assert!(kind.contains("DYN"), "{kind}");
}

#[test]
fn the_program_names_no_directory_of_the_machine_that_built_it() {
    let program = fs::read(Layers::of_the_image().file(PROGRAM)).unwrap();
    let program = String::from_utf8_lossy(&program);
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo"))).unwrap();
    for directory in [env!("CARGO_MANIFEST_DIR"), &home] {
        assert!(!program.contains(directory), "{directory}");
    }
}

#[test]
fn its_authorities_are_those_of_mozilla_and_none_of_this_machine() {
    let certificates = |text: &str| {
        text.split_inclusive("-----END CERTIFICATE-----")
            .filter_map(|block| Some(block.split_once("-----BEGIN")?.1.to_owned()))
            .collect::<Vec<_>>()
    };
    let directory =
        std::env::var("CA_CERTIFICATES").unwrap_or_else(|_| "/usr/share/ca-certificates/mozilla".to_owned());
    let mut trusted: Vec<_> = fs::read_dir(Path::new(&directory))
        .unwrap_or_else(|error| panic!("{directory}: {error}"))
        .flat_map(|file| certificates(&fs::read_to_string(file.unwrap().path()).unwrap()))
        .collect();
    let mut shipped = certificates(&fs::read_to_string(Layers::of_the_image().file(AUTHORITIES)).unwrap());
    trusted.sort_unstable();
    shipped.sort_unstable();
    assert!(shipped.len() > 100, "{}", shipped.len());
    assert!(shipped == trusted, "{} shipped, {} trusted", shipped.len(), trusted.len());
}

#[test]
fn user_command_and_port_are_declared() {
    let config = inspect(".Config");
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], serde_json::json!([format!("/{PROGRAM}")]));
    assert_eq!(config["Cmd"], serde_json::json!(["run"]));
    assert_eq!(config["ExposedPorts"], serde_json::json!({"24247/tcp": {}}));
    for absent in ["Volumes", "Healthcheck", "OnBuild"] {
        assert!(config[absent].is_null(), "{absent}: {}", config[absent]);
    }
}

#[test]
fn labels_say_what_it_is_and_from_which_commit_and_so_does_the_program() {
    let (code, version) = run(&[], &["version"]);
    assert_eq!(code, 0, "{version}");
    let mut labels: BTreeMap<String, String> = serde_json::from_value(inspect(".Config.Labels")).unwrap();
    let mut label =
        |name: &str| labels.remove(&format!("org.opencontainers.image.{name}")).unwrap_or_else(|| panic!("{name}"));
    let revision = label("revision");
    assert!(revision.len() >= 12 && revision.chars().all(|digit| digit.is_ascii_hexdigit()), "{revision}");
    assert_eq!(version.trim(), format!("retsu-collector {} ({revision})", env!("CARGO_PKG_VERSION")));
    assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(label("title"), env!("CARGO_PKG_NAME"));
    assert_eq!(label("description"), env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(label("licenses"), env!("CARGO_PKG_LICENSE"));
    assert_eq!(label("created"), source_date());
    assert!(!label("source").is_empty());
    assert!(labels.is_empty(), "{labels:?}");
}

#[test]
fn it_has_no_shell() {
    for shell in ["/bin/sh", "sh", "/bin/bash", "/busybox/sh"] {
        let (code, said) = run(&["--entrypoint", shell], &["-c", "exit 0"]);
        assert!(code == 127 && said.contains(shell), "{shell}: {code} {said}");
    }
}
