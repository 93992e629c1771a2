//! The process's own metrics: election, refreshes, HTTP, pool, build.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::encode::encode;
use super::kubernetes::KubernetesMetrics;
use super::negotiate::Format;
use super::process::{ProcessSample, SamplerError};
use super::registry::{IntoHistogram, counter, counters, gauge, gauges, own_name, register};
use super::rendered::cadence;
use super::state::unix_seconds;
use crate::collection::Snapshot;
use crate::config::LockKey;
use crate::election::{Fault, Role, Status, Tenure};

const DURATION_BUCKETS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// A name, label or bucket that the registry refuses: a mistake of this module.
#[derive(Debug, thiserror::Error)]
#[error("cannot register a metric: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// How one attempt to take the advisory lock ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttemptOutcome {
    /// The lock was granted.
    Acquired,
    /// Another session holds the lock.
    Held,
    /// The database gave no answer or an error.
    Failed,
    /// The server, or the way to it, cannot be led on.
    Refused,
}

impl AttemptOutcome {
    const ALL: [Self; 4] = [Self::Acquired, Self::Held, Self::Failed, Self::Refused];

    /// The value of the label `outcome`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Held => "held",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// Why the server ended a connection that its client wanted to go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RejectReason {
    /// Every slot was taken by a connection too young to be replaced.
    Limit,
    /// The longest waiting connection made room for a new one.
    Evicted,
    /// The client sent its request or read its answer too slowly.
    Slow,
}

impl RejectReason {
    const ALL: [Self; 3] = [Self::Limit, Self::Evicted, Self::Slow];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Evicted => "evicted",
            Self::Slow => "slow",
        }
    }
}

/// Connections of the database pool at one instant.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolState {
    /// Open connections, the lock session included.
    pub size: u32,
    /// Open connections that nobody uses.
    pub idle: u32,
    /// The limit of open connections.
    pub max: u32,
}

/// The process's own metrics. Every method is safe to call from any thread and waits for nothing.
///
/// A refresh is counted *before* its result is published, so that an answer never shows queue gauges
/// without the families of the collection that made them.
pub struct Metrics {
    interval: Duration,
    pool: Box<dyn Fn() -> PoolState + Send + Sync>,
    process: Arc<ProcessSample>,
    /// Those of a process that tells Kubernetes who leads.
    kubernetes: Option<Arc<KubernetesMetrics>>,

    registry: Registry,
    attempts: IntCounterVec,
    leader: IntGauge,
    transitions: IntCounterVec,
    term: IntGaugeVec,
    term_timeline: IntGaugeVec,
    term_info: IntGaugeVec,
    refusal: IntGaugeVec,
    last_refresh: GaugeVec,
    failover_bounds: GaugeVec,
    terms_lost: IntCounterVec,
    refresh_failures: IntCounterVec,
    refreshes_skipped: IntCounter,
    pool_connections: IntGauge,
    pool_idle: IntGauge,
    pool_max: IntGauge,
    http_requests: IntCounterVec,
    http_duration: HistogramVec,
    http_connections: IntGauge,
    http_rejected: IntCounterVec,

    /// Whether queue state is collected at all, or this process only takes part in the election.
    collects: bool,
    /// Whether this process ever refreshed: before that, the families of `collection` do not exist.
    refreshed: AtomicBool,
    collection: Registry,
    collection_failures: IntCounter,
    collection_duration: HistogramVec,
}

impl Metrics {
    /// Metrics of a process that refreshes every `interval`, competes for `lock_key`, declares `bounds` and asks
    /// `pool` for the state of its pool at every answer; `pool` must not block.
    ///
    /// # Errors
    /// Only when a constant of this module is no valid name.
    pub fn new(
        interval: Duration,
        lock_key: LockKey,
        bounds: impl IntoIterator<Item = (Fault, Duration)>,
        pool: impl Fn() -> PoolState + Send + Sync + 'static,
    ) -> Result<Self, MetricsError> {
        let own = Registry::new();
        let collection = Registry::new();
        let cadence = cadence(interval);

        let build = gauges(&own, "build_info", "Version and commit of this build, always 1.", &["version", "commit"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), crate::COMMIT]).set(1);
        let lock =
            gauges(&own, "lock_info", "The advisory lock that decides who leads, always 1.", &["classid", "objid"])?;
        lock.with_label_values(&[lock_key.0.to_string(), lock_key.1.to_string()]).set(1);

