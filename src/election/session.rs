//! The lock session: the one database session that holds, or is trying to take, the advisory lock.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::postgres::types::Oid;
use sqlx::{Connection, PgConnection, Row};
use tokio::time::{Instant, timeout, timeout_at};

use super::Term;
use super::advert::Advert;
use super::limits::{LimitError, Limits, advertise};
use super::platform::Grant;
use super::pooler::{Path, PoolerError, probe};
use super::proof::{Claim, ProofError};
use crate::clock::BootInstant;
use crate::config::{CollectorSettings, LockKey};
use crate::database::{CloseOnDrop, Database, DatabaseError};

/// How long closing the lock session may take before its socket is dropped instead.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Tries the lock, unless the server is a hot standby: one of those grants the lock too, and keeps it
/// through its promotion.
///
/// Here and in a proof, names are qualified: whatever a role's `search_path` puts before `pg_catalog` decides nothing.
const TRY_LOCK: &str =
    "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.pg_try_advisory_lock($1, $2) END";

/// What is needed of the server after the grant, and may be forbidden to the role.
const FORBIDDEN: &str = "SELECT proname::text FROM pg_catalog.pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND NOT has_function_privilege(oid, 'EXECUTE')
  AND proname IN ('pg_control_system', 'pg_current_wal_lsn', 'pg_walfile_name', 'pg_is_in_recovery',
                  'pg_current_xact_id', 'pg_logical_emit_message', 'pg_stat_get_activity')
ORDER BY proname";

/// A term that grows with every acquisition. The emitted message makes the transaction write, so that the
/// xid is durable: an xid alone repeats after an immediate shutdown.
const TAKE_TERM: &str =
    "SELECT ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int8 AS timeline,
       pg_catalog.pg_current_xact_id()::text::int8 AS number,
       pg_catalog.pg_logical_emit_message(true, 'retsu-collector', 'term')::text,
       (SELECT system_identifier FROM pg_catalog.pg_control_system()) AS system_identifier,
       pg_catalog.pg_backend_pid() AS pid";

/// The session that holds the lock, when there is one.
const HOLDER: &str = "SELECT application_name FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND objsubid = 2 AND granted AND mode = 'ExclusiveLock'
  AND database = datid AND datname = current_database()";

/// Why an attempt at the lock failed. None of them leaves a lock behind.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// No connection could be had.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A statement on the new session failed.
    #[error("{what} failed: {error}")]
    Statement {
        /// What the statement was for.
        what: &'static str,
        /// The driver's error.
        error: sqlx::Error,
    },
    /// The statements took longer than the attempt may.
    #[error("the database did not answer the attempt at the advisory lock within {0:?}")]
    Timeout(Duration),
    /// Whether a connection pooler is in between could not be found out.
    #[error("{}: {}", .0.kind(), .0)]
    Probe(PoolerError),
    /// The server, or the way to it, cannot be led on.
    #[error("{}: {}", .0.kind(), .0)]
    Refused(#[from] Refusal),
}

impl AttemptError {
    /// A stable name of the kind of error, for metrics and to tell one cause from the next.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Database(_) => "no_connection",
            Self::Statement { .. } => "statement",
            Self::Timeout(_) => "timeout",
            Self::Probe(error) => error.kind(),
            Self::Refused(refusal) => refusal.kind(),
        }
    }
}

/// Why a server, or the way to it, is refused: nothing was taken from it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A session lock would not stay with its session.
    #[error(transparent)]
    Pooler(PoolerError),
    /// The server is a hot standby.
    #[error("the database server is a hot standby (pg_is_in_recovery() is true), where a lock decides nothing")]
    HotStandby,
    /// The server does not let go of a dead holder in bounded time.
    #[error(transparent)]
    Limit(LimitError),
    /// The role may not connect to the database, or not call a function that a term needs.
    #[error("the role may not use the database: {0}")]
    Privilege(String),
}

impl Refusal {
    /// A stable name for logs, metrics and `/leader`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Pooler(error) => error.kind(),
            Self::HotStandby => "hot_standby",
            Self::Limit(_) => "limit_not_carried",
            Self::Privilege(_) => "insufficient_privilege",
        }
    }

    /// Whether the cause is in the configuration of this program or of the server, which a restart of this
    /// process does not cure.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        !matches!(self, Self::HotStandby)
    }
}

impl From<PoolerError> for AttemptError {
    fn from(error: PoolerError) -> Self {
        if error.is_refusal() { Refusal::Pooler(error).into() } else { Self::Probe(error) }
    }
}

