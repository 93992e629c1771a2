//! The routes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::watch;
use warp::filters::BoxedFilter;
use warp::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY,
};
use warp::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use warp::reply::{Reply, Response};
use warp::{Filter, Rejection};

use super::Peer;
use super::connection::Guarded;
use super::leader::LeaderAnswer;
use super::ready::{Readiness, Ready};
use super::serving::Serving;
use crate::clock::BootInstant;
use crate::election::{Liveness, Status};
use crate::exposition::{Metrics, Publication, Scrape, negotiate, scrape};
use crate::kubernetes::LabelReport;

/// Bytes of queue state that are handed over at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Bytes of a log filter that is put.
const FILTER_BYTES: u64 = 4096;

const INDEX: &str = "\
retsu-collector

/metrics         metrics of this process and, on the leader, queue state
/leader          who leads; 200 on the leader, 503 elsewhere
/health/live     200 while the election loop ticks
/health/ready    200 while the database answers
/health/serving  200 once this Pod has no leader label of an earlier start, or after 2 s
/log/filter      the log filter; GET and PUT, from a loopback address only
";

/// The log filter in force.
pub trait LogFilter: Send + Sync + 'static {
    /// The filter as text.
    fn get(&self) -> String;

    /// Replaces the filter.
    ///
    /// # Errors
    /// Why `filter` cannot be read, for the person who sent it.
    fn set(&self, filter: &str) -> Result<(), String>;
}

/// What the routes answer from.
#[derive(Clone)]
pub struct Context {
    /// Name of this replica, as `/leader` tells it.
    pub identity: String,
    /// The process's own metrics.
    pub metrics: Arc<Metrics>,
    /// The state gauges.
    pub publication: Arc<Publication>,
    /// The present role.
    pub status: watch::Receiver<Status>,
    /// Whether the election loop ticks.
    pub liveness: Arc<Liveness>,
    /// The database behind `/health/ready`.
    pub database: Arc<dyn Ready>,
    /// Whether this Pod may be routed to.
    pub serving: Arc<Serving>,
    /// The label of the own Pod.
    pub label: watch::Receiver<LabelReport>,
    /// The log filter behind `/log/filter`.
    pub log_filter: Arc<dyn LogFilter>,
}

/// A known path: a closed set, so that it can be a metric label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Route {
    Index,
    Metrics,
    Leader,
    Live,
    Ready,
    Serving,
    LogFilter,
    Other,
}

impl Route {
    pub(super) fn of(path: &str) -> Self {
        // Like warp, which takes no notice of a slash at the end.
        match path.strip_suffix('/').unwrap_or(path) {
            "" => Self::Index,
            "/metrics" => Self::Metrics,
            "/leader" => Self::Leader,
            "/health/live" => Self::Live,
            "/health/ready" => Self::Ready,
            "/health/serving" => Self::Serving,
            "/log/filter" => Self::LogFilter,
            _ => Self::Other,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Index => "/",
            Self::Metrics => "/metrics",
            Self::Leader => "/leader",
            Self::Live => "/health/live",
            Self::Ready => "/health/ready",
            Self::Serving => "/health/serving",
            Self::LogFilter => "/log/filter",
            Self::Other => "other",
        }
    }

    /// The value of `Allow`.
    pub(super) fn methods(self) -> &'static str {
        match self {
            Self::LogFilter => "GET, HEAD, PUT",
            _ => "GET, HEAD",
        }
    }

    pub(super) fn allows(self, method: &Method) -> bool {
        self.methods().split(", ").any(|allowed| allowed == method.as_str())
    }

    pub(super) fn takes_body(self, method: &Method) -> bool {
        self == Self::LogFilter && method == Method::PUT
    }
}

