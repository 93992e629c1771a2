use std::time::Duration;

use super::super::keys::{KEYS, variable};
use super::*;

const COLLECTOR: &str = "worker.queue.state_metrics_collector";

#[test]
fn defaults_are_those_of_the_design() {
    let settings = load(&with_database(Sources::default())).unwrap().settings;
    let collector = &settings.collector;
    assert_eq!((settings.database.max_connections, settings.database.acquire_timeout), (10, Duration::from_secs(5)));
    assert_eq!((settings.management.bind_address, settings.management.port), (None, 24247));
    assert_eq!(settings.shutdown_timeout, Duration::from_secs(30));
    assert_eq!(collector.collection_interval, Duration::from_secs(15));
    assert_eq!(collector.leadership_retry_interval, Duration::from_secs(15));
    assert_eq!(collector.refresh_timeout, Duration::from_secs(10));
    assert_eq!((collector.on_refresh_failure, collector.lock_key), (OnRefreshFailure::Exit, LockKey::RETSU));
    assert!(collector.collection);
    let lease = LeaseSettings {
        heartbeat_interval: Duration::from_secs(1),
        heartbeat_timeout: Duration::from_secs(1),
        fence: Duration::from_secs(3),
        clock_drift_ppm: 1000,
        idle_session_timeout: Duration::from_secs(4),
        tcp_user_timeout: Duration::from_millis(2500),
    };
    assert_eq!((collector.lease, *settings.timing.lease()), (lease, lease));
    assert_eq!((settings.logging.filter.as_str(), settings.logging.format), ("info", LogFormat::Pretty));
    assert_eq!(settings.max_queues, 10_000);
    assert!(!settings.traces.enabled);
    assert_eq!((settings.traces.sample_ratio, settings.traces.service_name.as_str()), (1.0, "retsu-collector"));
}

#[test]
fn a_later_source_wins_and_its_name_is_reported() {
    let mut sources = file("worker: {management: {port: 1}}\nlogging: {filter: warn}\n");
    sources.environment = environment(&[("PGHOST", "db"), ("RETSU_WORKER__MANAGEMENT__PORT", "2")]).environment;
    let loaded = load(&sources).unwrap();
    assert_eq!(loaded.settings.management.port, 2);
    let source = |path: &str| load(&sources).unwrap().report.source(path).unwrap().to_string();
    assert_eq!(source("worker.management.port"), "environment RETSU_WORKER__MANAGEMENT__PORT");
    assert_eq!(source("logging.filter"), "file test.yaml");
    assert_eq!(source("database.host"), "environment PGHOST");
    assert_eq!(source("logging.format"), "default");
    sources.flags.push(flag("worker.management.port", "3"));
    assert_eq!(load(&sources).unwrap().settings.management.port, 3);
}

/// Values that a key takes, as YAML and as text.
#[test]
fn values_that_hold_are_taken_from_a_file_and_from_the_environment() {
    let table = [
        ("database.max_connections", "2"),
        ("database.max_connections", "10000"),
        ("database.acquire_timeout_seconds", "0.5"),
        ("worker.shutdown_timeout_seconds", "86400"),
        ("worker.management.bind_address", "'::'"),
        ("worker.management.bind_address", "127.0.0.1"),
        ("worker.management.port", "0"),
        ("worker.management.port", "'65535'"),
        ("worker.queue.state_metrics_collector.collection_interval_seconds", "0.05"),
        ("worker.queue.state_metrics_collector.collection_interval_seconds", "1e2"),
        ("worker.queue.state_metrics_collector.refresh_timeout_seconds", "600"),
        ("worker.queue.state_metrics_collector.on_refresh_failure", "step_down"),
        ("worker.queue.state_metrics_collector.lock_key", "'-2147483648, 2147483647'"),
        ("logging.filter", "info,sqlx=debug,retsu_collector::election=trace"),
        ("logging.filter", "OFF"),
        ("logging.format", "json"),
        ("telemetry.metrics.max_queues", "100000"),
        ("telemetry.traces.enabled", "false"),
        ("telemetry.traces.endpoint", "http://[::1]:4318/"),
        ("telemetry.traces.sample_ratio", "0.25"),
        ("telemetry.traces.service_name", "collector of ünits"),
        ("worker.queue.state_metrics_collector.collection", "off"),
        ("worker.queue.state_metrics_collector.collection", "true"),
        ("kubernetes.mode", "off"),
        ("kubernetes.mode", "false"),
        ("kubernetes.instance_selector", "'app=a,tier in (b, c),!old,new'"),
        ("kubernetes.container_name", "sidecar-0"),
        ("kubernetes.role_label", "role"),
        ("kubernetes.term_annotation", "example.com/Term_1.a"),
        ("kubernetes.leader_deletion_cost", "2147483647"),
        ("kubernetes.request_timeout_seconds", "0.05"),
    ];
    for (path, value) in table {
        load(&with_database(file(&nested(path, value)))).unwrap_or_else(|error| panic!("{path}: {value}: {error}"));
        let text = value.trim_matches('\'');
        let sources = with_database(environment(&[(&variable(path), text)]));
        load(&sources).unwrap_or_else(|error| panic!("{path}: {value}: {error}"));
    }
    let list = nested("worker.queue.state_metrics_collector.lock_key", "[-1, 0x72657473]");
    assert_eq!(load(&with_database(file(&list))).unwrap().settings.collector.lock_key, LockKey(-1, 1_919_251_571));
}

