//! What each route answers.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use retsu_collector::clock::BootInstant;
use retsu_collector::election::{Role, Status, Term};
use retsu_collector::http::{Limits, Peer, routes};
use retsu_collector::kubernetes::{LabelReport, LabelState, Permission};
use serde_json::Value;

use super::{PATIENCE, Server};
use crate::exposition::snapshot;
use crate::support::eventually;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS_3: &str = "accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
                            escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1\r\n\
                            accept-encoding: gzip";

#[tokio::test]
async fn the_index_lists_every_route_and_nothing_else_exists() {
    let server = Server::start(Limits::default());
    let index = server.get("/").await;
    assert_eq!(index.status(), 200);
    for path in ["/metrics", "/leader", "/health/live", "/health/ready", "/health/serving", "/log/filter"] {
        assert!(index.text().contains(path));
        assert_ne!(server.get(path).await.status(), 404, "{path}");
    }
    for path in ["/metric", "/metrics/x", "/health", "/health/", "/..", "/%00", "/favicon.ico"] {
        assert_eq!(server.get(path).await.status(), 404, "{path}");
    }
    assert_eq!(server.value("retsu_collector_http_requests_total{route=\"other\",status=\"404\"}").await, 7.0);
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_ones() {
    let server = Server::start(Limits::default());
    for (request, allow) in [
        ("POST /metrics", "GET, HEAD"),
        ("DELETE /leader", "GET, HEAD"),
        ("PUT /health/live", "GET, HEAD"),
        ("OPTIONS /", "GET, HEAD"),
        ("POST /log/filter", "GET, HEAD, PUT"),
    ] {
        let reply = server.request(&format!("{request} HTTP/1.1")).await;
        assert_eq!((reply.status(), reply.header("allow")), (405, Some(allow)), "{request}");
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = Server::start(Limits::default());
    server.publish(2);
    for path in ["/", "/metrics", "/leader", "/health/live", "/health/ready", "/health/serving", "/log/filter"] {
        let get = server.get(path).await;
        let head = server.request(&format!("HEAD {path} HTTP/1.1")).await;
        assert_eq!((head.status(), head.body.len()), (get.status(), 0), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        assert!(head.header("content-length").is_some(), "{path}: {}", head.head);
    }
}

#[tokio::test]
async fn metrics_are_negotiated_and_always_say_their_type() {
    let server = Server::start(Limits::default());
    server.publish(3);
    for (headers, content_type, gzip) in [
        ("x-none: 1", TEXT, false),
        ("accept: */*", TEXT, false),
        ("accept: image/png", TEXT, false),
        (PROMETHEUS_3, OPENMETRICS, true),
        ("accept: text/plain\r\naccept: application/openmetrics-text;q=0.5", TEXT, false),
        ("accept: text/plain;q=0.1\r\naccept: application/openmetrics-text", OPENMETRICS, false),
        ("accept-encoding: gzip;q=0", TEXT, false),
        ("accept-encoding: deflate\r\naccept-encoding: gzip", TEXT, true),
    ] {
        let reply = server.request(&format!("GET /metrics HTTP/1.1\r\n{headers}")).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.header("content-type"), Some(content_type), "{headers}");
        assert_eq!(reply.header("vary"), Some("Accept, Accept-Encoding"));
        assert_eq!(reply.header("content-encoding"), gzip.then_some("gzip"), "{headers}");
        assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
        let mut text = String::new();
        if gzip {
            MultiGzDecoder::new(&*reply.body).read_to_string(&mut text).unwrap();
        } else {
            text = reply.text();
        }
        assert_eq!(text.lines().filter(|line| line.starts_with("queue_messages_ready{")).count(), 9);
        assert_eq!(text.ends_with("# EOF\n"), content_type == OPENMETRICS);
        assert!(text.contains("retsu_collector_build_info{"), "every member arrives");
    }
}

#[tokio::test]
async fn live_follows_the_election_loop() {
    let server = Server::start(Limits::default());
    assert_eq!(server.get("/health/live").await.status(), 200);
    server.liveness.tick(Duration::ZERO);
    let reply = server.get("/health/live").await;
    assert_eq!((reply.status(), reply.text().lines().count()), (503, 1));
    server.liveness.tick(Duration::from_secs(60));
    assert_eq!(server.get("/health/live").await.status(), 200);
}

#[tokio::test]
async fn ready_follows_the_database() {
    let server = Server::start(Limits::default());
    assert_eq!(server.get("/health/ready").await.status(), 200);
    server.gate.send_replace(Some(Err("connection")));
    let reply = server.get("/health/ready").await;
    assert_eq!((reply.status(), &*reply.text()), (503, "the database does not answer: connection\n"));
}

#[tokio::test]
async fn serving_waits_for_a_clear_label_and_no_longer_than_two_seconds() {
    let server = Server::start(Limits::default());
    let started = Instant::now();
    let reply = server.get("/health/serving").await;
    if started.elapsed() < Duration::from_secs(2) {
        assert_eq!((reply.status(), reply.text().lines().count()), (503, 1));
    }
    server.serving.clear();
    let reply = server.get("/health/serving").await;
    assert_eq!((reply.status(), &*reply.text()), (200, "ok\n"));

    let server = Server::start(Limits::default());
    let open = async || server.get("/health/serving").await.status() == 200;
    eventually(PATIENCE, "it opens by itself", open).await;
}

#[tokio::test]
async fn leader_says_what_is_known_of_the_label() {
    let server = Server::start(Limits::default());
    let label = async || -> Value {
        serde_json::from_slice::<Value>(&server.get("/leader").await.body).unwrap()["label"].take()
    };
    assert_eq!(label().await["state"], "off");
    let state = LabelState::Denied(Permission { verb: "patch", resource: "pods" });
    server.label.send_replace(LabelReport { state, role: Some(Role::Standby), since: SystemTime::UNIX_EPOCH });
    let wanted = serde_json::json!({
        "state": "denied",
        "role": "standby",
        "since": "1970-01-01T00:00:00.000Z",
        "denied": {"verb": "patch", "resource": "pods"},
    });
    assert_eq!(label().await, wanted);
}

#[tokio::test]
async fn a_storm_of_probes_asks_the_database_once() {
    let server = Server::start(Limits::default());
    server.gate.send_replace(None);
    let storm = join_all((0..100).map(|_| server.get("/health/ready")));
    let open = async {
        server.until("retsu_collector_http_connections", |open| open >= 101.0).await;
        server.gate.send_replace(Some(Ok(())));
    };
    let (replies, ()) = tokio::join!(storm, open);
    assert!(replies.iter().all(|reply| reply.status() == 200));
    assert!(server.database.pings.load(Ordering::SeqCst) <= 2, "{:?}", server.database.pings);
}

#[tokio::test]
async fn leader_answers_200_only_where_queue_state_is_exported() {
    let server = Server::start(Limits::default());
    let reply = server.get("/leader").await;
    let json: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status(), reply.header("cache-control")), (503, Some("no-store")));
    assert_eq!((&json["role"], &json["term"], &json["fence"]), (&"standby".into(), &Value::Null, &Value::Null));
    assert_eq!(json["identity"], "collector-0");

    let tenure = Some(crate::support::tenure(Term { timeline: 3, number: u64::MAX }));
    server.status.send_replace(Status {
        role: Role::Leader,
        tenure,
        since: SystemTime::UNIX_EPOCH,
        ..Status::starting()
    });
    assert_eq!(server.get("/leader").await.status(), 503, "a leader without a snapshot exports nothing");

    let publish = |left| {
        server.publish_until(&snapshot(&["a"]), BootInstant::now() + left);
    };
    publish(Duration::from_secs(600));
    let reply = server.get("/leader").await;
    let json: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status(), reply.header("content-type")), (200, Some("application/json")));
    assert_eq!(json["term"]["number"], u64::MAX);
    assert_eq!(json["since"], "1970-01-01T00:00:00.000Z");
    assert!((590.0..=600.0).contains(&json["fence"]["seconds"].as_f64().unwrap()), "{json}");

    publish(Duration::ZERO);
    assert_eq!(server.get("/leader").await.status(), 503, "past the fence nothing is exported");
}

