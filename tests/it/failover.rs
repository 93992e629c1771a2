//! Every failure scenario of the specification, measured: who exports when, from scrapes of all processes every
//! 20 ms. `cargo test --test it failover -- --nocapture` prints the gaps.

use std::time::Duration;

use retsu_collector::demo::history;
use retsu_collector::election::ACQUIRED;
use sqlx::{Connection, PgConnection, PgPool};

use crate::support::{Collector, Config, History, Proxy, eventually, lock_holders, queue_database, server, throughout};

const LIMIT: Duration = Duration::from_secs(30);
const RETRY: &str = "worker.queue.state_metrics_collector.leadership_retry_interval_seconds";
const INTERVAL: &str = "worker.queue.state_metrics_collector.collection_interval_seconds";
const TIMEOUT: &str = "worker.queue.state_metrics_collector.refresh_timeout_seconds";
const ON_FAILURE: &str = "worker.queue.state_metrics_collector.on_refresh_failure";

/// Interval and retry interval of these tests are one second; this is what scheduling on a busy machine may add.
const SLACK: Duration = Duration::from_secs(5);

/// A leader that exports, and a standby that serves.
async fn leader_and_standby(urls: [&str; 2], failure: &str) -> [Collector; 2] {
    let leader = Collector::start(urls[0], |config| _ = config.set(ON_FAILURE, failure).set(TIMEOUT, 2));
    eventually(LIMIT, "the first exports", async || leader.exports().await).await;
    let standby = Collector::start(urls[1], |config| _ = config.set(ON_FAILURE, failure).set(TIMEOUT, 2));
    standby.wait_until_serving(LIMIT).await;
    [leader, standby]
}

async fn wait_for_sole_exporter(history: &History, target: usize) {
    eventually(LIMIT, "one alone exports", async || history.exporting() == [target]).await;
}

/// Waits until the standby alone exports, and holds it for a while: an old leader that came back would show.
async fn wait_for_take_over(history: &History) {
    wait_for_sole_exporter(history, 1).await;
    throughout(Duration::from_secs(1), "the new leader alone exports", async || history.exporting() == [1]).await;
}

fn assert_never_two(history: &history::History) {
    assert_eq!(history.overlaps(), [], "two exported at once");
    assert!(history.scrapes() > 50, "too few scrapes to prove anything: {}", history.scrapes());
}

fn assert_one_gap_of_at_most(history: &history::History, limit: Duration) {
    let gaps = history.gaps();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(gaps[0].at_most <= limit, "{gaps:?}");
}

