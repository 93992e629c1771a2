//! Starts the tasks, owns the order of shutdown, and turns a task that ends into an exit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{Connection, PgPool};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::collection::Collector;
use crate::config::{KubernetesMode, KubernetesSettings, Settings};
use crate::database::{Database, DatabaseError};
use crate::election::{ElectionError, Elector, Liveness, Platform, Standalone, Status};
use crate::exposition::{KubernetesMetrics, Metrics, MetricsError, PoolState, Publication, SamplerError};
use crate::http::{self, HttpError, Limits, LogFilter, Ready, Serving};
use crate::kubernetes::{ClientError, Kubernetes, LabelReport};

/// How often the process metrics are read from `/proc`.
const PROCESS_SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// How long closing the pool may take.
const POOL_CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Why the process ends with an exit code other than 0.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The connection parameters are unusable.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The election ended the process: `on_refresh_failure` is `exit`.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The management endpoint could not be bound or served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The address of the Kubernetes API or the credentials for it are unusable.
    #[error("the Kubernetes API cannot be used: {0}")]
    Kubernetes(#[from] ClientError),
    /// The process's own metrics could not be registered.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The process metrics could not be read.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// Signals cannot be received.
    #[error("installing the signal handlers failed: {0}")]
    Signals(std::io::Error),
    /// A vital task ended although nothing had asked it to.
    #[error("the vital task `{0}` ended")]
    Ended(&'static str),
    /// A vital task panicked.
    #[error("a vital task panicked: {0}")]
    Panicked(JoinError),
    /// The shutdown took longer than `worker.shutdown_timeout_seconds`.
    #[error("the shutdown did not finish within worker.shutdown_timeout_seconds ({0:?})")]
    ShutdownTimeout(Duration),
    /// A second signal cut the shutdown short.
    #[error("aborted by a second signal")]
    Aborted,
}

impl RunError {
    /// Whether the cause is in the configuration, which a restart does not cure.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        match self {
            Self::Database(DatabaseError::Options(_)) | Self::Http(HttpError::Bind { .. }) | Self::Kubernetes(_) => {
                true
            }
            Self::Election(error) => error.is_configuration(),
            _ => false,
        }
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> Result<Self, RunError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(RunError::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(RunError::Signals)?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

type Ended = (&'static str, Result<(), RunError>);

/// The running tasks and what stops each of them.
struct Tasks {
    election: JoinSet<Ended>,
    stop_election: CancellationToken,
    platform: JoinSet<Ended>,
    stop_platform: CancellationToken,
    endpoint: JoinSet<Ended>,
    stop_endpoint: CancellationToken,
    publication: Arc<Publication>,
    pool: PgPool,
}

/// Runs the collector until a signal stops it or a vital task ends.
///
/// # Errors
///
/// Any [`RunError`], which the log has told already; each means a non-zero exit code.
pub async fn run(settings: Settings, identity: String, log_filter: Arc<dyn LogFilter>) -> Result<(), RunError> {
    let mut signals = Signals::install()?;
    let tasks = start(&settings, identity, log_filter).inspect_err(|error| tracing::error!(%error, "cannot start"))?;
    supervise(tasks, async || signals.next().await, settings.shutdown_timeout).await
}

async fn supervise(
    mut tasks: Tasks,
    mut next_signal: impl AsyncFnMut() -> &'static str,
    limit: Duration,
) -> Result<(), RunError> {
    let cause = tokio::select! {
        name = next_signal() => {
            tracing::info!(signal = name, "stopping");
            Ok(())
        }
        Some(ended) = tasks.election.join_next() => Err(premature(ended)),
        Some(ended) = tasks.platform.join_next() => Err(premature(ended)),
        Some(ended) = tasks.endpoint.join_next() => Err(premature(ended)),
    };
    if let Err(error) = &cause {
        tracing::error!(%error, "stopping");
    }
    let stopped = tokio::select! {
        // First, so that a second signal that is already there does not come before the withdrawal.
        biased;
        stopped = timeout(limit, shut_down(&mut tasks)) => stopped.unwrap_or(Err(RunError::ShutdownTimeout(limit))),
        _ = next_signal() => Err(RunError::Aborted),
    };
    if let Err(error) = &stopped {
        tracing::error!(%error, "the shutdown is incomplete");
    }
    // No task outlives this function, whatever cut the shutdown short.
    tasks.election.shutdown().await;
    tasks.platform.shutdown().await;
    tasks.endpoint.shutdown().await;
    cause.and(stopped)
}

impl Ready for Database {
    fn ping(&self) -> BoxFuture<'static, Result<(), &'static str>> {
        let database = self.clone();
        async move {
            let mut connection = database.acquire().await.map_err(|_| "no connection")?;
            connection.ping().await.map_err(|_| "no answer")
        }
        .boxed()
    }
}

fn start(settings: &Settings, identity: String, log_filter: Arc<dyn LogFilter>) -> Result<Tasks, RunError> {
    // Everything that can fail is built before anything campaigns: a leader that cannot serve is no leader.
    let listener = http::bind(&settings.management)?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "the management endpoint listens");
    }
    let timing = &settings.timing;
    let bounds: Vec<_> = timing.bounds().map(|(fault, bound)| format!("{}={bound:?}", fault.label())).collect();
    tracing::info!(bounds = bounds.join(" "), "declared bound, from a fault to the first gauges of the next leader");
    let database = Database::open(settings.database.clone())?;
    let publication = Arc::new(Publication::default());
    let collector = &settings.collector;
    let (pool, max) = (database.pool().clone(), settings.database.max_connections);
    let metrics = Metrics::new(collector.collection_interval, collector.lock_key, timing.bounds(), move || {
        PoolState { size: pool.size(), idle: u32::try_from(pool.num_idle()).unwrap_or(max), max }
    })?;
    let metrics = if collector.collection { metrics } else { metrics.without_collection() };
    let (status, watched) = watch::channel(Status::starting());
    let surroundings = match &settings.kubernetes {
        KubernetesMode::On(kubernetes) => Surroundings::cluster(kubernetes, &watched)?,
        KubernetesMode::Off { reason } => {
            tracing::info!(reason, "Kubernetes is not told who leads");
            Surroundings::none()
        }
    };
    let metrics = Arc::new(match surroundings.metrics {
        Some(kubernetes) => metrics.with_kubernetes(kubernetes),
        None => metrics,
    });
    let allowance = Elector::allowance(collector, settings.database.acquire_timeout);
    let liveness = Arc::new(Liveness::new(allowance));

    let elector = Elector {
        database: database.clone(),
        collector: Collector::new(settings.max_queues, collector.refresh_timeout),
        settings: collector.clone(),
        timing: settings.timing,
        identity: identity.clone(),
        publication: Arc::clone(&publication),
        metrics: Arc::clone(&metrics),
        status,
        liveness: Arc::clone(&liveness),
        platform: surroundings.platform,
    };
    let routes = http::routes(http::Context {
        publication: Arc::clone(&publication),
        metrics: Arc::clone(&metrics),
        status: watched,
        liveness,
        database: Arc::new(database.clone()),
        serving: surroundings.serving,
        label: surroundings.label,
        identity,
        log_filter,
    });
    let mut tasks = Tasks {
        election: JoinSet::new(),
        stop_election: CancellationToken::new(),
        platform: JoinSet::new(),
        stop_platform: CancellationToken::new(),
        endpoint: JoinSet::new(),
        stop_endpoint: CancellationToken::new(),
        publication,
        pool: database.pool().clone(),
    };
    let stop = tasks.stop_endpoint.clone();
    let served = http::serve(listener, routes, Arc::clone(&metrics), Limits::default(), stop);
    tasks.endpoint.spawn(async { ("http", served.await.map_err(Into::into)) });
    let stop = tasks.stop_endpoint.clone();
    tasks.endpoint.spawn(async move {
        ("process metrics", metrics.sample_process(PROCESS_SAMPLE_INTERVAL, stop).await.map_err(Into::into))
    });
    if let Some(kubernetes) = surroundings.kubernetes {
        let stop = tasks.stop_platform.clone();
        tasks.platform.spawn(async move {
            kubernetes.run(stop).await;
            ("kubernetes", Ok(()))
        });
    }
    let stop = tasks.stop_election.clone();
    tasks.election.spawn(async move { ("election", elector.run(stop).await.map_err(Into::into)) });
    Ok(tasks)
}

/// Who is told of the role, and what the rest of the process sees of that.
struct Surroundings {
    kubernetes: Option<Kubernetes>,
    platform: Arc<dyn Platform>,
    metrics: Option<Arc<KubernetesMetrics>>,
    serving: Arc<Serving>,
    label: watch::Receiver<LabelReport>,
}

impl Surroundings {
    fn none() -> Self {
        Self {
            kubernetes: None,
            platform: Arc::new(Standalone::default()),
            metrics: None,
            serving: Arc::new(Serving::open()),
            label: watch::channel(LabelReport::off()).1,
        }
    }

    fn cluster(settings: &KubernetesSettings, status: &watch::Receiver<Status>) -> Result<Self, RunError> {
        let (metrics, serving) = (Arc::new(KubernetesMetrics::new()?), Arc::new(Serving::closed()));
        let kubernetes = match Kubernetes::new(settings.clone(), status, &metrics, Arc::clone(&serving)) {
            Ok(kubernetes) => kubernetes,
            Err(error) if settings.required => return Err(error.into()),
            // Nobody has asked for it: a leader that nobody is told of is better than none.
            Err(error) => {
                tracing::warn!(%error, "Kubernetes is not told who leads");
                return Ok(Self::none());
            }
        };
        let (platform, label) = (kubernetes.platform(), kubernetes.report());
        Ok(Self { kubernetes: Some(kubernetes), platform, metrics: Some(metrics), serving, label })
    }
}

/// What it means that a vital task ended although nothing had asked it to.
fn premature(ended: Result<Ended, JoinError>) -> RunError {
    match ended {
        Ok((name, Ok(()))) => RunError::Ended(name),
        Ok((_, Err(error))) => error,
        Err(error) => RunError::Panicked(error),
    }
}

/// The one order of shutdown: withdraw, tell the platform, free the lock, stop answering, close the pool.
async fn shut_down(tasks: &mut Tasks) -> Result<(), RunError> {
    // A task that panicked has not withdrawn its gauges itself.
    tasks.publication.withdraw();
    tasks.stop_election.cancel();
    let election = join_all(&mut tasks.election).await;
    tasks.stop_platform.cancel();
    let platform = join_all(&mut tasks.platform).await;
    tasks.stop_endpoint.cancel();
    let endpoint = join_all(&mut tasks.endpoint).await;
    // The session of a cancelled attempt is closed by the pool in the background.
    _ = timeout(POOL_CLOSE_LIMIT, tasks.pool.close()).await;
    election.and(platform).and(endpoint)
}

async fn join_all(tasks: &mut JoinSet<Ended>) -> Result<(), RunError> {
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        outcome = outcome.and(ended.map_err(RunError::Panicked).and_then(|(_, result)| result));
    }
    outcome
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::future::pending;
    use std::time::SystemTime;

    use super::*;
    use crate::clock::BootInstant;
    use crate::collection::Snapshot;
    use crate::election::Lease;
    use crate::exposition::{Rendered, View};

    const LIMIT: Duration = Duration::from_secs(5);

    /// Published gauges and no tasks yet.
    fn tasks() -> Tasks {
        let snapshot = Snapshot {
            queues: Vec::new(),
            queues_found: 0,
            database_time: SystemTime::UNIX_EPOCH,
            sent_at: BootInstant::now(),
            duration: Duration::ZERO,
        };
        let publication = Arc::new(Publication::default());
        let end = BootInstant::now() + Duration::from_secs(3600);
        publication.publish(Rendered::new(&snapshot, LIMIT), Arc::new(Lease::new(BootInstant::BOOT, end)), end);
        Tasks {
            election: JoinSet::new(),
            stop_election: CancellationToken::new(),
            platform: JoinSet::new(),
            stop_platform: CancellationToken::new(),
            endpoint: JoinSet::new(),
            stop_endpoint: CancellationToken::new(),
            publication,
            pool: PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap(),
        }
    }

    fn until(stop: &CancellationToken, name: &'static str) -> impl Future<Output = Ended> + use<> {
        let stop = stop.clone();
        async move {
            stop.cancelled().await;
            (name, Ok(()))
        }
    }

    #[tokio::test]
    async fn a_vital_task_that_panics_withdraws_the_gauges_and_ends_the_process() {
        let mut tasks = tasks();
        let publication = Arc::clone(&tasks.publication);
        tasks.election.spawn(async { panic!("a fault of this test") });
        tasks.endpoint.spawn(until(&tasks.stop_endpoint, "http"));
        let outcome = supervise(tasks, async || pending().await, LIMIT).await;
        assert!(matches!(outcome, Err(RunError::Panicked(_))), "{outcome:?}");
        assert!(matches!(publication.view(BootInstant::now()), View::Absent));
    }

    #[tokio::test]
    async fn a_vital_task_that_just_ends_ends_the_process() {
        let mut tasks = tasks();
        tasks.election.spawn(until(&tasks.stop_election, "election"));
        tasks.endpoint.spawn(async { ("process metrics", Ok(())) });
        let outcome = supervise(tasks, async || pending().await, LIMIT).await;
        assert!(matches!(outcome, Err(RunError::Ended("process metrics"))), "{outcome:?}");
    }

    #[tokio::test]
    async fn the_endpoint_answers_until_the_gauges_are_withdrawn_and_the_lock_is_free() {
        let mut tasks = tasks();
        let (publication, stop) = (Arc::clone(&tasks.publication), tasks.stop_election.clone());
        let endpoint = tasks.stop_endpoint.clone();
        tasks.election.spawn(async move {
            stop.cancelled().await;
            let withdrawn = matches!(publication.view(BootInstant::now()), View::Absent);
            tokio::task::yield_now().await;
            assert!(withdrawn && !endpoint.is_cancelled());
            ("election", Ok(()))
        });
        tasks.endpoint.spawn(until(&tasks.stop_endpoint, "http"));
        shut_down(&mut tasks).await.unwrap();
    }

    #[tokio::test]
    async fn the_platform_is_there_until_the_term_is_over_whatever_ends_the_process() {
        let mut tasks = tasks();
        let (stop, platform) = (tasks.stop_election.clone(), tasks.stop_platform.clone());
        let (leaves, left) = tokio::sync::oneshot::channel();
        tasks.election.spawn(async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            leaves.send(platform.is_cancelled()).unwrap();
            ("election", Ok(()))
        });
        tasks.platform.spawn(until(&tasks.stop_platform, "kubernetes"));
        tasks.endpoint.spawn(async { ("http", Err(RunError::Aborted)) });
        let outcome = supervise(tasks, async || pending().await, LIMIT).await;
        assert!(matches!(outcome, Err(RunError::Aborted)), "{outcome:?}");
        assert!(!left.await.unwrap(), "nobody could tell the end of the term");
    }

    #[tokio::test]
    async fn a_shutdown_that_hangs_is_cut_at_its_limit() {
        let mut tasks = tasks();
        tasks.election.spawn(until(&tasks.stop_election, "election"));
        tasks.endpoint.spawn(pending());
        let mut signals = vec!["SIGTERM"];
        let next_signal = async || match signals.pop() {
            Some(signal) => signal,
            None => pending().await,
        };
        let outcome = supervise(tasks, next_signal, Duration::from_millis(50)).await;
        assert!(matches!(outcome, Err(RunError::ShutdownTimeout(_))), "{outcome:?}");
    }
}
