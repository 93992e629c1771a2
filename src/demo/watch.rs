//! Scrapes every collector every 20 ms and keeps the history.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::history::{Answer, History, Scrape};
use super::scrape::exports_state;

/// Time between two scrapes of one collector.
pub const SCRAPE_INTERVAL: Duration = Duration::from_millis(20);

/// Limit of one scrape. A collector that hangs is asked again after it, so that its first answer afterwards
/// is seen by a scrape that is known to be recent.
const SCRAPE_TIMEOUT: Duration = Duration::from_millis(500);

/// Scrapes several collectors until it is dropped.
#[derive(Debug)]
pub struct Watch {
    state: Arc<Mutex<State>>,
    began: Instant,
    // Dropping the set ends the scrapers.
    _scrapers: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    history: History,
    /// The last exposition of each target; `None` when it did not answer.
    expositions: Vec<Option<String>>,
}

impl Watch {
    /// Starts to scrape `http://ADDRESS/metrics` of each of `targets`, in a Tokio runtime.
    #[must_use]
    pub fn start(targets: &[SocketAddr]) -> Self {
        let began = Instant::now();
        let state = State { history: History::new(targets.len()), expositions: vec![None; targets.len()] };
        let state = Arc::new(Mutex::new(state));
        let mut scrapers = JoinSet::new();
        for (target, &address) in targets.iter().enumerate() {
            scrapers.spawn(scrape_for_ever(target, address, began, Arc::clone(&state)));
        }
        Self { state, began, _scrapers: scrapers }
    }

    /// The history up to now.
    #[must_use]
    pub fn history(&self) -> History {
        self.with(|state| state.history.clone())
    }

    /// Whoever exported at its last scrape.
    #[must_use]
    pub fn exporting(&self) -> Vec<usize> {
        self.with(|state| state.history.exporting())
    }

    /// The last exposition of a target; `None` when it did not answer.
    #[must_use]
    pub fn exposition(&self, target: usize) -> Option<String> {
        self.with(|state| state.expositions.get(target).cloned().flatten())
    }

    /// The present instant on the clock of the history.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn with<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        // A scraper that panicked leaves whole scrapes behind, so the history is as good as before.
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn scrape_for_ever(target: usize, address: SocketAddr, began: Instant, state: Arc<Mutex<State>>) {
    let mut ticks = interval(SCRAPE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sent = began.elapsed();
        let exposition = timeout(SCRAPE_TIMEOUT, get(address, "/metrics")).await.ok().and_then(Result::ok);
        let received = began.elapsed();
        let exposition = exposition.filter(|(status, _)| *status == 200).map(|(_, body)| body);
        let answer = match &exposition {
            Some(body) if exports_state(body) => Answer::Exporting,
            Some(_) => Answer::Silent,
            None => Answer::Unreachable,
        };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.history.record(target, Scrape { sent, received, answer });
        state.expositions[target] = exposition;
    }
}

/// One GET over a connection of its own: the status and the body.
///
/// # Errors
/// The connection failed or closed early, or the answer is not HTTP or not UTF-8.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String), GetError> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| GetError::Path)?;
    // The sender goes with the answer: the connection ends when both are done with it.
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    };
    // The connection makes progress only while it is polled.
    let (answer, _) = tokio::join!(answer, connection);
    let (status, body) = answer.map_err(|error: hyper::Error| error)?;
    Ok((status, String::from_utf8(body.into()).map_err(|_| GetError::Encoding)?))
}

/// Why a GET has no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    /// No complete answer.
    #[error("no complete answer: {0}")]
    Http(#[from] hyper::Error),
    /// The path is not one.
    #[error("not a path")]
    Path,
    /// The body is not UTF-8.
    #[error("the body is not UTF-8")]
    Encoding,
}