#[tokio::test]
async fn the_log_filter_is_read_and_replaced() {
    let server = Server::start(Limits::default());
    let put = |body: &str| format!("PUT /log/filter HTTP/1.1\r\ncontent-length: {}", body.len());
    assert_eq!(server.get("/log/filter").await.text(), "info\n");
    for (body, status, now) in [("debug,sqlx=warn\n", 200, "debug,sqlx=warn\n"), ("!", 400, "debug,sqlx=warn\n")] {
        let reply = super::exchange_with_body(server.address, &put(body), body.as_bytes()).await;
        assert_eq!(reply.status(), status, "{body}: {}", reply.text());
        assert_eq!(server.get("/log/filter").await.text(), now);
    }
    let reply = super::exchange_with_body(server.address, &put("\u{e9}"), &[0xff, 0xfe]).await;
    assert_eq!(reply.status(), 400);
    let large = "a".repeat(4097);
    assert_eq!(super::exchange_with_body(server.address, &put(&large), large.as_bytes()).await.status(), 413);
    let chunked = "PUT /log/filter HTTP/1.1\r\ntransfer-encoding: chunked";
    assert_eq!(super::exchange_with_body(server.address, chunked, b"0\r\n\r\n").await.status(), 411);
}

#[tokio::test]
async fn only_loopback_peers_reach_the_log_filter() {
    let (context, server) = Server::prepare();
    let service = TowerToHyperService::new(warp::service(routes(context)));
    for (peer, method, status) in [
        ("127.0.0.1:9", "GET", 200),
        ("127.8.8.8:9", "PUT", 200),
        ("[::1]:9", "PUT", 200),
        ("[::ffff:127.0.0.1]:9", "GET", 200),
        ("10.0.0.7:9", "GET", 403),
        ("10.0.0.7:9", "PUT", 403),
        ("[::ffff:10.0.0.7]:9", "PUT", 403),
        ("[fe80::1]:9", "GET", 403),
        ("[::]:9", "GET", 403),
    ] {
        let request = http::Request::builder().method(method).uri("/log/filter").header("content-length", "4");
        let mut request = request.body(Full::new(Bytes::from_static(b"warn"))).unwrap();
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{method} from {peer}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status == 200 || !body.windows(4).any(|w| w == b"info" || w == b"warn"));
    }
    drop(server);
}

#[tokio::test]
async fn requests_are_counted_by_route_and_status() {
    let server = Server::start(Limits::default());
    for _ in 0..3 {
        server.get("/health/live").await;
    }
    server.get("/leader").await;
    let count = |route, status| format!("retsu_collector_http_requests_total{{route=\"{route}\",status=\"{status}\"}}");
    assert_eq!(server.value(&count("/health/live", "200")).await, 3.0);
    assert_eq!(server.value(&count("/leader", "503")).await, 1.0);
    assert_eq!(server.value("retsu_collector_http_request_duration_seconds_count{route=\"/health/live\"}").await, 3.0);
}
