use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::denials::{Denial, Denials};
use super::super::events::{Events, events};
use super::super::report::Permission;
use super::{Answer, Counted, answer, calls, client, status};
use crate::config::OwnPod;
use crate::election::Term;

const FLUSH: Duration = Duration::from_secs(1);

/// Events that are written to a server.
struct Writing {
    events: Events,
    /// What the server has got: method and body.
    got: Arc<Mutex<Vec<(String, Value)>>>,
    counted: Counted,
    dropped: Arc<AtomicUsize>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Writes events to `server`, which is given the number of the request, from 0.
fn writing<F>(server: impl Fn(usize) -> F + Send + Sync + 'static) -> Writing
where
    F: Future<Output = Answer> + Send + 'static,
{
    let (got, dropped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (server, seen, count) = (Arc::new(server), got.clone(), dropped.clone());
    let client = client(move |number, request| {
        let (server, seen) = (server.clone(), seen.clone());
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect().await?.to_bytes();
            seen.lock().unwrap().push((method, serde_json::from_slice(&body)?));
            server(number).await
        }
    });
    let (calls, counted) = calls(&Denials::new());
    let about = OwnPod { namespace: "ns".into(), name: "pod-a".into(), uid: "u".into() };
    let dropping = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let (events, writer) = events(client, about, calls, dropping);
    let stop = CancellationToken::new();
    let task = tokio::spawn(writer.run(stop.clone(), FLUSH));
    Writing { events, got, counted, dropped, stop, task }
}

impl Writing {
    /// Stops; what the server has got, how many events were dropped, and how long it took.
    async fn end(self) -> (Vec<(String, Value)>, usize, Duration) {
        let began = Instant::now();
        self.stop.cancel();
        self.task.await.unwrap();
        let got = std::mem::take(&mut *self.got.lock().unwrap());
        (got, self.dropped.load(Ordering::Relaxed), began.elapsed())
    }
}

async fn written() -> Answer {
    answer(200, r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{},"eventTime":null}"#)
}

fn term(number: u64) -> Term {
    Term { timeline: 1, number }
}

#[tokio::test(start_paused = true)]
async fn what_happened_is_told_with_its_reason_and_severity() {
    let writing = writing(|_| written());
    writing.events.acquired(term(731));
    writing.events.lost("the refresh failed", false);
    writing.events.lost("stopping", true);
    let denial = Denial { code: 403, reason: "pods is forbidden".into() };
    writing.events.denied(Permission { verb: "patch", resource: "pods" }, &denial);
    writing.events.refused("transaction_pooler");
    let (got, dropped, _) = writing.end().await;
    let told: Vec<_> = got
        .iter()
        .map(|(method, event)| {
            assert_eq!((method.as_str(), &event["regarding"]["uid"]), ("POST", &"u".into()));
            ["type", "reason", "note"].map(|field| event[field].as_str().unwrap())
        })
        .collect();
    let expected = [
        ["Normal", "LeadershipAcquired", "Leads in term 1/731"],
        ["Warning", "LeadershipLost", "Leads no longer: the refresh failed"],
        ["Normal", "LeadershipLost", "Leads no longer: stopping"],
        ["Warning", "LabelDenied", "The Kubernetes API refuses to patch pods (403): pods is forbidden"],
        ["Warning", "LockRefused", "The database server is refused: transaction_pooler"],
    ];
    assert_eq!((told.as_slice(), dropped), (expected.as_slice(), 0));
}

#[tokio::test(start_paused = true)]
async fn equal_events_are_counted_and_another_note_is_another_event() {
    let writing = writing(|_| written());
    for number in [1, 1, 2, 1] {
        writing.events.acquired(term(number));
    }
    let (got, ..) = writing.end().await;
    let methods: Vec<_> = got.iter().map(|(method, _)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST", "PATCH"]);
    let counts: Vec<_> = got.iter().map(|(_, event)| event["series"]["count"].as_i64()).collect();
    assert_eq!(counts, [None, Some(2), None, Some(3)]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_gone_is_written_anew() {
    let writing =
        writing(|number| async move { if number == 1 { answer(404, &status(404, "{}")) } else { written().await } });
    writing.events.acquired(term(1));
    writing.events.acquired(term(1));
    let (got, dropped, _) = writing.end().await;
    let methods: Vec<_> = got.iter().map(|(method, _)| method.as_str()).collect();
    assert_eq!((methods.as_slice(), dropped), (["POST", "PATCH", "POST"].as_slice(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_sender_never_waits_and_what_is_too_much_is_dropped_and_counted() {
    let writing = writing(|_| std::future::pending::<Answer>());
    for number in 0..20 {
        writing.events.acquired(term(number));
    }
    assert_eq!(writing.dropped.load(Ordering::Relaxed), 12);
    let (_, dropped, took) = writing.end().await;
    assert_eq!((dropped, took), (20, FLUSH));
}

#[tokio::test(start_paused = true)]
async fn ten_events_are_written_at_once_and_no_more() {
    let writing = writing(|_| written());
    for number in 0..30 {
        writing.events.acquired(term(number));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (got, dropped, _) = writing.end().await;
    assert_eq!((got.len(), dropped), (10, 20));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_tried_once_more_and_a_refusal_is_not() {
    for (code, attempts) in [(500, 2), (403, 1), (422, 1)] {
        let writing = writing(move |_| async move { answer(code, &status(code, "{}")) });
        writing.events.acquired(term(1));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(writing.counted.lock().unwrap().len(), attempts, "{code}");
        assert_eq!(writing.end().await.1, 1);
    }
    let writing = writing(|number| async move { answer([500, 409][number], &status([500, 409][number], "{}")) });
    writing.events.acquired(term(1));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (got, dropped, _) = writing.end().await;
    assert_eq!((got.len(), dropped), (2, 0));
    assert_eq!(got[0].1["metadata"]["name"], got[1].1["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn a_note_is_cut_where_a_character_ends() {
    let writing = writing(|_| written());
    writing.events.lost(&"\u{e9}".repeat(2000), false);
    let (got, ..) = writing.end().await;
    let note = got[0].1["note"].as_str().unwrap();
    assert!((1023..=1024).contains(&note.len()), "{}", note.len());
}
