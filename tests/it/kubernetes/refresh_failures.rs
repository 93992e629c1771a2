//! Replicas that cannot refresh, under `step_down`: they free the lock for each other, and do not fight for it.

use std::time::{Duration, Instant};

use retsu_collector::election::ACQUIRED;
use sqlx::{Connection, Executor, PgConnection};

use super::replicas::{LIMIT, Replica, leader_and_standby, step_down};
use super::stage::{Holder, WAITING, agreement, execute, note_of_seven, value};
use crate::support::kubernetes::{Cluster, ROLE, TERM};
use crate::support::{self, eventually, keys, throughout};

const LOST: &str = "leadership lost";

const HELD: &str = "retsu_collector_election_attempts_total{outcome=\"held\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_both_fail_do_not_pass_the_lock_to_and_fro_and_lead_within_the_retry_interval_once_it_works() {
    let retry = Duration::from_secs(60);
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let replicas = leader_and_standby(&cluster, &database, |config| {
        step_down(config);
        // A term that fails lasts long enough for its annotation to be seen before its marker.
        config.set(keys::RETRY, retry.as_secs()).set(keys::TIMEOUT, 0.4);
    })
    .await;
    let [a, b] = &replicas;
    let mut session = PgConnection::connect(&database.url()).await.unwrap();
    session.execute(sqlx::raw_sql("BEGIN; LOCK TABLE queue_message")).await.unwrap();
    let lost = a.collector.wait_for_log(LOST, LIMIT).await;
    b.collector.wait_for_log(LOST, LIMIT).await;
    // The first pause after a failure is a sixteenth of the retry interval at least; half a second is for the log.
    let pause = retry / 16 - Duration::from_millis(500);
    throughout((lost + pause).saturating_duration_since(Instant::now()), "nobody tries again at once", async || {
        replicas.iter().all(|replica| replica.collector.count_in_log(ACQUIRED) == 1)
    })
    .await;

    session.close().await.unwrap();
    let exports = async |replica: &Replica| replica.collector.exports().await;
    eventually(retry, "one exports", async || exports(a).await || exports(b).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_failed_tries_the_lock_at_once_again_when_a_holder_has_stayed() {
    let (cluster, database) = (Cluster::new().await, support::queue_database().await);
    let url = database.url();
    cluster.pod("a").await;
    let note = note_of_seven(&url, cluster.container("a").await.container_id.as_deref()).await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    cluster.set_annotation("a", TERM, Some(&note.to_string())).await;
    execute(&url, "ALTER TABLE queue_message RENAME TO queue_message_away").await;
    let b = cluster
        .collector("b", &url, |config| {
            step_down(config);
            config.set(keys::RETRY, 10);
        })
        .await;
    b.wait_for_log(LOST, LIMIT).await;
    let _holder = Holder::take(&url, "retsu-collector F=3000ms T=1/7 a").await;
    b.wait_for_log(WAITING, LIMIT).await;
    let sees = async |state| eventually(LIMIT, state, async || agreement(&b).await == Some(state)).await;
    let held = async || value(&b, HELD).await.unwrap();

    sees("one").await;
    cluster.set_label("a", ROLE, None).await;
    sees("none").await;
    throughout(Duration::from_secs(1), "it leaves the place to others", async || held().await == 1).await;

    eventually(LIMIT, "it has seen the holder twice", async || held().await == 2).await;
    throughout(Duration::from_secs(1), "the old occasion is past", async || held().await == 2).await;
    cluster.set_label("a", ROLE, Some("leader")).await;
    sees("one").await;
    cluster.set_label("a", ROLE, None).await;
    // At the retry interval alone there would be two more.
    eventually(Duration::from_secs(20), "a burst of attempts", async || held().await >= 2 + 5).await;
}
