//! Hot standbys and promotions, with real streaming replication: who is refused, who withdraws, and what each exporter
//! says that it proves while two primaries live.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};

use crate::support::keys::{FENCE, HEARTBEAT_TIMEOUT, IDLE_SESSION, INTERVAL, ON_FAILURE, TCP_USER};
use crate::support::{
    Collector, Config, History, Proxy, Replication, ServerIdentity, eventually, exit_without_lock, lock_holders,
    make_standby, server, server_identity, slow_down, throughout,
};

const LIMIT: Duration = Duration::from_secs(30);

/// The reason under which a hot standby is refused.
const HOT_STANDBY: &str = "hot_standby";

fn step_down(config: &mut Config) {
    config.set(ON_FAILURE, "step_down");
}

/// What `/leader` of a collector says.
async fn leader_answer(collector: &Collector) -> serde_json::Value {
    let (_, body) = collector.get("/leader").await.unwrap();
    serde_json::from_str(&body).unwrap()
}

/// The identity that `/leader` names, which must be that of the metrics; `None` on a standby.
async fn proved_identity(collector: &Collector) -> Option<ServerIdentity> {
    let (answer, metrics) = (leader_answer(collector).await, collector.metrics().await.unwrap());
    if answer["role"] != "leader" || !retsu_collector::demo::scrape::exports_state(&metrics) {
        return None;
    }
    let system_identifier = answer["system_identifier"].as_str().unwrap_or_else(|| panic!("a string: {answer}"));
    let timeline = answer["term"]["timeline"].as_u64().unwrap_or_else(|| panic!("a number: {answer}"));
    let info =
        format!("retsu_collector_term_info{{system_identifier=\"{system_identifier}\",timeline=\"{timeline}\"}} 1\n");
    let gauge = format!("retsu_collector_term_timeline {timeline}\n");
    assert!(metrics.contains(&info) && metrics.contains(&gauge), "{info}{gauge}is not in\n{metrics}");
    Some(ServerIdentity {
        system_identifier: system_identifier.parse().unwrap(),
        timeline: Some(timeline.try_into().unwrap()),
    })
}

/// Of one answer, the server that it names as the one that granted the lock, and the queues that it exports.
fn exported(metrics: &str) -> Option<(ServerIdentity, BTreeSet<&str>)> {
    let ready = metrics.lines().filter(|line| line.starts_with("queue_messages_ready{"));
    let queues: BTreeSet<_> = ready.map(|line| line.split('"').nth(1).unwrap()).collect();
    if queues.is_empty() {
        return None;
    }
    let info = metrics.lines().find_map(|line| line.strip_prefix("retsu_collector_term_info{"));
    let values: Vec<_> = info.unwrap_or_else(|| panic!("no term in\n{metrics}")).split('"').collect();
    let identity =
        ServerIdentity { system_identifier: values[1].parse().unwrap(), timeline: Some(values[3].parse().unwrap()) };
    Some((identity, queues))
}

async fn create_queue(url: &str, name: &str) {
    let mut writer = PgConnection::connect(url).await.unwrap();
    sqlx::query("INSERT INTO queue (name) VALUES ($1)").bind(name).execute(&mut writer).await.unwrap();
}

