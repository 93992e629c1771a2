//! A scrape of 120,000 state series beside the same server handing out as many bytes from memory.
//!
//! Exits with 1 when the scrape takes more than three times as long: `cargo bench --bench scrape`.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod support;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use retsu_collector::clock::BootInstant;
use retsu_collector::collection::{PriorityState, QueueState, Snapshot};
use retsu_collector::config::{LockKey, ManagementSettings};
use retsu_collector::election::Lease;
use retsu_collector::election::{Liveness, Status};
use retsu_collector::exposition::{Answer, Format, Metrics, PoolState, Publication, Rendered, scrape};
use retsu_collector::http::{Context, Limits, LogFilter, Ready, Serving, bind, routes, serve};
use retsu_collector::kubernetes::LabelReport;
use support::Bounds;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use warp::Filter;
use warp::reply::Response;

const QUEUES: u32 = 10_000;
const INTERVAL: Duration = Duration::from_secs(15);
const ROUNDS: usize = 101;
const MAX_RATIO: f64 = 3.0;

struct Nothing;

impl Ready for Nothing {
    fn ping(&self) -> BoxFuture<'static, Result<(), &'static str>> {
        async { Ok(()) }.boxed()
    }
}

impl LogFilter for Nothing {
    fn get(&self) -> String {
        String::new()
    }

    fn set(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}

fn snapshot() -> Snapshot {
    let queue = |n: u32| {
        let state = |priority: u32| PriorityState {
            ready: u64::from(n * 37 % 9973 * priority),
            in_flight: u64::from(n * 11 % 211),
            oldest_ready_age: f64::from(n * 7919 % 86_400_000 + priority) / 1000.0,
            oldest_in_flight_age: f64::from(n * 104_729 % 30_000_000) / 1_000_000.0,
        };
        QueueState { name: format!("tenant-{:04}.emails-{n:05}", n % 400), priorities: [state(3), state(2), state(1)] }
    };
    Snapshot {
        queues: (0..QUEUES).map(queue).collect(),
        queues_found: u64::from(QUEUES),
        database_time: SystemTime::now(),
        sent_at: BootInstant::now(),
        duration: Duration::from_millis(400),
    }
}

/// Median of the times that `work` takes.
fn median_of(rounds: usize, mut work: impl FnMut()) -> Duration {
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        work();
        started.elapsed()
    });
    median(times.collect())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time from a request to the last byte of its answer, on a connection that is kept.
async fn fetch(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> (Duration, usize) {
    let started = Instant::now();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut filled = 0;
    let head = loop {
        filled += stream.read(&mut buffer[filled..]).await.unwrap();
        if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = std::str::from_utf8(&buffer[..head]).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let length: usize = length.parse().unwrap();
    let mut left = length - (filled - head);
    while left > 0 {
        left -= stream.read(buffer).await.unwrap();
    }
    (started.elapsed(), length)
}

/// Alternates between both requests, so that whatever else the machine does slows both alike.
async fn compare(address: SocketAddr, what: &str, headers: &str, path: &str) -> f64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let scrape = format!("GET /metrics HTTP/1.1\r\nhost: bench\r\n{headers}\r\n");
    let memory = format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n");
    let (mut scrapes, mut memories, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let (took, length) = fetch(&mut stream, &scrape, &mut buffer).await;
        scrapes.push(took);
        bytes = length;
        memories.push(fetch(&mut stream, &memory, &mut buffer).await.0);
    }
    let (scrape, memory) = (median(scrapes), median(memories));
    let ratio = scrape.as_secs_f64() / memory.as_secs_f64();
    println!("scrape, {what:<8} {bytes:>10} bytes   {scrape:>10.2?}   from memory {memory:>10.2?}   ratio {ratio:.2}");
    ratio
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let metrics = Arc::new(Metrics::new(INTERVAL, LockKey::RETSU, [], PoolState::default).unwrap());
    let publication = Arc::new(Publication::default());
    let taken = snapshot();
    metrics.refresh_succeeded(&taken);
    let rendered = Rendered::new(&taken, INTERVAL);
    let end = BootInstant::now() + Duration::from_secs(3600);
    publication.publish(rendered.clone(), Arc::new(Lease::new(BootInstant::BOOT, end)), end);
    let body = rendered.body();
    let whole = median_of(15, || drop(Rendered::new(&taken, INTERVAL)));
    let gzip = median_of(15, || {
        let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
        encoder.write_all(&body).unwrap();
        drop(encoder.finish().unwrap());
    });
    println!("series {}, body {} bytes, gzip {} bytes", rendered.series, body.len(), rendered.gzip().len());
    println!("render {:.2?}, gzip {gzip:.2?}", whole.saturating_sub(gzip));
    drop((taken, rendered, body));

    let answer = |gzip| scrape(&metrics, &publication, Answer { format: Format::Text, gzip }).parts.concat();
    let (plain, packed) = (Bytes::from(answer(false)), Bytes::from(answer(true)));
    let memory = warp::path!("memory" / "plain")
        .map(move || Response::new(plain.clone().into()))
        .or(warp::path!("memory" / "gzip").map(move || Response::new(packed.clone().into())))
        .unify();
    let (_status, status) = watch::channel(Status::starting());
    let context = Context {
        identity: "bench".to_owned(),
        metrics: Arc::clone(&metrics),
        publication: Arc::clone(&publication),
        status,
        liveness: Arc::new(Liveness::new(Duration::from_secs(3600))),
        database: Arc::new(Nothing),
        serving: Arc::new(Serving::open()),
        label: watch::channel(LabelReport::off()).1,
        log_filter: Arc::new(Nothing),
    };
    let listener = bind(&ManagementSettings { bind_address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 0 }).unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let served = memory.or(routes(context)).unify().boxed();
    let server = tokio::spawn(serve(listener, served, Arc::clone(&metrics), Limits::default(), shutdown.clone()));

    let plain = compare(address, "plain", "", "/memory/plain").await;
    let gzip = compare(address, "gzip", "accept-encoding: gzip\r\n", "/memory/gzip").await;
    shutdown.cancel();
    server.await.unwrap().unwrap();

    let mut bounds = Bounds::default();
    bounds.at_most("plain scrape / the same bytes from memory", plain, MAX_RATIO, "");
    bounds.at_most("gzip scrape / the same bytes from memory", gzip, MAX_RATIO, "");
    bounds.report()
}
