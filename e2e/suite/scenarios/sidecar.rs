//! `manifests/sidecar.yaml`: the collector elects one of several workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;

use crate::postgresql::{IMAGE, Server};
use crate::release::{PORT, found, image};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// The lock of the example.
const LOCK_KEY: (i32, i32) = (1_919_251_571, 2);

/// From the example, or a Pod that was deleted, to two workers that agree on one.
const SETTLED: Duration = Duration::from_secs(90);

/// For how long what they agree on has to stay.
const STAYS: Duration = Duration::from_secs(3);

/// Limit of one request to a Pod.
const ANSWER: Duration = Duration::from_secs(2);

/// The one program that the worker needs and the image lacks.
const WGET: &str = "wget() { exec 3<>/dev/tcp/localhost/24247 && printf 'GET /leader HTTP/1.0\\r\\n\\r\\n' >&3 && \
    read -r _ status _ <&3; exec 3>&-; [ \"$status\" = 200 ]; }";

/// Under the restricted standard, adapted in namespace, Secret and images alone.
pub(crate) async fn a_worker_is_elected_and_its_service_follows(stage: Arc<Stage>) {
    let server = Server::start_named(&stage, "postgresql").await;
    server.secret("worker-database", &server.url()).await;
    let (repository, tag) = image();
    let rbac = adapted("base/rbac.yaml", &[("namespace: \"default\"", &format!("namespace: {}", stage.namespace))]);
    let sidecar = adapted(
        "sidecar.yaml",
        &[
            ("namespace: default", &format!("namespace: {}", stage.namespace)),
            ("image: busybox:1.37", &format!("image: {IMAGE}")),
            ("image: retsu-collector:0.1.0", &format!("image: {repository}:{tag}")),
            ("            - sh\n", "            - bash\n"),
            (
                "              trap 'exit 0' TERM\n",
                &format!("              {WGET}\n              trap 'exit 0' TERM\n"),
            ),
        ],
    );
    for text in [rbac, sidecar] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        kubectl(&stage, &["apply", "--filename", file.path().to_str().unwrap()]).await;
    }
    let old = elected(&stage, &server).await;
    // One that answers late says nothing.
    throughout(STAYS, "one worker leads", async || leading(&stage).await.iter().all(|name| *name == old.name)).await;
    assert_eq!(elected(&stage, &server).await.name, old.name);
    says(&stage, &old, "this Pod leads: work").await;
    let other = workers(&stage).into_iter().find(|worker| worker.name != old.name).unwrap();
    says(&stage, &other, "another Pod leads: wait").await;

    stage.cluster.api::<Pod>(&stage.namespace).delete(&old.name, &DeleteParams::default()).await.unwrap();
    let mut answered = BTreeSet::new();
    eventually(SETTLED, "another worker leads", async || {
        answered = leading(&stage).await;
        !answered.is_empty() && !answered.contains(&old.name)
    })
    .await;
    let new = elected(&stage, &server).await;
    assert_eq!(answered, [new.name.clone()].into(), "the first that led after {} led no longer", old.name);
    says(&stage, &new, "this Pod leads: work").await;
}

/// A file of `manifests/` with each text replaced by another, all of which it has to have.
fn adapted(file: &str, changes: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(file);
    changes.iter().fold(std::fs::read_to_string(path).unwrap(), |text, (theirs, ours)| {
        assert!(text.contains(theirs), "{file} has no `{theirs}`");
        text.replace(theirs, ours)
    })
}

async fn kubectl(stage: &Stage, arguments: &[&str]) -> String {
    stage.cluster.kubectl(&[&["--namespace", &stage.namespace], arguments].concat()).await
}

fn workers(stage: &Stage) -> Vec<Replica> {
    let seen = stage.watched.seen();
    seen.replicas.values().filter(|replica| replica.instance == "example" && !replica.terminating).cloned().collect()
}

/// The workers that are told that they lead.
async fn leading(stage: &Stage) -> BTreeSet<String> {
    let client = reqwest::Client::builder().timeout(ANSWER).build().unwrap();
    let mut leading = BTreeSet::new();
    let asked: Vec<_> = stage.watched.seen().replicas.values().cloned().collect();
    for worker in asked {
        let Some(address) = worker.address else { continue };
        let answer = client.get(format!("http://{}/leader", SocketAddr::new(address, PORT))).send().await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            leading.insert(worker.name);
        }
    }
    leading
}

/// Waits until both workers are ready, and lock, answer, label and Service agree on one.
async fn elected(stage: &Stage, server: &Server) -> Replica {
    found(SETTLED, "two workers agree on one", async || {
        let workers = workers(stage);
        let labelled: Vec<_> = workers.iter().filter(|worker| worker.role.as_deref() == Some("leader")).collect();
        let (holder, leading) = (server.holder_of(LOCK_KEY).await, leading(stage).await);
        let routed = stage.watched.seen().endpoints_of("worker-leader");
        let seen = format!("{workers:?}, holder {holder:?}, told to lead {leading:?}, endpoints {routed:?}");
        let [one] = &labelled[..] else { return Err(seen) };
        let own = BTreeSet::from([one.name.clone()]);
        let agree = one.address == holder && leading == own && routed == own;
        let ready = workers.len() == 2 && workers.iter().all(|worker| worker.ready);
        if agree && ready { Ok((*one).clone()) } else { Err(seen) }
    })
    .await
}

/// Waits until the worker itself has said something.
async fn says(stage: &Stage, worker: &Replica, what: &str) {
    eventually(SETTLED, &format!("{} says `{what}`", worker.name), async || {
        let log = ["logs", &worker.name, "--container=worker", "--tail=1"];
        kubectl(stage, &log).await.trim() == what
    })
    .await;
}
