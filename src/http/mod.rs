//! The management endpoint: warp routes behind an accept loop with limits.
//!
//! Warp's own server bounds neither connections nor slow clients and waits for idle connections when it
//! stops, so the routes are served by a loop of ours over hyper. Every connection is a tracked task; each
//! has a slot that says what it is waiting for, and one clock over all slots ends those that wait too long.

mod bind;
mod connection;
mod leader;
mod ready;
mod routes;
mod serve;
mod serving;
mod slots;

use std::net::SocketAddr;

pub use bind::bind;
pub use ready::Ready;
pub use routes::{Context, LogFilter, routes};
pub use serve::{Limits, serve};
pub use serving::Serving;

/// The address of the client, an extension of every request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The management endpoint cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} (worker.management.port = {port}): {source}")]
    Bind {
        /// The address and port tried.
        address: SocketAddr,
        /// The value of `worker.management.port`.
        port: u16,
        /// What the system says.
        source: std::io::Error,
    },
    /// A handler panicked.
    #[error("the task of a connection failed: {0}")]
    Connection(#[from] tokio::task::JoinError),
}