/// Waits until a collector exports for `identity`.
async fn wait_for_identity(collector: &Collector, identity: ServerIdentity) {
    collector.wait_until_serving(LIMIT).await;
    eventually(LIMIT, &format!("it exports for {identity:?}"), async || {
        proved_identity(collector).await == Some(identity)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_exit_a_replica_is_refused_by_name_and_nothing_is_taken() {
    let replication = Replication::start("queues").await;
    let url = replication.standby_url("queues");
    let observer = PgPool::connect(&url).await.unwrap();
    let mut collector = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "exit"));
    let status = exit_without_lock(&mut collector, &observer, LIMIT).await;
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    collector.wait_for_log(HOT_STANDBY, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_step_down_a_replica_is_refused_until_it_is_promoted_and_then_led_on() {
    let replication = Replication::start("queues").await;
    let url = replication.standby_url("queues");
    let observer = PgPool::connect(&url).await.unwrap();
    let collector = Collector::start(&url, step_down);
    collector.wait_for_log(HOT_STANDBY, LIMIT).await;
    throughout(Duration::from_secs(3), "nothing is taken and nothing exported", async || {
        lock_holders(&observer).await == 0 && !collector.exports().await
    })
    .await;
    let answer = leader_answer(&collector).await;
    assert_eq!(answer["role"], "standby");
    assert!(answer.to_string().contains(HOT_STANDBY), "{answer}");
    assert!(collector.metrics().await.unwrap().contains(HOT_STANDBY), "a metric names the reason");
    assert_eq!(collector.count_in_log("WARN"), 1, "one line per change, however many attempts");

    replication.promote().await;
    wait_for_identity(&collector, server_identity(&url).await).await;
    assert!(!leader_answer(&collector).await.to_string().contains(HOT_STANDBY), "the refusal is over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_server_on_which_another_leads_is_not_led_on() {
    let replication = Replication::start("queues").await;
    let url = replication.standby_url("queues");
    let waiting = Collector::start(&url, step_down);
    waiting.wait_for_log(HOT_STANDBY, LIMIT).await;
    replication.promote().await;
    let mut foreigner = PgConnection::connect(&url).await.unwrap();
    // The collector may have been faster; then it leads and there is nothing to wait for.
    let granted = "SELECT pg_try_advisory_lock(1919251571, 1901294689)";
    if sqlx::query_scalar(granted).fetch_one(&mut foreigner).await.unwrap() {
        throughout(Duration::from_secs(3), "it exports nothing", async || !waiting.exports().await).await;
        foreigner.close().await.unwrap();
    }
    wait_for_identity(&waiting, server_identity(&url).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_two_primaries_live_each_exporter_names_the_one_that_it_proves() {
    let replication = Replication::start("queues").await;
    let urls = [replication.primary.url("queues"), replication.standby_url("queues")];
    let collectors = urls.each_ref().map(|url| Collector::start(url, step_down));
    let before = server_identity(&urls[0]).await;
    wait_for_identity(&collectors[0], before).await;
    throughout(Duration::from_secs(2), "that of the replica exports nothing", async || !collectors[1].exports().await)
        .await;

    replication.promote().await;
    let after = server_identity(&urls[1]).await;
    assert_eq!(after, ServerIdentity { timeline: Some(2), ..before });
    wait_for_identity(&collectors[1], after).await;
    eventually(LIMIT, "both export: the invariant is one for each primary", async || {
        [proved_identity(&collectors[0]).await, proved_identity(&collectors[1]).await] == [Some(before), Some(after)]
    })
    .await;
    // From here on the values tell where they were read.
    for (url, name) in urls.iter().zip(["old", "new"]) {
        create_queue(url, name).await;
    }
    for (collector, of_it) in collectors.iter().zip([(before, "old"), (after, "new")]) {
        let wanted = Some((of_it.0, BTreeSet::from([of_it.1])));
        let exports = async || collector.metrics().await.is_some_and(|metrics| exported(&metrics) == wanted);
        eventually(LIMIT, &format!("it exports the queue {}", of_it.1), exports).await;
        throughout(Duration::from_secs(2), "it names the server that it reads", exports).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_address_is_switched_never_exports_for_a_server_that_it_cannot_prove() {
    let replication = Replication::start("queues").await;
    let (proxy, through) = Proxy::start(&replication.primary.url("queues")).await;
    let old = server_identity(&through).await;
    let leader = Collector::start(&through, step_down);
    wait_for_identity(&leader, old).await;
    replication.promote().await;
    for (url, name) in [(replication.primary.url("queues"), "old"), (replication.standby_url("queues"), "new")] {
        create_queue(&url, name).await;
    }
    proxy.retarget(replication.standby.port());
    let new = server_identity(&through).await;
    assert_eq!(new.timeline, Some(2), "new connections reach the promoted server");
    // Its session is still one of the old primary, which lives. A proof that happens to come from another connection
    // meets the promoted server, ends the term, and the next one begins there.
    let of = |queue| BTreeSet::from([queue]);
    let is_right = |metrics: &str| match exported(metrics) {
        Some((identity, queues)) => {
            (identity == old && queues == of("old")) || (identity == new && queues == of("new"))
        }
        None => true,
    };
    let exports = async |queue| {
        leader.metrics().await.is_some_and(|metrics| exported(&metrics).is_some_and(|(_, queues)| queues == of(queue)))
    };
    eventually(LIMIT, "it exports a queue of one of them", async || exports("old").await || exports("new").await).await;
    let history = History::watch(&[&leader]);
    let names_what_it_reads = async || history.exposition(0).is_none_or(|metrics| is_right(&metrics));
    throughout(Duration::from_secs(4), "it names the primary that it reads", names_what_it_reads).await;
    proxy.cut();
    eventually(LIMIT, "it has withdrawn", async || !leader.exports().await).await;
    proxy.mend();
    eventually(LIMIT, "it exports the queue of the promoted server, and names it", async || {
        assert!(names_what_it_reads().await, "it names another server than it reads");
        exports("new").await
    })
    .await;
    eventually(LIMIT, "the gap has an end", async || !history.so_far().gaps().is_empty()).await;
    history.finish("address switched to the promoted server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_witness_that_reaches_the_promoted_server_ends_the_term_on_the_old_one() {
    let replication = Replication::start("queues").await;
    let (proxy, through) = Proxy::start(&replication.primary.url("queues")).await;
    // A new connection may take seconds on a busy machine: a late proof would end the term for another reason.
    let leader = Collector::start(&through, |config| {
        config
            .set(ON_FAILURE, "step_down")
            .set(FENCE, 8)
            .set(HEARTBEAT_TIMEOUT, 6)
            .set(IDLE_SESSION, 14)
            .set(TCP_USER, 6);
    });
    wait_for_identity(&leader, server_identity(&through).await).await;
    replication.promote().await;
    proxy.retarget(replication.standby.port());
    let new = server_identity(&through).await;
    let old_primary = PgPool::connect(&replication.primary.url("queues")).await.unwrap();
    // A witness of before, during a refresh that was slow by itself, would still lead to the old primary.
    let end_others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() \
         AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    sqlx::query(end_others).execute(&old_primary).await.unwrap();
    // A refresh that takes longer than a heartbeat asks another connection for the proof.
    slow_down(&old_primary, 4.5).await;
    leader.wait_for_log("leadership lost", LIMIT).await;
    assert_eq!(leader.count_in_log("timeline 2, the lock was granted by"), 1, "the reason is the other timeline");
    wait_for_identity(&leader, new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_of_the_old_primary_leads_on_the_promoted_one_when_the_old_one_is_gone() {
    let mut replication = Replication::start("queues").await;
    let (proxy, through) = Proxy::start(&replication.primary.url("queues")).await;
    let leader = Collector::start(&through, step_down);
    wait_for_identity(&leader, server_identity(&through).await).await;
    let standby = Collector::start(&through, step_down);
    standby.wait_until_serving(LIMIT).await;
    let history = History::watch(&[&leader, &standby]);
    replication.catch_up().await;
    replication.primary.stop().await;
    eventually(LIMIT, "nobody exports", async || history.exporting().is_empty()).await;
    proxy.retarget(replication.standby.port());
    throughout(Duration::from_secs(2), "nobody exports for a replica", async || history.exporting().is_empty()).await;
    replication.promote().await;
    let new = server_identity(&through).await;
    eventually(LIMIT, "one exports for the promoted server", async || {
        [proved_identity(&leader).await, proved_identity(&standby).await].iter().flatten().any(|&said| said == new)
    })
    .await;
    eventually(LIMIT, "its gauges are seen", async || history.exporting().len() == 1).await;
    let history = history.finish("primary lost, replica promoted");
    assert_eq!(history.overlaps(), []);
    assert_eq!(history.gaps().len(), 1, "{:?}", history.gaps());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_withdraws_when_its_server_comes_back_as_a_standby() {
    let mut server = server().await;
    let url = server.queue_database("queues").await;
    // No refresh is due for a minute: it is the lease that ends.
    let leader = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down").set(INTERVAL, 60));
    let before = server_identity(&url).await;
    wait_for_identity(&leader, before).await;
    server.stop().await;
    make_standby(server.data_dir());
    server.start().await;
    leader.wait_for_log(HOT_STANDBY, LIMIT).await;
    let observer = PgPool::connect(&url).await.unwrap();
    throughout(Duration::from_secs(3), "it exports nothing and takes nothing", async || {
        !leader.exports().await && lock_holders(&observer).await == 0
    })
    .await;
    assert_eq!(leader_answer(&leader).await["role"], "standby");
    assert!(sqlx::query_scalar::<_, bool>("SELECT pg_promote()").fetch_one(&observer).await.unwrap());
    let after = server_identity(&url).await;
    assert_eq!(after, ServerIdentity { timeline: Some(2), ..before });
    wait_for_identity(&leader, after).await;
}

/// Why a hot standby has to be refused before the lock is tried on it.
#[tokio::test]
async fn postgresql_keeps_a_lock_of_a_hot_standby_through_its_promotion() {
    let replication = Replication::start("queues").await;
    let mut session = PgConnection::connect(&replication.standby_url("queues")).await.unwrap();
    let look = "SELECT pg_backend_pid(), pg_is_in_recovery(), \
        CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END, \
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid())";
    let lock = "SELECT pg_try_advisory_lock(1919251571, 1901294689)";
    assert!(sqlx::query_scalar::<_, bool>(lock).fetch_one(&mut session).await.unwrap(), "a replica grants it");
    let mut look =
        async || -> (i32, bool, Option<String>, i64) { sqlx::query_as(look).fetch_one(&mut session).await.unwrap() };
    let before = look().await;
    replication.promote().await;
    let after = look().await;
    assert_eq!(before, (before.0, true, None, 1));
    assert_eq!(after, (before.0, false, Some("00000002".to_owned()), 1), "the same session, another timeline");
    // And the primary has granted the same lock to somebody else all the time.
    let mut on_primary = PgConnection::connect(&replication.primary.url("queues")).await.unwrap();
    assert!(sqlx::query_scalar::<_, bool>(lock).fetch_one(&mut on_primary).await.unwrap());
}

/// Why a session that has once seen a primary need not fear another timeline: a primary becomes a standby, and follows
/// another timeline, only by a restart.
#[tokio::test]
async fn postgresql_lets_no_session_of_a_primary_live_to_see_another_timeline() {
    let mut server = server().await;
    let url = server.database("queues").await;
    let mut session = PgConnection::connect(&url).await.unwrap();
    let promote = "SELECT pg_promote()";
    assert!(sqlx::query(promote).fetch_one(&mut session).await.is_err(), "a primary cannot be promoted");
    // The file alone changes nothing.
    make_standby(server.data_dir());
    assert!(sqlx::query("SELECT pg_reload_conf()").fetch_one(&mut session).await.is_ok());
    assert_eq!(server_identity(&url).await.timeline, Some(1));
    server.restart_fast().await;
    assert!(sqlx::query("SELECT 1").fetch_one(&mut session).await.is_err(), "the session is gone");
    assert_eq!(server_identity(&url).await.timeline, None);
    let mut session = PgConnection::connect(&url).await.unwrap();
    assert!(sqlx::query_scalar::<_, bool>(promote).fetch_one(&mut session).await.unwrap());
    assert_eq!(server_identity(&url).await.timeline, Some(2));
}
