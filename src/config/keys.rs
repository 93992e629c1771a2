//! The table of every key, and what becomes of a name that is not in it.

use super::kind::Kind;

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its levels, joined by `.`.
    pub(crate) path: &'static str,
    /// What it may hold.
    pub(crate) kind: Kind,
    /// Its default, written as in an environment variable; `None` leaves it unset.
    pub(crate) default: Option<&'static str>,
    /// What it does.
    pub(crate) help: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: Option<&'static str>, help: &'static str) -> Key {
    Key { path, kind, default, help }
}

/// Spans from 50 ms to one day.
const SPAN: Kind = Kind::Seconds { min: 0.05, max: 86_400.0 };
const SSL_MODES: Kind = Kind::Choice(&["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]);

/// Every key, section by section.
pub(crate) static KEYS: &[Key] = &[
    key("database.url", Kind::ConnectionUrl, None, "Connection URL."),
    key(
        "database.url_file",
        Kind::Path,
        None,
        "File that holds the connection URL, such as a mounted Secret; read again at every reconnect. One trailing newline is ignored.",
    ),
    key("database.host", Kind::Text, None, "Host name, IPv4 or IPv6 address, or the directory of a Unix socket."),
    key(
        "database.port",
        Kind::Integer { min: 1, max: 65_535 },
        None,
        "TCP port, or the number in the name of a Unix socket.",
    ),
    key("database.user", Kind::Text, None, "Role."),
    key("database.password", Kind::Secret, None, "Password of the role. Prefer `database.password_file`."),
    key(
        "database.password_file",
        Kind::Path,
        None,
        "File that holds the password; read again at every reconnect. One trailing newline is ignored.",
    ),
    key("database.dbname", Kind::Text, None, "Database; PostgreSQL's default is the name of the role."),
    key(
        "database.sslmode",
        SSL_MODES,
        None,
        "Encryption of the connection, `prefer` when unset. Only `verify-ca` and `verify-full` verify the server. `allow` never encrypts.",
    ),
    key(
        "database.sslrootcert",
        Kind::Path,
        None,
        "PEM file of certificate authorities to trust besides the system's. Needs `verify-ca` or `verify-full`.",
    ),
    key("database.sslcert", Kind::Path, None, "PEM file of the client certificate. Needs `database.sslkey`."),
    key("database.sslkey", Kind::Path, None, "PEM file of the client certificate's key. Needs `database.sslcert`."),
    key(
        "database.max_connections",
        Kind::Integer { min: 2, max: 10_000 },
        Some("10"),
        "Size of the connection pool. A leader keeps one connection for its whole term, and borrows another for the proofs that fall into a refresh.",
    ),
    key("database.acquire_timeout_seconds", SPAN, Some("5"), "Limit of waiting for a connection from the pool."),
    key("worker.shutdown_timeout_seconds", SPAN, Some("30"), "Limit of a whole graceful shutdown."),
    key(
        "worker.management.bind_address",
        Kind::Address,
        None,
        "Address of the management endpoint; every IPv6 and IPv4 address when unset.",
    ),
    key(
        "worker.management.port",
        Kind::Integer { min: 0, max: 65_535 },
        Some("24247"),
        "TCP port of the management endpoint; 0 takes a free one.",
    ),
    key(
        "worker.queue.state_metrics_collector.collection_interval_seconds",
        SPAN,
        Some("15"),
        "Time from the start of one refresh to the start of the next.",
    ),
    key(
        "worker.queue.state_metrics_collector.leadership_retry_interval_seconds",
        SPAN,
        Some("15"),
        "Time a standby lets pass between two attempts to take the lock.",
    ),
    key(
        "worker.queue.state_metrics_collector.refresh_timeout_seconds",
        SPAN,
        Some("10"),
        "Limit of one refresh. It may be longer than the interval: a refresh that is slower than the interval is reported, and the ticks it covers are skipped.",
    ),
    key(
        "worker.queue.state_metrics_collector.on_refresh_failure",
        Kind::Choice(&["exit", "step_down"]),
        Some("exit"),
        "What a failed refresh, proof or attempt does: end the process, with code 2 when the configuration is refused and otherwise with code 1, or go back to standby and try again.",
    ),
    key(
        "worker.queue.state_metrics_collector.lock_key",
        Kind::LockKey,
        Some("1919251571,1901294689"),
        "The advisory lock that decides who leads, `(classid, objid)` in `pg_locks`. The default excludes Retsu's own collector.",
    ),
    key(
        "worker.queue.state_metrics_collector.collection",
        Kind::Choice(&["on", "off"]),
        Some("on"),
        "Whether a leader reads queue state and exports it. `off` elects only: no query, no gauges, the label and `/leader` alone.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.heartbeat_interval_seconds",
        SPAN,
        Some("1"),
        "Time from one proof that the lock is still held to the next.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.heartbeat_timeout_seconds",
        SPAN,
        Some("1"),
        "Limit of one proof. A leader whose proof fails or is late withdraws its gauges at once.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.fence_seconds",
        SPAN,
        Some("3"),
        "How long after a proof was sent its process may serve state gauges, and how long a new leader waits before it serves its own; at most 600. Give every replica the same.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.clock_drift_ppm",
        Kind::Integer { min: 0, max: 100_000 },
        Some("1000"),
        "By how much the clocks of two replicas may run apart, in millionths; lengthens the wait of a new leader.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.idle_session_timeout_seconds",
        SPAN,
        Some("4"),
        "After which silence of the leader the server ends its session: `idle_session_timeout` of the lock session.",
    ),
    key(
        "worker.queue.state_metrics_collector.lease.tcp_user_timeout_seconds",
        SPAN,
        Some("2.5"),
        "After which time without an acknowledgement the server ends the leader's connection: `tcp_user_timeout` of the lock session.",
    ),
    key("logging.filter", Kind::Filter, Some("info"), "What is logged; changeable at run time."),
    key(
        "logging.format",
        Kind::Choice(&["pretty", "json"]),
        Some("pretty"),
        "One line for people, or one JSON object a line.",
    ),
    key(
        "telemetry.metrics.max_queues",
        Kind::Integer { min: 1, max: 100_000 },
        Some("10000"),
        "Budget of exported queues, 12 series each; the queues past it, by name, are counted and not exported.",
    ),
    key("telemetry.traces.enabled", Kind::Boolean, Some("false"), "Whether traces are sent over OTLP/HTTP."),
    key(
        "telemetry.traces.endpoint",
        Kind::Endpoint,
        Some("http://localhost:4318"),
        "Base URL of the OTLP/HTTP receiver; `/v1/traces` is appended.",
    ),
    key("telemetry.traces.sample_ratio", Kind::Ratio, Some("1"), "Share of the traces that is kept."),
    key("telemetry.traces.service_name", Kind::Text, Some("retsu-collector"), "Resource attribute `service.name`."),
    key(
        "kubernetes.mode",
        Kind::Choice(&["auto", "on", "off"]),
        Some("auto"),
        "Whether the leader labels its own Pod. `auto` does where everything that it needs is there.",
    ),
    key(
        "kubernetes.instance_selector",
        Kind::LabelSelector,
        None,
        "Selects the Pods of this instance, the own one among them. It may not look at the role label.",
    ),
    key(
        "kubernetes.container_name",
        Kind::DnsLabel,
        Some("retsu-collector"),
        "Which container of the Pod is this process, also among the init containers.",
    ),
    key(
        "kubernetes.role_label",
        Kind::QualifiedName,
        Some("retsu.io/collector-role"),
        "Label of the Pod that says `leader` or `standby`; a Service of the leader selects it. Give every replica the same.",
    ),
    key(
        "kubernetes.term_annotation",
        Kind::QualifiedName,
        Some("retsu.io/collector-term"),
        "Annotation of the Pod that says which term it leads or led. Give every replica the same.",
    ),
    key(
        "kubernetes.leader_deletion_cost",
        Kind::Integer { min: 1, max: 2_147_483_647 },
        Some("100"),
        "`controller.kubernetes.io/pod-deletion-cost` of the leader, so that scaling down takes standbys first.",
    ),
    key("kubernetes.request_timeout_seconds", SPAN, Some("5"), "Limit of one request to the Kubernetes API."),
];

/// Sections of a Retsu file that are accepted and unused.
const UNUSED: [&str; 3] = ["environment", "http", "cache"];

/// How alike a section's name and a known one are when the first is taken for a misspelling, 0 to 1.
const MISSPELLED: f64 = 0.7;

/// How alike a path and a known one are, at least, when the second is suggested for the first, 0 to 1.
const LIKE: f64 = 0.5;

/// What a path in a file or a variable's name stands for.
pub(crate) enum Meaning {
    /// A key.
    Key(&'static Key),
    /// A level above keys.
    Section,
    /// A part of a Retsu configuration that this program does not use.
    Unused,
    /// Neither.
    Unknown,
}

/// Finds what the levels `path` stand for; `section` says that further levels are below them.
pub(crate) fn meaning(path: &[&str], section: bool) -> Meaning {
    let joined = path.join(".");
    // A level that contains a dot would otherwise read as two.
    if path.iter().all(|level| !level.contains('.')) {
        if let Some(key) = find(&joined) {
            return Meaning::Key(key);
        }
        if KEYS.iter().any(|key| key.path.strip_prefix(&joined).is_some_and(|rest| rest.starts_with('.'))) {
            return Meaning::Section;
        }
    }
    let unused = match path {
        [first, ..] if UNUSED.contains(first) => true,
        ["worker", "queue", sibling, ..] => !misspells(sibling, &["state_metrics_collector"]),
        ["worker", "management", ..] => false,
        ["worker", other, rest @ ..] => {
            (section || !rest.is_empty()) && !misspells(other, &["queue", "management", "shutdown_timeout_seconds"])
        }
        _ => false,
    };
    if unused { Meaning::Unused } else { Meaning::Unknown }
}

/// The key with this path.
pub(crate) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// What to tell of a name that is none: the known key whose path is most like `path`, as `shown`, or the
/// sections when none is like it.
pub(crate) fn hint(path: &str, shown: impl FnOnce(&'static str) -> String) -> String {
    let likeness = |key: &Key| strsim::normalized_damerau_levenshtein(key.path, path);
    let nearest = KEYS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    if let Some(key) = nearest.filter(|key| likeness(key) >= LIKE) {
        return format!("the nearest one is `{}`", shown(key.path));
    }
    // The keys of a section stand together in the table.
    let mut sections: Vec<_> = KEYS.iter().filter_map(|key| key.path.split('.').next()).collect();
    sections.dedup();
    format!("the sections are `{}`", sections.join("`, `"))
}

/// The environment variable of a key.
pub(crate) fn variable(path: &str) -> String {
    format!("RETSU_{}", path.to_ascii_uppercase().replace('.', "__"))
}

fn misspells(name: &str, known: &[&str]) -> bool {
    known.iter().any(|known| strsim::normalized_damerau_levenshtein(name, known) >= MISSPELLED)
}
