use super::*;

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let table = [
        ("logging: {fliter: info}", "logging.fliter", "logging.filter"),
        ("loging: {filter: info}", "loging.filter", "logging.filter"),
        ("database: {urlfile: x}", "database.urlfile", "database.url_file"),
        ("database: {max_connection: 5}", "database.max_connection", "database.max_connections"),
        ("worker: {managment: {port: 1}}", "worker.managment.port", "worker.management.port"),
        ("worker: {management: {prot: 1}}", "worker.management.prot", "worker.management.port"),
        ("worker: {shutdown_timeout: 1}", "worker.shutdown_timeout", "worker.shutdown_timeout_seconds"),
        (
            "worker: {shutdown_timeout_seconds_: {x: 1}}",
            "worker.shutdown_timeout_seconds_.x",
            "worker.shutdown_timeout_seconds",
        ),
        (
            "worker: {queue: {state_metric_collector: {lock_key: '1,2'}}}",
            "worker.queue.state_metric_collector.lock_key",
            "worker.queue.state_metrics_collector.lock_key",
        ),
        (
            "worker: {queues: {state_metrics_collector: {refresh_timeout_seconds: 1}}}",
            "worker.queues.state_metrics_collector.refresh_timeout_seconds",
            "worker.queue.state_metrics_collector.refresh_timeout_seconds",
        ),
        ("telemetry: {metrics: {max_queue: 1}}", "telemetry.metrics.max_queue", "telemetry.metrics.max_queues"),
        ("logging.filter: info", "logging.filter", "logging.filter"),
        ("kubernetes: {selector: a}", "kubernetes.selector", "kubernetes.instance_selector"),
        ("kubernetes: {instance_selectors: a}", "kubernetes.instance_selectors", "kubernetes.instance_selector"),
    ];
    for (yaml, subject, nearest) in table {
        let text = problem(&with_database(file(yaml)));
        assert!(text.starts_with(&format!("{subject} (file test.yaml): ")), "{text}");
        assert!(text.contains(&format!("the nearest one is `{nearest}`")), "{text}");
    }
}

#[test]
fn an_unknown_key_that_is_like_no_known_one_is_refused_with_the_sections() {
    for (yaml, subject) in [("extra: 1", "extra"), ("1: info", "[not a name]"), ("tls: {cert: x}", "tls.cert")] {
        assert_eq!(
            problem(&with_database(file(yaml))),
            format!(
                "{subject} (file test.yaml): must be a known key; \
                 the sections are `database`, `worker`, `logging`, `telemetry`, `kubernetes`"
            )
        );
    }
    let text = problem(&with_database(environment(&[("RETSU_EXTRA", "1")])));
    assert!(text.contains("the sections are `database`,"), "{text}");
}

#[test]
fn an_unknown_variable_is_refused_with_the_nearest_known_one() {
    let table = [
        ("RETSU_LOGGING__FLITER", "RETSU_LOGGING__FILTER"),
        ("RETSU_LOGGING_FILTER", "RETSU_LOGGING__FILTER"),
        ("RETSU_WORKER_MANAGEMENT_PORT", "RETSU_WORKER__MANAGEMENT__PORT"),
        ("RETSU_WORKER__MANAGMENT__PORT", "RETSU_WORKER__MANAGEMENT__PORT"),
        ("RETSU_DATABASE__URL__FILE", "RETSU_DATABASE__URL_FILE"),
        ("RETSU_WORKER__MANAGEMENT", "RETSU_WORKER__MANAGEMENT__PORT"),
        ("RETSU_WORKER__PORT", "RETSU_WORKER__MANAGEMENT__PORT"),
        ("RETSU_", ""),
    ];
    for (name, nearest) in table {
        let text = problem(&with_database(environment(&[(name, "24247")])));
        assert!(text.starts_with(name) && text.contains(nearest), "{text}");
    }
    assert!(load(&with_database(environment(&[("retsu_nope", "1"), ("RETSUX", "1")]))).is_ok());
}

#[test]
fn an_unknown_key_of_a_flag_is_refused_and_so_is_an_unused_one() {
    for (path, hint) in [
        ("logging.fliter", "the nearest one is `logging.filter`"),
        ("http.limits.body", "the sections are `database`,"),
        ("worker.management", "the nearest one is `worker.management.port`"),
    ] {
        let mut sources = with_database(Sources::default());
        sources.flags.push(flag(path, "1"));
        assert!(problem(&sources).contains(hint), "{path}");
    }
    let mut sources = with_database(Sources::default());
    sources.flags.push(Flag { name: "--set", assignment: Assignment::Pair("tops3cret".into()) });
    let text = problem(&sources);
    assert!(text.contains("key=value") && !text.contains("tops3cret"), "{text}");
}

#[test]
fn a_retsu_file_and_environment_are_accepted() {
    let yaml = "
environment: production
http: {bind_address: 0.0.0.0, port: 8080, limits: {body: 1}}
cache: [a, b]
database: {url: 'postgres://retsu:pw@db/retsu', max_connections: 10, acquire_timeout_seconds: 5}
worker:
  shutdown_timeout_seconds: 30
  management: {bind_address: 0.0.0.0, port: 24247}
  outbox: {batch: 10}
  queue:
    batch_size: 100
    expiry: {interval_seconds: 5}
    state_metrics_collector: {collection_interval_seconds: 15, leadership_retry_interval_seconds: 15}
logging: {filter: info, format: json}
telemetry: {metrics: {max_queues: 10000}, traces: {enabled: false}}
";
    let mut sources = file(yaml);
    sources.environment = environment(&[
        ("RETSU_ENVIRONMENT", "production"),
        ("RETSU_HTTP__PORT", "1"),
        ("RETSU_WORKER__OUTBOX__BATCH", "x"),
        ("RETSU_WORKER__QUEUE__EXPIRY__INTERVAL_SECONDS", ""),
        ("RETSU_CONFIG", "x"),
    ])
    .environment;
    load(&sources).unwrap();
}

