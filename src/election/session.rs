//! The lock session: the one database session that holds, or is trying to take, the advisory lock.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgConnection, Postgres, Row};
use tokio::time::{Instant, timeout, timeout_at};

use super::Term;
use super::pooler::{PoolerError, probe};
use crate::config::LockKey;
use crate::database::{Database, DatabaseError};

/// How long closing the lock session may take before its socket is dropped instead.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Tries the lock, unless the server is a hot standby: one of those grants the lock too, and keeps it
/// through its promotion.
const TRY_LOCK: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_try_advisory_lock($1, $2) END";

/// A term that grows with every acquisition. The emitted message makes the transaction write, so that the
/// xid is durable: an xid alone repeats after an immediate shutdown.
const TAKE_TERM: &str = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8, \
     pg_current_xact_id()::text::int8, \
     pg_logical_emit_message(true, 'retsu-collector', 'term')::text";

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
    /// What leads to the server is not fit for a session lock, or could not be found out.
    #[error("{}: {}", .0.reason(), .0)]
    Pooler(#[from] PoolerError),
    /// The server is a hot standby.
    #[error("the database server is a hot standby (pg_is_in_recovery() is true), where a lock decides nothing")]
    InRecovery,
}

/// The outcome of one attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The lock is ours, and this session holds it.
    Granted(LockSession),
    /// Another session holds the lock; our connection is back in the pool.
    Held,
}

/// A connection on which the lock may have been taken, from just before the attempt on. However it is
/// dropped (cancelled, timed out, failed), it is closed and never returned to the pool.
#[derive(Debug)]
struct Candidate(Option<PoolConnection<Postgres>>);

impl Candidate {
    /// Ends the guard: the connection is the caller's to give back or to close.
    #[expect(clippy::expect_used, reason = "only here is the connection taken out, and that consumes the guard")]
    fn into_inner(mut self) -> PoolConnection<Postgres> {
        self.0.take().expect("a candidate has its connection until it is consumed")
    }
}

impl Deref for Candidate {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "the connection is there until the guard is consumed")]
    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("a candidate has its connection until it is consumed")
    }
}

impl DerefMut for Candidate {
    #[expect(clippy::expect_used, reason = "the connection is there until the guard is consumed")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("a candidate has its connection until it is consumed")
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// The session that owns the lock, for a whole term. It never goes back to the pool: dropping it closes it,
/// which is what frees the lock.
#[derive(Debug)]
pub struct LockSession {
    session: Candidate,
    term: Term,
}

impl LockSession {
    /// Tries the lock `key` once, without waiting for it, within `limit` after a connection is there.
    ///
    /// Dropping the returned future at any point leaves no lock behind and no locked connection in the pool.
    ///
    /// # Errors
    ///
    /// See [`AttemptError`].
    pub async fn attempt(database: &Database, key: LockKey, limit: Duration) -> Result<Attempt, AttemptError> {
        let mut candidate = Candidate(Some(database.acquire().await?));
        let deadline = Instant::now() + limit;
        probe(database, &mut candidate, limit).await?;
        timeout_at(deadline, Self::attempt_on(candidate, key)).await.map_err(|_| AttemptError::Timeout(limit))?
    }

    async fn attempt_on(mut session: Candidate, key: LockKey) -> Result<Attempt, AttemptError> {
        let granted: Option<bool> = sqlx::query_scalar(TRY_LOCK)
            .bind(key.0)
            .bind(key.1)
            .fetch_one(&mut *session)
            .await
            .map_err(|error| AttemptError::Statement { what: "trying the advisory lock", error })?;
        match granted {
            Some(true) => {
                let term = take_term(&mut session).await?;
                Ok(Attempt::Granted(Self { session, term }))
            }
            Some(false) => {
                // Known to hold nothing: others may borrow it again.
                drop(session.into_inner());
                Ok(Attempt::Held)
            }
            None => Err(AttemptError::InRecovery),
        }
    }

    /// The term that began with this session.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
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

async fn take_term(session: &mut PgConnection) -> Result<Term, AttemptError> {
    let failed = |error| AttemptError::Statement { what: "taking a term", error };
    // A synchronous standby that is away must not keep a new leader waiting: a promotion starts a new
    // timeline, so the number need not survive one.
    sqlx::query("SET synchronous_commit TO local").execute(&mut *session).await.map_err(failed)?;
    let row = sqlx::query(TAKE_TERM).fetch_one(session).await.map_err(failed)?;
    let timeline: i64 = row.try_get(0).map_err(failed)?;
    let number: i64 = row.try_get(1).map_err(failed)?;
    let out_of_range = |error: std::num::TryFromIntError| failed(sqlx::Error::Decode(error.into()));
    Ok(Term { timeline: timeline.try_into().map_err(out_of_range)?, number: number.try_into().map_err(out_of_range)? })
}
