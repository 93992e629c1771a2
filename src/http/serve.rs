//! The accept loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;
use warp::reply::Response;

use super::connection::{Shared, drive};
use super::slots::{Phase, Pulse, Slots};
use super::{HttpError, Peer};
use crate::exposition::{Metrics, RejectReason};

/// What a client may ask of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Open connections. At the limit the longest waiting one makes room, so that clients that hold
    /// connections without using them cannot shut out those that do.
    pub connections: usize,
    /// How long a connection may stay in one phase before it can be replaced.
    pub grace: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// From the first byte of a request to the end of its head; of the first request, from the accept.
    pub head: Duration,
    /// From the head of a request to the head of its answer, a body included.
    pub handler: Duration,
    /// From the head of an answer until the kernel has taken its last byte.
    pub answer: Duration,
    /// From the end of an answer to the first byte of the next request.
    pub idle: Duration,
    /// From the shutdown to the end of the last answer in flight.
    pub drain: Duration,
}

impl Limits {
    /// The least that hyper allows for a connection's buffer.
    pub(super) const MIN_BUFFER: usize = 8192;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            grace: Duration::from_secs(1),
            header_bytes: 16 * 1024,
            head: Duration::from_secs(10),
            handler: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            // Longer than the longest usual scrape interval.
            idle: Duration::from_secs(150),
            drain: Duration::from_secs(5),
        }
    }
}

/// How late a limit may be noticed.
const TICK: Duration = Duration::from_millis(100);

/// How long to leave a listener alone that has no file descriptor left for the next connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `routes` on `listener` until `shutdown`, then finishes the answers in flight within
/// [`Limits::drain`]. No connection outlives the call.
///
/// # Errors
/// [`HttpError::Connection`] when a handler panicked.
pub async fn serve(
    listener: TcpListener,
    routes: BoxedFilter<(Response,)>,
    metrics: Arc<Metrics>,
    limits: Limits,
    shutdown: CancellationToken,
) -> Result<(), HttpError> {
    let shared = Shared { routes, metrics, header_bytes: limits.header_bytes };
    let mut server =
        Server { shared, limits, origin: Instant::now(), slots: Slots::new(), tasks: JoinSet::new(), shutdown };
    let served = server.accept_all(listener).await;
    let drained = match served {
        Ok(()) => tokio::time::timeout(limits.drain, server.drain()).await.unwrap_or_else(|_| {
            tracing::warn!(limit = ?limits.drain, "answers in flight were cut at the end of the drain");
            Ok(())
        }),
        Err(error) => Err(error),
    };
    server.tasks.shutdown().await;
    server.shared.metrics.http_connections(0);
    drained
}

struct Server {
    shared: Shared,
    limits: Limits,
    origin: Instant,
    slots: Slots<Id, AbortHandle>,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Server {
    async fn accept_all(&mut self, listener: TcpListener) -> Result<(), HttpError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shutdown = self.shutdown.clone();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next_with_id() => self.reap(ended)?,
                _ = tick.tick() => self.expire(),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, Peer(peer)),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection");
                        tokio::select! {
                            () = shutdown.cancelled() => return Ok(()),
                            () = tokio::time::sleep(ACCEPT_PAUSE) => self.expire(),
                        }
                    }
                },
            }
        }
    }

    async fn drain(&mut self) -> Result<(), HttpError> {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.reap(ended)?,
                    None => return Ok(()),
                },
                _ = tick.tick() => self.expire(),
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, peer: Peer) {
        let metrics = &self.shared.metrics;
        if self.slots.len() >= self.limits.connections {
            let Some(longest) = self.slots.longest_waiting(Instant::now(), self.limits.grace) else {
                metrics.http_rejected(RejectReason::Limit);
                // Best effort: a fresh connection has room for it, and its client may not even read.
                let _ = stream
                    .try_write(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                return;
            };
            longest.abort();
            metrics.http_rejected(RejectReason::Evicted);
        }
        // Small answers go out at once, and a client that vanished does not hold the kernel's buffer; both
        // are only savings, so a refusal changes nothing.
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(self.limits.answer));

        let pulse = Arc::new(Pulse::new(self.origin));
        let connection = drive(stream, peer, self.shared.clone(), Arc::clone(&pulse), self.shutdown.clone());
        let handle = self.tasks.spawn(connection);
        self.slots.insert(handle.id(), handle, pulse);
        self.shared.metrics.http_connections(self.slots.len());
    }

    fn expire(&mut self) {
        for (handle, phase) in self.slots.expired(Instant::now(), &self.limits) {
            handle.abort();
            // An idle connection is no slow client: it had its answer.
            if phase != Phase::Idle {
                self.shared.metrics.http_rejected(RejectReason::Slow);
            }
        }
        self.shared.metrics.http_connections(self.slots.len());
    }

    fn reap(&mut self, ended: Result<(Id, ()), JoinError>) -> Result<(), HttpError> {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) if error.is_cancelled() => error.id(),
            Err(error) => return Err(error.into()),
        };
        self.slots.remove(id);
        self.shared.metrics.http_connections(self.slots.len());
        Ok(())
    }
}
