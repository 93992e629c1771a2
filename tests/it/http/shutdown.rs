//! Listening, draining and dying.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use retsu_collector::config::ManagementSettings;
use retsu_collector::http::{HttpError, Limits, bind, routes, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{PATIENCE, Server, exchange, exchange_with_body, live_on, read_all};
use crate::support::eventually;

const EVERYWHERE: ManagementSettings = ManagementSettings { bind_address: None, port: 0 };

#[tokio::test]
async fn every_address_of_the_machine_answers() {
    let listener = bind(&EVERYWHERE).unwrap();
    let local = listener.local_addr().unwrap();
    let (context, server) = Server::prepare();
    let shutdown = server.shutdown.clone();
    let task = tokio::spawn(serve(listener, routes(context), Arc::clone(&server.metrics), Limits::default(), shutdown));
    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), local.port());
    assert_eq!(exchange(v4, "GET /health/live HTTP/1.1").await.status(), 200);
    assert_eq!(exchange(v4, "GET /log/filter HTTP/1.1").await.status(), 200, "an IPv4 client is a loopback peer");
    // The machine has no IPv6 exactly when nothing can be bound to its loopback address.
    if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), local.port());
        assert_eq!(exchange(v6, "GET /health/live HTTP/1.1").await.status(), 200);
    } else {
        assert!(local.is_ipv4(), "{local}");
    }
    server.shutdown.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_the_key_and_the_value() {
    let first = bind(&EVERYWHERE).unwrap();
    let port = first.local_addr().unwrap().port();
    for bind_address in [None, Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED))] {
        let error = bind(&ManagementSettings { bind_address, port }).unwrap_err();
        assert!(matches!(error, HttpError::Bind { .. }));
        assert!(error.to_string().contains(&format!("worker.management.port = {port}")), "{error}");
    }
    drop(first);
    bind(&ManagementSettings { bind_address: None, port }).unwrap();
}

#[tokio::test]
async fn a_drain_finishes_the_answer_in_flight_and_closes_idle_connections_at_once() {
    let drain = Duration::from_secs(15);
    let server = Server::start(Limits { drain, ..Limits::default() });
    let mut idle = server.connect().await;
    live_on(&mut idle).await;
    let mut silent = server.connect().await;
    server.gate.send_replace(None);
    let mut busy = server.connect().await;
    busy.write_all(b"GET /health/ready HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let asked = async || server.database.pings.load(Ordering::SeqCst) > 0;
    eventually(PATIENCE, "the database is asked", asked).await;

    let started = Instant::now();
    server.shutdown.cancel();
    assert_eq!(read_all(&mut idle).await, b"");
    assert_eq!(read_all(&mut silent).await, b"");
    assert!(started.elapsed() < drain / 2, "idle connections closed after {:?}", started.elapsed());
    assert!(TcpStream::connect(server.address).await.is_err(), "a draining server still accepts");

    server.gate.send_replace(Some(Ok(())));
    let answer = String::from_utf8(read_all(&mut busy).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    server.ended().await.unwrap();
    assert!(started.elapsed() < drain, "drained after {:?}", started.elapsed());
}

#[tokio::test]
async fn a_drain_completes_a_large_answer_and_is_bounded_for_who_does_not_read() {
    let server = Server::start(Limits { drain: Duration::from_secs(2), ..Limits::default() });
    server.publish(10_000);
    let mut reader = server.connect().await;
    reader.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut stalled = server.connect().await;
    stalled.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut first = [0; 1024];
    reader.read_exact(&mut first).await.unwrap();
    stalled.read_exact(&mut [0; 1024]).await.unwrap();

    let started = Instant::now();
    server.shutdown.cancel();
    let mut answer = first.to_vec();
    answer.extend(read_all(&mut reader).await);
    let reply = super::Reply::parse(&answer);
    assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
    server.ended().await.unwrap();
    let took = started.elapsed();
    assert!((Duration::from_millis(1900)..PATIENCE).contains(&took), "drained after {took:?}");
}

#[tokio::test]
async fn a_panic_in_a_handler_ends_the_server_with_an_error() {
    let server = Server::start(Limits::default());
    let put = exchange_with_body(server.address, "PUT /log/filter HTTP/1.1\r\ncontent-length: 5", b"panic");
    let client = tokio::spawn(put);
    let error = server.ended().await.unwrap_err();
    assert!(matches!(error, HttpError::Connection(error) if error.is_panic()));
    assert!(client.await.is_err(), "nobody answers for a handler that panicked");
}
