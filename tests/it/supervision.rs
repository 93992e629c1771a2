//! How the process ends, and what it survives.

use std::process::{Command, Stdio};
use std::time::Duration;

use retsu_collector::election::ACQUIRED;
use rustix::process::{Pid, Signal, getuid, kill_process};

use crate::support::keys::{INTERVAL, ON_FAILURE, TIMEOUT};
use crate::support::{Collector, EXECUTABLE, Proxy, eventually, free_port, queue_database, slow_down, throughout};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_refresh_ends_the_process_and_its_endpoint_with_it() {
    let database = queue_database().await;
    let mut collector = Collector::start(&database.url(), |_| {});
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    sqlx::query("DROP TABLE queue_priority_state_shard").execute(&database.pool().await).await.unwrap();
    assert_eq!(collector.wait_exit(LIMIT).await.code(), Some(1));
    assert!(collector.get("/health/live").await.is_err());
    assert!(collector.count_in_log("queue_priority_state_shard") > 0, "the log names the table");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepping_down_keeps_the_process_and_says_that_collection_fails_until_it_works_again() {
    let database = queue_database().await;
    let collector = Collector::start(&database.url(), |config| _ = config.set(ON_FAILURE, "step_down"));
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    let pool = database.pool().await;
    sqlx::query("ALTER TABLE queue RENAME TO queue_away").execute(&pool).await.unwrap();
    let says = async |line: &str| collector.metrics().await.is_some_and(|metrics| metrics.lines().any(|l| l == line));
    eventually(LIMIT, "the failure is visible", async || says("queue_state_collection_success 0").await).await;
    throughout(Duration::from_secs(3), "no state gauges, and a visible failure", async || {
        !collector.exports().await && says("queue_state_collection_success 0").await
    })
    .await;
    assert_eq!(collector.get("/leader").await.unwrap().0, 503);
    sqlx::query("ALTER TABLE queue_away RENAME TO queue").execute(&pool).await.unwrap();
    eventually(LIMIT, "it exports again", async || collector.exports().await).await;
    assert!(says("queue_state_collection_success 1").await);
    assert_eq!(collector.get("/leader").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_own_session_whose_end_the_server_has_not_noticed_is_no_other_leader() {
    let database = queue_database().await;
    let (proxy, url) = Proxy::start(&database.url()).await;
    let collector = Collector::start(&url, |config| _ = config.set(ON_FAILURE, "step_down"));
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    let says = async |line: &str| collector.metrics().await.is_some_and(|metrics| metrics.lines().any(|l| l == line));
    let failed = async || says("queue_state_collection_success 0").await;
    proxy.forget();
    eventually(LIMIT, "the failure is visible", failed).await;
    proxy.mend();
    collector.wait_for_log("the session of the last term still holds the advisory lock", LIMIT).await;
    assert!(failed().await, "nobody else leads, and the failure is told no more");
    eventually(LIMIT, "it exports again", async || collector.exports().await).await;
    assert_eq!(collector.count_in_log("another session holds the advisory lock"), 0, "there is no other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_database_ends_the_process_under_exit_and_is_waited_for_under_step_down() {
    let nowhere = format!("postgres://nobody@127.0.0.1:{}/none", free_port());
    let acquire = "database.acquire_timeout_seconds";
    let mut exits = Collector::start(&nowhere, |config| _ = config.set(acquire, 1));
    assert_eq!(exits.wait_exit(LIMIT).await.code(), Some(1));
    let mut stays = Collector::start(&nowhere, |config| _ = config.set(acquire, 1).set(ON_FAILURE, "step_down"));
    stays.wait_for_log("trying until they work", LIMIT).await;
    throughout(Duration::from_secs(3), "it is alive, not ready, and not the leader", async || {
        stays.get("/health/live").await.unwrap().0 == 200
            && stays.get("/health/ready").await.unwrap().0 == 503
            && stays.get("/leader").await.unwrap().0 == 503
    })
    .await;
    assert!(stays.is_running());
    assert_eq!(stays.count_in_log("trying until they work"), 1, "one line for the outage, not one for each attempt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_the_first_process_of_a_pid_namespace_it_stops_on_sigterm() {
    let url = queue_database().await.url();
    let mut collector = Collector::start(&url, |config| {
        // Only root may make a PID namespace without a user namespace around it.
        let user: &[&str] = if getuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
        config.inside("unshare", &[user, &["--pid", "--fork", "--kill-child", "--mount-proc"]].concat());
    });
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    let children = format!("/proc/{0}/task/{0}/children", collector.pid());
    let first: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    let inside = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    assert_eq!(inside.split_whitespace().last(), Some("1"), "{inside}");
    kill_process(Pid::from_raw(first).unwrap(), Signal::TERM).unwrap();
    assert_eq!(collector.wait_exit(LIMIT).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_aborts_a_shutdown_that_hangs() {
    let url = queue_database().await.url();
    let mut collector = Collector::start(&url, |_| {});
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    // An answer that nobody reads keeps the endpoint draining.
    let stalled = tokio::net::TcpStream::connect(collector.address()).await.unwrap();
    stalled.try_write(b"PUT /log/filter HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n").unwrap();
    eventually(LIMIT, "the stalled connection is served", async || {
        collector.metrics().await.is_some_and(|metrics| metrics.contains("retsu_collector_http_connections 2"))
    })
    .await;
    collector.sigterm();
    collector.wait_for_log("stopping", LIMIT).await;
    assert!(collector.is_running());
    collector.sigterm();
    assert_eq!(collector.wait_exit(LIMIT).await.code(), Some(1));
    assert_eq!(collector.count_in_log("aborted by a second signal"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_a_configuration_error_and_nothing_is_taken() {
    let url = queue_database().await.url();
    let first = Collector::start(&url, |_| {});
    eventually(LIMIT, "it exports", async || first.exports().await).await;
    let port = first.address().port();
    let mut second = Collector::start(&url, |config| _ = config.port(port));
    assert_eq!(second.wait_exit(LIMIT).await.code(), Some(2));
    assert_eq!(second.count_in_log(ACQUIRED), 0);
    assert!(second.count_in_log(&format!("worker.management.port = {port}")) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_password_is_used_at_the_next_connection_without_a_restart() {
    let database = queue_database().await;
    let (pool, role) = (database.pool().await, format!("rotated_{}", database.name()));
    let run = async |statement: String| {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
    };
    run(format!("CREATE ROLE {role} LOGIN PASSWORD 'first'")).await;
    run(format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    let write = |password: &str| {
        let mut url = url::Url::parse(&database.url()).unwrap();
        url.set_username(&role).unwrap();
        url.set_password(Some(password)).unwrap();
        std::fs::write(&file, format!("{url}\n")).unwrap();
    };
    write("first");
    let mut collector = Collector::start(&database.url(), |config| {
        config.unset("database.url").set("database.url_file", file.display()).set(ON_FAILURE, "step_down");
    });
    eventually(LIMIT, "it exports", async || collector.exports().await).await;

    run(format!("ALTER ROLE {role} PASSWORD 'second'")).await;
    let terminate = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    run(terminate).await;
    collector.wait_for_log("leadership lost", LIMIT).await;
    throughout(Duration::from_secs(2), "the old password is refused", async || !collector.exports().await).await;
    write("second");
    eventually(LIMIT, "it exports again", async || collector.exports().await).await;
    assert!(collector.is_running());
    for secret in ["first", "second"] {
        assert_eq!(collector.count_in_log(&format!(":{secret}@")), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_past_the_budget_are_warned_of_once_per_change() {
    let database = queue_database().await;
    let pool = database.pool().await;
    let run = async |statement: &'static str| _ = sqlx::query(statement).execute(&pool).await.unwrap();
    run("INSERT INTO queue (name) VALUES ('a'), ('b'), ('c')").await;
    let collector = Collector::start(&database.url(), |config| {
        config.set("telemetry.metrics.max_queues", 2).set(INTERVAL, "0.1");
    });
    let refreshes = async || {
        let metrics = collector.metrics().await.unwrap_or_default();
        let count = "queue_state_collection_duration_seconds_count{outcome=\"success\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(count)?.parse().ok()).unwrap_or(0_u32)
    };
    let changes = || collector.count_in_log("telemetry.metrics.max_queues");
    for (round, change) in ["SELECT 1", "INSERT INTO queue (name) VALUES ('d')", "DELETE FROM queue WHERE name > 'b'"]
        .into_iter()
        .enumerate()
    {
        run(change).await;
        eventually(LIMIT, "the change is logged", async || changes() == round + 1).await;
        let before = refreshes().await;
        eventually(LIMIT, "more refreshes", async || refreshes().await >= before + 3).await;
        assert_eq!(changes(), round + 1, "one line for a change, not one for each refresh");
    }
    assert_eq!(collector.count_in_log("queues_dropped=2"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_slower_than_the_interval_leaves_no_gap_between_two_snapshots() {
    let database = queue_database().await;
    slow_down(&database.pool().await, 0.4).await;
    let collector = Collector::start(&database.url(), |config| _ = config.set(INTERVAL, 0.1).set(TIMEOUT, 1.5));
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    throughout(Duration::from_secs(5), "it goes on exporting", async || collector.exports().await).await;
    assert!(collector.count_in_log("the refresh took longer than its interval") > 2);
}

#[test]
fn output_that_cannot_be_written_is_a_failure_with_a_documented_exit_code() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |command: &str, stdout: Stdio, stderr: Stdio, url: &str| {
        let mut process = Command::new(EXECUTABLE);
        process.arg(command).env_clear().env("RETSU_DATABASE__URL", url).stdout(stdout).stderr(stderr);
        process.status().unwrap().code()
    };
    for command in ["check", "schema", "version"] {
        assert_eq!(run(command, full().into(), Stdio::null(), "postgres://localhost/q"), Some(1), "{command}");
    }
    assert_eq!(run("check", Stdio::null(), full().into(), "no URL"), Some(2), "standard error is full");
}
