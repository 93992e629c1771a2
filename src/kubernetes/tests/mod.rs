//! Requests and events against a server that does what a real one cannot be made to do, the manifest, and samples.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod events;
mod rbac;
mod requests;
pub(super) mod samples;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use tower::{BoxError, service_fn};

use super::calls::Calls;
use super::denials::Denials;

const LIMIT: Duration = Duration::from_secs(5);

type Answer = Result<Response<BoxBody<Bytes, Infallible>>, BoxError>;

/// What is counted: verb, resource and outcome.
type Counted = Arc<Mutex<Vec<String>>>;

/// A client that `server` answers, given the number of the request, from 0, and the request.
fn client<F>(server: impl Fn(usize, Request<Body>) -> F + Send + 'static) -> Client
where
    F: Future<Output = Answer> + Send + 'static,
{
    let number = AtomicUsize::new(0);
    let service = service_fn(move |request: Request<Body>| server(number.fetch_add(1, Ordering::Relaxed), request));
    Client::new(service, "ns")
}

fn calls(denials: &Denials) -> (Calls, Counted) {
    let counted = Counted::default();
    let count = counted.clone();
    let calls = Calls::new(
        LIMIT,
        Arc::new(move |verb, resource, outcome| count.lock().unwrap().push(format!("{verb} {resource} {outcome}"))),
        denials.clone(),
    );
    (calls, counted)
}

fn answer(code: u16, body: &str) -> Answer {
    Ok(Response::builder().status(code).body(Full::new(Bytes::from(body.to_owned())).boxed())?)
}

/// A body that begins like this and never ends.
fn endless(body: &str) -> Answer {
    let begin = stream::iter([Ok(Frame::data(Bytes::from(body.to_owned())))]);
    Ok(Response::new(BodyExt::boxed(StreamBody::new(begin.chain(stream::pending())))))
}

fn status(code: u16, details: &str) -> String {
    format!(r#"{{"kind":"Status","status":"Failure","message":"refused","details":{details},"code":{code}}}"#)
}