#[test]
fn variables_that_kubernetes_makes_for_a_service_are_ignored() {
    let links = [
        ("RETSU_SERVICE_HOST", "10.0.0.1"),
        ("RETSU_SERVICE_PORT", "80"),
        ("RETSU_SERVICE_PORT_HTTP", "80"),
        ("RETSU_PORT", "tcp://10.0.0.1:80"),
        ("RETSU_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("RETSU_PORT_80_TCP_PROTO", "tcp"),
        ("RETSU_PORT_80_TCP_PORT", "80"),
        ("RETSU_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("RETSU_COLLECTOR_SERVICE_HOST", "10.0.0.1"),
        ("RETSU_COLLECTOR_PORT", "udp://10.0.0.1:80"),
        ("RETSU_COLLECTOR_PORT_24247_TCP", "tcp://10.0.0.1:24247"),
    ];
    load(&with_database(environment(&links))).unwrap();
}

#[test]
fn exactly_one_form_names_the_database_and_clashes_are_named() {
    let mut sources = file("database: {url: 'postgres://h/d'}");
    sources.environment = environment(&[("RETSU_DATABASE__URL_FILE", "/f")]).environment;
    let text = problem(&sources);
    assert_eq!(
        text,
        "database.url (file test.yaml): excludes `database.url_file` (environment RETSU_DATABASE__URL_FILE); give one of them"
    );
    let table = [
        ("database: {url: 'postgres://h/d', host: h}", "database.url", "database.host"),
        ("database: {url_file: f, sslmode: require}", "database.url_file", "database.sslmode"),
        ("database: {host: h, password: p, password_file: f}", "database.password", "database.password_file"),
    ];
    for (yaml, first, second) in table {
        let text = problem(&file(yaml));
        assert!(text.starts_with(first) && text.contains(&format!("`{second}`")), "{text}");
    }
    let all = load(&file("database: {url: 'postgres://h/d', url_file: f, user: u}")).unwrap_err();
    assert_eq!(all.problems().len(), 3, "{all}");
}

#[test]
fn nothing_that_names_a_database_is_refused() {
    for sources in [Sources::default(), environment(&[("PGPASSWORD", "x"), ("PGSSLMODE", "require")])] {
        let error = load(&sources).unwrap_err();
        assert_eq!(error.problems().last().unwrap().kind(), ProblemKind::Missing);
        assert!(error.to_string().contains("database.url_file"), "{error}");
    }
}

#[test]
fn libpq_variables_fill_in_absent_parts() {
    let mut sources = file("database: {user: collector, password_file: /p}");
    sources.environment =
        environment(&[("PGHOST", "h"), ("PGHOSTADDR", "::1"), ("PGUSER", "x"), ("PGPASSWORD", "y")]).environment;
    let DatabaseSource::Parts(parts) = load(&sources).unwrap().settings.database.source else { panic!("parts") };
    assert_eq!((parts.host.as_deref(), parts.user.as_deref()), (Some("::1"), Some("collector")));
    assert!(parts.password.is_none() && parts.password_file.is_some());
}

#[test]
fn an_invalid_libpq_variable_is_refused_in_every_form() {
    for name in ["PGSSLMODE", "PGPORT"] {
        for url in [None, Some("postgres://h/d")] {
            let mut sources = environment(&[("PGHOST", "h"), (name, "nonsense")]);
            sources.flags.extend(url.map(|url| flag("database.url", url)));
            let text = problem(&sources);
            assert!(text.contains(name), "{text}");
        }
    }
}

#[test]
fn keys_of_tls_that_need_each_other_are_checked() {
    let table = [
        ("{host: h, sslrootcert: ca.pem}", "database.sslrootcert"),
        ("{host: h, sslrootcert: ca.pem, sslmode: require}", "database.sslrootcert"),
        ("{host: h, sslcert: c.pem}", "database.sslcert"),
        ("{host: h, sslkey: k.pem}", "database.sslkey"),
    ];
    for (parts, key) in table {
        assert!(problem(&file(&format!("database: {parts}"))).starts_with(key), "{parts}");
    }
    load(&file("database: {host: h, sslrootcert: ca, sslmode: verify-ca, sslcert: c, sslkey: k}")).unwrap();
}

#[test]
fn a_receiver_of_traces_behind_tls_is_refused_only_when_traces_are_sent() {
    let traces = |enabled| format!("telemetry: {{traces: {{enabled: {enabled}, endpoint: 'https://collector'}}}}");
    load(&with_database(file(&traces(false)))).unwrap();
    let text = problem(&with_database(file(&traces(true))));
    assert!(text.contains("telemetry.traces.endpoint") && text.contains("without TLS"), "{text}");
}

#[cfg(not(feature = "otlp"))]
#[test]
fn traces_are_refused_by_a_build_without_them() {
    let text = problem(&with_database(file("telemetry: {traces: {enabled: true}}")));
    assert!(text.contains("telemetry.traces.enabled") && text.contains("otlp"), "{text}");
}
