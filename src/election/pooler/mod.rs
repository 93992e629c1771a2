//! Finds out what is between this process and PostgreSQL before the lock is tried.
//!
//! A pooler in transaction mode lends a backend for one transaction at a time: a session lock taken through it
//! stays on a backend that then serves strangers, and a second collector that is lent the same backend is granted
//! the lock once more. `docs/poolers.md` says what is accepted and why.
//!
//! Nothing is set, prepared or locked here. Every statement is one message of the simple query protocol.

mod client;
mod wire;

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, PgConnection, Row, SqlSafeStr, raw_sql};
use tokio::time::{Instant, timeout};

use self::client::{Other, OtherError};
use crate::database::{Backend, Database};

/// How many further connections hold a transaction at the same time.
const PINS: usize = 3;

/// How often each of them begins one.
const ROUNDS: usize = 5;

/// How many statements the candidate runs after each.
const STATEMENTS: usize = 4;

/// How long a new transaction has the pooler to itself before the candidate runs statements beside it.
const ALONE: Duration = Duration::from_millis(100);

/// How long a transaction must have waited, and how many statements of the candidate's must have been answered
/// meanwhile, to prove that the candidate's backend is not lent to others: a pooler in transaction mode serves
/// whoever waits before whoever comes later.
const STARVED: (Duration, usize) = (Duration::from_millis(500), 20);

/// Time between two of those statements.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the candidate's first statement has before the probe looks whom it waits for.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// The process ids that a system gives. A pooler's key data hold a random number: this names it in an error and
/// decides nothing.
const PROCESS_IDS: std::ops::RangeInclusive<i32> = 1..=4_194_304;

/// PgBouncer's reason for refusing a transaction. Most of its errors have the same code.
const STATEMENT_MODE: &str = "statement pooling mode";

const BACKEND: &str = "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint \
     FROM pg_stat_get_activity(pg_backend_pid())";

/// Whether the backend was started by the driver's own start-up message, in which this is a parameter: what a
/// pooler sets for its client later has another source.
const OUR_START: &str = "SELECT source = 'client' FROM pg_settings WHERE name = 'extra_float_digits'";

/// What leads from this process to PostgreSQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Path {
    /// Nothing but a network. A connection that was direct stays direct until it ends.
    Direct,
    /// A pooler that lends a backend for as long as its client is connected. That is true at the moment only: a
    /// pooler may get another mode while its clients are connected.
    SessionPooler,
}

/// What gave a pooler in transaction mode away.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Evidence {
    /// Two open connections had one backend.
    #[error("two open connections shared the backend with process id {0}")]
    Shared(i32),
    /// One connection had two backends.
    #[error("one connection was moved from the backend with process id {0} to the one with {1}")]
    Moved(i32, i32),
}

/// Why the lock must not be tried on a connection. It must be closed: it is in an unknown state.
#[derive(Debug, thiserror::Error)]
pub enum PoolerError {
    /// A session lock would not stay with its session.
    #[error(
        "the database address leads through a connection pooler in transaction mode ({0}), where a \
         session advisory lock belongs to nobody; connect to PostgreSQL directly or through a pooler in session mode"
    )]
    TransactionPooler(Evidence),
    /// The same, and not even a transaction stays with it.
    #[error(
        "the database address leads through a connection pooler in statement mode ({0}), where a \
         session advisory lock belongs to nobody; connect to PostgreSQL directly or through a pooler in session mode"
    )]
    StatementPooler(String),
    /// The address has got another meaning since the connection was made.
    #[error(
        "a new connection leads directly to PostgreSQL, and the one to be used leads through \
         something else; it is closed"
    )]
    AddressChanged,
    /// The connections to compare with could not be made or used.
    #[error("whether a connection pooler is in between could not be found out: {what} failed: {reason}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// The reason; it holds no secret.
        reason: String,
    },
    /// No answer in time from something that is not known to be a pooler.
    #[error("whether a connection pooler is in between could not be found out within {0:?}")]
    Timeout(Duration),
    /// No answer in time from a pooler.
    #[error(
        "the connection pooler at {address} has lent all its server connections (PgBouncer: \
         default_pool_size, pool_size and max_db_connections): its mode could not be found out within {limit:?}"
    )]
    Exhausted {
        /// Host and port, or directory of the socket and port.
        address: String,
        /// The limit.
        limit: Duration,
    },
}

