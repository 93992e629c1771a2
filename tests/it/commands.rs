//! The commands that end by themselves: what they print and how they exit.

use std::process::{Command, Output};

use sqlx::AssertSqlSafe;

use crate::support::{Collector, Database, EXECUTABLE, database};

const SECRET: &str = "tops3cret";

/// The program, without a configuration from the environment of the tests.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(EXECUTABLE);
    for (name, _) in std::env::vars_os() {
        if ["RETSU_", "PG"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// What the program says on both outputs, after an exit with `code`.
fn said(command: &mut Command, code: i32) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

/// The program on `database`, exit code 0; what it prints.
fn on(database: &Database, arguments: &[&str]) -> String {
    said(program(arguments).env("RETSU_DATABASE__URL", database.url()), 0).0
}

#[test]
fn the_demo_refuses_a_url_by_the_rules_of_the_configuration_and_repeats_nothing_of_it() {
    for url in [
        format!("postgres://u:{SECRET}@127.0.0.1/d?passwrd={SECRET}"),
        format!("postgres://u@127.0.0.1/d?sslmode={SECRET}"),
        format!("postgres://u:{SECRET}@127.0.0.1:{SECRET}/d"),
        format!("mysql://u:{SECRET}@127.0.0.1/d"),
    ] {
        let (stdout, stderr) = said(&mut program(&["demo", "--database-url", &url]), 2);
        assert!(stderr.contains("database.url = [redacted] (flag --database-url): must"), "{stderr}");
        assert!(!format!("{stdout}{stderr}").contains(SECRET), "{stdout}{stderr}");
    }
}

#[test]
fn the_demo_refuses_a_version_of_postgresql_that_there_is_not_and_says_so_once() {
    for version in ["13", "foo", "17.5"] {
        let (stdout, stderr) = said(&mut program(&["demo", "--postgresql-version", version]), 2);
        assert!(stderr.contains(&format!("no PostgreSQL {version} is published")), "{stderr}");
        assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "{stdout}{stderr}");
    }
}

#[test]
fn check_prints_the_effective_configuration_with_its_sources_and_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("collector.yaml");
    std::fs::write(&file, format!("database: {{host: db, password: {SECRET}}}\n")).unwrap();
    let arguments = ["check", "--config", file.to_str().unwrap(), "--port", "7"];
    let (report, errors) = said(program(&arguments).env("RETSU_DATABASE__DBNAME", "retsu"), 0);
    for line in [
        "password: \"[redacted]\" # file ",
        "dbname: \"retsu\" # environment RETSU_DATABASE__DBNAME",
        "port: 7 # flag --port",
        "url: null # unset",
        "max_connections: 10 # default",
        "# Kubernetes is off: kubernetes.mode is auto and these are missing: POD_NAME, ",
    ] {
        assert!(report.contains(line), "{line} is not in\n{report}");
    }
    assert!(!report.contains(SECRET) && errors.is_empty(), "{report}{errors}");
}

#[test]
fn check_names_everything_that_is_wrong_at_once_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("collector.yaml");
    let content = format!(
        "database: {{url: 'postgres://u:{SECRET}@h/d?x={SECRET}', max_conections: 3}}\n\
         worker: {{management: {{port: 70000}}}}\n\
         logging: {{format: xml}}\n"
    );
    std::fs::write(&file, content).unwrap();
    let (report, errors) = said(&mut program(&["check", "--config", file.to_str().unwrap()]), 2);
    for key in [
        "database.url = [redacted]",
        "database.max_connections",
        "worker.management.port = \"70000\"",
        "logging.format",
    ] {
        assert!(errors.contains(key), "{key} is not in\n{errors}");
    }
    assert!(report.is_empty() && !errors.contains(SECRET), "{report}{errors}");
}

#[test]
fn check_says_what_was_decided_for_kubernetes_and_what_it_lacks() {
    let pod = [
        ("PGHOST", "db"),
        ("POD_NAME", "retsu-0"),
        ("POD_NAMESPACE", "queues"),
        ("POD_UID", "7c1f"),
        ("KUBECONFIG", "/nowhere"),
        ("RETSU_KUBERNETES__MODE", "on"),
        ("RETSU_KUBERNETES__INSTANCE_SELECTOR", "app=retsu"),
    ];
    let (report, _) = said(program(&["check"]).envs(pod), 0);
    assert!(report.ends_with("# Kubernetes is on: Pod queues/retsu-0 (7c1f), through KUBECONFIG\n"), "{report}");
    let (_, errors) = said(program(&["check"]).envs(pod).env_remove("POD_UID"), 2);
    let wanted = "POD_UID: must be `metadata.uid` of this Pod, because `kubernetes.mode` is on (environment RETSU_";
    assert!(errors.contains(wanted), "{errors}");
}

