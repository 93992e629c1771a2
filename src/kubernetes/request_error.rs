//! Why a request to the API failed.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

/// The wait after a 429 that does not say one; the API server's own default.
const THROTTLED_WAIT: Duration = Duration::from_secs(1);

/// The wait after a refusal.
const DENIED_WAIT: Duration = Duration::from_secs(3);

/// The longest message that is kept, in bytes: whoever is in the way of the API may answer with a web page.
const MESSAGE_LIMIT: usize = 512;

/// A kind of failure; the value of the label `outcome`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RequestErrorKind {
    /// 401 or 403: not permitted.
    Denied,
    /// 404: no such object.
    NotFound,
    /// 409: another resourceVersion, or the name is taken. With a resourceVersion in the request a wrong uid is this as
    /// well: the server looks at the version first.
    Conflict,
    /// 422 for the uid: the Pod of that name is another one.
    Replaced,
    /// Any other refusal of what the request says, such as a `test` of a JSON patch that does not hold.
    Invalid,
    /// 410, or a resourceVersion that the server does not know yet: list anew.
    Expired,
    /// 429: later.
    Throttled,
    /// 5xx.
    ServerError,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Unreachable,
    /// An answer that is not one.
    Unreadable,
}

impl RequestErrorKind {
    /// The stable name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Replaced => "replaced",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
            Self::Throttled => "throttled",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Unreadable => "unreadable",
        }
    }

    /// Whether the API did not really answer, so that any other request is likely to fail as well.
    pub(super) const fn is_outage(self) -> bool {
        matches!(self, Self::Throttled | Self::ServerError | Self::Timeout | Self::Unreachable | Self::Unreadable)
    }
}

/// A request that failed. The text is never that of a credential.
#[derive(Clone, Debug, Error)]
#[error("{verb} {resource}: {message}")]
pub(crate) struct RequestError {
    /// The verb, as a Role names it.
    pub(super) verb: &'static str,
    /// The resource, as a Role names it.
    pub(super) resource: &'static str,
    /// The kind.
    pub(super) kind: RequestErrorKind,
    /// The HTTP status code; `None` when there was no answer.
    pub(super) code: Option<u16>,
    /// The server's own text, or the cause when it gave none: one line of at most 512 bytes.
    pub(super) message: String,
    /// How long the server wants to be left alone.
    pub(super) retry_after: Option<Duration>,
}

impl RequestError {
    /// Whether the Role has to permit it first.
    pub(crate) fn is_denied(&self) -> bool {
        self.kind == RequestErrorKind::Denied
    }

    /// How long to leave the API alone at least: as long as it wants, and some seconds when somebody has to grant a
    /// permission first.
    pub(super) fn wait(&self) -> Option<Duration> {
        let denied = (self.kind == RequestErrorKind::Denied).then_some(DENIED_WAIT);
        self.retry_after.max(denied)
    }

    /// A request without an answer after `limit`.
    pub(super) fn timeout(verb: &'static str, resource: &'static str, limit: Duration) -> Self {
        let message = format!("no answer within {limit:?}");
        Self { verb, resource, kind: RequestErrorKind::Timeout, code: None, message, retry_after: None }
    }

    /// An answer that lacks what it has to have.
    pub(super) fn unreadable(verb: &'static str, resource: &'static str, message: &str) -> Self {
        let message = message.to_owned();
        Self { verb, resource, kind: RequestErrorKind::Unreadable, code: None, message, retry_after: None }
    }

    /// What kube made of an answer, or of the lack of one.
    pub(super) fn new(verb: &'static str, resource: &'static str, error: &kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return Self::refused(verb, resource, status);
        }
        let message = match error {
            kube::Error::Service(cause) => chain(cause.as_ref()),
            _ => chain(error),
        };
        let message = cut(&message, MESSAGE_LIMIT);
        Self { verb, resource, kind: failed(error), code: None, message, retry_after: None }
    }

    /// What the server's own account of a refusal means. A text that is none of those comes with its status code.
    pub(super) fn refused(verb: &'static str, resource: &'static str, status: &Status) -> Self {
        let kind = refusal(status);
        let text = if status.message.is_empty() { &status.reason } else { &status.message };
        let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        let retry_after = match (kind, asked) {
            (RequestErrorKind::Throttled, 0) => Some(THROTTLED_WAIT),
            (_, 0) => None,
            (_, seconds) => Some(Duration::from_secs(seconds.into())),
        };
        Self { verb, resource, kind, code: Some(status.code), message: cut(text, MESSAGE_LIMIT), retry_after }
    }
}

fn refusal(status: &Status) -> RequestErrorKind {
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    match status.code {
        401 | 403 => RequestErrorKind::Denied,
        404 => RequestErrorKind::NotFound,
        409 => RequestErrorKind::Conflict,
        410 => RequestErrorKind::Expired,
        422 if causes.iter().any(|cause| cause.field == "metadata.uid") => RequestErrorKind::Replaced,
        429 => RequestErrorKind::Throttled,
        _ if causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge") => RequestErrorKind::Expired,
        400..500 => RequestErrorKind::Invalid,
        _ => RequestErrorKind::ServerError,
    }
}

fn failed(error: &kube::Error) -> RequestErrorKind {
    match error {
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) | kube::Error::LinesCodecMaxLineLengthExceeded => {
            RequestErrorKind::Unreadable
        }
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => RequestErrorKind::Invalid,
        _ if sources(error).any(is_timeout) => RequestErrorKind::Timeout,
        _ if sources(error).any(is_unparsable) => RequestErrorKind::Unreadable,
        _ => RequestErrorKind::Unreachable,
    }
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    error.is::<tower::timeout::error::Elapsed>()
        || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