impl PoolerError {
    /// A stable name, for a log field or a metric label.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TransactionPooler(_) => "transaction_pooler",
            Self::StatementPooler(_) => "statement_pooler",
            Self::AddressChanged => "address_changed",
            Self::Failed { .. } => "pooler_probe_failed",
            Self::Timeout(_) => "pooler_probe_timeout",
            Self::Exhausted { .. } => "pooler_exhausted",
        }
    }

    /// Whether the address itself is refused, which no retry cures.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::TransactionPooler(_) | Self::StatementPooler(_))
    }
}

impl From<OtherError> for PoolerError {
    fn from(OtherError { what, reason, .. }: OtherError) -> Self {
        Self::Failed { what, reason }
    }
}

/// Finds out what `candidate`, which the pool of `database` has just lent, leads through. It takes at most
/// `limit`, and a second for closing what it has opened.
///
/// A direct connection costs one more connection once, and one statement from then on. Behind a pooler up to four
/// server connections are in use for a moment, at every call: nothing that was found out about one holds later.
///
/// After an error, or when the future is dropped, `candidate` is in the middle of a statement: close it.
///
/// # Errors
///
/// See [`PoolerError`]. What could not be decided is an error, never [`Path::Direct`].
pub async fn probe(database: &Database, candidate: &mut PgConnection, limit: Duration) -> Result<Path, PoolerError> {
    let options = database.pool().connect_options();
    let (mut others, mut seen) = (Vec::new(), Seen::default());
    let decided = timeout(limit, decide(database, &options, candidate, &mut others, &mut seen)).await;
    client::close(others).await;
    let verdict = decided.unwrap_or_else(|_| {
        Err(match (seen.evidence, seen.pooler) {
            (Some(evidence), _) => PoolerError::TransactionPooler(evidence),
            (None, true) => PoolerError::Exhausted { address: address(&options), limit },
            (None, false) => PoolerError::Timeout(limit),
        })
    });
    if verdict.is_err() {
        // They may lead where the candidate did even after the address has been given another meaning.
        database.discard_idle();
    }
    verdict
}

fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(directory) => format!("{} port {}", directory.display(), options.get_port()),
        None => format!("{} port {}", options.get_host(), options.get_port()),
    }
}

/// What is known when time runs out.
#[derive(Debug, Default)]
struct Seen {
    /// There is a pooler.
    pooler: bool,
    /// Its mode is transaction, if not statement.
    evidence: Option<Evidence>,
}

async fn decide(
    database: &Database,
    options: &PgConnectOptions,
    candidate: &mut PgConnection,
    others: &mut Vec<Other>,
    seen: &mut Seen,
) -> Result<Path, PoolerError> {
    let backend = {
        let mut asking = pin!(backend(candidate));
        match timeout(IMPATIENCE, &mut asking).await {
            Ok(backend) => backend?,
            Err(_) => {
                connect(options, others, seen).await?;
                asking.await?
            }
        }
    };
    // The backend of a direct connection ends with it: no pooler can have come by it since.
    if database.is_direct(backend) {
        return Ok(Path::Direct);
    }
    let mut candidate = Candidate { connection: candidate, pid: backend.pid };
    match examine(options, &mut candidate, others, seen).await {
        Ok(Path::Direct) => {
            if !candidate.started_by_us().await? {
                return Err(PoolerError::AddressChanged);
            }
            database.remember_direct(backend);
            Ok(Path::Direct)
        }
        Err(PoolerError::TransactionPooler(evidence @ Evidence::Shared(_))) => {
            // A candidate that has ended has left its backend to another client, or its process id.
            seen.evidence = Some(evidence);
            client::close(std::mem::take(others)).await;
            candidate.check().await?;
            Err(PoolerError::TransactionPooler(evidence))
        }
        outcome => outcome,
    }
}

async fn connect(options: &PgConnectOptions, others: &mut Vec<Other>, seen: &mut Seen) -> Result<(), PoolerError> {
    let other = Other::connect(options).await?;
    seen.pooler |= !PROCESS_IDS.contains(&other.key);
    others.push(other);
    Ok(())
}

