//! Proofs: small queries that show that our backend still holds the lock, and on which server.

use sqlx::postgres::PgRow;
use sqlx::postgres::types::Oid;
use sqlx::{PgConnection, Row};

use super::Term;
use crate::config::LockKey;
use crate::database::{CloseOnDrop, Database, DatabaseError};

/// What a proof looks at. The backend is known by its process id, and by the term that it advertises: process ids
/// come back, terms do not. That is in view of every role, whereas when a backend started is not.
///
/// The timeline is that of the WAL being written. `pg_control_checkpoint()` would lag behind a promotion for
/// seconds.
const PROOF: &str = "SELECT pg_catalog.pg_backend_pid() AS asked, pg_catalog.pg_is_in_recovery() AS in_recovery,
       (SELECT system_identifier FROM pg_catalog.pg_control_system()) AS system_identifier,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int8 END AS timeline,
       EXISTS (SELECT FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_get_activity($1) AS backend USING (pid)
               WHERE locktype = 'advisory' AND classid = $3 AND objid = $4 AND objsubid = 2 AND granted
                 AND mode = 'ExclusiveLock'
                 AND position(' T=' || $2 || ' ' IN backend.application_name || ' ') > 0) AS holds";

/// What a term is proved by: the backend that advertises it holds this lock on this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) key: LockKey,
    /// Process id of the backend.
    pub(super) pid: i32,
    pub(super) system_identifier: u64,
    pub(super) term: Term,
}

/// Why a proof is none.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// No connection could be had to ask from.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The server gave no answer, or none that can be read.
    #[error("asking for a proof failed: {0}")]
    Statement(#[from] sqlx::Error),
    /// The answer did not come in time.
    #[error("no proof within {0:?}")]
    Late(std::time::Duration),
    /// The fence has passed before the answer came, whatever it says.
    #[error("the fence passed before a proof came")]
    Fenced,
    /// The backend is gone or has no lock.
    #[error("the backend that was granted the lock does not hold it")]
    NotHeld,
    /// The lock session leads to another backend: something is between it and the server.
    #[error("the lock session leads to another backend of the server than the one that was granted the lock")]
    Moved,
    /// The server has become a hot standby.
    #[error("the server is in recovery")]
    InRecovery,
    /// The answer comes from another server, or from another timeline of it.
    #[error(
        "the server is {answered_system}, timeline {answered_timeline}, the lock was granted by {system}, timeline {timeline}"
    )]
    OtherServer {
        /// The system identifier of the grant.
        system: u64,
        /// The timeline of the grant.
        timeline: u32,
        /// The system identifier of the answer.
        answered_system: u64,
        /// The timeline of the answer.
        answered_timeline: i64,
    },
}

impl ProofError {
    /// A stable name of the kind of error, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Database(_) => "proof_no_connection",
            Self::Statement(_) => "proof_statement",
            Self::Late(_) => "proof_late",
            Self::Fenced => "fenced",
            Self::NotHeld => "lock_not_held",
            Self::Moved => "session_moved",
            Self::InRecovery => "in_recovery",
            Self::OtherServer { .. } => "other_server",
        }
    }
}

impl Claim {
    /// Proves the claim on the lock session itself.
    pub(super) async fn prove_on(&self, session: &mut PgConnection) -> Result<(), ProofError> {
        let answer = self.ask(session).await?;
        let asked: i32 = answer.try_get("asked")?;
        if asked == self.pid { self.judge(&answer) } else { Err(ProofError::Moved) }
    }

    /// Proves the claim from another connection of the pool, while the lock session is busy.
    pub(super) async fn prove_from(&self, database: &Database) -> Result<(), ProofError> {
        // Dropped in mid-statement, the connection would be busy when the next one borrows it.
        let mut witness = CloseOnDrop::new(database.borrow().await?);
        let answer = self.ask(&mut witness).await?;
        drop(witness.into_inner());
        self.judge(&answer)
    }

    async fn ask(&self, session: &mut PgConnection) -> Result<PgRow, sqlx::Error> {
        sqlx::query(PROOF)
            .bind(self.pid)
            .bind(self.term.to_string())
            .bind(Oid(self.key.0.cast_unsigned()))
            .bind(Oid(self.key.1.cast_unsigned()))
            .fetch_one(session)
            .await
    }

    fn judge(&self, answer: &PgRow) -> Result<(), ProofError> {
        if answer.try_get("in_recovery")? {
            return Err(ProofError::InRecovery);
        }
        let system: i64 = answer.try_get("system_identifier")?;
        let timeline: i64 = answer.try_get("timeline")?;
        if system.cast_unsigned() != self.system_identifier || timeline != i64::from(self.term.timeline) {
            return Err(ProofError::OtherServer {
                system: self.system_identifier,
                timeline: self.term.timeline,
                answered_system: system.cast_unsigned(),
                answered_timeline: timeline,
            });
        }
        if answer.try_get("holds")? { Ok(()) } else { Err(ProofError::NotHeld) }
    }
}
