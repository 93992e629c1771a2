//! Every failure scenario of the specification, measured: who exports when, from scrapes of all processes every
//! 20 ms. `cargo test --test it failover -- --nocapture` prints the gaps.

use std::time::Duration;

use futures_util::future::join_all;
use retsu_collector::demo::history;
use retsu_collector::demo::scrape::exports_state;
use retsu_collector::election::{ACQUIRED, Fault};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::keys::{FENCE, HEARTBEAT, HEARTBEAT_TIMEOUT, INTERVAL, ON_FAILURE, RETRY, TIMEOUT};
use crate::support::{Collector, Config, History, Proxy, eventually, lock_holders, queue_database, server, throughout};

const LIMIT: Duration = Duration::from_secs(30);

/// What scheduling on a busy machine may add to a declared bound, and slow scrapes to a measured gap.
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

/// Nobody exported once, and no longer than `bound`. The gap begins with the last gauges, which are never before the
/// fault.
fn assert_one_gap_within(history: &history::History, bound: Duration) {
    let gaps = history.gaps();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    println!("gap of {:?} to {:?}, declared {bound:?}", gaps[0].at_least, gaps[0].at_most);
    assert!(gaps[0].at_most <= bound + SLACK, "declared {bound:?}: {gaps:?}");
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
    standby.wait_for_log(ACQUIRED, standby.bound(Fault::Graceful).await + SLACK).await;
    eventually(LIMIT, "the standby's metrics contain the gauge", async || contains(&standby).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_hands_over_within_the_declared_bound() {
    let url = queue_database().await.url();
    let [mut leader, standby] = leader_and_standby([&url, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    leader.sigterm();
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(0));
    wait_for_take_over(&history).await;
    let history = history.finish("graceful stop");
    assert_never_two(&history);
    assert_one_gap_within(&history, standby.bound(Fault::Graceful).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_within_the_declared_bound() {
    let url = queue_database().await.url();
    let [leader, standby] = leader_and_standby([&url, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    leader.sigkill();
    wait_for_take_over(&history).await;
    let history = history.finish("SIGKILL");
    assert_never_two(&history);
    assert_one_gap_within(&history, standby.bound(Fault::ProcessKilled).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_ends_and_another_takes_over_within_the_declared_bound() {
    let url = queue_database().await.url();
    let (proxy, through) = Proxy::start(&url).await;
    let [mut leader, standby] = leader_and_standby([&through, &url], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    proxy.cut();
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(1));
    wait_for_take_over(&history).await;
    let history = history.finish("connection cut");
    assert_never_two(&history);
    assert_one_gap_within(&history, standby.bound(Fault::NetworkCut).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_server_end_is_gone_withdraws_before_another_takes_over() {
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
    assert_never_two(&history);
    assert_one_gap_within(&history, standby.bound(Fault::NetworkCut).await);
    standby.sigkill();
    eventually(LIMIT, "the mended one leads again", async || leader.exports().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_backend_is_terminated_ends_and_another_takes_over_within_the_declared_bound() {
    let database = queue_database().await;
    let [mut leader, standby] = leader_and_standby([&database.url(), &database.url()], "exit").await;
    let history = History::watch(&[&leader, &standby]);
    wait_for_sole_exporter(&history, 0).await;
    terminate_holder(&database.pool().await).await;
    assert_eq!(leader.wait_exit(LIMIT).await.code(), Some(1));
    wait_for_take_over(&history).await;
    let history = history.finish("pg_terminate_backend");
    assert_never_two(&history);
    assert_one_gap_within(&history, standby.bound(Fault::BackendTerminated).await);
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
    // Whoever leads next: the longer one is that of the longer retry interval.
    let bound = leader.bound(Fault::ServerRestarted).await.max(standby.bound(Fault::ServerRestarted).await);
    let history = History::watch(&[&leader, &standby]);
    for round in 1..=5 {
        eventually(LIMIT, "one alone exports", async || history.exporting().len() == 1).await;
        if immediate {
            server.restart_immediate().await;
        } else {
            server.restart_fast().await;
        }
        let returned = history.elapsed();
        eventually(LIMIT, "one exports again", async || history.so_far().gaps().len() >= round).await;
        let again = history.so_far().runs().iter().map(|run| run.first.1).filter(|&first| first > returned).min();
        let took = again.unwrap_or_default().saturating_sub(returned);
        println!("{title}: gauges {took:?} after the server was back, declared {bound:?}");
        assert!(took <= bound + SLACK, "gauges {took:?} after the server was back, declared {bound:?}");
    }
    assert_never_two(&history.finish(title));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_restart_of_the_server_makes_one_exporter_within_the_declared_bound_and_never_two() {
    restart("server restarted, fast", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_of_the_server_makes_one_exporter_within_the_declared_bound_and_never_two() {
    restart("server restarted, immediate", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_noticed_by_the_next_heartbeat_when_no_refresh_is_due() {
    let mut server = server().await;
    let url = server.queue_database("queues").await;
    let leader = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down").set(INTERVAL, 60));
    eventually(LIMIT, "it exports", async || leader.exports().await).await;
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
    let rounds = join_all((0..6).map(|_| start_together(17))).await;
    let (firsts, scrapes) = rounds.into_iter().fold((0, 0), |sum, round| (sum.0 + round.0, sum.1 + round.1));
    println!("102 simultaneous starts: the first led {firsts} times, {scrapes} scrapes, 0 overlaps");
}

/// Starts two collectors at once, `rounds` times. Returns how often the first of them led, and how many scrapes
/// have seen that one alone did.
async fn start_together(rounds: usize) -> (usize, u64) {
    let database = queue_database().await;
    let (url, observer) = (database.url(), database.pool().await);
    let (mut firsts, mut scrapes) = (0, 0);
    for round in 0..rounds {
        // Long enough for a leader that waits for its turn among twelve starting processes.
        let start =
            |_| Collector::start(&url, |config| _ = config.set(FENCE, 2).set(HEARTBEAT, 0.5).set(HEARTBEAT_TIMEOUT, 1));
        let mut pair = [0, 1].map(start);
        let history = History::watch(&[&pair[0], &pair[1]]);
        eventually(LIMIT, "one exports and the other was told that the lock is held", async || {
            let metrics = [pair[0].metrics().await, pair[1].metrics().await];
            let held = "retsu_collector_election_attempts_total{outcome=\"held\"} ";
            let refused = |metrics: &String| {
                metrics.lines().any(|line| line.strip_prefix(held).is_some_and(|count| count != "0"))
            };
            history.exporting().len() == 1 && metrics.iter().flatten().any(refused)
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
    (firsts, scrapes)
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
    const WAITING: usize = 40;
    let url = queue_database().await.url();
    let (proxy, through) = Proxy::start(&url).await;
    // With a refresh a minute its snapshot would be young enough all the time: only the fence keeps it silent.
    let leader = Collector::start(&through, |config| _ = config.set(ON_FAILURE, "step_down").set(INTERVAL, 60));
    eventually(LIMIT, "the first exports", async || leader.exports().await).await;
    let standby = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down"));
    standby.wait_until_serving(LIMIT).await;
    leader.sigstop();
    proxy.deafen();
    eventually(LIMIT, "the standby exports", async || standby.exports().await).await;
    // They are in front of it when it goes on, before its timers have told it how late it is.
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let mut stream = TcpStream::connect(leader.address()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
        waiting.push(stream);
    }
    leader.sigcont();
    for mut stream in waiting {
        let mut answer = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && !exports_state(&answer), "{answer}");
    }
    throughout(Duration::from_secs(4), "the old leader exports nothing", async || !leader.exports().await).await;
    assert!(standby.exports().await);
}
