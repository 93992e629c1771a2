//! Helm, with homes of its own and without a cluster unless one is given.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;
use tempfile::NamedTempFile;

use super::objects::Objects;
use super::{NEWEST, OLDEST, OLDEST_WITH_POLICY};
use crate::support::kubernetes::program;

/// The longest name that Helm takes for a release.
pub(super) const LONGEST_RELEASE: usize = 53;

/// The chart in the working copy.
pub(super) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/retsu-collector")
}

/// The values of the chart, as its file has them.
pub(super) fn defaults() -> Value {
    read(&chart().join("values.yaml"))
}

/// Every file of values in `ci`.
pub(super) fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(chart().join("ci")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with("-values.yaml")).collect();
    files.sort();
    assert!(!files.is_empty(), "no values in ci");
    files
}

/// A command of Helm.
pub(super) fn helm(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("helm"));
    for (name, _) in std::env::vars_os() {
        if ["HELM_", "KUBE"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("helm");
    for kind in ["cache", "config", "data"] {
        command.env(format!("HELM_{}_HOME", kind.to_uppercase()), home.join(kind));
    }
    command.env("KUBECONFIG", "/dev/null").args(arguments);
    command
}

/// What a command prints, or what it complains of.
pub(super) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    if output.status.success() { Ok(stdout) } else { Err(stderr) }
}

/// A file with values.
pub(super) fn file_of(values: &Value) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(values.to_string().as_bytes()).unwrap();
    file
}

/// What `helm template` is asked for.
#[derive(Clone, Debug)]
pub(super) struct Rendering {
    chart: PathBuf,
    release: String,
    namespace: String,
    kubernetes: &'static str,
    files: Vec<PathBuf>,
    values: Vec<Value>,
}

impl Rendering {
    /// Of the chart's defaults and nothing else.
    pub(super) fn bare() -> Self {
        let (release, namespace) = ("retsu".to_owned(), "queues".to_owned());
        Self { chart: chart(), release, namespace, kubernetes: NEWEST, files: Vec::new(), values: Vec::new() }
    }

    /// Of one file of `ci`.
    pub(super) fn case(file: &Path) -> Self {
        Self { files: vec![file.to_owned()], ..Self::bare() }
    }

    /// Of the file of `ci` with this name.
    pub(super) fn named(name: &str) -> Self {
        let file = chart().join("ci").join(format!("{name}-values.yaml"));
        assert!(file.is_file(), "{}", file.display());
        Self::case(&file)
    }

    /// With further values, which win over those before.
    pub(super) fn with(mut self, values: Value) -> Self {
        self.values.push(values);
        self
    }

    pub(super) fn chart(self, chart: &Path) -> Self {
        Self { chart: chart.to_owned(), ..self }
    }

    pub(super) fn release(self, release: &str) -> Self {
        Self { release: release.to_owned(), ..self }
    }

    pub(super) fn namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self }
    }

    pub(super) fn kubernetes(self, kubernetes: &'static str) -> Self {
        Self { kubernetes, ..self }
    }

    /// The oldest Kubernetes that has all that these values ask for.
    pub(super) fn oldest(&self) -> &'static str {
        let values = self.files.iter().map(|file| read(file)).chain(self.values.iter().cloned());
        let policy = values.filter_map(|values| values.pointer("/admissionPolicy/enabled")?.as_bool()).next_back();
        if policy == Some(true) { OLDEST_WITH_POLICY } else { OLDEST }
    }

    /// What Helm prints, or what it complains of.
    pub(super) fn text(&self) -> Result<String, String> {
        let written: Vec<_> = self.values.iter().map(file_of).collect();
        let files = self.files.iter().map(PathBuf::as_path).chain(written.iter().map(NamedTempFile::path));
        let mut command = helm(&["template", &self.release, "--namespace", &self.namespace]);
        command.args(["--kube-version", self.kubernetes]).arg(&self.chart);
        for file in files {
            command.arg("--values").arg(file);
        }
        run(&mut command)
    }

    /// The objects, hooks among them.
    pub(super) fn objects(&self) -> Objects {
        let text = self.text();
        Objects::parse(&text.unwrap_or_else(|complaint| panic!("{self:?}: {complaint}")))
    }

    /// The sentence with which it is refused: one of the chart's own, or of its schema.
    pub(super) fn refusal(&self) -> String {
        let Err(complaint) = self.text() else { panic!("{self:?} is not refused") };
        assert!(is_own(&complaint), "{self:?}: {complaint}");
        complaint
    }
}

/// Whether a complaint is a sentence that the chart or its schema means to say.
pub(super) fn is_own(complaint: &str) -> bool {
    let accident = ["nil pointer", "can't evaluate", "wrong type", "error calling", "YAML parse", "incompatible types"];
    // A `fail` within an `include` is an error that was called, too: what the chart says stands last.
    let own =
        complaint.contains("execution error at (") || complaint.contains("don't meet the specifications of the schema");
    own && !accident.iter().any(|text| complaint.contains(text))
}

/// What YAML 1.1 reads of a text, of which Helm and Kubernetes read more than YAML 1.2 has.
pub(super) fn read_by_yaml_1_1(text: &str) -> Vec<Value> {
    let script = "import json, sys, yaml; print(json.dumps([d for d in yaml.safe_load_all(open(sys.argv[1])) if d]))";
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/venv/bin/python");
    let read = run(Command::new(python).args(["-c", script]).arg(file.path()));
    serde_json::from_str(&read.unwrap_or_else(|complaint| panic!("{complaint}\n{text}"))).unwrap()
}

/// A file of YAML.
pub(super) fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap();
    Value::deserialize(serde_yaml::Deserializer::from_str(&text)).unwrap()
}
