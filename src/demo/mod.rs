//! `retsu-collector demo`: a failover to watch, on a PostgreSQL that is thrown away.
//!
//! The demo's processes are its children in a way that none outlives it, however it ends: the server process
//! goes at the end of its standard input ([`server`]), a collector by the kernel's parent-death signal
//! ([`become_collector`]).

mod collectors;
pub mod history;
mod load;
pub mod scrape;
mod screen;
pub mod server;
pub mod watch;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};

pub use collectors::become_collector;
use collectors::{Collector, THIS_PROGRAM};
use history::History;
use screen::{Frame, Screen, Seen};
use server::{EmbeddedServer, ServerError, ServerOptions};
use watch::{SCRAPE_INTERVAL, Watch};

use crate::config::{self, Assignment, ConfigError, ConnectOptionsError, Flag, Sources};

/// Time between two frames and two looks at who exports.
const TICK: Duration = Duration::from_millis(100);

/// Limit of a connection to the database.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the demo goes.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// A throwaway database to use instead of an embedded PostgreSQL.
    pub database_url: Option<SecretString>,
    /// Version of the embedded PostgreSQL, as in [`ServerOptions::postgresql_version`].
    pub postgresql_version: String,
    /// Management ports of the two collectors.
    pub ports: (u16, u16),
    /// How long a leader exports before it is killed.
    pub kill_after: Duration,
    /// When the demo ends by itself, from the start of the collectors.
    pub duration: Option<Duration>,
    /// Number of queues under load.
    pub queues: u32,
}

