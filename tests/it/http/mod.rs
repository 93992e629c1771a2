//! The management endpoint over real sockets.

mod limits;
mod routes;
mod shutdown;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use retsu_collector::clock::BootInstant;
use retsu_collector::collection::Snapshot;
use retsu_collector::config::ManagementSettings;
use retsu_collector::election::Lease;
use retsu_collector::election::{Liveness, Status};
use retsu_collector::exposition::{Metrics, Publication, Rendered};
use retsu_collector::http::{Context, HttpError, Limits, LogFilter, Ready, Serving, bind, routes, serve};
use retsu_collector::kubernetes::LabelReport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::exposition::{INTERVAL, metrics, snapshot};
use crate::support::eventually;

/// Limit of everything a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers once its gate is open.
struct Database {
    gate: watch::Receiver<Option<Result<(), &'static str>>>,
    pings: AtomicUsize,
}

impl Ready for Database {
    fn ping(&self) -> BoxFuture<'static, Result<(), &'static str>> {
        self.pings.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.clone();
        async move { gate.wait_for(Option::is_some).await.unwrap().unwrap() }.boxed()
    }
}

struct Filter(std::sync::Mutex<String>);

impl LogFilter for Filter {
    fn get(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn set(&self, filter: &str) -> Result<(), String> {
        match filter {
            "panic" => panic!("asked to"),
            filter if filter.contains('!') => Err(format!("{filter}: not a filter")),
            filter => {
                filter.clone_into(&mut self.0.lock().unwrap());
                Ok(())
            }
        }
    }
}

/// A served endpoint and all that it answers from.
struct Server {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    publication: Arc<Publication>,
    status: watch::Sender<Status>,
    liveness: Arc<Liveness>,
    database: Arc<Database>,
    gate: watch::Sender<Option<Result<(), &'static str>>>,
    serving: Arc<Serving>,
    label: watch::Sender<LabelReport>,
    shutdown: CancellationToken,
    task: Mutex<JoinHandle<Result<(), HttpError>>>,
}

impl Server {
    fn start(limits: Limits) -> Self {
        let settings = ManagementSettings { bind_address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 0 };
        let listener = bind(&settings).unwrap();
        let address = listener.local_addr().unwrap();
        let (context, mut server) = Self::prepare();
        server.address = address;
        let task = serve(listener, routes(context), Arc::clone(&server.metrics), limits, server.shutdown.clone());
        server.task = Mutex::new(tokio::spawn(task));
        server
    }

    /// The context of a server that does not run yet.
    fn prepare() -> (Context, Self) {
        let metrics = Arc::new(metrics());
        let publication = Arc::new(Publication::default());
        let (status, status_receiver) = watch::channel(Status::starting());
        let liveness = Arc::new(Liveness::new(Duration::from_secs(600)));
        let (gate, receiver) = watch::channel(Some(Ok(())));
        let database = Arc::new(Database { gate: receiver, pings: AtomicUsize::new(0) });
        let serving = Arc::new(Serving::closed());
        let (label, label_receiver) = watch::channel(LabelReport::off());
        let context = Context {
            serving: Arc::clone(&serving),
            label: label_receiver,
            identity: "collector-0".to_owned(),
            metrics: Arc::clone(&metrics),
            publication: Arc::clone(&publication),
            status: status_receiver,
            liveness: Arc::clone(&liveness),
            database: Arc::clone(&database) as Arc<dyn Ready>,
            log_filter: Arc::new(Filter(std::sync::Mutex::new("info".to_owned()))),
        };
        let server = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            metrics,
            publication,
            status,
            liveness,
            database,
            gate,
            serving,
            label,
            shutdown: CancellationToken::new(),
            task: Mutex::new(tokio::spawn(async { Ok(()) })),
        };
        (context, server)
    }

    fn publish(&self, queues: usize) {
        let snapshot = snapshot_of(queues);
        self.metrics.refresh_succeeded(&snapshot);
        self.publish_until(&snapshot, BootInstant::now() + Duration::from_secs(600));
    }

    fn publish_until(&self, snapshot: &Snapshot, fence: BootInstant) {
        let lease = Arc::new(Lease::new(BootInstant::BOOT, fence));
        self.publication.publish(Rendered::new(snapshot, INTERVAL), lease, fence);
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// One request on a connection of its own.
    async fn request(&self, head: &str) -> Reply {
        exchange(self.address, head).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path} HTTP/1.1")).await
    }

    /// The value of a series of the process's own metrics.
    async fn value(&self, series: &str) -> f64 {
        let text = self.get("/metrics").await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
    }

    /// Waits until `series` is as `wanted`.
    async fn until(&self, series: &str, wanted: impl Fn(f64) -> bool) {
        let what = format!("{series} is as wanted");
        eventually(PATIENCE, &what, async || wanted(self.value(series).await)).await;
    }

    /// What `serve` returned.
    async fn ended(&self) -> Result<(), HttpError> {
        let mut task = self.task.lock().await;
        tokio::time::timeout(PATIENCE, &mut *task).await.expect("the server ends").unwrap()
    }
}

/// A refresh that found this many queues.
fn snapshot_of(queues: usize) -> Snapshot {
    let names: Vec<String> = (0..queues).map(|n| format!("tenant-{n:05}.emails_outbound")).collect();
    snapshot(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

struct Reply {
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        Self { head: String::from_utf8(bytes[..end].to_vec()).unwrap(), body: bytes[end + 4..].to_vec() }
    }

    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// Sends `head` (a request line and headers without the last line's end) and reads until the server closes.
async fn exchange(address: SocketAddr, head: &str) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    Reply::parse(&read_all(&mut stream).await)
}

/// Everything until the server closes the connection, in whatever way.
async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A reset after the answer is a way to close it.
    let _ = read.expect("the server closes the connection");
    bytes
}

/// One answer on a connection that stays open.
async fn read_answer(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    loop {
        let read =
            tokio::time::timeout(PATIENCE, stream.read_buf(&mut bytes)).await.expect("an answer in time").unwrap();
        assert!(read > 0, "closed in {:?}", String::from_utf8_lossy(&bytes));
        if bytes.windows(4).any(|window| window == b"\r\n\r\n") {
            let reply = Reply::parse(&bytes);
            let length: usize = reply.header("content-length").unwrap().parse().unwrap();
            if reply.body.len() >= length {
                return reply;
            }
        }
    }
}

/// Like [`exchange`], with a body after the head.
async fn exchange_with_body(address: SocketAddr, head: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let _ = stream.write_all(body).await;
    Reply::parse(&read_all(&mut stream).await)
}

/// One answered request on a connection that stays open.
async fn live_on(stream: &mut TcpStream) {
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    assert_eq!(read_answer(stream).await.status(), 200);
}
