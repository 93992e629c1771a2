//! Notices at once that the server has ended its sessions.
//!
//! Nobody reads the lock session between two refreshes, so its end is only found out by the next one. A
//! restarted server may by then have granted the lock to another. The sentinel is a second session that does
//! nothing but read: a server that stops, in whatever way, ends it together with the lock session, long before
//! it can start again. It is a hint to look at the lock session and proves nothing; it cannot see that the
//! lock session alone has ended.

use std::future::pending;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use crate::database::Database;

/// How long opening the session may hold up a refresh.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// How long closing the session may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A session of its own, outside the pool of the collector.
#[derive(Debug)]
pub(super) struct Sentinel {
    session: Option<PgListener>,
    /// A pool for that one session, which is the only way to have a [`PgListener`].
    pool: Option<PgPool>,
    /// Whether the last try to open it failed, so that a change is logged once.
    refused: bool,
}

impl Sentinel {
    /// No session yet.
    pub(super) const fn closed() -> Self {
        Self { session: None, pool: None, refused: false }
    }

    /// Opens the session. Without one the sentinel just never speaks: that is no reason not to lead.
    pub(super) async fn open(&mut self, database: &Database) {
        let options = database.pool().connect_options();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(OPEN_LIMIT)
            .connect_lazy_with((*options).clone());
        self.session = match PgListener::connect_with(&pool).await {
            Ok(mut listener) => {
                listener.eager_reconnect(false);
                listener.ignore_pool_close_event(true);
                self.refused = false;
                Some(listener)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.refused, true) {
                    tracing::warn!(%error, "no second session: a restart of the server is noticed at the next refresh only");
                }
                None
            }
        };
        self.pool = Some(pool);
    }

    /// Waits until the session ends, once. May be cancelled and called again.
    pub(super) async fn ended(&mut self) {
        if let Some(session) = &mut self.session {
            // It listens to no channel, so there is nothing to receive but the end.
            while let Ok(Some(_)) = session.try_recv().await {}
            self.session = None;
        } else {
            pending::<()>().await;
        }
    }

    /// Whether it can still speak.
    pub(super) const fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// Closes the session and waits for that.
    pub(super) async fn close(&mut self) {
        self.session = None;
        if let Some(pool) = self.pool.take() {
            // A server that does not take part has no say in how long it takes.
            _ = timeout(CLOSE_LIMIT, pool.close()).await;
        }
    }
}
