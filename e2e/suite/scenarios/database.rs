//! PostgreSQL restarts, ends sessions, or is behind a pooler.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use retsu_collector::election::Fault;
use serde_json::json;

use crate::checker::Answer;
use crate::postgresql::{IMAGE, Server, Stop, pod, service};
use crate::release::{Release, SETTLED, exports, exposition};
use crate::stage::Stage;
use crate::wait::{eventually, throughout};
use crate::watched::Replica;

/// How often each is done.
const RUNS: usize = 5;

/// From an event in the collector to its Event.
const TOLD: Duration = Duration::from_secs(30);

/// How long a release that is refused is looked at.
const WINDOW: Duration = Duration::from_secs(10);

/// The replicas of each release behind a pooler.
const REPLICAS: usize = 2;

/// The port of PgBouncer.
const PORT: u16 = 6432;

/// `pg_ctl stop` in both modes and start, and `pg_terminate_backend` of the lock session.
pub(crate) async fn the_server_restarts_or_ends_the_lock_session(stage: Arc<Stage>) {
    const TERMINATED: &str = "the lock session is terminated";
    const RESTARTED: [(&str, Stop); 2] =
        [("PostgreSQL restarts, fast", Stop::Fast), ("PostgreSQL restarts, immediate", Stop::Immediate)];
    let server = Server::start(&stage).await;
    let release = Release::install(&stage, &server, json!({})).await;
    let (restarted, terminated) = (release.bound(Fault::ServerRestarted), release.bound(Fault::BackendTerminated));
    let first = release.settled(&server).await;
    let recording = release.record().await;
    for (fault, how) in RESTARTED {
        for _ in 0..RUNS {
            recording.fault(fault, restarted);
            server.stop(how).await;
            server.resume_and(|| recording.over()).await;
            release.settled(&server).await;
        }
    }
    for _ in 0..RUNS {
        recording.fault(TERMINATED, terminated);
        server.terminate_holder().await;
        release.settled(&server).await;
    }
    eventually(TOLD, "the first loss is told by an Event", async || {
        let events = release.events_of(&first.name).await;
        events.iter().any(|(reason, note)| reason == "LeadershipLost" && !note.ends_with("stopping"))
    })
    .await;
    recording.followed().await;
    let recorded = recording.finish();
    recorded.assert_kept().assert_service_followed();
    for fault in RESTARTED.map(|(fault, _)| fault).into_iter().chain([TERMINATED]) {
        let takeovers = recorded.takeovers(fault);
        assert!(takeovers.len() >= RUNS, "each run of {fault:?} is a take-over: {takeovers:?}");
        stage.report.lock().unwrap().add(fault, takeovers);
    }
}

/// Two releases with the same lock, each behind a PgBouncer of its own.
pub(crate) async fn a_pooler_is_refused_in_transaction_mode_and_led_through_in_session_mode(stage: Arc<Stage>) {
    const REFUSED: &str = "\nretsu_collector_election_refusal_info{reason=\"transaction_pooler\"} 1\n";
    let server = Server::start(&stage).await;
    let (refused, _) = behind_pgbouncer(&stage, &server, "transaction").await;
    let is_refused = |replica: &Replica| exposition(replica).is_some_and(|text| text.contains(REFUSED));
    eventually(SETTLED, "both replicas are refused for the pooler, and say so in Events", async || {
        let replicas = refused.replicas();
        let mut told = replicas.len() == REPLICAS && replicas.iter().all(is_refused);
        for replica in &replicas {
            let events = refused.events_of(&replica.name).await;
            let names_it = |note: &str| note.ends_with(": transaction_pooler");
            told &= events.iter().any(|(reason, note)| reason == "LockRefused" && names_it(note));
        }
        told
    })
    .await;
    let recording = refused.record().await;
    throughout(WINDOW, "nobody takes the lock, exports or is labelled", async || {
        let nobody = server.holder().await.is_none() && refused.labelled().is_empty();
        nobody && recording.exporting().is_empty() && !refused.replicas().iter().any(exports)
    })
    .await;

    let (accepted, pooler) = behind_pgbouncer(&stage, &server, "session").await;
    let led = accepted.record().await;
    eventually(SETTLED, "a replica leads through the pooler in session mode", async || {
        let (labelled, replicas) = (accepted.labelled(), accepted.replicas());
        let exporting: Vec<_> = replicas.iter().filter(|replica| exports(replica)).collect();
        let endpoints = stage.watched.seen().endpoints_of(&accepted.leader_service());
        labelled.iter().eq(exporting)
            && labelled.iter().map(|replica| &replica.name).eq(&endpoints)
            && labelled.len() == 1
            && server.holder().await == Some(pooler)
    })
    .await;
    eventually(TOLD, "the release in transaction mode is still refused", async || {
        refused.replicas().iter().all(is_refused)
    })
    .await;
    led.followed().await;
    led.finish().assert_kept().assert_service_followed();
    let recorded = recording.finish();
    recorded.assert_kept();
    let exported = recorded.samples.iter().find(|sample| matches!(sample.answer, Answer::Exporting(_)));
    assert_eq!(exported, None, "gauges were exported through a pooler in transaction mode");
}

/// Installs a release that reaches the server through a PgBouncer in `mode`. Returns it with the pooler's address.
async fn behind_pgbouncer(stage: &Arc<Stage>, server: &Server, mode: &str) -> (Release, IpAddr) {
    let name = format!("pgbouncer-{mode}");
    let configuration = format!(
        "[databases]\n\
         * = host={} port=5432\n\
         [pgbouncer]\n\
         pool_mode = {mode}\n\
         listen_addr = *\n\
         listen_port = {PORT}\n\
         unix_socket_dir = /tmp\n\
         auth_type = scram-sha-256\n\
         auth_file = /tmp/users\n\
         ignore_startup_parameters = extra_float_digits\n",
        server.address(),
    );
    let script = "printf '%s' \"$CONFIGURATION\" >/tmp/pgbouncer.ini; \
                  printf '\"postgres\" \"%s\"\\n' \"$PASSWORD\" >/tmp/users; exec pgbouncer /tmp/pgbouncer.ini";
    let container = json!({
        "name": "pgbouncer",
        "image": IMAGE,
        "command": ["bash", "-euo", "pipefail", "-c", script],
        "env": [
            {"name": "CONFIGURATION", "value": configuration},
            server.password_variable("PASSWORD"),
        ],
        "ports": [{"containerPort": PORT}],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    });
    let address = pod(stage, &name, container, &["tmp"]).await;
    service(stage, &name, PORT).await;
    server.secret(&name, &server.url_at(&format!("{name}:{PORT}"))).await;
    let values = json!({"database": {"existingSecret": {"name": name}}, "replicaCount": REPLICAS});
    (Release::install_as(stage, mode, values).await, address)
}
