//! The commands that end by themselves: what they print and how they exit.

use std::process::{Command, Output};

use sqlx::AssertSqlSafe;

use crate::support::{Database, EXECUTABLE, database};

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