/// The outcome of one attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The lock is ours, and this session holds it.
    Granted(LockSession),
    /// Another session holds the lock; our connection is back in the pool.
    Held {
        /// What that session says of itself; `None` when it is none of ours or has gone since.
        holder: Option<Advert>,
        /// Before the lock was asked for.
        asked_at: BootInstant,
    },
}

/// The session that owns the lock, for a whole term. It never goes back to the pool: dropping it closes it,
/// which is what frees the lock.
#[derive(Debug)]
pub struct LockSession {
    session: CloseOnDrop,
    path: Path,
    claim: Claim,
    /// Before the lock was asked for: the instant of the first proof.
    asked_at: BootInstant,
    /// After the grant was received: the take-over wait counts from here.
    granted_at: BootInstant,
    /// What others see.
    advert: Advert,
}

/// What an attempt needs to know of its replica.
#[derive(Clone, Debug)]
pub struct Candidacy {
    key: LockKey,
    limits: Limits,
    /// The name of the replica.
    identity: String,
    /// The longest fence that somebody before this replica may have, advertised until its take-over wait is over.
    longest_fence: Duration,
    /// Limit of the statements of an attempt.
    limit: Duration,
}

impl Candidacy {
    /// The candidacy of the replica `identity` with `settings`, to which `longest_fence` is
    /// [known](super::Timing::longest_fence).
    #[must_use]
    pub fn new(settings: &CollectorSettings, identity: &str, longest_fence: Duration) -> Self {
        Self {
            key: settings.lock_key,
            limits: Limits::new(settings),
            identity: identity.to_owned(),
            longest_fence,
            limit: settings.refresh_timeout,
        }
    }
}

impl LockSession {
    /// Tries the lock once, without waiting for it.
    ///
    /// Dropping the returned future at any point leaves no lock behind and no locked connection in the pool.
    ///
    /// # Errors
    ///
    /// See [`AttemptError`].
    pub async fn attempt(database: &Database, candidacy: &Candidacy) -> Result<Attempt, AttemptError> {
        let limit = candidacy.limit;
        let mut candidate = CloseOnDrop::new(database.acquire().await.map_err(privilege)?);
        let deadline = Instant::now() + limit;
        // Before anything is set: a pooler in transaction mode would set it on strangers. Boxed, because it is large
        // and seldom goes beyond its first statement.
        let path = Box::pin(probe(database, &mut candidate, limit)).await?;
        timeout_at(deadline, Self::attempt_on(candidate, path, candidacy))
            .await
            .map_err(|_| AttemptError::Timeout(limit))?
    }

    async fn attempt_on(mut session: CloseOnDrop, path: Path, candidacy: &Candidacy) -> Result<Attempt, AttemptError> {
        let Candidacy { key, limits, identity, longest_fence, .. } = candidacy;
        let advert = Advert::new(*longest_fence, None, identity);
        // In statements of their own: in one with the lock an error would keep the lock and lose the setting.
        limits.set(&mut session, &advert).await.map_err(|error| match error {
            LimitError::Statement(error) => AttemptError::Statement { what: "setting the session's limits", error },
            error => Refusal::Limit(error).into(),
        })?;
        let failed = |what| move |error| AttemptError::Statement { what, error };
        let forbidden: Vec<String> = sqlx::query_scalar(FORBIDDEN)
            .fetch_all(&mut *session)
            .await
            .map_err(failed("looking at the privileges of the role"))?;
        if !forbidden.is_empty() {
            return Err(Refusal::Privilege(format!("it may not execute {}", forbidden.join(", "))).into());
        }
        let asked_at = BootInstant::now();
        let granted: Option<bool> = sqlx::query_scalar(TRY_LOCK)
            .bind(key.0)
            .bind(key.1)
            .fetch_one(&mut *session)
            .await
            .map_err(failed("trying the advisory lock"))?;
        let granted_at = BootInstant::now();
        match granted {
            Some(true) => {
                let claim = claim(&mut session, *key).await?;
                let advert = Advert::new(*longest_fence, Some(claim.term), identity);
                advertise(&mut session, &advert).await.map_err(failed("advertising the term"))?;
                Ok(Attempt::Granted(Self { session, path, claim, asked_at, granted_at, advert }))
            }
            Some(false) => {
                let holder = holder(&mut session, *key).await.map_err(failed("looking at the holder"))?;
                Limits::reset(&mut session).await.map_err(failed("resetting the session's limits"))?;
                // Known to hold nothing and to be as it was: others may borrow it again.
                drop(session.into_inner());
                Ok(Attempt::Held { holder, asked_at })
            }
            None => Err(Refusal::HotStandby.into()),
        }
    }