/// `a.b: value` as nested mappings.
fn nested(path: &str, value: &str) -> String {
    let levels: Vec<_> = path.split('.').enumerate().map(|(at, level)| format!("{:at$}{level}:", "")).collect();
    format!("{} {value}\n", levels.join("\n"))
}

#[test]
fn values_that_break_a_rule_are_refused_by_key_value_source_and_rule() {
    let span = "must be a number of seconds from 0.05 to 86400, fractions allowed";
    let table = [
        ("database.max_connections", "1", "a whole number from 2 to 10000"),
        ("database.max_connections", "10.0", "a whole number from 2 to 10000"),
        ("database.max_connections", "18446744073709551615", "a whole number from 2 to 10000"),
        ("database.max_connections", "'99999999999999999999999'", "a whole number from 2 to 10000"),
        ("database.port", "0", "a whole number from 1 to 65535"),
        ("database.port", "65536", "a whole number from 1 to 65535"),
        ("database.acquire_timeout_seconds", "0", span),
        ("database.acquire_timeout_seconds", "-1", span),
        ("database.acquire_timeout_seconds", "NaN", span),
        ("database.acquire_timeout_seconds", ".nan", span),
        ("worker.shutdown_timeout_seconds", "inf", span),
        ("worker.shutdown_timeout_seconds", ".inf", span),
        ("worker.shutdown_timeout_seconds", "1e300", span),
        ("worker.shutdown_timeout_seconds", "30s", span),
        ("worker.queue.state_metrics_collector.collection_interval_seconds", "0.049", span),
        ("worker.queue.state_metrics_collector.leadership_retry_interval_seconds", "0.0", span),
        ("worker.queue.state_metrics_collector.refresh_timeout_seconds", "86400.1", span),
        ("worker.queue.state_metrics_collector.on_refresh_failure", "abort", "`exit` or `step_down`"),
        ("worker.queue.state_metrics_collector.lock_key", "1", "two whole numbers"),
        ("worker.queue.state_metrics_collector.lock_key", "'1,2,3'", "two whole numbers"),
        ("worker.queue.state_metrics_collector.lock_key", "'1,2147483648'", "two whole numbers"),
        ("worker.management.port", "-1", "a whole number from 0 to 65535"),
        ("worker.management.bind_address", "localhost", "an IPv4 or IPv6 address"),
        ("worker.management.bind_address", "'[::]'", "an IPv4 or IPv6 address"),
        ("worker.management.bind_address", "127.0.0.1:80", "an IPv4 or IPv6 address"),
        ("logging.filter", "inof", "`inof` is not a level; did you mean `info`?"),
        ("logging.filter", "sqlx=loud", "log directives"),
        ("logging.filter", "','", "it has no directive"),
        ("logging.format", "JSON", "`pretty` or `json`"),
        ("telemetry.metrics.max_queues", "0", "a whole number from 1 to 100000"),
        ("telemetry.metrics.max_queues", "100001", "a whole number from 1 to 100000"),
        ("telemetry.traces.enabled", "yes", "`true` or `false`"),
        ("telemetry.traces.enabled", "1", "`true` or `false`"),
        ("telemetry.traces.endpoint", "localhost:4318", "a base URL"),
        ("telemetry.traces.endpoint", "ftp://collector", "a base URL"),
        ("telemetry.traces.endpoint", "http://u:p@collector", "a base URL"),
        ("telemetry.traces.endpoint", "http://collector?x=1", "a base URL"),
        ("telemetry.traces.sample_ratio", "1.01", "a number from 0 to 1"),
        ("telemetry.traces.sample_ratio", "nan", "a number from 0 to 1"),
        ("worker.queue.state_metrics_collector.collection", "yes", "`on` or `off`"),
        ("kubernetes.mode", "On", "`auto`, `on` or `off`"),
        ("kubernetes.instance_selector", "app in a", "a Kubernetes label selector"),
        ("kubernetes.instance_selector", "'app>1'", "a Kubernetes label selector"),
        ("kubernetes.container_name", "Collector", "at most 63 lower-case letters"),
        ("kubernetes.role_label", "a/b/c", "the key of a Kubernetes label or annotation"),
        ("kubernetes.term_annotation", "'-term'", "the key of a Kubernetes label or annotation"),
        ("kubernetes.leader_deletion_cost", "0", "a whole number from 1 to 2147483647"),
        ("kubernetes.leader_deletion_cost", "2147483648", "a whole number from 1 to 2147483647"),
        ("kubernetes.request_timeout_seconds", "0", span),
        ("database.sslmode", "verify", "`verify-ca` or `verify-full`"),
        ("database.host", "a,b", "one host"),
    ];
    for (path, value, rule) in table {
        for (sources, source) in [
            (file(&nested(path, value)), "(file test.yaml)".to_owned()),
            (environment(&[(&variable(path), value.trim_matches('\''))]), format!("(environment {})", variable(path))),
        ] {
            let text = problem(&with_database(sources));
            assert!(text.starts_with(path), "{path}: {value}: {text}");
            assert!(text.contains(&source) && text.contains(rule), "{path}: {value}: {text}");
        }
    }
    let text = problem(&with_database(environment(&[("RETSU_WORKER__MANAGEMENT__PORT", "99999")])));
    assert_eq!(
        text,
        "worker.management.port = \"99999\" (environment RETSU_WORKER__MANAGEMENT__PORT): must be a whole number from 0 to 65535"
    );
}

