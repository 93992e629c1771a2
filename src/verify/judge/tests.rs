#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::StatusCode;

use super::super::endpoints::Address;
use super::super::observe::{Replica, ScrapeError};
use super::*;

const URL: &str = "http://retsu-leader.queues.svc:24247/metrics";

fn options() -> Options {
    Options {
        kubeconfig: None,
        namespace: "queues".to_owned(),
        leader_service: "retsu-leader".to_owned(),
        metrics_service: "retsu-metrics".to_owned(),
        leader_url: URL.parse().unwrap(),
        max_age: Duration::from_secs(18),
        timeout: Duration::from_secs(60),
    }
}

fn endpoint(name: &str) -> Endpoint {
    let address = Address { host: format!("{name}.example"), port: Some(24247) };
    Endpoint { pod: Some((name.to_owned(), format!("uid-{name}"))), addresses: vec![address] }
}

/// What the leader of term 1/731 answers.
fn leader() -> Exposition {
    Exposition { exports: true, success: Some(1.0), age: Some(2.5), timeline: Some(1.0), number: Some(731.0) }
}

fn replica(name: &str, answer: Exposition) -> Replica {
    Replica { endpoint: endpoint(name), answer: Ok(answer) }
}

/// An installation with the leader `a` and the standby `b`, after `change`.
fn judged(change: impl FnOnce(&mut Endpoints, &mut Exposition)) -> Result<Verified, Vec<Finding>> {
    let replicas = vec![replica("a", leader()), replica("b", Exposition::default())];
    let (mut endpoints, mut service) = (Endpoints { leader: vec![endpoint("a")], replicas }, leader());
    change(&mut endpoints, &mut service);
    judge(&Observation { endpoints: Ok(endpoints), service: Ok(service) }, &options())
}

/// Everything that does not hold after `change`.
fn found(change: impl FnOnce(&mut Endpoints, &mut Exposition)) -> Vec<String> {
    judged(change).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn one_leader_that_alone_exports_is_verified_and_told() {
    assert_eq!(
        judged(|_, _| {}).unwrap().to_string(),
        "Service retsu-leader: one endpoint, a (a.example)\n\
         http://retsu-leader.queues.svc:24247/metrics: state gauges, 2.500s old, of 18s at most\n\
         Service retsu-metrics: the leader alone exports, of replicas: 2\n\
         term: 1/731\n"
    );
    assert!(judged(|endpoints, _| endpoints.replicas.truncate(1)).is_ok(), "alone");
}

#[test]
fn the_leader_service_has_one_endpoint() {
    assert_eq!(
        found(|endpoints, _| endpoints.leader.clear()),
        ["Service retsu-leader has no endpoint: no ready Pod has the label of the leader"]
    );
    assert_eq!(
        found(|endpoints, _| endpoints.leader.push(endpoint("b"))),
        ["Service retsu-leader has 2 endpoints: a (a.example), b (b.example)"]
    );
}

#[test]
fn one_replica_exports_and_it_is_the_one_that_the_service_leads_to() {
    assert_eq!(
        found(|endpoints, _| endpoints.replicas.swap_remove(0).endpoint = endpoint("gone")),
        ["no replica has state gauges, of replicas: 1"]
    );
    assert_eq!(
        found(|endpoints, _| endpoints.replicas[1].answer = Ok(leader())),
        ["2 replicas have state gauges: a (a.example), b (b.example)"]
    );
    assert_eq!(
        found(|endpoints, _| endpoints.leader = vec![endpoint("b")]),
        ["Service retsu-leader leads to b (b.example), and a (a.example) has the state gauges"]
    );
    assert_eq!(
        found(|endpoints, _| endpoints.replicas.clear()),
        ["Service retsu-metrics has no endpoint: it selects no Pod"]
    );
}

#[test]
fn a_replica_that_does_not_answer_may_export_and_is_named() {
    let silent = |endpoints: &mut Endpoints, _: &mut Exposition| {
        endpoints.replicas[1].answer = Err(ScrapeError::Timeout(Duration::from_secs(5)));
    };
    assert_eq!(found(silent), ["replica b (b.example) does not answer: no answer within 5s"]);
}

#[test]
fn the_gauges_behind_the_service_are_there_good_and_those_of_the_exporter() {
    let url = |text: &str| [format!("{URL} {text}")];
    assert_eq!(found(|_, service| *service = Exposition::default()), url("has no state gauges"));
    for success in [Some(0.0), None] {
        let without = url("does not have queue_state_collection_success 1");
        assert_eq!(found(|_, service| service.success = success), without);
    }
    let failed = Exposition { success: Some(0.0), ..Exposition::default() };
    assert_eq!(found(|_, service| *service = failed), url("does not have queue_state_collection_success 1"));
    for age in [None, Some(-1.0)] {
        let without = url("has state gauges without queue_state_snapshot_age_seconds");
        assert_eq!(found(|_, service| service.age = age), without);
    }
    assert_eq!(found(|_, service| service.timeline = None), url("has state gauges without retsu_collector_term"));
    assert_eq!(
        found(|_, service| service.number = Some(732.0)),
        url("answers as the leader of term 1/732, and a (a.example) is that of term 1/731")
    );
}

#[test]
fn a_snapshot_may_be_as_old_as_the_limit() {
    let aged = |age: f64| {
        let replicas = vec![replica("a", leader())];
        let observation = Observation {
            endpoints: Ok(Endpoints { leader: vec![endpoint("a")], replicas }),
            service: Ok(Exposition { age: Some(age), ..leader() }),
        };
        judge(&observation, &options())
    };
    assert!(aged(18.0).is_ok());
    let stale = aged(18.5).unwrap_err()[0].to_string();
    assert!(stale.ends_with("has state gauges that are 18.5s old, and 18s is allowed"), "{stale}");
}

#[test]
fn everything_that_does_not_hold_is_told_at_once() {
    let replicas = vec![replica("a", leader()), replica("b", leader())];
    let observation = Observation {
        endpoints: Ok(Endpoints { leader: Vec::new(), replicas }),
        service: Err(ScrapeError::Status(StatusCode::NOT_FOUND)),
    };
    let found: Vec<_> = judge(&observation, &options()).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "Service retsu-leader has no endpoint: no ready Pod has the label of the leader".to_owned(),
            "2 replicas have state gauges: a (a.example), b (b.example)".to_owned(),
            format!("{URL} does not answer: the answer has status 404 Not Found"),
        ]
    );
}
