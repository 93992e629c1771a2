//! What a header `Retry-After` says, put where it is looked for: kube drops the headers of a failure, and a server
//! that is overloaded says it nowhere else.

use bytes::Bytes;
use http::Response;
use http::header::RETRY_AFTER;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use tower::BoxError;

/// The failure `answer` with the seconds of its header in the details of its object; every other answer as it is.
///
/// # Errors
///
/// The body of a failure does not come.
pub(super) async fn in_details<B>(answer: Response<B>) -> Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let Some(seconds) = seconds(&answer) else {
        return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
    };
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
    let mut status = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&bytes);
        Status::failure(text.trim(), "Failed to parse error data").with_code(head.status.as_u16())
    });
    let details = status.details.get_or_insert_with(none);
    details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    let body = Full::from(serde_json::to_vec(&status)?).map_err(|never| match never {}).boxed_unsync();
    Ok(Response::from_parts(head, body))
}

const fn none() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

/// The seconds that a failure asks for; a date is not understood.
fn seconds<B>(answer: &Response<B>) -> Option<u32> {
    let failed = answer.status().is_client_error() || answer.status().is_server_error();
    answer.headers().get(RETRY_AFTER).filter(|_| failed)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    async fn passed(code: u16, header: &str, body: &str) -> String {
        let answer = Response::builder().status(code).header(RETRY_AFTER, header);
        let answer = in_details(answer.body(Full::from(body.to_owned())).unwrap()).await.unwrap();
        assert_eq!(answer.status(), code);
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_longer_of_header_and_details_is_told_and_the_rest_of_the_object_kept() {
        for (header, details, told) in [("7", 3, 7), ("3", 7, 7), ("7", 0, 7)] {
            let body = json!({
                "kind": "Status", "status": "Failure", "message": "later", "reason": "TooManyRequests", "code": 429,
                "details": {"retryAfterSeconds": details},
            });
            let passed: Value = serde_json::from_str(&passed(429, header, &body.to_string()).await).unwrap();
            assert_eq!((&passed["details"]["retryAfterSeconds"], &passed["message"]), (&told.into(), &"later".into()));
        }
    }

    #[tokio::test]
    async fn a_text_becomes_an_object_that_says_so() {
        let passed: Value = serde_json::from_str(&passed(429, "7", "Too many requests.\n").await).unwrap();
        assert_eq!(passed["details"]["retryAfterSeconds"], 7);
        assert_eq!((&passed["message"], &passed["code"]), (&"Too many requests.".into(), &429.into()));
    }

    #[tokio::test]
    async fn what_is_no_failure_or_no_number_stays_as_it_is() {
        assert_eq!(passed(200, "7", "{}").await, "{}");
        assert_eq!(passed(503, "Fri, 31 Dec 1999 23:59:59 GMT", "later").await, "later");
    }
}