#[test]
fn an_empty_text_is_refused_for_every_key() {
    for key in KEYS {
        for sources in [file(&nested(key.path, "''")), environment(&[(&variable(key.path), "")])] {
            let error = load(&with_database(sources)).unwrap_err().to_string();
            assert!(error.contains(key.path) && error.contains("must not be empty"), "{}: {error}", key.path);
        }
    }
}

#[test]
fn a_list_or_a_mapping_is_refused_where_one_value_is_expected() {
    for key in KEYS {
        let list = load(&with_database(file(&nested(key.path, "[a]")))).unwrap_err().to_string();
        assert!(list.starts_with(key.path) && list.contains("not a list"), "{list}");
        let mapping = load(&with_database(file(&nested(key.path, "{a: 1}")))).unwrap_err().to_string();
        assert!(mapping.starts_with(key.path) && mapping.contains("not a mapping"), "{mapping}");
        let tagged = load(&with_database(file(&nested(key.path, "!x a")))).unwrap_err().to_string();
        assert!(tagged.starts_with(key.path) && tagged.contains("not a tagged value"), "{tagged}");
    }
}

#[test]
fn a_number_is_refused_where_text_is_expected() {
    let text = problem(&file("database: {host: db, password: 123}"));
    assert!(text.contains("database.password") && text.contains("quoted") && !text.contains("123"), "{text}");
}

#[test]
fn null_leaves_a_key_unset() {
    for yaml in
        ["logging:", "logging: {}", "logging: {filter: }", "worker: {management: {port: null, bind_address: ~}}"]
    {
        let settings = load(&with_database(file(yaml))).unwrap().settings;
        assert_eq!((settings.logging.filter.as_str(), settings.management.port), ("info", 24247), "{yaml}");
    }
}

#[test]
fn an_empty_file_sets_nothing() {
    for content in ["", "\n", "# nothing\n", "---\n", "null\n", "{}\n", "\u{feff}"] {
        assert!(load(&with_database(file(content))).is_ok(), "{content:?}");
    }
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    let table: [(&[u8], &str); 8] = [
        (b"database:\n  port: 99999999999999999999999\n", "a whole number of more than 64 bits: `database.port`"),
        (b"- a\n", "a mapping of sections"),
        (b"text", "a mapping of sections"),
        (b"logging: {filter: info\n", "must be YAML at line"),
        (b"logging: &a\n  filter: *b\n", "must be YAML at line"),
        (b"a: 1\n---\nb: 2\n", "one YAML document"),
        (b"logging: {filter: \xff}", "must be UTF-8"),
        (b"logging:\n\tfilter: info\n", "must be YAML at line"),
    ];
    for (content, rule) in table {
        let mut sources = with_database(Sources::default());
        sources.file = Some(("test.yaml".into(), content.to_vec()));
        let text = problem(&sources);
        assert!(text.contains(rule) && text.contains("(file test.yaml)"), "{text}");
    }
}

