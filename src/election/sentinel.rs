//! Notices at once that the server has ended its sessions.
//!
//! Nobody reads the lock session between two refreshes, so its end is only found out by the next one. A
//! restarted server may by then have granted the lock to another. The sentinel is a second session that does
//! nothing but read: a server that stops, in whatever way, ends it together with the lock session, long before
//! it can start again. It is a hint to look at the lock session and proves nothing; it cannot see that the
//! lock session alone has ended.

use std::future::pending;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::database::Database;

/// How long opening the session may hold up a refresh.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

/// A session of its own, outside the pool of the collector.
pub(super) struct Sentinel(Option<PgListener>);

impl Sentinel {
    /// No session yet.
    pub(super) const fn closed() -> Self {
        Self(None)
    }

    /// Opens the session. Without one the sentinel just never speaks: that is no reason not to lead.
    pub(super) async fn open(database: &Database) -> Self {
        let options = database.pool().connect_options();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(OPEN_LIMIT)
            .connect_lazy_with((*options).clone());
        match PgListener::connect_with(&pool).await {
            Ok(mut listener) => {
                listener.eager_reconnect(false);
                Self(Some(listener))
            }
            Err(error) => {
                tracing::debug!(%error, "no session for noticing a restart of the server at once");
                Self(None)
            }
        }
    }

    /// Waits until the session ends, once. May be cancelled and called again.
    pub(super) async fn ended(&mut self) {
        if let Some(listener) = &mut self.0 {
            // It listens to no channel, so there is nothing to receive but the end.
            while let Ok(Some(_)) = listener.try_recv().await {}
            self.0 = None;
        } else {
            pending::<()>().await;
        }
    }

    /// Whether it can still speak.
    pub(super) const fn is_open(&self) -> bool {
        self.0.is_some()
    }
}
