//! The API server of the tests itself.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::kubernetes::{ApiServer, Cluster};
use crate::support::{eventually, processes_with};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_shared_api_server_is_the_one_that_is_pinned() {
    let server = ApiServer::shared().await;
    let version = server.admin().await.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.34.4");
    assert!(Arc::ptr_eq(&server, &ApiServer::shared().await));
}

#[tokio::test]
async fn a_restarted_api_server_keeps_its_address_and_its_objects() {
    let cluster = Cluster::on(ApiServer::own(&[]).await).await;
    let uid = cluster.pod("a").await.metadata.uid;
    let url = cluster.server().url();
    cluster.server().stop();
    assert!(cluster.pods().await.get("a").await.is_err());
    cluster.server().start().await;
    assert_eq!(cluster.server().url(), url);
    assert_eq!(cluster.get("a").await.unwrap().metadata.uid, uid);
}

#[tokio::test]
async fn a_dropped_api_server_leaves_neither_process_nor_file() {
    let server = ApiServer::own(&[]).await;
    let directories = server.directories();
    let marks = directories.each_ref().map(|directory| directory.display().to_string());
    assert!(marks.iter().all(|mark| !processes_with(mark).is_empty()));
    drop(server);
    eventually(LIMIT, "the processes are gone", async || marks.iter().all(|mark| processes_with(mark).is_empty()))
        .await;
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[tokio::test]
async fn a_killed_test_leaves_neither_process_nor_file() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().display().to_string();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kubernetes::server::a_shared_api_server_is_the_one_that_is_pinned"])
        .env("TMPDIR", &mark)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Each with the shell that keeps it.
    let runs = |flag: &str| processes_with(&mark).iter().filter(|(_, command)| command.contains(flag)).count() == 2;
    eventually(LIMIT, "both programs run", async || runs("--data-dir") && runs("--etcd-servers")).await;
    test.kill().unwrap();
    test.wait().unwrap();
    eventually(LIMIT, "the processes are gone", async || processes_with(&mark).is_empty()).await;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
