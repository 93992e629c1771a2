//! Starts the tasks, owns the order of shutdown, and turns a task that ends into an exit.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::collection::Collector;
use crate::config::Settings;
use crate::database::{Database, DatabaseError};
use crate::election::{ElectionError, Elector, Liveness, Status};
use crate::exposition::{Metrics, MetricsError, PoolState, Publication, SamplerError};
use crate::http::{self, HttpError, Limits, LogFilter};

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
        matches!(self, Self::Database(DatabaseError::Options(_)) | Self::Http(HttpError::Bind { .. }))
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
    vital: JoinSet<Ended>,
    elector: CancellationToken,
    http: CancellationToken,
    publication: Arc<Publication>,
    database: Database,
}

/// Runs the collector until a signal stops it or a vital task ends.
///
/// # Errors
///
/// Any [`RunError`]; each means a non-zero exit code.
pub async fn run(settings: Settings, identity: String, log_filter: Arc<dyn LogFilter>) -> Result<(), RunError> {
    let mut signals = Signals::install()?;
    let mut tasks = start(&settings, identity, log_filter)?;
    let cause = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "stopping");
            Ok(())
        }
        ended = tasks.vital.join_next() => Err(premature(ended)),
    };
    if let Err(error) = &cause {
        tracing::error!(%error, "stopping");
    }
    let stopped = tokio::select! {
        stopped = timeout(settings.shutdown_timeout, shut_down(&mut tasks)) => {
            stopped.unwrap_or(Err(RunError::ShutdownTimeout(settings.shutdown_timeout)))
        }
        _ = signals.next() => Err(RunError::Aborted),
    };
    // No task outlives this function, whatever cut the shutdown short.
    tasks.vital.shutdown().await;
    cause.and(stopped)
}

fn start(settings: &Settings, identity: String, log_filter: Arc<dyn LogFilter>) -> Result<Tasks, RunError> {
    // Everything that can fail is built before anything campaigns: a leader that cannot serve is no leader.
    let listener = http::bind(&settings.management)?;
    let database = Database::open(settings.database.clone())?;
    let publication = Arc::new(Publication::default());
    let collector = &settings.collector;
    let (pool, max) = (database.pool().clone(), settings.database.max_connections);
    let metrics = Arc::new(Metrics::new(collector.collection_interval, collector.lock_key, move || PoolState {
        size: pool.size(),
        idle: u32::try_from(pool.num_idle()).unwrap_or(max),
        max,
    })?);
    let (status, watched) = watch::channel(Status::starting());
    let allowance = Elector::allowance(collector, settings.database.acquire_timeout);
    let liveness = Arc::new(Liveness::new(allowance));

    let elector = Elector {
        database: database.clone(),
        collector: Collector::new(settings.max_queues, collector.refresh_timeout),
        settings: collector.clone(),
        publication: Arc::clone(&publication),
        metrics: Arc::clone(&metrics),
        status,
        liveness: Arc::clone(&liveness),
    };
    let routes = http::routes(http::Context {
        publication: Arc::clone(&publication),
        metrics: Arc::clone(&metrics),
        status: watched,
        liveness,
        database: Arc::new(database.clone()),
        identity,
        log_filter,
    });
    let mut tasks = Tasks {
        vital: JoinSet::new(),
        elector: CancellationToken::new(),
        http: CancellationToken::new(),
        publication,
        database,
    };
    let (stop, counted) = (tasks.http.clone(), Arc::clone(&metrics));
    let served = http::serve(listener, routes, counted, Limits::default(), stop);
    tasks.vital.spawn(async { ("http", served.await.map_err(Into::into)) });
    let stop = tasks.http.clone();
    tasks.vital.spawn(async move {
        ("process metrics", metrics.sample_process(PROCESS_SAMPLE_INTERVAL, stop).await.map_err(Into::into))
    });
    let stop = tasks.elector.clone();
    tasks.vital.spawn(async move { ("election", elector.run(stop).await.map_err(Into::into)) });
    Ok(tasks)
}

fn premature(ended: Option<Result<Ended, JoinError>>) -> RunError {
    match ended {
        Some(Ok((name, Ok(())))) => RunError::Ended(name),
        Some(Ok((_, Err(error)))) => error,
        Some(Err(error)) => RunError::Panicked(error),
        None => RunError::Ended("all"),
    }
}

/// The one order of shutdown: withdraw, free the lock, stop answering, close the pool.
async fn shut_down(tasks: &mut Tasks) -> Result<(), RunError> {
    // A task that panicked has not withdrawn its gauges itself.
    tasks.publication.withdraw();
    tasks.elector.cancel();
    let mut outcome = Ok(());
    while let Some(ended) = tasks.vital.join_next().await {
        let (name, result) = ended.map_err(RunError::Panicked)?;
        tracing::debug!(task = name, "ended");
        outcome = outcome.and(result);
        if name == "election" {
            tasks.http.cancel();
        }
    }
    // The lock session of a cancelled attempt is closed by the pool in the background.
    _ = timeout(POOL_CLOSE_LIMIT, tasks.database.pool().close()).await;
    outcome
}