#[test]
fn an_authority_of_the_environment_that_the_mode_of_the_url_would_ignore_is_refused() {
    for (mode, code) in [("", 0), ("?sslmode=verify-ca", 0), ("?sslmode=require", 2), ("?sslmode=prefer", 2)] {
        let url = format!("postgres://retsu:secret@localhost/retsu{mode}");
        let mut check = program(&["check"]);
        check.env("RETSU_DATABASE__URL", url).env("PGSSLMODE", "verify-full").env("PGSSLROOTCERT", "ca.crt");
        let (_, error) = said(&mut check, code);
        assert_eq!(error.contains("PGSSLROOTCERT"), code == 2, "{mode}: {error}");
        assert!(!error.contains("secret"), "{mode}: {error}");
    }
    let alone =
        said(program(&["check"]).env("RETSU_DATABASE__URL", "postgres://localhost/retsu").env("PGSSLROOTCERT", "x"), 2);
    assert!(alone.1.contains("verify-full"), "{}", alone.1);
}

#[test]
fn a_configuration_file_that_is_not_there_is_named() {
    let (_, errors) = said(&mut program(&["check", "--config", "/nowhere/collector.yaml"]), 2);
    assert!(
        errors
            .starts_with("retsu-collector: configuration file /nowhere/collector.yaml (flag --config): cannot be read"),
        "{errors}"
    );
}

#[test]
fn schema_without_a_database_prints_the_script() {
    let (script, errors) = said(&mut program(&["schema"]), 0);
    assert_eq!((script.as_str(), errors.as_str()), (retsu_collector::schema::SQL, ""));
}

