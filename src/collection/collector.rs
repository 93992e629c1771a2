//! Refreshes.

use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::PgConnection;
use tokio::time::timeout;

use super::error::CollectError;
use super::retsu::{self, Header};
use super::snapshot::Snapshot;
use crate::clock::BootInstant;

/// How long a refresh waits for a table that another session has locked. An `ALTER TABLE` that waits for a
/// long transaction queues every later reader behind it; ours must not hold out until the refresh times out.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Errors of the server that say that the tables are not what the query takes them for: a table, column,
/// function or operator that does not exist, a missing privilege, a type that does not fit, or a cached plan
/// whose result type has changed.
const ABOUT_TABLES: [&str; 7] = ["42P01", "42703", "42883", "42501", "42804", "42846", "0A000"];

/// Settings of the session for the one query it runs. None of them changes a result.
///
/// - `jit`: compiling takes longer than running.
/// - `plan_cache_mode`: planned anew each time, a plan can follow tables that have grown since.
/// - `enable_nestloop`: the query has no join that should be one, but an estimate of one row for a part that
///   then has thousands would make it one. Its seeks are subqueries, which this does not touch.
/// - `max_parallel_workers_per_gather`: no workers are taken from the application.
/// - `random_page_cost`: its default is for disks that seek, and prefers reading whole tables.
/// - `work_mem`: the sums of 100,000 queues stay in memory.
const SETTINGS: &str = "SELECT set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('enable_nestloop', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('random_page_cost', '1.1', false),
       set_config('work_mem', '64MB', false),
       set_config('lock_timeout', $1, false),
       set_config('statement_timeout', $2, false)";

/// Reads snapshots on a session that someone else owns.
#[derive(Clone, Debug)]
pub struct Collector {
    max_queues: u32,
    timeout: Duration,
}

impl Collector {
    /// A collector of at most `max_queues` queues that gives up a refresh after `refresh_timeout`.
    #[must_use]
    pub const fn new(max_queues: u32, refresh_timeout: Duration) -> Self {
        Self { max_queues, timeout: refresh_timeout }
    }

    /// Sets what [`refresh`](Self::refresh) wants of its session, until the session ends. Call it once the
    /// session is known never to serve anything else: after the lock is won.
    ///
    /// # Errors
    ///
    /// Like [`refresh`](Self::refresh).
    pub async fn prepare(&self, session: &mut PgConnection) -> Result<(), CollectError> {
        let statement_timeout = self.timeout;
        let lock_timeout = LOCK_TIMEOUT.min(statement_timeout);
        let set = sqlx::query(SETTINGS).bind(milliseconds(lock_timeout)).bind(milliseconds(statement_timeout));
        timeout(self.timeout, set.execute(session)).await.map_err(|_| self.timed_out())??;
        Ok(())
    }

    /// Reads the first `max_queues` queues by name, in one statement at one database time.
    ///
    /// # Errors
    ///
    /// Any [`CollectError`]. The session may then still be busy with the statement: destroy it.
    pub async fn refresh(&self, session: &mut PgConnection) -> Result<Snapshot, CollectError> {
        let refresh = async {
            match self.read(session).await {
                Err(CollectError::Database { sqlstate, message }) if ABOUT_TABLES.contains(&sqlstate.as_str()) => {
                    let fault = retsu::diagnose(session).await.ok().flatten();
                    Err(fault.unwrap_or(CollectError::Database { sqlstate, message }))
                }
                outcome => outcome,
            }
        };
        timeout(self.timeout, refresh).await.map_err(|_| self.timed_out())?
    }

    async fn read(&self, session: &mut PgConnection) -> Result<Snapshot, CollectError> {
        let sent_at = BootInstant::now();
        let mut rows = sqlx::query(retsu::QUEUE_STATE).bind(i64::from(self.max_queues)).fetch(&mut *session);
        let first = rows.try_next().await?.ok_or(sqlx::Error::RowNotFound)?;
        let header = Header::read(&first)?.ok_or_else(misfit)?;
        let mut snapshot = Snapshot {
            queues: Vec::new(),
            queues_found: header.queues_found,
            database_time: header.database_time(),
            sent_at,
            duration: Duration::ZERO,
        };
        while let Some(row) = rows.try_next().await? {
            let queue = retsu::queue_state(&row, header.now)?;
            // The rows are ordered by name, so equal names are neighbours.
            if snapshot.queues.last().is_some_and(|last| last.name == queue.name) {
                return Err(CollectError::DuplicateQueue { queue: queue.name });
            }
            snapshot.queues.push(queue);
        }
        snapshot.duration = BootInstant::now().saturating_since(sent_at);
        Ok(snapshot)
    }

    const fn timed_out(&self) -> CollectError {
        CollectError::Timeout { limit: self.timeout }
    }
}

/// Types that a server coerces without an error would change what the values mean. Reported like those that
/// it refuses, so that both are diagnosed alike.
fn misfit() -> CollectError {
    CollectError::Database { sqlstate: "42804".to_owned(), message: "a column has an unexpected type".to_owned() }
}

fn milliseconds(span: Duration) -> String {
    // 0 would switch the limit off.
    format!("{}ms", span.as_millis().max(1))
}
