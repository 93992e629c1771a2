//! Events on the own Pod, for whoever runs `kubectl describe`.
//!
//! kube's recorder takes two events for the same whatever their notes say, so a second term would be told with the
//! number of the first one; here the note counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use super::denials::Denial;
use super::report::Permission;
use super::request_error::{RequestError, RequestErrorKind, cut};
use super::requests::FIELD_MANAGER;
use crate::config::OwnPod;
use crate::election::Term;

const EVENTS: &str = "events";

/// Who reports, as a qualified name.
const CONTROLLER: &str = "retsu.io/collector";

/// How many events wait to be written.
const QUEUE: usize = 8;

/// The API server's limits of a note, in bytes, and of the reporting instance.
const NOTE_LIMIT: usize = 1024;
const INSTANCE_LIMIT: usize = 128;

/// The longest part of the Pod's name that is put into an event's, which is a subdomain of at most 253 bytes.
const NAME_LIMIT: usize = 200;

/// An equal event within this time is counted on the first one, as in client-go.
const SERIES_TIMEOUT: Duration = Duration::from_secs(360);

/// The most events that can be counted on.
const SERIES: usize = 16;

/// So many events may be written at once, and one more for each interval.
const BURST: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(30);

/// The pause before an event is tried the second and last time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The pause before an event that was refused is tried again: nothing else shows that the permission is there now.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Is told of each event that is not written.
pub(super) type Dropped = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone, Debug)]
struct Notice {
    at: Timestamp,
    content: Content,
}

/// What makes two events equal.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Content {
    severity: &'static str,
    reason: &'static str,
    action: &'static str,
    note: String,
}

/// Where events are told. It never waits: what does not fit into the queue is dropped.
#[derive(Clone)]
pub(super) struct Events {
    queue: mpsc::Sender<Notice>,
    dropped: Dropped,
}

impl Events {
    /// This process leads, in `term`.
    pub(super) fn acquired(&self, term: Term) {
        self.tell("Normal", "LeadershipAcquired", "Lead", &format!("Leads in term {term}"));
    }

    /// This process leads no longer, for `reason`; as it should when it is `stopping`.
    pub(super) fn lost(&self, reason: &str, stopping: bool) {
        let severity = if stopping { "Normal" } else { "Warning" };
        self.tell(severity, "LeadershipLost", "Withdraw", &format!("Leads no longer: {reason}"));
    }

    /// The API refuses what the Role has to permit.
    pub(super) fn denied(&self, permission: Permission, denial: &Denial) {
        let Permission { verb, resource } = permission;
        let Denial { code, reason } = denial;
        let note = format!("The Kubernetes API refuses to {verb} {resource} ({code}): {reason}");
        self.tell("Warning", "LabelDenied", "Label", &note);
    }

    /// The database server cannot be led on; `refusal` is the reason in `/leader`.
    pub(super) fn refused(&self, refusal: &str) {
        self.tell("Warning", "LockRefused", "TryLock", &format!("The database server is refused: {refusal}"));
    }

    fn tell(&self, severity: &'static str, reason: &'static str, action: &'static str, note: &str) {
        let content = Content { severity, reason, action, note: cut(note, NOTE_LIMIT) };
        if self.queue.try_send(Notice { at: Timestamp::now(), content }).is_err() {
            (self.dropped)();
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("waiting", &(QUEUE - self.queue.capacity())).finish_non_exhaustive()
    }
}

/// Writes what [`Events`] are told.
pub(super) struct Writer {
    queue: mpsc::Receiver<Notice>,
    events: Api<Event>,
    about: OwnPod,
    calls: Calls,
    dropped: Dropped,
    rate: Rate,
    written: Vec<Written>,
    /// The last event that was refused, and when it is tried again.
    refused: Option<(Notice, Instant)>,
}

/// An event that equal ones are counted on.
struct Written {
    name: String,
    content: Content,
    count: i32,
    last: Instant,
}

/// A queue of events about a Pod, and what writes them; `dropped` is told of each that is not written.
pub(super) fn events(client: Client, about: OwnPod, calls: Calls, dropped: Dropped) -> (Events, Writer) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let events = Api::namespaced(client, &about.namespace);
    let (rate, written) = (Rate::default(), Vec::new());
    let writer = Writer { queue, events, about, calls, dropped: dropped.clone(), rate, written, refused: None };
    (Events { queue: sender, dropped }, writer)
}

impl Writer {
    /// Writes events until `stop`; then what is still queued, for `limit` at most.
    pub(super) async fn run(mut self, stop: CancellationToken, limit: Duration) {
        let late = async {
            stop.cancelled().await;
            sleep(limit).await;
        };
        let served = tokio::select! {
            () = self.serve(&stop) => true,
            () = late => false,
        };
        if self.refused.is_some() {
            (self.dropped)();
        }
        if served {
            return;
        }
        // After `stop` nothing is waited for but an answer: that event is lost with the queued ones.
        (self.dropped)();
        self.queue.close();
        while self.queue.try_recv().is_ok() {
            (self.dropped)();
        }
    }