fn is_unparsable(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

fn sources<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The texts of `error` and of its causes, less what is already said: kube repeats the cause in its own text, and
/// hyper leaves it out.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    sources(error).map(ToString::to_string).fold(String::new(), |text, cause| match text {
        text if text.is_empty() => cause,
        text if text.contains(&cause) => text,
        text => format!("{text}: {cause}"),
    })
}

/// `text` as one line of at most `limit` bytes, whole characters.
pub(super) fn cut(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    text[..end].trim().replace(|character: char| character.is_control(), " ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::Value;

    use super::*;

    /// What [`kube::Client`] makes of an answer with this code and body.
    fn answered(code: u16, body: &str) -> RequestError {
        let status = serde_json::from_str(body)
            .unwrap_or_else(|_| Status::failure(body, "Failed to parse error data").with_code(code));
        RequestError::new("patch", "pods", &kube::Error::Api(Box::new(status)))
    }

    /// The body of a refusal as the API server writes it, less what all have in common.
    fn body(code: u16, reason: &str, message: &str, details: &str) -> String {
        let (reason, message) = (serde_json::json!(reason), serde_json::json!(message));
        format!(
            r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":{message},
                "reason":{reason},"details":{details},"code":{code}}}"#
        )
    }

    #[test]
    fn every_refusal_of_a_real_server_has_its_kind() {
        use RequestErrorKind::*;
        let uid = r#"{"name":"pod-a","kind":"Pod","causes":[{"reason":"FieldValueInvalid",
            "message":"Invalid value: \"x\": field is immutable","field":"metadata.uid"}]}"#;
        let label = r#"{"name":"pod-a","kind":"Pod","causes":[{"reason":"FieldValueInvalid",
            "message":"Invalid value: \"a b\"","field":"metadata.labels"}]}"#;
        let future = r#"{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],
            "retryAfterSeconds":1}"#;
        let cases = [
            (401, "Unauthorized", "Unauthorized", "{}", Denied),
            (403, "Forbidden", "pods \"pod-a\" is forbidden: User \"u\" cannot patch resource", "{}", Denied),
            (404, "NotFound", "pods \"pod-a\" not found", "{}", NotFound),
            (409, "Conflict", "Operation cannot be fulfilled on pods \"pod-a\"", "{}", Conflict),
            (422, "Invalid", "Pod \"pod-a\" is invalid: metadata.uid: Invalid value", uid, Replaced),
            (422, "Invalid", "Pod \"pod-a\" is invalid: metadata.labels: Invalid value", label, Invalid),
            (422, "Invalid", "the server rejected our request due to an error in our request", "{}", Invalid),
            (400, "BadRequest", "unable to parse requirement", "{}", Invalid),
            (410, "Expired", "too old resource version: 1 (203)", "{}", Expired),
            (504, "Timeout", "Timeout: Too large resource version: 99, current: 2", future, Expired),
            (504, "Timeout", "request did not complete within requested timeout", "{}", ServerError),
            (500, "InternalError", "Internal error occurred: failed calling webhook", "{}", ServerError),
            (503, "ServiceUnavailable", "apiserver is shutting down", "{}", ServerError),
        ];
        for (code, reason, message, details, kind) in cases {
            let error = answered(code, &body(code, reason, message, details));
            assert_eq!((error.kind, error.code, error.message.as_str()), (kind, Some(code), message));
        }
    }

    #[test]
    fn a_429_says_how_long_to_wait_and_a_bare_one_means_a_second() {
        let asked = body(429, "TooManyRequests", "the storage is (re)initializing", r#"{"retryAfterSeconds":7}"#);
        for (body, seconds) in [(asked.as_str(), 7), ("Too many requests, please try again later.\n", 1)] {
            let error = answered(429, body);
            assert_eq!(error.kind, RequestErrorKind::Throttled);
            assert_eq!(error.retry_after, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(answered(500, "boom").retry_after, None);
    }

    #[test]
    fn a_body_that_is_no_status_is_judged_by_its_code_and_told_in_one_short_line() {
        for (code, kind) in [
            (401, RequestErrorKind::Denied),
            (404, RequestErrorKind::NotFound),
            (413, RequestErrorKind::Invalid),
            (502, RequestErrorKind::ServerError),
        ] {
            assert_eq!(answered(code, "404 page not found\n").kind, kind);
        }
        let page = format!("<html>\n<body>{}</body>", "\u{e9}".repeat(4000));
        let error = answered(502, &page);
        assert!(error.message.len() <= MESSAGE_LIMIT && error.message.starts_with("<html> <body>"), "{error}");
    }

    #[test]
    fn what_never_was_an_answer_is_told_apart() {
        let elapsed = tower::timeout::error::Elapsed::new();
        let parsed = serde_json::from_str::<Value>("<html>").unwrap_err();
        let broken = io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer");
        let silent = io::Error::new(io::ErrorKind::TimedOut, "no acknowledgement");
        for (error, kind) in [
            (kube::Error::Service(Box::new(elapsed)), RequestErrorKind::Timeout),
            (kube::Error::ReadEvents(silent), RequestErrorKind::Timeout),
            (kube::Error::ReadEvents(broken), RequestErrorKind::Unreachable),
            (kube::Error::SerdeError(parsed), RequestErrorKind::Unreadable),
        ] {
            assert_eq!(RequestError::new("get", "pods", &error).kind, kind, "{error}");
        }
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused");
        let error = RequestError::new("get", "pods", &kube::Error::Service(Box::new(refused)));
        assert_eq!(error.to_string(), "get pods: connection refused");
    }
}
