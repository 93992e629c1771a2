//! One connection: a stream that keeps its slot's pulse, driven by hyper.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use warp::filters::BoxedFilter;
use warp::http::header::{ALLOW, CONNECTION};
use warp::http::{HeaderValue, Request, StatusCode};
use warp::reply::Response;

use super::routes::Route;
use super::slots::{Phase, Pulse};
use super::{Limits, Peer};
use crate::clock::BootInstant;
use crate::exposition::{Metrics, Published};

/// What every connection shares.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) routes: BoxedFilter<(Response,)>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) header_bytes: usize,
}

/// Serves `stream` until its client leaves, an error, or the answer that is being written at `shutdown`.
pub(super) async fn drive(
    stream: TcpStream,
    peer: Peer,
    shared: Shared,
    pulse: Arc<Pulse>,
    shutdown: CancellationToken,
) {
    let guard = Arc::new(ArcSwapOption::empty());
    let io = TokioIo::new(Paced { stream, pulse: Arc::clone(&pulse), guard: Arc::clone(&guard) });
    let header_bytes = shared.header_bytes;
    let service = service_fn(move |mut request: Request<Incoming>| {
        pulse.enter(Phase::Handler);
        request.extensions_mut().insert(peer);
        let (shared, pulse, guard) = (shared.clone(), Arc::clone(&pulse), Arc::clone(&guard));
        async move {
            let mut response = answer(request, &shared).await;
            if let Some(Guarded(published)) = response.extensions_mut().remove() {
                guard.store(Some(published));
            }
            pulse.enter(Phase::Write);
            Ok::<_, Infallible>(response.map(|body| Tracked { body, pulse }))
        }
    });
    let connection = http1::Builder::new()
        // The slots have the one clock for slow heads, idle connections and stalled answers.
        .header_read_timeout(None)
        // A head that does not fit the buffer is refused.
        .max_buf_size(header_bytes.max(Limits::MIN_BUFFER))
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(peer = %peer.0, %error, "connection ended early");
    }
}

/// Routes one request and counts it. Only the log filter takes a body; any other one is refused unread, for a
/// wrong method by the routes, which look at nothing beyond it.
async fn answer(request: Request<Incoming>, shared: &Shared) -> Response {
    let started = Instant::now();
    let route = Route::of(request.uri().path());
    let unread = !route.takes_body(request.method()) && !request.body().is_end_stream();
    let mut response = if !unread || !route.allows(request.method()) {
        let Ok(response) = TowerToHyperService::new(warp::service(shared.routes.clone())).call(request).await;
        response
    } else {
        let mut response = warp::reply::Reply::into_response("this route takes no body\n");
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        response
    };
    if unread {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(route.methods()));
    }
    shared.metrics.http_request(route.label(), response.status().as_str(), started.elapsed());
    response
}

/// A body that tells its connection's pulse when hyper has taken all of it.
struct Tracked<B> {
    body: B,
    pulse: Arc<Pulse>,
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        self.pulse.body_ended();
    }
}

/// Marks an answer with queue state, whose bytes may be written only while that permits it.
#[derive(Clone)]
pub(super) struct Guarded(pub(super) Arc<Published>);

/// The queue families have run out while their answer was being written.
#[derive(Debug, thiserror::Error)]
#[error("queue state may no longer be exported")]
struct Expired;

/// A stream that tells its connection's pulse what it is waiting for, and lets no queue state out from beyond the
/// fence.
struct Paced {
    stream: TcpStream,
    pulse: Arc<Pulse>,
    /// Set while an answer with queue state is being written.
    guard: Arc<ArcSwapOption<Published>>,
}

impl Paced {
    /// Looks once more, with nothing left to do but write: a client that reads slowly, or a process that was
    /// stopped in mid-answer, gets a broken answer, which Prometheus throws away, instead of gauges from beyond
    /// the fence.
    fn check(&self) -> io::Result<()> {
        match &*self.guard.load() {
            Some(published) if !published.permits(BootInstant::now()) => Err(io::Error::other(Expired)),
            _ => Ok(()),
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before && self.pulse.phase() == Phase::Idle {
            self.pulse.enter(Phase::Head);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // Hyper flushes the stream only when the kernel has taken every byte it was given.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.pulse.flushed() {
            self.guard.store(None);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