    async fn serve(&mut self, stop: &CancellationToken) {
        loop {
            let due = self.refused.as_ref().map(|(_, due)| *due);
            let (notice, new) = tokio::select! {
                biased;
                notice = self.queue.recv() => (notice, true),
                () = stop.cancelled() => (self.queue.try_recv().ok(), true),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    (self.refused.take().map(|(notice, _)| notice), false)
                }
            };
            let Some(notice) = notice else { return };
            if new && !self.rate.permits(Instant::now()) {
                (self.dropped)();
                continue;
            }
            let dropped = match self.write(&notice).await {
                Ok(()) => false,
                Err(error) if error.kind == RequestErrorKind::Denied => {
                    self.refused.replace((notice, Instant::now() + REFUSED_PAUSE)).is_some()
                }
                Err(_) => true,
            };
            if dropped {
                (self.dropped)();
            }
        }
    }

    async fn write(&mut self, notice: &Notice) -> Result<(), RequestError> {
        let now = Instant::now();
        self.written.retain(|written| now.duration_since(written.last) < SERIES_TIMEOUT);
        if let Some(index) = self.written.iter().position(|written| written.content == notice.content) {
            match self.count(index, notice.at).await {
                Err(error) if error.kind == RequestErrorKind::NotFound => drop(self.written.remove(index)),
                result => return result,
            }
        }
        let event = self.event(notice);
        let name = event.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let create = || self.calls.run("create", EVENTS, self.events.create(&parameters, &event));
        match twice(create).await {
            // The first attempt had arrived, only its answer had not.
            Err(error) if error.kind == RequestErrorKind::Conflict => {}
            result => drop(result?),
        }
        if self.written.len() == SERIES {
            self.written.remove(0);
        }
        self.written.push(Written { name, content: notice.content.clone(), count: 1, last: now });
        Ok(())
    }

    /// Counts one more on an event that is there.
    async fn count(&mut self, index: usize, at: Timestamp) -> Result<(), RequestError> {
        let Some(written) = self.written.get_mut(index) else { return Ok(()) };
        let count = written.count.saturating_add(1);
        let patch = Patch::Merge(json!({ "series": { "count": count, "lastObservedTime": MicroTime(at) } }));
        let parameters = PatchParams::default();
        let patch = || self.calls.run("patch", EVENTS, self.events.patch(&written.name, &parameters, &patch));
        twice(patch).await?;
        (written.count, written.last) = (count, Instant::now());
        Ok(())
    }

    fn event(&self, notice: &Notice) -> Event {
        let OwnPod { namespace, name, uid } = &self.about;
        let (Content { severity, reason, action, note }, at) = (&notice.content, notice.at);
        let prefix = cut(name, NAME_LIMIT);
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:x}", prefix.trim_end_matches(['.', '-']), at.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            action: Some((*action).to_owned()),
            event_time: Some(MicroTime(at)),
            note: Some(note.clone()),
            reason: Some((*reason).to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                uid: Some(uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(cut(name, INSTANCE_LIMIT)),
            type_: Some((*severity).to_owned()),
            ..Event::default()
        }
    }
}

/// The answer to `request`, which is made again when the API did not really answer.
async fn twice<T, F>(request: impl Fn() -> F) -> Result<T, RequestError>
where
    F: Future<Output = Result<T, RequestError>>,
{
    match request().await {
        Err(error) if error.kind.is_outage() => {
            sleep(RETRY_PAUSE).await;
            request().await
        }
        result => result,
    }
}

/// How often events may be written. Pure: it is told the time.
#[derive(Debug, Default)]
struct Rate {
    /// When all that was permitted would have been written at one for each interval.
    due: Option<Instant>,
}

impl Rate {
    fn permits(&mut self, now: Instant) -> bool {
        let due = self.due.map_or(now, |due| due.max(now));
        let permitted = due.duration_since(now) <= INTERVAL * (BURST - 1);
        if permitted {
            self.due = Some(due + INTERVAL);
        }
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_one_every_half_minute() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let permitted = |rate: &mut Rate, seconds: u64, tries: usize| {
            (0..tries).filter(|_| rate.permits(start + Duration::from_secs(seconds))).count()
        };
        assert_eq!(permitted(&mut rate, 0, 50), 10);
        assert_eq!(permitted(&mut rate, 29, 50), 0);
        assert_eq!(permitted(&mut rate, 30, 50), 1);
        assert_eq!(permitted(&mut rate, 100, 50), 2);
        assert_eq!(permitted(&mut rate, 3600, 50), 10);
    }
}