#[test]
fn the_parser_s_own_message_is_not_repeated() {
    let text = problem(&with_database(file("99999999999999999999999")));
    assert!(text.contains("must be YAML") && !text.contains("9999"), "{text}");
}

#[test]
fn a_key_that_is_given_twice_is_refused() {
    let text = problem(&with_database(file("logging:\n  filter: info\n  filter: warn\n")));
    assert!(text.contains("must not give a key twice: `filter` in `logging` at line"), "{text}");
    let sources = environment(&[("RETSU_LOGGING__FILTER", "info"), ("RETSU_LOGGING__filter", "warn")]);
    let text = problem(&with_database(sources));
    assert!(text.contains("RETSU_LOGGING__FILTER") && text.contains("RETSU_LOGGING__filter"), "{text}");
    let mut sources = with_database(Sources::default());
    sources.flags = vec![flag("logging.filter", "info"), flag("logging.filter", "info")];
    assert!(problem(&sources).contains("must be given once"));
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_utf_8_is_refused_where_it_would_be_used() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = || std::ffi::OsString::from_vec(vec![b'a', 0xff]);
    for name in ["RETSU_LOGGING__FILTER", "PGSSLMODE"] {
        let mut sources = with_database(Sources::default());
        sources.environment.push((name.into(), bytes()));
        let text = problem(&sources);
        assert!(text.contains(name) && text.contains("must be UTF-8"), "{text}");
    }
    let mut sources = with_database(Sources::default());
    sources.environment.push(("RETSU_HTTP__ANYTHING".into(), bytes()));
    sources.environment.push((bytes(), bytes()));
    assert!(load(&sources).is_ok());
}

#[test]
fn every_problem_is_reported_at_once() {
    let mut sources = file("logging: {filter: inof, level: x}\nworker: {management: {port: -1}}\n");
    sources.environment = environment(&[("RETSU_DATABASE__PORT", "x"), ("RETSU_NOPE__X", "1")]).environment;
    let error = load(&sources).unwrap_err();
    let subjects: Vec<_> = error.problems().iter().map(Problem::subject).collect();
    assert_eq!(
        subjects,
        ["logging.level", "RETSU_NOPE__X", "database.port", "worker.management.port", "logging.filter"]
    );
}

#[test]
fn a_value_that_takes_no_effect_is_not_validated() {
    let mut sources = file("database: {max_connections: 1}");
    sources.environment = environment(&[("PGHOST", "db"), ("RETSU_DATABASE__MAX_CONNECTIONS", "5")]).environment;
    assert_eq!(load(&sources).unwrap().settings.database.max_connections, 5);
}

#[test]
fn a_long_value_is_cut_and_an_absurdly_long_one_refused() {
    let long = "x".repeat(17 * 1024);
    let text = problem(&with_database(environment(&[("RETSU_TELEMETRY__TRACES__SERVICE_NAME", &long)])));
    assert!(text.len() < 300 && text.contains("longer than 16384 bytes"), "{text}");
}

#[test]
fn a_refresh_may_take_longer_than_the_interval() {
    let yaml = nested(COLLECTOR, "{collection_interval_seconds: 0.5, refresh_timeout_seconds: 60}");
    assert!(load(&with_database(file(&yaml))).is_ok());
}

#[test]
fn the_sample_configuration_holds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/retsu-collector.yaml");
    let sources = Sources::read(Some(path.as_ref()), vec![]).unwrap();
    let loaded = load(&Sources { environment: vec![], ..sources }).unwrap();
    let set = KEYS.iter().filter(|key| loaded.report.source(key.path) != Some(&Source::Default)).count();
    assert!(set > 15, "the sample shows most keys: {set}");
}

#[test]
fn the_documentation_is_the_one_in_the_repository() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let wanted = documentation();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == wanted, "docs/configuration.md is out of date: run UPDATE_DOCS=1 cargo test --lib config");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_by_name() {
    let missing = Sources::read(Some("/nonexistent/retsu.yaml".as_ref()), vec![]).err().unwrap().to_string();
    assert!(missing.contains("/nonexistent/retsu.yaml") && missing.contains("--config"), "{missing}");
    let endless = Sources::read(Some("/dev/zero".as_ref()), vec![]).err().unwrap().to_string();
    assert!(endless.contains("1 MiB"), "{endless}");
}