/// The routes over `context`, every error answered.
#[must_use]
pub fn routes(context: Context) -> BoxedFilter<(Response,)> {
    let read = warp::get().or(warp::head()).unify();
    let Context { identity, metrics, publication, status, liveness, database, serving, label, log_filter } = context;

    let index = warp::path::end().and(read).map(|| INDEX.into_response());

    let live = warp::path!("health" / "live").and(read).map(move || {
        if liveness.is_alive(BootInstant::now()) {
            "ok\n".into_response()
        } else {
            plain(StatusCode::SERVICE_UNAVAILABLE, "the election loop has stopped ticking\n")
        }
    });

    let readiness = Readiness::new(database);
    let ready = warp::path!("health" / "ready").and(read).then(move || {
        let readiness = readiness.clone();
        async move {
            match readiness.check().await {
                Ok(()) => "ok\n".into_response(),
                Err(kind) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("the database does not answer: {kind}\n")),
            }
        }
    });

    let serving = warp::path!("health" / "serving").and(read).map(move || {
        if serving.is_open(BootInstant::now()) {
            "ok\n".into_response()
        } else {
            plain(StatusCode::SERVICE_UNAVAILABLE, "this Pod may still have the leader label of an earlier start\n")
        }
    });

    let exported = Arc::clone(&publication);
    let metrics = warp::path!("metrics")
        .and(read)
        .and(warp::header::headers_cloned())
        .map(move |headers: HeaderMap| exposition(&metrics, &exported, &headers));

    let leader = warp::path!("leader")
        .and(read)
        .map(move || leader(&status.borrow().clone(), &label.borrow(), &publication, &identity));

    let current = Arc::clone(&log_filter);
    let get_filter = read.map(move || format!("{}\n", current.get()).into_response());
    let put_filter = warp::put()
        .and(warp::body::content_length_limit(FILTER_BYTES))
        .and(warp::body::bytes())
        .map(move |body: Bytes| set_filter(&*log_filter, &body));
    // Loopback comes before the method and the body: nobody else learns more than that the route exists.
    let filter = warp::path!("log" / "filter").and(from_loopback()).and(get_filter.or(put_filter).unify());

    index
        .or(live)
        .unify()
        .or(ready)
        .unify()
        .or(serving)
        .unify()
        .or(metrics)
        .unify()
        .or(leader)
        .unify()
        .or(filter)
        .unify()
        .recover(rejected)
        .unify()
        .boxed()
}

fn exposition(metrics: &Metrics, publication: &Publication, headers: &HeaderMap) -> Response {
    let answer = negotiate(joined(headers, &ACCEPT).as_deref(), joined(headers, &ACCEPT_ENCODING).as_deref());
    let scrape = scrape(metrics, publication, answer);
    let (length, published) = (scrape.bytes(), scrape.published.clone());
    let mut response = warp::reply::stream(pieces(scrape)).into_response();
    if let Some(published) = published {
        response.extensions_mut().insert(Guarded(published));
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.format.content_type()));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if answer.gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// `scrape` in pieces that share its memory, so that little of it is buffered when a client reads slowly.
fn pieces(scrape: Scrape) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + Sync {
    let [mut queues, tail, own] = scrape.parts;
    let queues = std::iter::from_fn(move || {
        let piece = queues.split_to(queues.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    });
    stream::iter(queues.chain([tail, own]).map(Ok))
}

/// All values of a list header as one list; a value that is no text is not there.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join(","))
}

fn leader(status: &Status, label: &LabelReport, publication: &Publication, identity: &str) -> Response {
    let now = BootInstant::now();
    let fence = publication.fence(now);
    let answer = LeaderAnswer::new(status, label, fence, identity, now, SystemTime::now());
    let mut response = warp::reply::json(&answer).into_response();
    if fence.is_none() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn set_filter(log_filter: &dyn LogFilter, body: &[u8]) -> Response {
    let result =
        str::from_utf8(body).map_err(|error| error.to_string()).and_then(|filter| log_filter.set(filter.trim()));
    match result {
        Ok(()) => format!("{}\n", log_filter.get()).into_response(),
        Err(reason) => plain(StatusCode::BAD_REQUEST, format!("{reason}\n")),
    }
}

#[derive(Debug)]
struct NotLoopback;

impl warp::reject::Reject for NotLoopback {}

fn from_loopback() -> impl Filter<Extract = (), Error = Rejection> + Clone {
    warp::ext::optional::<Peer>()
        .and_then(|peer: Option<Peer>| async move {
            match peer {
                Some(Peer(peer)) if is_loopback(peer) => Ok(()),
                _ => Err(warp::reject::custom(NotLoopback)),
            }
        })
        .untuple_one()
}

/// A socket of both families shows an IPv4 client as `::ffff:127.0.0.1`.
fn is_loopback(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

async fn rejected(rejection: Rejection) -> Result<Response, Infallible> {
    let (status, reason) = if rejection.is_not_found() {
        (StatusCode::NOT_FOUND, "no such route; / lists them\n")
    } else if rejection.find::<NotLoopback>().is_some() {
        (StatusCode::FORBIDDEN, "only from a loopback address\n")
    } else if rejection.find::<warp::reject::PayloadTooLarge>().is_some() {
        (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n")
    } else if rejection.find::<warp::reject::LengthRequired>().is_some() {
        (StatusCode::LENGTH_REQUIRED, "the body needs a Content-Length\n")
    } else if rejection.find::<warp::reject::MethodNotAllowed>().is_some() {
        (StatusCode::METHOD_NOT_ALLOWED, "this route has other methods\n")
    } else {
        (StatusCode::BAD_REQUEST, "the request cannot be read\n")
    };
    Ok(plain(status, reason))
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    warp::reply::with_status(text.into(), status).into_response()
}
