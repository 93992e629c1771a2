//! The validated settings that the rest of the program takes as arguments.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::election::Timing;

/// Everything the program can be told, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `database.*`
    pub database: DatabaseSettings,
    /// `worker.management.*`
    pub management: ManagementSettings,
    /// `worker.queue.state_metrics_collector.*`
    pub collector: CollectorSettings,
    /// What the lease of `collector` amounts to, its inequalities checked.
    pub timing: Timing,
    /// `worker.shutdown_timeout_seconds`: the limit of a whole shutdown.
    pub shutdown_timeout: Duration,
    /// `logging.*`
    pub logging: LoggingSettings,
    /// `telemetry.metrics.max_queues`: the budget of exported queues.
    pub max_queues: u32,
    /// `telemetry.traces.*`
    pub traces: TracesSettings,
    /// `kubernetes.*`, and what was decided from it.
    pub kubernetes: KubernetesMode,
}

/// Where PostgreSQL is and how its pool is sized.
#[derive(Clone, Debug)]
pub struct DatabaseSettings {
    /// Where the connection parameters come from.
    pub source: DatabaseSource,
    /// `database.max_connections`
    pub max_connections: u32,
    /// `database.acquire_timeout_seconds`
    pub acquire_timeout: Duration,
}

/// Where the connection parameters come from.
#[derive(Clone, Debug)]
pub enum DatabaseSource {
    /// `database.url`
    Url(SecretString),
    /// `database.url_file`, read again at every reconnect.
    UrlFile(PathBuf),
    /// `database.host` and its companions; `database.password_file` is read again at every reconnect.
    Parts(Box<DatabaseParts>),
}

/// The parts form of a connection; absent parts follow libpq's defaults and `PG*` environment.
#[derive(Clone, Debug, Default)]
pub struct DatabaseParts {
    /// Host name, IPv4 or IPv6 address, or a directory of a Unix socket.
    pub host: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Role.
    pub user: Option<String>,
    /// Password given in the configuration itself.
    pub password: Option<SecretString>,
    /// File that holds the password; one trailing newline is not part of it.
    pub password_file: Option<PathBuf>,
    /// Database.
    pub dbname: Option<String>,
    /// `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`.
    pub sslmode: Option<String>,
    /// Root certificates, PEM.
    pub sslrootcert: Option<PathBuf>,
    /// Client certificate, PEM.
    pub sslcert: Option<PathBuf>,
    /// Key of the client certificate, PEM.
    pub sslkey: Option<PathBuf>,
}

/// The management endpoint.
#[derive(Clone, Debug)]
pub struct ManagementSettings {
    /// Address to listen on; `None` is every address, IPv6 and IPv4.
    pub bind_address: Option<IpAddr>,
    /// TCP port; 0 takes a free one.
    pub port: u16,
}

/// Election and collection.
#[derive(Clone, Debug)]
pub struct CollectorSettings {
    /// Time from the start of one refresh to the start of the next.
    pub collection_interval: Duration,
    /// Time a standby lets pass between two attempts.
    pub leadership_retry_interval: Duration,
    /// Limit of one refresh, on the client and on the server.
    pub refresh_timeout: Duration,
    /// What a failed refresh or a failed attempt does.
    pub on_refresh_failure: OnRefreshFailure,
    /// The advisory lock that decides who leads.
    pub lock_key: LockKey,
    /// Whether a leader reads queue state and exports it, or only leads.
    pub collection: bool,
    /// How long its holder may believe in it.
    pub lease: LeaseSettings,
}

/// `worker.queue.state_metrics_collector.lease.*`: how long the holder of the lock may believe in it, and when
/// the server lets go of a holder that is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeaseSettings {
    /// Time from one proof to the next.
    pub heartbeat_interval: Duration,
    /// Limit of one proof.
    pub heartbeat_timeout: Duration,
    /// How long after a proof was sent its process may serve state gauges.
    pub fence: Duration,
    /// By how much the clocks of two replicas may run apart, in millionths.
    pub clock_drift_ppm: u32,
    /// `idle_session_timeout` and `idle_in_transaction_session_timeout` of the lock session.
    pub idle_session_timeout: Duration,
    /// `tcp_user_timeout` of the lock session.
    pub tcp_user_timeout: Duration,
}

/// What a failure of the database does to the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnRefreshFailure {
    /// The process exits with code 1, so that the platform restarts it.
    Exit,
    /// The process withdraws, drops the session and goes back to standby.
    StepDown,
}

/// A two-part advisory-lock key, `(classid, objid)` in `pg_locks`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LockKey(pub i32, pub i32);

impl LockKey {
    /// The key that Retsu's own collector takes: the bytes `rets`, `qSta`.
    pub const RETSU: Self = Self(0x7265_7473, 0x7153_7461);
}

/// Whether Kubernetes is told who leads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KubernetesMode {
    /// No request is sent to it.
    Off {
        /// Why, for the log: what is missing, or that it is switched off.
        reason: String,
    },
    /// The leader labels its own Pod.
    On(KubernetesSettings),
}

/// What was decided, in one line.
impl fmt::Display for KubernetesMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off { reason } => write!(f, "Kubernetes is off: {reason}"),
            Self::On(KubernetesSettings { pod, kubeconfig, .. }) => {
                let through = if kubeconfig.is_some() { "KUBECONFIG" } else { "the service account" };
                write!(f, "Kubernetes is on: Pod {}/{} ({}), through {through}", pod.namespace, pod.name, pod.uid)
            }
        }
    }
}

/// What the leader label needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubernetesSettings {
    /// The Pod that this process runs in.
    pub pod: OwnPod,
    /// `kubernetes.instance_selector`: a label selector of the Pods of this instance, the own one among them.
    pub instance_selector: String,
    /// `kubernetes.container_name`: which container of the Pod is this process.
    pub container_name: String,
    /// `kubernetes.role_label`: key of the label that says `leader` or `standby`.
    pub role_label: String,
    /// `kubernetes.term_annotation`: key of the annotation that says which term.
    pub term_annotation: String,
    /// `kubernetes.leader_deletion_cost`: the leader's `controller.kubernetes.io/pod-deletion-cost`.
    pub leader_deletion_cost: i32,
    /// `kubernetes.request_timeout_seconds`: limit of one request.
    pub request_timeout: Duration,
    /// The kubeconfig files, as `KUBECONFIG` lists them; `None` for the service account of the Pod.
    pub kubeconfig: Option<OsString>,
    /// Whether it is an error when these are unusable: `kubernetes.mode` is `on`.
    pub required: bool,
}

/// A Pod, as the downward API names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnPod {
    /// `POD_NAME`: `metadata.name`
    pub name: String,
    /// `POD_NAMESPACE`: `metadata.namespace`
    pub namespace: String,
    /// `POD_UID`: `metadata.uid`, which no Pod that is made again under the same name has.
    pub uid: String,
}

/// Log output.
#[derive(Clone, Debug)]
pub struct LoggingSettings {
    /// A `tracing` filter, such as `info,sqlx=warn`.
    pub filter: String,
    /// One line for people or one JSON object for machines.
    pub format: LogFormat,
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

/// Traces over OTLP/HTTP.
#[derive(Clone, Debug)]
pub struct TracesSettings {
    /// Whether traces are exported at all.
    pub enabled: bool,
    /// Base URL of the OTLP/HTTP receiver, `http://`: TLS is not supported.
    pub endpoint: String,
    /// Share of traces to keep, 0 to 1.
    pub sample_ratio: f64,
    /// Resource attribute `service.name`.
    pub service_name: String,
}
