//! Releases on a real API server: installed, upgraded from every version, rolled back, and gone without a trace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use kube::api::{DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::{cluster, ensure_namespace};
use super::helm::{cases, chart, file_of, helm, read, run};
use crate::support::kubernetes::Cluster;

/// A release that the tests of this file make.
struct Release<'a> {
    cluster: &'a Cluster,
    name: String,
    kubeconfig: PathBuf,
    _directory: TempDir,
}

impl<'a> Release<'a> {
    async fn new(cluster: &'a Cluster) -> Self {
        ensure_namespace(&cluster.admin().await, "monitoring").await;
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let config = cluster.server().admin_kubeconfig(cluster.namespace());
        std::fs::write(&kubeconfig, serde_yaml::to_string(&config).unwrap()).unwrap();
        // Unique on the server: what is left behind is looked for everywhere.
        let name = format!("release-of-{}", cluster.namespace());
        Self { cluster, name, kubeconfig, _directory: directory }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = helm(&[verb, &self.name, "--namespace", self.cluster.namespace()]);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Result<String, String> {
        run(self.command(verb).args(arguments))
    }

    /// Installs or upgrades to a chart, with a file of values.
    fn apply(&self, verb: &str, chart: &Path, values: &Path, flags: &[&str]) {
        let answer = run(self.command(verb).arg(chart).arg("--values").arg(values).args(flags));
        assert!(answer.is_ok(), "{verb} {} {flags:?} {}: {answer:?}", chart.display(), values.display());
    }

    /// What is in the cluster of it: kinds and names.
    async fn left(&self) -> BTreeSet<String> {
        objects(&self.cluster.admin().await, self.cluster.namespace(), &self.name).await
    }
}

/// Everything in a namespace, and everything anywhere that has the label of a release.
async fn objects(client: &Client, namespace: &str, release: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let of_release = ListParams::default().labels(&format!("app.kubernetes.io/instance={release}"));
    for group in Discovery::new(client.clone()).run().await.unwrap().groups() {
        for (resource, capabilities) in group.recommended_resources() {
            // Events are of what was done, not of what is there.
            if !capabilities.supports_operation(verbs::LIST) || resource.kind == "Event" {
                continue;
            }
            let mut add = |objects: Vec<DynamicObject>| {
                found.extend(objects.iter().map(|object| format!("{} {}", resource.kind, object.name_any())));
            };
            let everywhere: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            add(everywhere.list(&of_release).await.unwrap().items);
            if capabilities.scope == Scope::Namespaced {
                let here: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
                add(here.list(&ListParams::default()).await.unwrap().items);
            }
        }
    }
    found
}

/// The current chart, packaged: without what `.helmignore` leaves out.
fn package(directory: &Path) -> PathBuf {
    run(helm(&["package", "--destination"]).arg(directory).arg(chart())).unwrap();
    let package = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).next();
    package.unwrap()
}

/// Every version to upgrade from: the released ones, and the current.
fn versions(directory: &Path) -> Vec<PathBuf> {
    let released = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/chart/released");
    let released = std::fs::read_dir(released).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut versions: Vec<_> = released.filter(|path| path.extension().is_some_and(|it| it == "tgz")).collect();
    versions.sort();
    versions.push(package(directory));
    versions
}

#[tokio::test]
async fn every_case_is_installed_upgraded_rolled_back_and_leaves_nothing_behind() {
    for case in cases() {
        let cluster = cluster().await;
        let release = Release::new(&cluster).await;
        let before = release.left().await;
        release.apply("install", &chart(), &case, &[]);
        let installed = release.left().await;
        assert!(installed.len() > before.len() + 6, "{installed:?}");
        let more = file_of(&json!({"replicaCount": 4, "podAnnotations": {"upgraded": "yes"}}));
        release.apply("upgrade", &chart(), &case, &["--values", more.path().to_str().unwrap()]);
        release.run("rollback", &["1"]).unwrap();
        let rolled_back = release.left().await;
        let secret = |object: &&String| !object.starts_with("Secret sh.helm.release");
        assert_eq!(
            rolled_back.iter().filter(secret).collect::<Vec<_>>(),
            installed.iter().filter(secret).collect::<Vec<_>>()
        );
        release.run("uninstall", &[]).unwrap();
        assert_eq!(release.left().await, before, "{}", case.display());
    }
}

#[tokio::test]
async fn every_version_is_upgraded_to_this_one_with_its_own_values_and_with_reused_ones() {
    let directory = tempfile::tempdir().unwrap();
    for version in versions(directory.path()) {
        for case in ["minimal", "everything", "parts-tls"] {
            let values = chart().join("ci").join(format!("{case}-values.yaml"));
            for flags in [&["--reuse-values"][..], &["--reset-then-reuse-values"], &[]] {
                let cluster = cluster().await;
                let release = Release::new(&cluster).await;
                release.apply("install", &version, &values, &[]);
                if flags.is_empty() {
                    release.apply("upgrade", &chart(), &values, &[]);
                } else {
                    release.run("upgrade", &[&[chart().to_str().unwrap()], flags].concat()).unwrap();
                }
                release.run("uninstall", &[]).unwrap();
            }
        }
    }
}

#[test]
fn the_version_of_the_program_is_that_of_the_chart_and_of_the_images_that_are_named() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read(&chart().join("Chart.yaml"));
    assert_eq!(chart["appVersion"], version);
    let sidecar =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/sidecar.yaml")).unwrap();
    for text in [chart["annotations"]["artifacthub.io/images"].as_str().unwrap(), &sidecar] {
        assert!(text.lines().any(|line| line.trim() == format!("image: retsu-collector:{version}")), "{text}");
    }
}

#[test]
fn the_package_has_neither_tests_nor_cases() {
    let directory = tempfile::tempdir().unwrap();
    let package = package(directory.path());
    let listed = run(Command::new("tar").arg("tzf").arg(package)).unwrap();
    assert!(listed.lines().any(|file| file == "retsu-collector/templates/deployment.yaml"), "{listed}");
    for left_out in ["retsu-collector/tests/", "retsu-collector/ci/"] {
        assert!(!listed.lines().any(|file| file.starts_with(left_out)), "{listed}");
    }
}

#[test]
fn lint_finds_nothing_in_the_defaults_and_in_any_case() {
    let mut commands = vec![Vec::new()];
    commands.extend(cases().into_iter().map(|case| vec!["--values".into(), case.into_os_string()]));
    for values in commands {
        let answer = run(helm(&["lint", "--strict", "--quiet"]).arg(chart()).args(&values));
        assert_eq!(answer.as_deref().map(str::trim), Ok(""), "{values:?}");
    }
}

#[tokio::test]
async fn a_release_of_longest_name_is_installed_with_everything_on() {
    let cluster = cluster().await;
    let mut release = Release::new(&cluster).await;
    release.name = format!("{:r<53}", format!("{}-", cluster.namespace()));
    let values: Value = json!({"nameOverride": ""});
    let values = file_of(&values);
    let case = chart().join("ci/everything-values.yaml");
    release.apply("install", &chart(), &case, &["--values", values.path().to_str().unwrap()]);
    release.run("uninstall", &[]).unwrap();
}