#[tokio::test]
async fn a_load_without_tables_says_how_to_create_them() {
    let database = database().await;
    let (stdout, stderr) = said(program(&["schema", "--load", "small"]).env("RETSU_DATABASE__URL", database.url()), 1);
    assert!(stdout.is_empty() && stderr.contains("no tables") && stderr.contains("--apply"), "{stdout}{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_creates_the_tables_once_and_fills_them() {
    let database = database().await;
    assert_eq!(on(&database, &["schema", "--apply"]), "schema created\n");
    assert_eq!(on(&database, &["schema", "--apply"]), "schema unchanged\n");
    assert_eq!(on(&database, &["schema", "--load", "small"]), "loaded 10 queues and 1000 messages\n");
    let pool = database.pool().await;
    for (table, rows) in [("queue", 10), ("queue_message", 1000)] {
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&pool).await.unwrap(), rows, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_leaves_tables_of_another_shape_alone_and_fails() {
    let database = database().await;
    let pool = database.pool().await;
    sqlx::query("CREATE TABLE queue (id bigint)").execute(&pool).await.unwrap();
    let (_, errors) = said(program(&["schema", "--apply"]).env("RETSU_DATABASE__URL", database.url()), 1);
    assert!(errors.contains("the tables exist with another shape"), "{errors}");
}

#[test]
fn version_tells_the_package_and_the_commit() {
    let (version, _) = said(&mut program(&["version"]), 0);
    assert_eq!(version, format!("retsu-collector {} ({})\n", env!("CARGO_PKG_VERSION"), retsu_collector::COMMIT));
}

/// A server that nobody may ask; how often it was asked.
struct Untouched(std::net::TcpListener);

impl Untouched {
    fn listen() -> Self {
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    /// `run` on this server, with what the environment is to say besides.
    fn run(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = program(&["run"]);
        let url = format!("postgres://u:{SECRET}@{}/d", self.0.local_addr().unwrap());
        command.env("RETSU_DATABASE__URL", url).env("RETSU_WORKER__MANAGEMENT__PORT", "0");
        command.envs(environment.iter().copied());
        command
    }

    fn assert_untouched(&self, case: &str) {
        let error = self.0.accept().expect_err(case);
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{case}");
    }
}

fn variable(key: &str) -> String {
    format!("RETSU_WORKER__QUEUE__STATE_METRICS_COLLECTOR__{}", key.to_uppercase().replace('.', "__"))
}

const SPANS_OF_THE_LEASE: [&str; 5] = [
    "lease.heartbeat_interval_seconds",
    "lease.heartbeat_timeout_seconds",
    "lease.fence_seconds",
    "lease.idle_session_timeout_seconds",
    "lease.tcp_user_timeout_seconds",
];

#[test]
fn a_key_of_the_lease_that_is_no_sensible_value_is_refused_before_anything_is_taken() {
    let server = Untouched::listen();
    let senseless = ["0", "-1", "1e300", "86401", "NaN", "inf", "-inf", "soon", "1s", "", "0x1"];
    let spans = SPANS_OF_THE_LEASE.into_iter().flat_map(|key| senseless.map(|value| (key, value)));
    let drifts = ["-1", "100001", "0.5", "NaN", "inf", "1%", "", "1e3"].map(|value| ("lease.clock_drift_ppm", value));
    for (key, value) in spans.chain(drifts) {
        let (stdout, stderr) = said(&mut server.run(&[(&variable(key), value)]), 2);
        let path = format!("worker.queue.state_metrics_collector.{key} = \"{value}\" (environment {})", variable(key));
        assert!(stderr.contains(&path), "{key}={value}: {stdout}{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        server.assert_untouched(key);
    }
}

#[test]
fn a_lease_that_does_not_hold_together_is_refused_before_anything_is_taken() {
    let server = Untouched::listen();
    for (key, value, blamed) in [
        ("lease.fence_seconds", "2", "fence_seconds = 2"),
        ("lease.fence_seconds", "86400", "fence_seconds = 86400"),
        ("lease.idle_session_timeout_seconds", "3.003", "idle_session_timeout_seconds = 3.003"),
        ("lease.tcp_user_timeout_seconds", "0.9", "tcp_user_timeout_seconds = 0.9"),
        ("lease.tcp_user_timeout_seconds", "3.6", "idle_session_timeout_seconds = 4"),
        ("lease.heartbeat_interval_seconds", "2", "fence_seconds = 3"),
    ] {
        for command in ["run", "check"] {
            let mut program = if command == "run" { server.run(&[]) } else { program(&["check"]) };
            let (stdout, stderr) = said(program.env("PGHOST", "db").env(variable(key), value), 2);
            assert!(stderr.contains(blamed) && stderr.contains("value that passes is"), "{stderr}");
            assert!(stdout.is_empty(), "{stdout}");
        }
        server.assert_untouched(key);
    }
}

#[test]
fn session_options_that_contradict_the_limits_are_refused_before_anything_is_taken() {
    let server = Untouched::listen();
    let url = format!("postgres://u:{SECRET}@{}/d", server.0.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    std::fs::write(&file, format!("{url}?options=-cstatement_timeout%3D0")).unwrap();
    let written = format!("{url}?options[tcp_keepalives_idle]=0");
    let second_half = format!("{url}?options=jit%3Don");
    for (environment, name) in [
        ([("RETSU_DATABASE__URL", written.as_str()), ("PGUSER", "u")], "tcp_keepalives_idle"),
        ([("RETSU_DATABASE__URL", &second_half), ("PGOPTIONS", "-c")], "jit"),
        (
            [("RETSU_DATABASE__URL", &url), ("PGOPTIONS", "--Client-Connection-Check-Interval=0")],
            "client_connection_check_interval",
        ),
        ([("RETSU_DATABASE__URL", ""), ("RETSU_DATABASE__URL_FILE", file.to_str().unwrap())], "statement_timeout"),
    ] {
        let mut command = server.run(&environment);
        if environment[0].1.is_empty() {
            command.env_remove("RETSU_DATABASE__URL");
        }
        let (stdout, stderr) = said(&mut command, 2);
        let said = format!("{stdout}{stderr}");
        assert!(said.contains(&format!("the session option `{name}`, which contradicts the lease's limits")), "{said}");
        assert!(!said.contains(SECRET), "{said}");
        server.assert_untouched(name);
    }
}

#[test]
fn check_prints_the_declared_bound_and_stays_a_configuration() {
    let retry = variable("leadership_retry_interval_seconds");
    let (report, _) = said(program(&["check"]).env("PGHOST", "db").env(&retry, "2"), 0);
    for line in ["#   network_cut                9.503    19.000", "#   server_restarted           6.503    13.500"] {
        assert!(report.lines().any(|found| found == line), "{line:?} is not in\n{report}");
    }
    assert!(report.contains("restart delay of the platform"), "{report}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &report).unwrap();
    let (again, _) = said(&mut program(&["check", "--config", file.path().to_str().unwrap()]), 0);
    let values = |report: &str| -> Vec<String> {
        report.lines().map(|line| line.split(" # ").next().unwrap_or(line).to_owned()).collect()
    };
    assert_eq!(values(&again), values(&report));
}

#[tokio::test]
async fn the_declared_bound_is_logged_once_at_the_start_and_exported() {
    let server = Untouched::listen();
    let url = format!("postgres://u:{SECRET}@{}/d", server.0.local_addr().unwrap());
    let collector = Collector::start(&url, |config| {
        config.set("worker.queue.state_metrics_collector.leadership_retry_interval_seconds", 2);
    });
    let limit = std::time::Duration::from_secs(20);
    collector.wait_for_log("declared bound", limit).await;
    collector.wait_until_serving(limit).await;
    let metrics = collector.metrics().await.unwrap();
    for sample in ["{fault=\"host_lost\"} 9.503", "{fault=\"paused_in_refresh\"} 19.503"] {
        assert!(metrics.contains(&format!("retsu_collector_failover_bound_seconds{sample}\n")), "{metrics}");
    }
    assert_eq!(collector.count_in_log("declared bound"), 1);
    assert_eq!(collector.count_in_log("network_cut=9.503s"), 1);
}
