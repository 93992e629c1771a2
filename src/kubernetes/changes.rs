//! Lists, then watches, and lists again when the watch is lost.
//!
//! kube's own watcher does this as well, but its lists have no deadline, its watch stays with a resourceVersion that
//! the server answers with 410, one that ends at once is begun anew without a pause, and nobody sees that a watch was
//! permitted until something happens.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{BoxStream, unfold};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::WatchEvent;
use kube::runtime::watcher::Event;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::{LONGEST_PAUSE, pause};
use super::request_error::RequestError;
use super::requests::{Requests, WATCH_SECONDS};

/// A watch on which nothing comes for so long, not even its end, is dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// The stream of [`Requests::watch`].
pub(super) fn of(requests: Requests) -> impl Stream<Item = Result<Event<Pod>, RequestError>> + Send {
    let changes = Changes { requests, step: Step::List, ready: VecDeque::new(), failures: 0, pause: None };
    unfold(changes, async |mut changes| Some((changes.next().await, changes)))
}

enum Step {
    List,
    Begin { version: String },
    Follow { version: String, events: BoxStream<'static, kube::Result<WatchEvent<Pod>>>, began: Instant },
}

struct Changes {
    requests: Requests,
    step: Step,
    ready: VecDeque<Event<Pod>>,
    /// Failures since the last sign that the watch works.
    failures: u32,
    pause: Option<Duration>,
}

impl Changes {
    async fn next(&mut self) -> Result<Event<Pod>, RequestError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            if let Some(pause) = self.pause.take() {
                sleep(pause).await;
            }
            if let Err(error) = self.advance().await {
                self.pause_after(error.wait());
                return Err(error);
            }
        }
    }

    fn pause_after(&mut self, asked: Option<Duration>) {
        self.pause = Some(pause(self.failures, asked, rand::random()));
        self.failures = self.failures.saturating_add(1);
    }

    /// One request, or one event. Cancelled, it is simply repeated.
    async fn advance(&mut self) -> Result<(), RequestError> {
        match &mut self.step {
            Step::List => self.list().await,
            Step::Begin { version } => {
                let version = version.clone();
                self.begin(version).await
            }
            Step::Follow { .. } => self.follow().await,
        }
    }

    async fn list(&mut self) -> Result<(), RequestError> {
        let list = self.requests.list().await?;
        let Some(version) = list.metadata.resource_version.filter(|version| !version.is_empty()) else {
            return Err(self.requests.unversioned());
        };
        self.ready.push_back(Event::Init);
        self.ready.extend(list.items.into_iter().map(Event::InitApply));
        self.ready.push_back(Event::InitDone);
        self.step = Step::Begin { version };
        Ok(())
    }

    async fn begin(&mut self, version: String) -> Result<(), RequestError> {
        match self.requests.watch_from(&version).await {
            Ok(events) => {
                self.step = Step::Follow { version, events, began: Instant::now() };
                Ok(())
            }
            Err(error) => {
                self.step = Step::List;
                Err(error)
            }
        }
    }

    async fn follow(&mut self) -> Result<(), RequestError> {
        let Step::Follow { version, events, began } = &mut self.step else { return Ok(()) };
        let result = match timeout(SILENCE, events.next()).await {
            Ok(Some(Ok(WatchEvent::Error(status)))) => Err(kube::Error::Api(status)),
            Ok(Some(result)) => result,
            // The server ends each watch by itself; one that ends at once is not to be begun anew without a pause.
            Ok(None) | Err(_) => {
                let (version, lasted) = (std::mem::take(version), began.elapsed());
                self.step = Step::Begin { version };
                if lasted < LONGEST_PAUSE {
                    self.pause_after(None);
                } else {
                    self.failures = 0;
                }
                return Ok(());
            }
        };
        match result {
            Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                *version = pod.resource_version().unwrap_or_default();
                self.ready.push_back(Event::Apply(pod));
            }
            Ok(WatchEvent::Deleted(pod)) => {
                *version = pod.resource_version().unwrap_or_default();
                self.ready.push_back(Event::Delete(pod));
            }
            Ok(WatchEvent::Bookmark(bookmark)) => *version = bookmark.metadata.resource_version,
            Ok(WatchEvent::Error(_)) => {}
            Err(error) => {
                let error = self.requests.watch_failed(&error);
                self.step = Step::List;
                return Err(error);
            }
        }
        self.failures = 0;
        Ok(())
    }
}