async fn terminate_holder(observer: &PgPool) {
    let ended: Vec<bool> = sqlx::query_scalar(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_all(observer)
    .await
    .unwrap();
    assert_eq!(ended, [true], "exactly one session holds the lock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_test_of_the_specification_holds_word_for_word() {
    let database = queue_database().await;
    let start = |port| Collector::start(&database.url(), |config| _ = config.unset(RETRY).unset(INTERVAL).port(port));
    let (first, second) = (start(24350), start(24351));
    let led = async |collector: &Collector| collector.count_in_log(ACQUIRED) > 0;
    eventually(LIMIT, "one has logged that it leads", async || led(&first).await || led(&second).await).await;
    let (mut leader, standby) = if led(&first).await { (first, second) } else { (second, first) };

    let queue = "INSERT INTO queue (name) VALUES ('emails')";
    sqlx::query(queue).execute(&database.pool().await).await.unwrap();
    let contains = async |collector: &Collector| {
        collector.metrics().await.is_some_and(|metrics| metrics.contains("queue_messages_ready"))
    };
    eventually(LIMIT, "the leader's metrics contain the gauge", async || contains(&leader).await).await;
    standby.wait_until_serving(LIMIT).await;
    throughout(Duration::from_secs(2), "the standby says nothing of queues", async || {
        standby.metrics().await.is_some_and(|metrics| !metrics.contains("queue_"))
    })
    .await;
    assert_eq!((led(&leader).await, led(&standby).await), (true, false));

    leader.sigint();
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(0));
    standby.wait_for_log(ACQUIRED, Duration::from_secs(15) + SLACK).await;
    eventually(LIMIT, "the standby's metrics contain the gauge", async || contains(&standby).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_hands_over_within_the_retry_interval() {
    let url = queue_database().await.url();
    let [mut leader, standby] = leader_and_standby([&url, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    leader.sigterm();
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(0));
    wait_for_take_over(&history).await;
    let history = history.finish("graceful stop");
    assert_never_two(&history);
    assert_one_gap_of_at_most(&history, Duration::from_secs(1) + SLACK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_within_the_retry_interval() {
    let url = queue_database().await.url();
    let [leader, standby] = leader_and_standby([&url, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    leader.sigkill();
    wait_for_take_over(&history).await;
    let history = history.finish("SIGKILL");
    assert_never_two(&history);
    assert_one_gap_of_at_most(&history, Duration::from_secs(1) + SLACK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_ends_at_its_next_refresh() {
    let url = queue_database().await.url();
    let (proxy, through) = Proxy::start(&url).await;
    let [mut leader, standby] = leader_and_standby([&through, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    proxy.cut();
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(1));
    wait_for_sole_exporter(&history, 1).await;
    // Until the lease has a heartbeat, the old leader may go on until its next refresh.
    let history = history.finish("connection cut");
    for overlap in history.overlaps() {
        assert!(overlap.at_least <= Duration::from_secs(1) + SLACK, "{overlap:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_server_end_is_gone_ends_at_the_timeout_of_its_next_refresh() {
    let url = queue_database().await.url();
    let (proxy, through) = Proxy::start(&url).await;
    let [leader, standby] = leader_and_standby([&through, &url], "step_down").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    proxy.deafen();
    wait_for_sole_exporter(&history, 1).await;
    leader.wait_for_log("leadership lost", LIMIT).await;
    proxy.mend();
    let history = history.finish("connection cut, unnoticed by the leader");
    for overlap in history.overlaps() {
        assert!(overlap.at_least <= Duration::from_secs(1 + 2) + SLACK, "{overlap:?}");
    }
    standby.sigkill();
    eventually(LIMIT, "the mended one leads again", async || leader.exports().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_backend_is_terminated_ends_at_its_next_refresh() {
    let database = queue_database().await;
    let [mut leader, standby] = leader_and_standby([&database.url(), &database.url()], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    terminate_holder(&database.pool().await).await;
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(1));
    wait_for_sole_exporter(&history, 1).await;
    let history = history.finish("pg_terminate_backend");
    for overlap in history.overlaps() {
        assert!(overlap.at_least <= Duration::from_secs(1) + SLACK, "{overlap:?}");
    }
}

async fn restart(title: &str, immediate: bool) {
    let mut server = server().await;
    let url = server.queue_database("queues").await;
    // The old leader must notice by itself, not by a refresh that happens to be due: it has none for a minute.
    let configure = |retry: &'static str| {
        move |config: &mut Config| _ = config.set(ON_FAILURE, "step_down").set(INTERVAL, 60).set(RETRY, retry)
    };
    let leader = Collector::start(&url, configure("1"));
    eventually(LIMIT, "the first exports", async || leader.exports().await).await;
    let standby = Collector::start(&url, configure("0.1"));
    standby.wait_until_serving(LIMIT).await;
    let history = History::watch(&[&leader, &standby]);
    for round in 1..=5 {
        eventually(LIMIT, "one alone exports", async || history.exporting().len() == 1).await;
        if immediate {
            server.restart_immediate().await;
        } else {
            server.restart_fast().await;
        }
        eventually(LIMIT, "one exports again", async || history.so_far().gaps().len() >= round).await;
    }
    assert_never_two(&history.finish(title));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_restart_of_the_server_never_makes_two_exporters() {
    restart("server restarted, fast", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_of_the_server_never_makes_two_exporters() {
    restart("server restarted, immediate", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_noticed_at_once_even_after_the_session_that_watches_for_it_has_ended_alone() {
    let mut server = server().await;
    let url = server.database("queues").await;
    let observer = PgPool::connect(&url).await.unwrap();
    retsu_collector::schema::apply(&mut observer.acquire().await.unwrap()).await.unwrap();
    // No refresh is due for a minute.
    let leader = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down").set(INTERVAL, 60));
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
    let watching = "SELECT pid FROM pg_stat_activity WHERE application_name = 'retsu-collector' \
        AND datname = current_database() AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    let watching = async || sqlx::query_scalar::<_, i32>(watching).fetch_all(&observer).await.unwrap();
    let before = watching().await;
    assert_eq!(before.len(), 1, "one session besides the lock session");
    sqlx::query("SELECT pg_terminate_backend($1)").bind(before[0]).execute(&observer).await.unwrap();
    eventually(LIMIT, "another session watches", async || {
        let now = watching().await;
        now.len() == 1 && now != before
    })
    .await;
    assert!(leader.exports().await, "nothing has happened to its lock session");
    server.restart_fast().await;
    leader.wait_for_log("leadership lost", SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_exit_a_server_restart_ends_both_and_the_platform_brings_them_back() {
    let mut server = server().await;
    let url = server.queue_database("queues").await;
    let mut collectors = leader_and_standby([&url, &url], "exit").await;
    let ports = collectors.each_ref().map(|collector| collector.address().port());
    let history = History::watch(&[&collectors[0], &collectors[1]]);
    wait_for_sole_exporter(&history, 0).await;
    server.stop().await;
    for collector in &mut collectors {
        assert_eq!(collector.wait_exit(LIMIT).await.code(), Some(1));
    }
    server.start().await;
    let _again = ports.map(|port| Collector::start(&url, |config| _ = config.port(port)));
    eventually(LIMIT, "one exports again", async || !history.so_far().gaps().is_empty()).await;
    throughout(Duration::from_secs(1), "one alone exports", async || history.exporting().len() == 1).await;
    assert_never_two(&history.finish("server restarted, both exit"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_start_together_exactly_one_leads_every_time() {
    let database = queue_database().await;
    let (url, observer) = (database.url(), database.pool().await);
    let (mut firsts, mut scrapes) = (0, 0);
    for round in 0..100 {
        let mut pair = [0, 1].map(|_| Collector::start(&url, |_| {}));
        let history = History::watch(&[&pair[0], &pair[1]]);
        eventually(LIMIT, "one exports and the other was told that the lock is held", async || {
            let metrics = [pair[0].metrics().await, pair[1].metrics().await];
            let held = "retsu_collector_election_attempts_total{outcome=\"held\"} 1";
            history.exporting().len() == 1 && metrics.iter().flatten().any(|metrics| metrics.contains(held))
        })
        .await;
        let acquired = pair.each_ref().map(|collector| collector.count_in_log(ACQUIRED));
        assert_eq!(acquired[0] + acquired[1], 1, "round {round}");
        let history = history.so_far();
        assert_eq!(history.overlaps(), [], "round {round}");
        (firsts, scrapes) = (firsts + acquired[0], scrapes + history.scrapes());
        for collector in &mut pair {
            collector.sigkill();
            collector.wait_exit(LIMIT).await;
        }
        eventually(LIMIT, "the lock is free", async || lock_holders(&observer).await == 0).await;
    }
    println!("100 simultaneous starts: the first led {firsts} times, {scrapes} scrapes, 0 overlaps");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_keeps_everyone_on_standby_until_it_lets_go() {
    let database = queue_database().await;
    let mut foreigner = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(1919251571, 1901294689)").execute(&mut foreigner).await.unwrap();
    let collectors = [0, 1].map(|_| Collector::start(&database.url(), |_| {}));
    for collector in &collectors {
        collector.wait_until_serving(LIMIT).await;
    }
    throughout(Duration::from_secs(3), "nobody exports", async || {
        !collectors[0].exports().await && !collectors[1].exports().await
    })
    .await;
    foreigner.close().await.unwrap();
    eventually(LIMIT, "one exports", async || collectors[0].exports().await != collectors[1].exports().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_paused_past_its_fence_says_nothing_when_it_goes_on() {
    let url = queue_database().await.url();
    let (proxy, through) = Proxy::start(&url).await;
    let [leader, standby] = leader_and_standby([&through, &url], "step_down").await;
    leader.sigstop();
    proxy.deafen();
    eventually(LIMIT, "the standby exports", async || standby.exports().await).await;
    // An interval of one second and a timeout of two make a fence of five.
    throughout(Duration::from_secs(6), "the standby exports", async || standby.exports().await).await;
    leader.sigcont();
    // It believes in its session until its next refresh times out: for two seconds only the fence keeps it silent.
    throughout(Duration::from_secs(4), "the old leader exports nothing", async || !leader.exports().await).await;
    assert!(standby.exports().await);
}
