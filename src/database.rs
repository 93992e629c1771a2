//! The pool, and the credentials that may change under it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::{ConnectOptionsError, DatabaseSettings};

/// How many direct backends are remembered: more than a pool needs.
const MAX_DIRECT: usize = 64;

/// How long the pool tries on its own. Between two refused connections it waits for up to a fifth of its time, and a
/// server that is back must not be left alone for longer than a second.
const ACQUIRE_SLICE: Duration = Duration::from_secs(5);

/// A backend, as no other of the server's past or future ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Backend {
    /// Its process id.
    pub(crate) pid: i32,
    /// When it started, in microseconds of Unix time; `None` when the role may not see that, because it is set to
    /// another than that of the session.
    pub(crate) started: Option<i64>,
}

/// Why the database could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The connection parameters are unusable.
    #[error(transparent)]
    Options(#[from] ConnectOptionsError),
    /// A connection could not be made.
    #[error("connecting to the database failed: {0}")]
    Connect(sqlx::Error),
    /// The pool has refused connections tried again until its limit, or has none to lend.
    #[error(
        "no connection to the database within database.acquire_timeout_seconds ({0:?}): \
         it refuses connections, or all of database.max_connections are in use"
    )]
    NoConnection(Duration),
}

/// A connection that nobody else may get as it is: the lock may have been taken on it, or a statement may be under
/// way. However it is dropped (cancelled, timed out, failed), it is closed and never returned to the pool.
#[derive(Debug)]
pub(crate) struct CloseOnDrop(Option<PoolConnection<Postgres>>);

impl CloseOnDrop {
    pub(crate) const fn new(connection: PoolConnection<Postgres>) -> Self {
        Self(Some(connection))
    }

    /// Ends the guard: the connection is the caller's to give back or to close.
    #[expect(clippy::expect_used, reason = "only here is the connection taken out, and that consumes the guard")]
    pub(crate) fn into_inner(mut self) -> PoolConnection<Postgres> {
        self.0.take().expect("a guard has its connection until it is consumed")
    }
}

impl Deref for CloseOnDrop {
    type Target = PgConnection;

    #[expect(clippy::expect_used, reason = "the connection is there until the guard is consumed")]
    fn deref(&self) -> &PgConnection {
        self.0.as_ref().expect("a guard has its connection until it is consumed")
    }
}

impl DerefMut for CloseOnDrop {
    #[expect(clippy::expect_used, reason = "the connection is there until the guard is consumed")]
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0.as_mut().expect("a guard has its connection until it is consumed")
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// The pool that every session comes from. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
    settings: Arc<DatabaseSettings>,
    /// Why the credentials could not be read the last time, so that a change is logged once.
    unreadable: Arc<ArcSwapOption<String>>,
    /// Whether a reader of the credentials is at work.
    reading: Arc<AtomicBool>,
    /// Backends that a connection of ours has to itself, the latest last.
    direct: Arc<Mutex<VecDeque<Backend>>>,
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
            .acquire_timeout(settings.acquire_timeout.min(ACQUIRE_SLICE))
            .connect_lazy_with(options);
        Ok(Self {
            pool,
            settings: Arc::new(settings),
            unreadable: Arc::default(),
            reading: Arc::default(),
            direct: Arc::default(),
        })
    }

    /// Borrows a connection. The credentials are read again first, so that a rotated password is used by
    /// the next connection without a restart; while they cannot be read, or are being read for somebody else, the last
    /// good ones are used.
    ///
    /// # Errors
    ///
    /// [`DatabaseError::Connect`] or [`DatabaseError::NoConnection`].
    pub async fn acquire(&self) -> Result<PoolConnection<Postgres>, DatabaseError> {
        // One reader at a time: a mount that hangs must not take one blocking thread after the other.
        if !self.reading.swap(true, Ordering::Acquire) {
            self.read_credentials().await;
        }
        self.borrow().await
    }

    /// Reads the credentials again, and waits for that no longer than a connection may take.
    async fn read_credentials(&self) {
        let (settings, reading) = (Arc::clone(&self.settings), Arc::clone(&self.reading));
        // Off the async workers: a mounted file may take its time.
        let read = spawn_blocking(move || {
            let read = settings.connect_options().map_err(|error| error.to_string());
            reading.store(false, Ordering::Release);
            read
        });
        let read = timeout(self.settings.acquire_timeout, read).await;
        match read
            .map_err(|_| "reading them takes too long".to_owned())
            .and_then(|read| read.unwrap_or_else(|error| Err(error.to_string())))
        {
            Ok(options) => {
                self.unreadable.store(None);
                self.pool.set_connect_options(options);
            }
            Err(error) => {
                if self.unreadable.swap(Some(Arc::new(error.clone()))).is_none_or(|last| *last != error) {
                    tracing::warn!(%error, "database credentials cannot be read again, using the last good ones");
                }
            }
        }
    }

    /// Borrows a connection with the credentials that were read last, for which nothing but the server is waited.
    ///
    /// # Errors
    ///
    /// Like [`acquire`](Self::acquire).
    pub(crate) async fn borrow(&self) -> Result<PoolConnection<Postgres>, DatabaseError> {
        let deadline = Instant::now() + self.settings.acquire_timeout;
        loop {
            match timeout_at(deadline, self.pool.acquire()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(sqlx::Error::PoolTimedOut)) if Instant::now() < deadline => {}
                Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {
                    return Err(DatabaseError::NoConnection(self.settings.acquire_timeout));
                }
                Ok(Err(error)) => return Err(DatabaseError::Connect(error)),
            }
        }
    }

    /// Whether [`remember_direct`](Self::remember_direct) was told of this backend.
    pub(crate) fn is_direct(&self, backend: Backend) -> bool {
        // Process ids come back: without its start, a backend is not known again.
        backend.started.is_some() && self.direct.lock().unwrap_or_else(PoisonError::into_inner).contains(&backend)
    }

    /// Notes that one of our connections leads to this backend with nothing in between.
    pub(crate) fn remember_direct(&self, backend: Backend) {
        let mut direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        if direct.len() == MAX_DIRECT {
            direct.pop_front();
        }
        direct.push_back(backend);
    }

    /// Closes the connections that nobody has borrowed.
    pub(crate) fn discard_idle(&self) {
        while let Some(idle) = self.pool.try_acquire() {
            drop(idle.detach());
        }
    }

    /// How long a connection is waited for.
    #[must_use]
    pub fn acquire_timeout(&self) -> Duration {
        self.settings.acquire_timeout
    }

    /// The pool itself, for its size.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}
