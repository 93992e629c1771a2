use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use tokio::time::{Instant, timeout};

use super::super::denials::Denials;
use super::super::report::Permission;
use super::super::request_error::{RequestError, RequestErrorKind};
use super::super::requests::Requests;
use super::{Answer, Counted, LIMIT, answer, calls, client, endless, status};
use crate::test_log::Log;

/// Requests that `server` answers, given their number, from 0, and their target; and what is counted.
fn requests<F>(server: impl Fn(usize, String) -> F + Send + 'static) -> (Requests, Denials, Counted)
where
    F: Future<Output = Answer> + Send + 'static,
{
    let denials = Denials::new();
    let (calls, counted) = calls(&denials);
    let client = client(move |number, request| server(number, request.uri().to_string()));
    (Requests::new(client, "ns", "app=retsu", calls), denials, counted)
}

/// The next change, which must not be longer in coming than any outage here.
async fn next(
    changes: &mut (impl Stream<Item = Result<Event<Pod>, RequestError>> + Unpin),
) -> Result<Event<Pod>, RequestError> {
    timeout(Duration::from_secs(900), changes.next()).await.expect("a change").unwrap()
}

/// Takes what comes within `span`.
async fn follow(changes: &mut (impl Stream + Unpin), span: Duration) {
    let endless = async { while changes.next().await.is_some() {} };
    assert!(timeout(span, endless).await.is_err(), "the stream ended");
}

fn pod(version: u32) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"pod-a","uid":"u","resourceVersion":"{version}"}}}}"#
    )
}

fn list(version: u32) -> String {
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[]}}"#)
}

fn is_watch(target: &str) -> bool {
    target.contains("watch=true")
}