        let failover_bounds = GaugeVec::new(
            own_name(
                "failover_bound_seconds",
                "Longest time from a fault to the first gauges of the next leader while refreshes are quick, by fault; \
                 computed from the settings, for a direct connection.",
            ),
            &["fault"],
        )?;
        let last_refresh = GaugeVec::new(
            own_name(
                "last_refresh_timestamp_seconds",
                "Time of the database at the last successful refresh of this process, since the Unix epoch.",
            ),
            &[],
        )?;
        let http_duration = HistogramVec::new(
            own_name("http_request_duration_seconds", "Time from a request's head to its answer's head, by route.")
                .into_histogram(&DURATION_BUCKETS),
            &["route"],
        )?;
        let collection_failures = IntCounter::new(
            "queue_state_collection_failures_total",
            format!("Collections of queue state that failed. {cadence}"),
        )?;
        let collection_duration = HistogramVec::new(
            Opts::new(
                "queue_state_collection_duration_seconds",
                format!("Duration of one collection of queue state, by outcome. {cadence}"),
            )
            .into_histogram(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]),
            &["outcome"],
        )?;

        let metrics = Self {
            attempts: counters(
                &own,
                "election_attempts_total",
                "Attempts to take the advisory lock, by outcome.",
                &["outcome"],
            )?,
            leader: gauge(&own, "leader", "Whether this process leads.")?,
            transitions: counters(
                &own,
                "leader_transitions_total",
                "Changes of this process's role, by the role taken.",
                &["to"],
            )?,
            term: gauges(&own, "term", "Number of the term that this process holds; absent without the lock.", &[])?,
            term_timeline: gauges(
                &own,
                "term_timeline",
                "Timeline of the term that this process holds; absent without the lock.",
                &[],
            )?,
            term_info: gauges(
                &own,
                "term_info",
                "The server that the term of this process is proved on, always 1; absent without the lock.",
                &["system_identifier", "timeline"],
            )?,
            refusal: gauges(
                &own,
                "election_refusal_info",
                "Why the last attempt to take the advisory lock was refused, always 1; absent when it was not.",
                &["reason"],
            )?,
            terms_lost: counters(
                &own,
                "terms_lost_total",
                "Terms of this process that ended in a failure, by kind of error.",
                &["kind"],
            )?,
            refresh_failures: counters(
                &own,
                "refresh_failures_total",
                "Refreshes of this process that failed, by kind of error.",
                &["kind"],
            )?,
            refreshes_skipped: counter(
                &own,
                "refreshes_skipped_total",
                "Refreshes left out because the one before took longer than the interval.",
            )?,
            pool_connections: gauge(&own, "pool_connections", "Open connections of the database pool.")?,
            pool_idle: gauge(&own, "pool_idle_connections", "Open connections of the database pool that nobody uses.")?,
            pool_max: gauge(&own, "pool_max_connections", "Limit of open connections of the database pool.")?,
            http_requests: counters(
                &own,
                "http_requests_total",
                "Requests answered, by route and status.",
                &["route", "status"],
            )?,
            http_connections: gauge(&own, "http_connections", "Open connections of the management endpoint.")?,
            http_rejected: counters(
                &own,
                "http_connections_rejected_total",
                "Connections that the management endpoint refused or cut, by reason.",
                &["reason"],
            )?,
            interval,
            pool: Box::new(pool),
            process: Arc::default(),
            kubernetes: None,
            last_refresh: register(&own, last_refresh)?,
            failover_bounds: register(&own, failover_bounds)?,
            http_duration: register(&own, http_duration)?,
            registry: own,
            collects: true,
            refreshed: AtomicBool::new(false),
            collection_failures: register(&collection, collection_failures)?,
            collection_duration: register(&collection, collection_duration)?,
            collection,
        };
        metrics.start_at_zero();
        metrics.declare(bounds);
        Ok(metrics)
    }

    /// Adds the metrics of Kubernetes to every answer.
    #[must_use]
    pub fn with_kubernetes(self, kubernetes: Arc<KubernetesMetrics>) -> Self {
        Self { kubernetes: Some(kubernetes), ..self }
    }

    /// Those of a process that elects only: no answer has a family of queue state.
    #[must_use]
    pub fn without_collection(self) -> Self {
        // It is registered, so that it can be taken out.
        _ = self.registry.unregister(Box::new(self.refreshes_skipped.clone()));
        Self { collects: false, ..self }
    }

    /// Rates need a first sample: what can be named beforehand starts at 0.
    fn start_at_zero(&self) {
        for outcome in AttemptOutcome::ALL {
            self.attempts.with_label_values(&[outcome.label()]);
        }
        for role in [Role::Leader, Role::Standby] {
            self.transitions.with_label_values(&[role.as_str()]);
        }
        for reason in RejectReason::ALL {
            self.http_rejected.with_label_values(&[reason.label()]);
        }
        for outcome in ["success", "failure"] {
            self.collection_duration.with_label_values(&[outcome]);
        }
    }

    /// One attempt to take the lock has ended.
    pub fn attempt(&self, outcome: AttemptOutcome) {
        self.attempts.with_label_values(&[outcome.label()]).inc();
    }

    /// The role is now that of `status`. Only the elector calls this.
    pub fn role(&self, status: &Status) {
        let leads = i64::from(status.role == Role::Leader);
        if self.leader.get() != leads {
            self.transitions.with_label_values(&[status.role.as_str()]).inc();
        }
        self.leader.set(leads);
        self.term_info.reset();
        match status.held() {
            Some(Tenure { term, system_identifier, .. }) => {
                self.term_info.with_label_values(&[system_identifier.to_string(), term.timeline.to_string()]).set(1);
                self.term.with_label_values::<&str>(&[]).set(i64::try_from(term.number).unwrap_or(i64::MAX));
                self.term_timeline.with_label_values::<&str>(&[]).set(i64::from(term.timeline));
            }
            None => {
                self.term.reset();
                self.term_timeline.reset();
            }
        }
    }

    /// Declares the longest time from each fault to the first gauges of the next leader.
    pub fn declare(&self, bounds: impl IntoIterator<Item = (Fault, Duration)>) {
        for (fault, bound) in bounds {
            // One division: seconds and fraction added up would end in ...9998.
            self.failover_bounds.with_label_values(&[fault.label()]).set(bound.as_nanos() as f64 / 1e9);
        }
    }

    /// The last attempt was refused for `reason`, or was not.
    pub fn refusal(&self, reason: Option<&'static str>) {
        self.refusal.reset();
        if let Some(reason) = reason {
            self.refusal.with_label_values(&[reason]).set(1);
        }
    }

    /// A term of this process ended with an error of the stable kind `kind`.
    pub fn term_lost(&self, kind: &str) {
        self.terms_lost.with_label_values(&[kind]).inc();
    }

    /// A refresh made `snapshot`. To be called before the snapshot is published.
    pub fn refresh_succeeded(&self, snapshot: &Snapshot) {
        self.refreshed.store(true, Ordering::Release);
        self.collection_duration.with_label_values(&["success"]).observe(snapshot.duration.as_secs_f64());
        self.last_refresh.with_label_values::<&str>(&[]).set(unix_seconds(snapshot.database_time));
    }

    /// A refresh failed after `elapsed` with an error of the stable kind `kind`.
    pub fn refresh_failed(&self, kind: &'static str, elapsed: Duration) {
        self.refreshed.store(true, Ordering::Release);
        self.collection_failures.inc();
        self.collection_duration.with_label_values(&["failure"]).observe(elapsed.as_secs_f64());
        self.refresh_failures.with_label_values(&[kind]).inc();
    }

    /// `ticks` were skipped because the refresh before them took longer than the interval.
    pub fn refreshes_skipped(&self, ticks: u32) {
        self.refreshes_skipped.inc_by(ticks.into());
    }

    /// A request to `route` was answered with `status`. Both come from closed sets.
    pub fn http_request(&self, route: &'static str, status: &str, elapsed: Duration) {
        self.http_requests.with_label_values(&[route, status]).inc();
        self.http_duration.with_label_values(&[route]).observe(elapsed.as_secs_f64());
    }

    /// The management endpoint has `open` connections.
    pub fn http_connections(&self, open: usize) {
        self.http_connections.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// The management endpoint refused or cut a connection.
    pub fn http_rejected(&self, reason: RejectReason) {
        self.http_rejected.with_label_values(&[reason.label()]).inc();
    }

    /// Reads the process metrics from `/proc` every `every`, on a blocking thread, until `shutdown`.
    ///
    /// # Errors
    /// [`SamplerError`] when the reading panicked.
    pub async fn sample_process(&self, every: Duration, shutdown: CancellationToken) -> Result<(), SamplerError> {
        ProcessSample::run(Arc::clone(&self.process), every, shutdown).await
    }

    /// Whether queue state is collected at all.
    pub(super) fn collects(&self) -> bool {
        self.collects
    }

    /// How often queue state is refreshed.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The process's own families, and the end of the answer where the format has one.
    pub(super) fn own(&self, format: Format) -> String {
        let pool = (self.pool)();
        self.pool_connections.set(i64::from(pool.size));
        self.pool_idle.set(i64::from(pool.idle));
        self.pool_max.set(i64::from(pool.max));

        let mut out = String::with_capacity(16 * 1024);
        encode(&mut out, &self.registry.gather(), format);
        if let Some(kubernetes) = &self.kubernetes {
            encode(&mut out, &kubernetes.families(), format);
        }
        encode(&mut out, &self.process.families(), format);
        if format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    /// The families of the collection; none on a process that never refreshed.
    pub(super) fn collection(&self) -> Vec<MetricFamily> {
        if self.refreshed.load(Ordering::Acquire) { self.collection.gather() } else { Vec::new() }
    }
}
