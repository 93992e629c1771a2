//! Traces, as a receiver gets them.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Collector, eventually, queue_database};

const LIMIT: Duration = Duration::from_secs(30);

/// Everything that was sent to a receiver of OTLP/HTTP, which takes whatever it gets.
async fn receiver() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (port, received) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<u8>>>::default());
    let sink = Arc::clone(&received);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let sink = Arc::clone(&sink);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut bytes).await {
                    sink.lock().unwrap().extend(&bytes[..count]);
                    let _ =
                        client.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    (port, received)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_and_refreshes_are_traced() {
    let database = queue_database().await;
    let (port, received) = receiver().await;
    let mut collector = Collector::start(&database.url(), |config| {
        config
            .set("telemetry.traces.enabled", true)
            .set("telemetry.traces.endpoint", format!("http://127.0.0.1:{port}"));
    });
    eventually(LIMIT, "it exports", async || collector.exports().await).await;
    collector.sigterm();
    assert_eq!(collector.wait_exit(LIMIT).await.code(), Some(0));
    let received = String::from_utf8_lossy(&received.lock().unwrap()).into_owned();
    for part in ["POST /v1/traces", "election attempt", "queue state refresh"] {
        assert!(received.contains(part), "{part:?} in {received:?}");
    }
}
