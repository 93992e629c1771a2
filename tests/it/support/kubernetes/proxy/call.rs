//! A call to the API server, and what can go wrong with it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Response, StatusCode, request};
use http_body_util::Full;
use serde_json::{Value, json};

/// A call as it reached the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// When it arrived.
    pub(crate) at: Instant,
    /// As in a Role: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub(crate) verb: &'static str,
    /// As in a Role, with the subresource: `pods`, `pods/status`.
    pub(crate) resource: String,
    /// Name of the object, when it is about one.
    pub(crate) name: Option<String>,
    /// Path with query.
    pub(crate) path: String,
    /// Its bearer token, empty without one.
    pub(crate) token: String,
    /// Its body.
    pub(crate) body: Bytes,
    /// Status of the API server's or the proxy's answer; `None` as long as there is none.
    pub(crate) status: Option<u16>,
}

impl Call {
    pub(super) fn new(head: &request::Parts, body: Bytes) -> Self {
        let segments: Vec<_> = head.uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
        // `api` and a version, or `apis`, a group and a version.
        let object = segments.get(if segments.first() == Some(&"api") { 2 } else { 3 }..).unwrap_or_default();
        let object = match object {
            ["namespaces", _, object @ ..] if !object.is_empty() => object,
            _ => object,
        };
        let (resource, name) = match object {
            [] => (String::new(), None),
            [resource] => ((*resource).to_owned(), None),
            [resource, name] => ((*resource).to_owned(), Some((*name).to_owned())),
            [resource, name, subresource @ ..] => {
                (format!("{resource}/{}", subresource.join("/")), Some((*name).to_owned()))
            }
        };
        let query = head.uri.query().unwrap_or_default();
        let watches = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
        let verb = match head.method {
            Method::GET if watches => "watch",
            Method::GET if name.is_some() => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "other",
        };
        let token = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
        Self { at: Instant::now(), verb, resource, name, path: head.uri.to_string(), token, body, status: None }
    }

    /// Whether it is this verb on this resource.
    pub(crate) fn is(&self, verb: &str, resource: &str) -> bool {
        self.verb == verb && self.resource == resource
    }

    /// Whether it changes anything.
    pub(crate) fn writes(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb)
    }
}

/// What the proxy does with a call instead of passing it on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// Answers with this status and a `Status` object as the API server has it.
    Status(u16),
    /// Answers with this status and plain text, as something before the API server does.
    Plain(u16),
    /// Answers 429, with the seconds to wait in a header `Retry-After`, in the details of the object, in both or
    /// nowhere.
    TooManyRequests {
        /// In the header.
        header: Option<u32>,
        /// In `details.retryAfterSeconds`.
        details: Option<u32>,
    },
    /// Answers a watch with one event, the error of an expired resource version, and ends it.
    Expired,
    /// Passes a watch on that is to end after so many seconds, in order, whatever its client asked for.
    EndWatch(u32),
    /// Answers 200 and never sends a byte of the body, as a watch on a connection that is dead.
    Silent,
    /// Never answers.
    Hang,
    /// Passes it on after this time, whether or not its client still waits.
    Delay(Duration),
    /// Passes it on when `release` is called, whether or not its client still
    /// waits.
    Hold,
    /// Resets the connection; the API server sees nothing.
    Reset,
    /// Passes it on and resets the connection instead of answering.
    LoseAnswer,
}

impl Fault {
    /// `target`, a path with query, as the fault passes it on.
    pub(super) fn target(self, target: &str) -> Option<String> {
        let Self::EndWatch(seconds) = self else { return None };
        let pairs = target.split('&').map(|pair| match pair.split_once("timeoutSeconds=") {
            Some((before, _)) => format!("{before}timeoutSeconds={seconds}"),
            None => pair.to_owned(),
        });
        Some(pairs.collect::<Vec<_>>().join("&"))
    }

    /// The answer of a fault that is one.
    pub(super) fn answer(self) -> Option<Response<Full<Bytes>>> {
        match self {
            Self::Status(code) => Some(json_answer(code, &status(code, None))),
            Self::Plain(code) => Some(answer(code, "text/plain", format!("{code} from the proxy\n"))),
            Self::TooManyRequests { header, details } => {
                let mut answer = json_answer(429, &status(429, details));
                if let Some(seconds) = header {
                    answer.headers_mut().insert(RETRY_AFTER, seconds.into());
                }
                Some(answer)
            }
            Self::Expired => Some(json_answer(200, &json!({"type": "ERROR", "object": status(410, None)}))),
            _ => None,
        }
    }
}

fn status(code: u16, retry_after: Option<u32>) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let details = retry_after.map(|seconds| json!({"retryAfterSeconds": seconds}));
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{reason} from the proxy"), "reason": reason, "details": details, "code": code,
    })
}

pub(super) fn json_answer(code: u16, body: &Value) -> Response<Full<Bytes>> {
    answer(code, "application/json", body.to_string())
}

fn answer(code: u16, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    answer
}