/// Why a demo failed.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The given connection URL breaks a rule. The message repeats no part of it.
    #[error(transparent)]
    Url(#[from] ConfigError),
    /// A connection cannot be made from the given URL and the environment. The message repeats no secret.
    #[error(transparent)]
    Options(#[from] ConnectOptionsError),
    /// The embedded PostgreSQL.
    #[error("embedded PostgreSQL: {0}")]
    Server(#[from] ServerError),
    /// The database cannot be reached, or the load on it failed.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    /// The schema cannot be applied.
    #[error("schema: {0}")]
    Schema(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A process cannot be started, told something or waited for.
    #[error("process: {0}")]
    Process(#[from] std::io::Error),
    /// A collector ended that nobody had killed.
    #[error("the collector on port {port} ended: {status}{log}")]
    Collector {
        /// Its management port.
        port: u16,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The invariant of the program is broken.
    #[error("two collectors exported at the same time, {0} times")]
    TwoExported(usize),
    /// The demo's time was over before any collector had exported.
    #[error("no collector exported within the demo's time")]
    NobodyExported,
}

impl DemoError {
    /// Whether the cause is in what the demo was given.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Options(_) | Self::Server(ServerError::Version { .. }))
    }
}

/// Runs the demo until its time is over or SIGINT or SIGTERM comes, and leaves nothing behind.
///
/// # Errors
/// It could not be set up, a part of it failed, or two collectors exported at once.
pub async fn run(options: DemoOptions) -> Result<(), DemoError> {
    let mut stop = Stop::listen()?;
    let mut screen = Screen::open();
    let Some(database_url) = &options.database_url else {
        // Before the server process, which would tell of it a second time.
        server::exact_version(&options.postgresql_version)?;
        screen.say(&format!("starting PostgreSQL {}", options.postgresql_version));
        let server_options = ServerOptions::new(&options.postgresql_version);
        let mut server = EmbeddedServer::spawn(Path::new(THIS_PROGRAM), &server_options)?;
        let outcome = tokio::select! {
            ready = server.ready() => match ready {
                Ok(ready) => {
                    screen.say(&format!("PostgreSQL {} listens on port {}", ready.version, ready.port));
                    perform(&options, &ready.url.into(), &mut screen, &mut stop).await
                }
                // The process has failed with this very error and gone.
                Err(error) => return Err(error.into()),
            },
            () = stop.requested() => Ok(()),
        };
        let ended = server.end().await;
        return outcome.and(ended.map_err(Into::into));
    };
    perform(&options, database_url, &mut screen, &mut stop).await
}

/// SIGINT or SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Everything after the server: schema, load, collectors, failovers.
async fn perform(
    options: &DemoOptions,
    database_url: &SecretString,
    screen: &mut Screen,
    stop: &mut Stop,
) -> Result<(), DemoError> {
    let (pool, mut load) = tokio::select! {
        prepared = prepare(database_url, options.queues) => prepared?,
        () = stop.requested() => return Ok(()),
    };
    let mut stage = Stage::set(options, database_url)?;
    let outcome = stage.play(screen, stop, &mut load).await;
    screen.close();
    load.shutdown().await;
    pool.close().await;
    let history = stage.watch.history();
    let stopped = stage.clear().await;
    if !history.runs().is_empty() {
        screen.say(&conclusion(&history));
    }
    outcome?;
    stopped?;
    match history.overlaps().len() {
        0 => Ok(()),
        overlaps => Err(DemoError::TwoExported(overlaps)),
    }
}

async fn prepare(database_url: &SecretString, queues: u32) -> Result<(PgPool, JoinSet<sqlx::Error>), DemoError> {
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_with(connect_options(database_url)?)
        .await?;
    crate::schema::apply(&mut *pool.acquire().await?).await.map_err(|error| DemoError::Schema(error.into()))?;
    let load = load::start(&pool, queues).await?;
    Ok((pool, load))
}

/// Not by the driver's own parser, which logs and repeats parts of a URL.
fn connect_options(database_url: &SecretString) -> Result<PgConnectOptions, DemoError> {
    let value = database_url.expose_secret().to_owned();
    let flag = Flag { name: "--database-url", assignment: Assignment::Key { path: "database.url", value } };
    let loaded = config::load(&Sources { flags: vec![flag], ..Sources::default() })?;
    Ok(loaded.settings.database.connect_options()?)
}

/// Where the failover is.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Nobody exports yet.
    Opening,
    /// One exports, since this instant of the watch.
    Leading { leader: usize, since: Duration },
    /// The leader was killed at this instant, and the other is awaited.
    Killed { victim: usize, at: Duration },
}

struct Stage<'a> {
    options: &'a DemoOptions,
    database_url: &'a SecretString,
    collectors: Vec<Collector>,
    watch: Watch,
    act: Act,
    overlaps: usize,
}

impl<'a> Stage<'a> {
    fn set(options: &'a DemoOptions, database_url: &'a SecretString) -> Result<Self, DemoError> {
        let (first, second) = options.ports;
        let collectors = vec![Collector::start(database_url, first)?, Collector::start(database_url, second)?];
        let addresses: Vec<SocketAddr> = collectors.iter().map(Collector::address).collect();
        let watch = Watch::start(&addresses);
        Ok(Self { options, database_url, collectors, watch, act: Act::Opening, overlaps: 0 })
    }

    async fn play(
        &mut self,
        screen: &mut Screen,
        stop: &mut Stop,
        load: &mut JoinSet<sqlx::Error>,
    ) -> Result<(), DemoError> {
        let end = self.options.duration.map(|duration| Instant::now() + duration);
        let mut ticks = interval(TICK);
        loop {
            tokio::select! {
                () = stop.requested() => return Ok(()),
                () = async { sleep_until(end.unwrap_or_else(Instant::now)).await }, if end.is_some() => {
                    return if self.watch.history().runs().is_empty() {
                        Err(DemoError::NobodyExported)
                    } else {
                        Ok(())
                    };
                }
                Some(ended) = load.join_next() => return Err(match ended {
                    Ok(error) => error.into(),
                    Err(panic) => std::io::Error::from(panic).into(),
                }),
                _ = ticks.tick() => {
                    self.advance(screen).await?;
                    screen.show(&self.frame());
                }
            }
        }
    }

    /// One look at who exports, and what follows from it.
    async fn advance(&mut self, screen: &Screen) -> Result<(), DemoError> {
        self.notice_ended_collectors()?;
        let history = self.watch.history();
        let overlaps = history.overlaps().len();
        if overlaps > self.overlaps {
            self.overlaps = overlaps;
            screen.say("TWO COLLECTORS EXPORT AT THE SAME TIME");
        }
        let now = self.watch.elapsed();
        let exporting = history.exporting();
        match (self.act, exporting.as_slice()) {
            (Act::Leading { leader, since }, [only]) if leader == *only => {
                if now.saturating_sub(since) >= self.options.kill_after {
                    self.collectors[leader].kill().await?;
                    screen.say(&format!("killed the leader on port {} (SIGKILL)", self.port(leader)));
                    self.act = Act::Killed { victim: leader, at: now };
                }
            }
            (Act::Killed { victim, .. }, [leader]) if leader != &victim => {
                screen.say(&self.failover(&history, victim, *leader));
                self.collectors[victim] = Collector::start(self.database_url, self.port(victim))?;
                screen.say(&format!("started the collector on port {} again", self.port(victim)));
                self.act = Act::Leading { leader: *leader, since: now };
            }
            // The last answers of the killed one may still be on their way.
            (Act::Killed { .. }, _) => {}
            (_, [leader]) => {
                screen.say(&format!("the collector on port {} leads", self.port(*leader)));
                self.act = Act::Leading { leader: *leader, since: now };
            }
            (_, _) => {}
        }
        Ok(())
    }

    fn notice_ended_collectors(&mut self) -> Result<(), DemoError> {
        for (target, collector) in self.collectors.iter_mut().enumerate() {
            let killed = matches!(self.act, Act::Killed { victim, .. } if victim == target);
            if let Some(status) = collector.ended().filter(|_| !killed) {
                let port = collector.address().port();
                return Err(DemoError::Collector { port, status, log: collector.log() });
            }
        }
        Ok(())
    }

    fn failover(&self, history: &History, victim: usize, leader: usize) -> String {
        let gap = history.gaps().into_iter().rev().find(|gap| (gap.from, gap.to) == (victim, leader));
        let gap = gap.map(|gap| format!("nobody exported for {:.2} s", gap.at_most.as_secs_f64()));
        let gap = gap.unwrap_or_else(|| format!("the gap was below {} ms", SCRAPE_INTERVAL.as_millis()));
        let never = if history.overlaps().is_empty() { "; never did two" } else { "; TWO DID AT ONCE" };
        format!("the collector on port {} took over: {gap}{never}", self.port(leader))
    }

    fn frame(&self) -> Frame {
        let exporting = self.watch.exporting();
        let seen = |target| match self.watch.exposition(target) {
            Some(_) if exporting.contains(&target) => Seen::Leader,
            Some(_) => Seen::Standby,
            None => Seen::Down,
        };
        let collectors = (0..self.collectors.len()).map(|target| (self.port(target), seen(target))).collect();
        let exposition = exporting.first().and_then(|&leader| self.watch.exposition(leader));
        let now = self.watch.elapsed();
        let note = match self.act {
            Act::Opening => "waiting for the first leader".to_owned(),
            Act::Leading { since, .. } => {
                let left = self.options.kill_after.saturating_sub(now.saturating_sub(since));
                format!("the leader is killed in {} s; Ctrl-C ends the demo", left.as_secs())
            }
            Act::Killed { at, .. } => {
                format!("nobody leads, for {:.1} s", now.saturating_sub(at).as_secs_f64())
            }
        };
        Frame { collectors, gauges: exposition.as_deref().map(scrape::gauges), note }
    }

    fn port(&self, target: usize) -> u16 {
        self.collectors[target].address().port()
    }

    async fn clear(self) -> std::io::Result<()> {
        let mut stopped = Ok(());
        for collector in self.collectors {
            stopped = stopped.and(collector.stop().await);
        }
        stopped
    }
}

fn conclusion(history: &History) -> String {
    let failovers: Vec<Duration> =
        history.gaps().iter().filter(|gap| gap.from != gap.to).map(|gap| gap.at_most).collect();
    let longest = failovers.iter().max().copied().unwrap_or_default();
    let two = match history.overlaps().len() {
        0 => "at no time did two".to_owned(),
        overlaps => format!("TWO DID AT ONCE, {overlaps} times"),
    };
    format!(
        "{} failover{}, nobody exported for at most {:.2} s; {two} ({} scrapes, one of each every {} ms)",
        failovers.len(),
        if failovers.len() == 1 { "" } else { "s" },
        longest.as_secs_f64(),
        history.scrapes(),
        SCRAPE_INTERVAL.as_millis(),
    )
}
