//! The pool, and the credentials that may change under it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgPool, Postgres};
use tokio::time::timeout;

use crate::config::{ConnectOptionsError, DatabaseSettings};

/// How long the database may take to answer the readiness check.
pub const PING_LIMIT: Duration = Duration::from_secs(2);

/// Why the database could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The connection parameters are unusable.
    #[error(transparent)]
    Options(#[from] ConnectOptionsError),
    /// No connection could be had from the pool.
    #[error("connecting to the database failed: {0}")]
    Connect(sqlx::Error),
    /// The database did not answer the readiness check.
    #[error("the database did not answer within {PING_LIMIT:?}")]
    Unanswered,
}

/// The pool that every session comes from. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    settings: Arc<DatabaseSettings>,
    /// Why the credentials could not be read the last time, so that a change is logged once.
    unreadable: Arc<ArcSwapOption<String>>,
}

impl Database {
    /// Prepares the pool without connecting.
    ///
    /// # Errors
    ///
    /// [`DatabaseError::Options`] when the connection parameters are unusable.
    pub fn open(settings: DatabaseSettings) -> Result<Self, DatabaseError> {
        let options = settings.connect_options()?;
        let pool = PgPoolOptions::new()
            .max_connections(settings.max_connections)
            .acquire_timeout(settings.acquire_timeout)
            .connect_lazy_with(options);
        Ok(Self { pool, settings: Arc::new(settings), unreadable: Arc::default() })
    }

    /// Borrows a connection. The credentials are read again first, so that a rotated password is used by
    /// the next connection without a restart; while they cannot be read, the last good ones are used.
    ///
    /// # Errors
    ///
    /// [`DatabaseError::Connect`] when none is to be had within `database.acquire_timeout_seconds`.
    pub async fn acquire(&self) -> Result<PoolConnection<Postgres>, DatabaseError> {
        match self.settings.connect_options() {
            Ok(options) => {
                self.unreadable.store(None);
                self.pool.set_connect_options(options);
            }
            Err(error) => {
                let error = error.to_string();
                if self.unreadable.swap(Some(Arc::new(error.clone()))).is_none_or(|last| *last != error) {
                    tracing::warn!(%error, "database credentials cannot be read again, using the last good ones");
                }
            }
        }
        self.pool.acquire().await.map_err(DatabaseError::Connect)
    }

    /// Asks the database for a sign of life.
    ///
    /// # Errors
    ///
    /// Any [`DatabaseError`]; [`DatabaseError::Unanswered`] after [`PING_LIMIT`].
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        let ping = async {
            let mut connection = self.acquire().await?;
            connection.ping().await.map_err(DatabaseError::Connect)
        };
        timeout(PING_LIMIT, ping).await.map_err(|_| DatabaseError::Unanswered)?
    }

    /// The pool itself, for its size.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}
