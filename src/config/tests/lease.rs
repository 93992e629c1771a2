use std::time::Duration;

use super::*;

const LEASE: &str = "worker.queue.state_metrics_collector.lease";

/// A file with this lease.
fn lease(keys: &str) -> Sources {
    with_database(file(&format!("worker: {{queue: {{state_metrics_collector: {{lease: {{{keys}}}}}}}}}")))
}

#[test]
fn a_lease_that_does_not_hold_is_refused_by_key_value_source_and_rule() {
    assert_eq!(
        problem(&lease("fence_seconds: 2")),
        format!(
            "{LEASE}.fence_seconds = 2 (file test.yaml): must be longer than `heartbeat_interval_seconds` + \
             `heartbeat_timeout_seconds` (1 + 1 = 2 s), because the last proof has to hold until the next one is known to \
             be good or late; the smallest value that passes is 2.001"
        )
    );
    let mut sources = with_database(Sources::default());
    sources.flags.push(flag(format!("{LEASE}.fence_seconds").leak(), "600.5"));
    let text = problem(&sources);
    assert!(text.contains("fence_seconds = 600.5 (flag --set)") && text.ends_with("passes is 600"), "{text}");
    // The key to blame need not be one that was set.
    let text = problem(&lease("tcp_user_timeout_seconds: 3.75"));
    assert!(text.starts_with(&format!("{LEASE}.idle_session_timeout_seconds = 4 (default): ")), "{text}");
    assert!(text.ends_with("the smallest value that passes is 4.25"), "{text}");
}

#[test]
fn what_is_suggested_passes_as_it_is_written() {
    for keys in [
        "heartbeat_timeout_seconds: 1.2345",
        "fence_seconds: 2",
        "heartbeat_interval_seconds: 2.0000001",
        "idle_session_timeout_seconds: 1",
        "clock_drift_ppm: 99999, idle_session_timeout_seconds: 3.2",
        "tcp_user_timeout_seconds: 0.3",
    ] {
        let mut sources = lease(keys);
        for _ in 0..4 {
            let Err(error) = load(&sources) else { break };
            for problem in error.problems() {
                let value = problem.to_string().rsplit(' ').next().unwrap().to_owned();
                sources.flags.retain(
                    |flag| !matches!(&flag.assignment, Assignment::Key { path, .. } if *path == problem.subject()),
                );
                sources.flags.push(flag(problem.subject().to_owned().leak(), &value));
            }
        }
        load(&sources).unwrap_or_else(|error| panic!("{keys}: {error}"));
    }
}

#[test]
fn every_inequality_that_does_not_hold_is_reported_with_everything_else_at_once() {
    let mut sources = lease("heartbeat_timeout_seconds: 30");
    sources.environment.push(("RETSU_LOGGING__FORMAT".into(), "xml".into()));
    let error = load(&sources).unwrap_err();
    let subjects: Vec<_> = error.problems().iter().map(Problem::subject).collect();
    let keys = ["fence_seconds", "idle_session_timeout_seconds", "tcp_user_timeout_seconds"];
    assert_eq!(subjects[0], "logging.format");
    assert_eq!(subjects[1..], keys.map(|key| format!("{LEASE}.{key}")));
    assert!(error.problems()[1..].iter().all(|problem| problem.kind() == ProblemKind::Conflict));
}

#[test]
fn nothing_is_held_against_the_default_of_a_value_that_was_refused() {
    let text = problem(&lease("heartbeat_interval_seconds: 5, fence_seconds: ten"));
    assert!(text.starts_with(&format!("{LEASE}.fence_seconds = \"ten\"")), "{text}");
}

#[test]
fn the_timing_is_that_of_the_settings() {
    let settings = load(&lease("fence_seconds: 10, clock_drift_ppm: 500")).unwrap().settings;
    assert_eq!(*settings.timing.lease(), settings.collector.lease);
    assert_eq!(settings.timing.take_over_wait(), Duration::from_millis(10_005));
}

#[test]
fn session_options_that_contradict_the_lease_are_refused_from_every_source() {
    let mut sources = with_database(Sources::default());
    sources.environment.push(("PGOPTIONS".into(), "-c geqo=off --idle-session-timeout=0".into()));
    assert_eq!(
        problem(&sources),
        "database (environment PGOPTIONS): must not set the session option `idle_session_timeout`, which contradicts the \
         lease's limits: the program sets it itself"
    );
    sources.flags.push(flag("database.url", "postgres://h/d?options[jit]=on"));
    let error = load(&Sources { environment: vec![sources.environment.pop().unwrap()], ..sources }).unwrap_err();
    assert_eq!(error.problems().len(), 2, "{error}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("url");
    std::fs::write(&path, "postgres://u:tops3cret@h/d?options=--jit%3Don").unwrap();
    let sources = Sources { flags: vec![flag("database.url_file", path.to_str().unwrap())], ..Sources::default() };
    let error = load(&sources).unwrap().settings.database.connect_options().unwrap_err().to_string();
    assert!(error.contains("`jit`") && error.contains("database.url_file") && !error.contains("tops3cret"), "{error}");
}
