//! Traces: the real program delivers its spans to a real receiver.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::{Collector, eventually, free_port, queue_database};

/// Longer than the pause between two deliveries of the exporter, 5 s.
const LIMIT: Duration = Duration::from_secs(30);

/// Request line and body.
type Request = (String, Vec<u8>);

/// A receiver of OTLP over HTTP that accepts everything.
struct Receiver {
    address: std::net::SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let received = Arc::clone(&requests);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            loop {
                let request = receive(listener.accept().await.unwrap().0).await.unwrap();
                received.lock().unwrap().push(request);
            }
        });
        Self { address, requests, _tasks: tasks }
    }

    /// The paths of the requests so far.
    fn paths(&self) -> BTreeSet<String> {
        self.requests.lock().unwrap().iter().map(|(request, _)| request.clone()).collect()
    }

    /// Whether a delivery contains `text`. Protobuf writes a text as its bytes.
    fn has(&self, text: &str) -> bool {
        let contains = |body: &[u8]| body.windows(text.len()).any(|window| window == text.as_bytes());
        self.requests.lock().unwrap().iter().any(|(_, body)| contains(body))
    }
}

/// Answers one request with 200.
async fn receive(stream: TcpStream) -> std::io::Result<Request> {
    let mut reader = BufReader::new(stream);
    let (mut request, mut length) = (String::new(), 0);
    reader.read_line(&mut request).await?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).await?;
        match header.to_ascii_lowercase().trim().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    reader.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
    Ok((request.trim_end().to_owned(), body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_and_refreshes_are_delivered_as_spans_of_the_configured_service() {
    let (database, receiver) = (queue_database().await, Receiver::start().await);
    let mut collector = Collector::start(&database.url(), |config| {
        config
            .set("telemetry.traces.enabled", true)
            .set("telemetry.traces.endpoint", format!("http://{}", receiver.address))
            .set("telemetry.traces.service_name", "collector-under-test");
    });
    for text in ["attempt", "refresh", "collector-under-test"] {
        eventually(LIMIT, &format!("a delivery contains {text:?}"), async || receiver.has(text)).await;
    }
    assert_eq!(receiver.paths(), ["POST /v1/traces HTTP/1.1".to_owned()].into());
    collector.sigterm();
    assert!(collector.wait_exit(LIMIT).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_reach_nobody_unless_enabled_and_a_stop_delivers_what_is_queued() {
    let (database, receiver) = (queue_database().await, Receiver::start().await);
    for enabled in [false, true] {
        let mut collector = Collector::start(&database.url(), |config| {
            config
                .set("telemetry.traces.enabled", enabled)
                .set("telemetry.traces.endpoint", format!("http://{}", receiver.address));
        });
        eventually(LIMIT, "it exports", async || collector.exports().await).await;
        collector.sigterm();
        assert!(collector.wait_exit(LIMIT).await.success());
        assert_eq!(receiver.has("refresh"), enabled);
    }
}

/// A filter that lets everything but one target through: that target's verdicts must not reach other lines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_line_that_the_filter_lets_through_is_lost_while_traces_are_on() {
    let (database, receiver) = (queue_database().await, Receiver::start().await);
    let mut collector = Collector::start(&database.url(), |config| {
        config
            .set("logging.filter", "debug,sqlx=warn")
            .set("telemetry.traces.enabled", true)
            .set("telemetry.traces.endpoint", format!("http://{}", receiver.address));
    });
    collector.wait_for_log("queue state metrics collector leadership acquired", LIMIT).await;
    collector.sigterm();
    assert!(collector.wait_exit(LIMIT).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_not_there_is_told_in_the_log() {
    let database = queue_database().await;
    let collector = Collector::start(&database.url(), |config| {
        config
            .set("telemetry.traces.enabled", true)
            .set("telemetry.traces.endpoint", format!("http://127.0.0.1:{}", free_port()));
    });
    collector.wait_for_log("BatchSpanProcessor.ExportError", LIMIT).await;
}
