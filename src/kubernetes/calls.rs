//! The one way of every request: its deadline, and who is told how it went.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::denials::Denials;
use super::outage::{Line, Outage};
use super::request_error::{RequestError, RequestErrorKind};

/// Counts a request: its verb, its resource, and `ok` or the name of a [`RequestErrorKind`].
pub(super) type Count = Arc<dyn Fn(&'static str, &'static str, &'static str) + Send + Sync>;

/// Makes requests. Clones share what they know.
#[derive(Clone)]
pub(super) struct Calls {
    limit: Duration,
    count: Count,
    denials: Denials,
    outage: Arc<Mutex<Outage>>,
}

impl Calls {
    /// Each request may take `limit`, from connecting to the last byte of its answer; of a watch, to the head.
    pub(super) fn new(limit: Duration, count: Count, denials: Denials) -> Self {
        Self { limit, count, denials, outage: Arc::default() }
    }

    /// Awaits the answer to `request`.
    ///
    /// # Errors
    ///
    /// It failed, or it took too long and was given up.
    pub(super) async fn run<T>(
        &self,
        verb: &'static str,
        resource: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, RequestError> {
        let result = match timeout(self.limit, request).await {
            Ok(result) => result.map_err(|error| RequestError::new(verb, resource, &error)),
            Err(_) => Err(RequestError::timeout(verb, resource, self.limit)),
        };
        match &result {
            Ok(_) => self.succeeded(verb, resource),
            Err(error) => self.failed(error),
        }
        result
    }

    fn succeeded(&self, verb: &'static str, resource: &'static str) {
        (self.count)(verb, resource, "ok");
        self.denials.permitted(verb, resource);
        self.answered();
    }

    /// Tells of a failure that [`run`](Self::run) could not see, such as that of a watch that had begun well.
    pub(super) fn failed(&self, error: &RequestError) {
        (self.count)(error.verb, error.resource, error.kind.as_str());
        if error.kind == RequestErrorKind::Denied {
            self.denials.refused(error);
        }
        if error.kind.is_outage() {
            let line = self.outage.lock().unwrap_or_else(PoisonError::into_inner).failed(Instant::now());
            if let Some(Line::Down { since, failures }) = line {
                tracing::warn!(%error, kind = error.kind.as_str(), ?since, failures, "the Kubernetes API does not answer");
            }
        } else {
            self.answered();
        }
    }

    fn answered(&self) {
        let line = self.outage.lock().unwrap_or_else(PoisonError::into_inner).answered(Instant::now());
        if let Some(Line::Up { after }) = line {
            tracing::info!(?after, "the Kubernetes API answers again");
        }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("limit", &self.limit).finish_non_exhaustive()
    }
}