    /// The term that began with this session.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.claim.term
    }

    /// What the session leads through.
    pub(super) const fn path(&self) -> Path {
        self.path
    }

    /// What this process was granted.
    pub(super) const fn grant(&self) -> Grant {
        Grant { term: self.claim.term, system_identifier: self.claim.system_identifier }
    }

    /// What the term is proved by.
    pub(super) const fn claim(&self) -> Claim {
        self.claim
    }

    /// The instant of the first proof, the grant itself.
    pub(super) const fn asked_at(&self) -> BootInstant {
        self.asked_at
    }

    /// The instant from which the take-over wait counts.
    pub(super) const fn granted_at(&self) -> BootInstant {
        self.granted_at
    }

    /// Proves that this session still holds the lock, on the server that granted it.
    ///
    /// # Errors
    ///
    /// See [`ProofError`].
    pub async fn prove(&mut self) -> Result<(), ProofError> {
        self.claim.prove_on(&mut self.session).await
    }

    /// The fence that others see.
    pub(super) const fn advertised_fence(&self) -> Duration {
        self.advert.fence()
    }

    /// Lets others see `fence`.
    pub(super) async fn advertise(&mut self, fence: Duration) -> Result<(), sqlx::Error> {
        let advert = Advert::new(fence, Some(self.claim.term), self.advert.identity());
        advertise(&mut self.session, &advert).await?;
        self.advert = advert;
        Ok(())
    }

    /// Like [`prove`](Self::prove), asked from another connection of the pool of `database`.
    ///
    /// # Errors
    ///
    /// See [`ProofError`].
    pub async fn prove_from(&self, database: &Database) -> Result<(), ProofError> {
        self.claim.prove_from(database).await
    }

    /// Closes the session, which frees the lock, and waits for the close. A server that does not take part
    /// within a second is left with a closed socket.
    pub async fn release(self) {
        // `detach` drops the socket as soon as the limit has passed; `close_on_drop` would first try politely
        // for five more seconds.
        let connection = self.session.into_inner().detach();
        if let Err(error) = timeout(CLOSE_LIMIT, connection.close()).await.unwrap_or(Ok(())) {
            tracing::debug!(%error, "the lock session did not close cleanly");
        }
    }
}

impl Deref for LockSession {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.session
    }
}

impl DerefMut for LockSession {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.session
    }
}

/// Takes a term on a session that has just been granted the lock.
async fn claim(session: &mut PgConnection, key: LockKey) -> Result<Claim, AttemptError> {
    let failed = |error| AttemptError::Statement { what: "taking a term", error };
    // A synchronous standby that is away must not keep a new leader waiting: a promotion starts a new
    // timeline, so the number need not survive one.
    sqlx::query("SET synchronous_commit TO local").execute(&mut *session).await.map_err(failed)?;
    let row = sqlx::query(TAKE_TERM).fetch_one(&mut *session).await.map_err(failed)?;
    let (timeline, number): (i64, i64) =
        (row.try_get("timeline").map_err(failed)?, row.try_get("number").map_err(failed)?);
    let out_of_range = |error: std::num::TryFromIntError| failed(sqlx::Error::Decode(error.into()));
    let term =
        Term { timeline: timeline.try_into().map_err(out_of_range)?, number: number.try_into().map_err(out_of_range)? };
    let pid = row.try_get("pid").map_err(failed)?;
    let system: i64 = row.try_get("system_identifier").map_err(failed)?;
    Ok(Claim { key, pid, system_identifier: system.cast_unsigned(), term })
}

async fn holder(session: &mut PgConnection, key: LockKey) -> Result<Option<Advert>, sqlx::Error> {
    let name: Option<String> = sqlx::query_scalar(HOLDER)
        .bind(Oid(key.0.cast_unsigned()))
        .bind(Oid(key.1.cast_unsigned()))
        .fetch_optional(session)
        .await?;
    Ok(name.as_deref().and_then(Advert::parse))
}

/// A role that may not connect is refused by the server for as long as nobody grants it that.
fn privilege(error: DatabaseError) -> AttemptError {
    const INSUFFICIENT_PRIVILEGE: &str = "42501";
    match &error {
        DatabaseError::Connect(sqlx::Error::Database(database))
            if database.code().as_deref() == Some(INSUFFICIENT_PRIVILEGE) =>
        {
            Refusal::Privilege(database.message().to_owned()).into()
        }
        _ => error.into(),
    }
}