/// The lines of `log` at or above the default level.
fn told(log: &Log) -> Vec<String> {
    let shown = |line: &&str| [" INFO ", " WARN ", "ERROR "].iter().any(|level| line.contains(level));
    log.text().lines().filter(shown).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_or_with_half_of_one_is_given_up() {
    let (requests, _, counted) = requests(|number, _| async move {
        if number == 0 { std::future::pending().await } else { endless(r#"{"kind":"Pod","#) }
    });
    for _ in 0..2 {
        let began = Instant::now();
        let error = requests.get("pod-a").await.unwrap_err();
        assert_eq!((error.kind, began.elapsed()), (RequestErrorKind::Timeout, LIMIT));
    }
    assert_eq!(*counted.lock().unwrap(), ["get pods timeout", "get pods timeout"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_no_pod_of_a_server_is_no_answer() {
    let (requests, _, _) = requests(|number, _| async move {
        answer(200, ["{}", r#"{"message":"maintenance"}"#, r#"{"kind":"Pod","apiVersion":"v1"}"#][number % 3])
    });
    for _ in 0..3 {
        let patch = serde_json::json!({});
        let answers = [
            requests.get("pod-a").await,
            requests.merge("pod-a", &patch).await,
            requests.json_patch("pod-a", serde_json::json!([])).await,
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind, RequestErrorKind::Unreadable);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_and_the_beginning_of_a_watch_have_a_deadline_too() {
    let (requests, _, counted) = requests(|number, target| async move {
        match number {
            0 => endless(r#"{"kind":"PodList","#),
            2 => std::future::pending().await,
            _ if is_watch(&target) => endless(""),
            _ => answer(200, &list(7)),
        }
    });
    let mut changes = pin!(requests.watch());
    let error = next(&mut changes).await.unwrap_err();
    assert_eq!((error.verb, error.kind), ("list", RequestErrorKind::Timeout));
    assert!(matches!(next(&mut changes).await.unwrap(), Event::Init));
    assert!(matches!(next(&mut changes).await.unwrap(), Event::InitDone));
    let error = next(&mut changes).await.unwrap_err();
    assert_eq!((error.verb, error.kind), ("watch", RequestErrorKind::Timeout));
    // What happened meanwhile is seen in a list, and so is that the watch works again.
    assert!(matches!(next(&mut changes).await.unwrap(), Event::Init));
    assert!(matches!(next(&mut changes).await.unwrap(), Event::InitDone));
    assert!(timeout(Duration::from_secs(30), changes.next()).await.is_err());
    let expected = ["list pods timeout", "list pods ok", "watch pods timeout", "list pods ok", "watch pods ok"];
    assert_eq!(*counted.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_gone_is_listed_anew_however_the_server_says_so() {
    for in_head in [true, false] {
        let gone = status(410, "{}");
        let event = format!(r#"{{"type":"ERROR","object":{gone}}}"#);
        let (requests, _, counted) = requests(move |number, target| {
            let (gone, event) = (gone.clone(), event.clone());
            async move {
                match number {
                    1 if in_head => answer(410, &gone),
                    1 => endless(&(event + "\n")),
                    _ if is_watch(&target) => endless(""),
                    _ => answer(200, &list(7)),
                }
            }
        });
        let mut changes = pin!(requests.watch());
        for _ in 0..2 {
            assert!(next(&mut changes).await.is_ok());
        }
        assert_eq!(next(&mut changes).await.unwrap_err().kind, RequestErrorKind::Expired);
        assert!(matches!(next(&mut changes).await.unwrap(), Event::Init));
        assert_eq!(counted.lock().unwrap().iter().filter(|call| call.starts_with("list")).count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_the_last_thing_that_it_has_said() {
    let targets = Arc::new(Mutex::new(Vec::new()));
    let seen = targets.clone();
    let (requests, ..) = requests(move |number, target| {
        seen.lock().unwrap().push(target);
        async move {
            let bookmark =
                r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}"#;
            match number {
                0 => answer(200, &list(7)),
                1 => answer(200, &format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n{bookmark}\n", pod(8))),
                2 => answer(200, &format!("{{\"type\":\"DELETED\",\"object\":{}}}\n", pod(10))),
                _ => endless(""),
            }
        }
    });
    let changes: Vec<_> = requests.watch().take(4).map(Result::unwrap).collect().await;
    assert!(matches!(&changes[..], [Event::Init, Event::InitDone, Event::Apply(_), Event::Delete(_)]), "{changes:?}");
    let versions: Vec<_> =
        targets.lock().unwrap()[1..].iter().map(|target| target.rsplit('=').next().unwrap().to_owned()).collect();
    assert_eq!(versions, ["7", "9"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_ends_at_once_does_not_spin() {
    let (requests, _, counted) = requests(|number, target| async move {
        match number {
            0 => answer(200, &list(7)),
            1..1000 if is_watch(&target) => answer(200, ""),
            _ => std::future::pending().await,
        }
    });
    let mut changes = pin!(requests.watch());
    follow(&mut changes, Duration::from_secs(60)).await;
    let watches = counted.lock().unwrap().iter().filter(|call| call.starts_with("watch")).count();
    assert!((60..=140).contains(&watches), "{watches} in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_begun_anew() {
    let (requests, _, counted) =
        requests(|_, target| async move { if is_watch(&target) { endless("") } else { answer(200, &list(7)) } });
    let mut changes = pin!(requests.watch());
    follow(&mut changes, Duration::from_secs(660)).await;
    let watches = counted.lock().unwrap().iter().filter(|call| call.starts_with("watch")).count();
    assert!((10..=12).contains(&watches), "{watches} in eleven minutes");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_watch_waits_as_long_as_it_is_told() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let at = times.clone();
    let (requests, ..) = requests(move |number, _| {
        at.lock().unwrap().push(Instant::now());
        async move {
            if number < 2 { answer(429, &status(429, r#"{"retryAfterSeconds":7}"#)) } else { answer(200, &list(7)) }
        }
    });
    let mut changes = pin!(requests.watch());
    while next(&mut changes).await.is_err() {}
    let times = times.lock().unwrap();
    for pair in times.windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_secs(7), "{:?}", pair[1] - pair[0]);
    }
    assert_eq!(times.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_verb_is_named_once_and_once_when_it_works() {
    let log = Log::default();
    let guard = log.capture();
    let (requests, denials, _) =
        requests(
            |number, _| async move { if number < 5 { answer(403, &status(403, "{}")) } else { answer(200, &pod(1)) } },
        );
    let mut denied = denials.subscribe();
    for _ in 0..5 {
        assert_eq!(requests.get("pod-a").await.unwrap_err().kind, RequestErrorKind::Denied);
    }
    assert!(denied.has_changed().unwrap());
    let known = denied.borrow_and_update().get(&Permission { verb: "get", resource: "pods" }).cloned().unwrap();
    assert_eq!((known.code, known.reason.as_str()), (403, "refused"));
    for _ in 0..5 {
        requests.get("pod-a").await.unwrap();
    }
    assert!(denied.borrow_and_update().is_empty());
    drop(guard);
    let lines = told(&log);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("WARN") && lines[1].contains("INFO"), "{lines:#?}");
    for part in ["verb=\"get\"", "resource=\"pods\"", "status=403", "reason=\"refused\""] {
        assert!(lines[0].contains(part), "{part}: {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_without_the_api_are_ten_lines_and_one_when_it_is_back() {
    let log = Log::default();
    let guard = log.capture();
    let (began, outage) = (Instant::now(), Duration::from_secs(600));
    let (requests, ..) = requests(move |_, target| async move {
        if began.elapsed() < outage {
            Err(io::Error::from(io::ErrorKind::ConnectionRefused).into())
        } else if is_watch(&target) {
            endless("")
        } else {
            answer(200, &list(7))
        }
    });
    let mut changes = pin!(requests.watch());
    while next(&mut changes).await.is_err() {}
    assert!(began.elapsed() < outage + Duration::from_secs(2), "{:?}", began.elapsed());
    drop(guard);
    let lines = told(&log);
    assert!((10..=11).contains(&lines.len()), "{lines:#?}");
    assert!(lines[0].contains("does not answer") && lines[lines.len() - 1].contains("answers again"), "{lines:#?}");
}

#[tokio::test]
async fn operations_are_sent_as_a_json_patch_and_a_merge_patch_names_its_writer() {
    let (requests, _, counted) = requests(|_, target| async move {
        assert!(target.contains("fieldManager=retsu-collector"), "{target}");
        answer(200, &pod(1))
    });
    requests.merge("pod-a", &serde_json::json!({"metadata": {"labels": {"a": null}}})).await.unwrap();
    let test = serde_json::json!([{"op": "test", "path": "/metadata/uid", "value": "u"}]);
    requests.json_patch("pod-a", test).await.unwrap();
    let error = requests.json_patch("pod-a", serde_json::json!([{"op": "none"}])).await.unwrap_err();
    assert_eq!(error.kind, RequestErrorKind::Unreadable);
    assert_eq!(counted.lock().unwrap().len(), 3);
}