async fn examine(
    options: &PgConnectOptions,
    candidate: &mut Candidate<'_>,
    others: &mut Vec<Other>,
    seen: &mut Seen,
) -> Result<Path, PoolerError> {
    let mut pids = [0; PINS];
    for round in 0..ROUNDS {
        for (place, pid) in pids.iter_mut().enumerate() {
            if place == others.len() {
                connect(options, others, seen).await?;
            }
            let other = &mut others[place];
            let held = begin(candidate, other, seen).await?;
            if (round, place) == (0, 0) {
                let direct = match held {
                    Some(pid) => pid == other.key,
                    None => candidate.is_a_backend(other.key).await?,
                };
                match (held, direct) {
                    (Some(_), true) => return Ok(Path::Direct),
                    (None, true) => {
                        let reason = "no answer, while another connection has one".to_owned();
                        return Err(PoolerError::Failed { what: "opening a transaction", reason });
                    }
                    (_, false) => seen.pooler = true,
                }
            }
            let Some(held) = held else { return Ok(Path::SessionPooler) };
            *pid = held;
            for _ in 0..STATEMENTS {
                candidate.check().await?;
            }
        }
        for (other, pid) in others.iter_mut().zip(pids) {
            let now = other.end().await?;
            if now != pid {
                return Err(PoolerError::TransactionPooler(Evidence::Moved(pid, now)));
            }
        }
        candidate.check().await?;
    }
    Ok(Path::SessionPooler)
}

/// Opens a transaction and returns the backend that it holds; `None` when it waits while the candidate's backend
/// is there and is not lent to it.
async fn begin(candidate: &mut Candidate<'_>, other: &mut Other, seen: &mut Seen) -> Result<Option<i32>, PoolerError> {
    let pid = candidate.pid;
    let held = |begun: Result<i32, OtherError>| match begun {
        Ok(held) if held == pid => Err(PoolerError::TransactionPooler(Evidence::Shared(pid))),
        Ok(held) => Ok(Some(held)),
        Err(error) if error.reason.contains(STATEMENT_MODE) => Err(PoolerError::StatementPooler(error.reason)),
        Err(error) => Err(error.into()),
    };
    let mut beginning = pin!(other.begin());
    // An idle pooler in transaction mode gives it the backend that the candidate has just given back.
    if let Ok(begun) = timeout(ALONE, &mut beginning).await {
        return held(begun);
    }
    let (waiting, mut answers) = (Instant::now(), 0);
    while waiting.elapsed() < STARVED.0 || answers < STARVED.1 {
        // Both are waited for: what the candidate waits for may be the backend that the transaction has got.
        match select(&mut beginning, pin!(candidate.check())).await {
            Either::Left((begun, _)) => return held(begun),
            Either::Right((Ok(()), _)) => answers += 1,
            Either::Right((Err(PoolerError::TransactionPooler(evidence)), _)) => {
                // In statement mode, too: then the transaction is refused as soon as it gets a backend.
                seen.evidence = Some(evidence);
                return Err(held(beginning.await).err().unwrap_or(PoolerError::TransactionPooler(evidence)));
            }
            Either::Right((Err(error), _)) => return Err(error),
        }
        if let Ok(begun) = timeout(PAUSE, &mut beginning).await {
            return held(begun);
        }
    }
    Ok(None)
}

/// The connection that the lock is to be tried on.
struct Candidate<'a> {
    connection: &'a mut PgConnection,
    /// The backend of its first statement.
    pid: i32,
}

impl Candidate<'_> {
    /// Runs a statement, which must meet the same backend as the first.
    async fn check(&mut self) -> Result<(), PoolerError> {
        match backend(self.connection).await?.pid {
            pid if pid == self.pid => Ok(()),
            pid => Err(PoolerError::TransactionPooler(Evidence::Moved(self.pid, pid))),
        }
    }

    async fn is_a_backend(&mut self, pid: i32) -> Result<bool, PoolerError> {
        let sql = format!("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
        ask(self.connection, AssertSqlSafe(sql), |row| row.try_get(0)).await
    }

    async fn started_by_us(&mut self) -> Result<bool, PoolerError> {
        ask(self.connection, OUR_START, |row| row.try_get(0)).await
    }
}

async fn backend(candidate: &mut PgConnection) -> Result<Backend, PoolerError> {
    ask(candidate, BACKEND, |row| Ok(Backend { pid: row.try_get(0)?, started: row.try_get(1)? })).await
}

async fn ask<T>(
    candidate: &mut PgConnection,
    sql: impl SqlSafeStr,
    read: impl FnOnce(&PgRow) -> Result<T, sqlx::Error>,
) -> Result<T, PoolerError> {
    let failed = |error: sqlx::Error| PoolerError::Failed { what: "a statement", reason: error.to_string() };
    read(&raw_sql(sql).fetch_one(candidate).await.map_err(failed)?).map_err(failed)
}
