//! What clients cannot do to the server.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use retsu_collector::clock::BootInstant;
use retsu_collector::config::ManagementSettings;
use retsu_collector::election::Lease;
use retsu_collector::exposition::Rendered;
use retsu_collector::http::{Limits, bind, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use warp::Filter;
use warp::reply::Response;

use super::{PATIENCE, Reply, Server, exchange_with_body, live_on, read_all, snapshot_of};
use crate::exposition::INTERVAL;
use crate::support::{eventually, throughout};

const LARGE: usize = 10_000;

fn rejected(reason: &str) -> String {
    format!("retsu_collector_http_connections_rejected_total{{reason=\"{reason}\"}}")
}

/// A client that asks for everything and reads nothing.
async fn stalled_reader(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    stream
}

/// Whatever the server says to a request, which it may refuse to read.
async fn attempt(server: &Server, path: &str) -> Vec<u8> {
    let mut stream = server.connect().await;
    let _ =
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await;
    read_all(&mut stream).await
}

/// Whether the server has closed or reset this idle connection.
async fn closed(stream: &mut TcpStream) -> bool {
    match tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await {
        Ok(Ok(read)) => read == 0,
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_head_that_comes_drop_by_drop_is_cut() {
    let server = Server::start(Limits { head: Duration::from_millis(300), ..Limits::default() });
    let started = Instant::now();
    let slow = join_all((0..20).map(|_| async {
        let mut stream = server.connect().await;
        let head = b"GET /metrics HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'a'));
        for byte in head {
            if stream.write_all(&[*byte]).await.is_err() || started.elapsed() > PATIENCE {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }));
    let fast = async {
        while started.elapsed() < Duration::from_millis(300) {
            assert_eq!(server.get("/health/live").await.status(), 200);
        }
    };
    tokio::join!(slow, fast);
    assert!(started.elapsed() < PATIENCE / 2, "cut after {:?}", started.elapsed());
    assert_eq!(server.value(&rejected("slow")).await, 20.0);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_cut() {
    let server = Server::start(Limits { head: Duration::from_millis(100), ..Limits::default() });
    let mut silent = server.connect().await;
    assert!(closed(&mut silent).await);
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time_and_not_counted_as_slow() {
    let limits = Limits { idle: Duration::from_secs(4), head: Duration::from_millis(150), ..Limits::default() };
    let server = Server::start(limits);
    let mut stream = server.connect().await;
    live_on(&mut stream).await;
    // When a younger connection has been cut for its head, the time of a head has passed for this one too.
    assert!(closed(&mut server.connect().await).await);
    live_on(&mut stream).await;
    let idle_since = Instant::now();
    assert!(closed(&mut stream).await);
    assert!(idle_since.elapsed() >= limits.idle - Duration::from_millis(50), "{:?}", idle_since.elapsed());
    assert_eq!(server.value(&rejected("slow")).await, 1.0, "the younger one");
}

#[tokio::test]
async fn a_head_with_too_many_or_too_large_headers_is_refused() {
    let server = Server::start(Limits::default());
    let many: String = (0..500).map(|n| format!("x-{n}: 1\r\n")).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(20 * 1024));
    for headers in [many, large] {
        let mut stream = server.connect().await;
        stream.write_all(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
        assert_eq!(Reply::parse(&read_all(&mut stream).await).status(), 431);
    }
    let mut endless = server.connect().await;
    endless.write_all(b"GET / HTTP/1.1\r\nx-endless: ").await.unwrap();
    let mut written = 0;
    while endless.write_all(&[b'a'; 4096]).await.is_ok() {
        written += 4096;
        assert!(written < 32 << 20, "the server still reads");
    }
    assert_eq!(server.get("/health/live").await.status(), 200);
}

#[tokio::test]
async fn a_body_where_none_is_taken_is_refused_unread() {
    let server = Server::start(Limits::default());
    for (head, body, status, allow) in [
        ("POST /metrics HTTP/1.1\r\ncontent-length: 3", &b"abc"[..], 405, Some("GET, HEAD")),
        ("POST /log/filter HTTP/1.1\r\ncontent-length: 1000000000", b"info", 405, Some("GET, HEAD, PUT")),
        ("GET /metrics HTTP/1.1\r\ncontent-length: 1000000000", b"abc", 413, None),
        ("GET /log/filter HTTP/1.1\r\ncontent-length: 3", b"abc", 413, None),
        ("GET /nowhere HTTP/1.1\r\ntransfer-encoding: chunked", b"3\r\nabc\r\n", 413, None),
        ("POST /nowhere HTTP/1.1\r\ntransfer-encoding: chunked", b"3\r\nabc\r\n", 404, None),
    ] {
        let reply = exchange_with_body(server.address, head, body).await;
        assert_eq!((reply.status(), reply.header("allow")), (status, allow), "{head}");
        assert_eq!(reply.header("connection"), Some("close"), "{head}");
    }
    for (method, status) in [("GET", 413), ("POST", 405)] {
        let waits = format!("{method} / HTTP/1.1\r\ncontent-length: 10\r\nexpect: 100-continue");
        let reply = exchange_with_body(server.address, &waits, b"").await;
        assert_eq!(reply.status(), status, "a client that asks first is not told to go on");
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut() {
    let server = Server::start(Limits { handler: Duration::from_millis(200), ..Limits::default() });
    let mut stream = server.connect().await;
    stream.write_all(b"PUT /log/filter HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\nwarn").await.unwrap();
    assert!(closed(&mut stream).await);
    assert_eq!(server.value(&rejected("slow")).await, 1.0);
}

#[tokio::test]
async fn two_hundred_stalled_readers_neither_starve_a_scrape_nor_stay() {
    let limits = Limits {
        connections: 32,
        grace: Duration::from_millis(20),
        answer: Duration::from_secs(2),
        ..Limits::default()
    };
    let server = Server::start(limits);
    server.publish(LARGE);
    let mut stalled = Vec::new();
    for n in 0..200 {
        stalled.push(stalled_reader(&server).await);
        if n % 20 == 19 {
            // Younger than the grace, all slots may be taken by stalled readers for that long.
            eventually(PATIENCE, "a scrape is answered in full", async || {
                let answer = attempt(&server, "/metrics").await;
                let answered = answer.starts_with(b"HTTP/1.1 200");
                if answered {
                    let reply = Reply::parse(&answer);
                    assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
                }
                answered
            })
            .await;
        }
    }
    server.until("retsu_collector_http_connections", |open| open <= 1.0).await;
    assert!(server.value(&rejected("evicted")).await >= 100.0);
    assert!(server.value(&rejected("slow")).await >= 1.0);
}

#[tokio::test]
async fn a_reader_that_takes_its_answer_slowly_but_in_time_gets_all_of_it() {
    let server = Server::start(Limits::default());
    server.publish(LARGE);
    let mut stream = server.connect().await;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let started = Instant::now();
    let mut first = [0; 1024];
    stream.read_exact(&mut first).await.unwrap();
    let head = Reply::parse(&first);
    let length: usize = head.header("content-length").unwrap().parse().unwrap();
    let mut left = length - head.body.len();
    let mut chunk = vec![0; 1 << 16];
    while left > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut chunk)).await.unwrap().unwrap();
        assert!(read > 0, "cut with {left} bytes of {length} left after {:?}", started.elapsed());
        left -= read;
    }
}

#[tokio::test]
async fn at_the_limit_young_connections_stay_and_a_new_one_is_told_to_come_back() {
    let limits = Limits { connections: 4, grace: Duration::from_secs(600), ..Limits::default() };
    let server = Server::start(limits);
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect().await;
        live_on(&mut stream).await;
        held.push(stream);
    }
    for _ in 0..10 {
        let mut stream = server.connect().await;
        assert_eq!(Reply::parse(&read_all(&mut stream).await).status(), 503);
    }
    drop(held.pop());
    let served = async || attempt(&server, "/health/live").await.starts_with(b"HTTP/1.1 200");
    eventually(PATIENCE, "the freed slot is used", served).await;
    for stream in &mut held {
        live_on(stream).await;
    }
    drop(held);
    server.until(&rejected("limit"), |count| count >= 10.0).await;
}

#[tokio::test]
async fn at_the_limit_the_longest_waiting_connection_makes_room() {
    let limits = Limits { connections: 2, grace: Duration::ZERO, ..Limits::default() };
    let server = Server::start(limits);
    let mut first = server.connect().await;
    live_on(&mut first).await;
    let mut second = server.connect().await;
    live_on(&mut second).await;

    assert_eq!(server.get("/health/live").await.status(), 200);
    assert!(closed(&mut first).await);
    live_on(&mut second).await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start(Limits::default());
    let mut stream = server.connect().await;
    let requests = "GET /health/live HTTP/1.1\r\nhost: test\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: test\r\n\r\n\
                    GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    stream.write_all(requests.as_bytes()).await.unwrap();
    let answers = String::from_utf8(read_all(&mut stream).await).unwrap();
    let statuses: Vec<&str> = answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "404", "200"]);
}

/// An answer with queue state of which the first bytes have been read. No buffer between holds all of the rest.
struct Stalled {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Stalled {
    async fn begin(server: &Server) -> Self {
        let mut stream = server.connect().await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut read = vec![0; 1024];
        stream.read_exact(&mut read).await.unwrap();
        Self { stream, read }
    }

    /// Reads on to the end. Returns how many bytes of the body came, and how many were announced.
    async fn finish(mut self) -> (usize, usize) {
        self.read.extend(read_all(&mut self.stream).await);
        let reply = Reply::parse(&self.read);
        (reply.body.len(), reply.header("content-length").unwrap().parse().unwrap())
    }
}

#[tokio::test]
async fn a_withdrawal_breaks_off_the_queue_state_of_an_answer_that_is_read_slowly() {
    let server = Server::start(Limits::default());
    server.publish(LARGE);
    let stalled = Stalled::begin(&server).await;
    server.publication.withdraw();
    let (sent, announced) = stalled.finish().await;
    assert!(sent < announced, "all {announced} bytes were sent");
    assert!(server.get("/metrics").await.header("content-length").unwrap().parse::<usize>().unwrap() < LARGE);
}

/// What was published ends two seconds later, in the middle of an answer, by its fence or by its age. It ends for that
/// answer even when another refresh has been published meanwhile, in the same term or in another.
#[tokio::test]
async fn an_answer_is_broken_off_at_its_own_fence_and_at_its_own_expiry_whatever_is_published_meanwhile() {
    const SHORT: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(600);
    for (fence, expiry, next_term) in
        [(SHORT, LONG, None), (SHORT, LONG, Some(true)), (LONG, SHORT, None), (LONG, SHORT, Some(false))]
    {
        let server = Server::start(Limits::default());
        // Rendering takes seconds on a busy machine.
        let [first, second] = [(); 2].map(|()| Rendered::new(&snapshot_of(LARGE), INTERVAL));
        let published = BootInstant::now();
        let lease = Arc::new(Lease::new(BootInstant::BOOT, published + fence));
        server.publication.publish(first, Arc::clone(&lease), published + expiry);
        let stalled = Stalled::begin(&server).await;
        if let Some(next_term) = next_term {
            let another = Arc::new(Lease::new(BootInstant::BOOT, published + LONG));
            let lease = if next_term { another } else { lease };
            server.publication.publish(second, lease, published + LONG);
        }
        eventually(PATIENCE, "what was published first has ended", async || BootInstant::now() > published + SHORT)
            .await;
        let (sent, announced) = stalled.finish().await;
        assert!(announced > LARGE, "an answer with queue state");
        assert!(sent < announced, "{fence:?}, {expiry:?}, {next_term:?}: all {announced} bytes were sent");
    }
}

#[tokio::test]
async fn an_answer_goes_on_within_its_own_lease_when_the_next_refresh_is_published() {
    let server = Server::start(Limits::default());
    server.publish(LARGE);
    let stalled = Stalled::begin(&server).await;
    server.publish(1);
    let (sent, announced) = stalled.finish().await;
    assert_eq!(sent, announced);
}

#[tokio::test]
async fn a_pipelined_request_is_not_answered_before_the_answer_ahead_of_it_has_left() {
    let settings = ManagementSettings { bind_address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port: 0 };
    let listener = bind(&settings).unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicBool::new(false));
    let second = Arc::clone(&asked);
    let large = warp::path!("large").map(|| Response::new(vec![b'x'; 32 << 20].into()));
    let now = warp::path!("now").map(move || {
        second.store(true, Ordering::SeqCst);
        Response::new("now".into())
    });
    let (_, server) = Server::prepare();
    let shutdown = server.shutdown.clone();
    let routes = large.or(now).unify().boxed();
    let task = tokio::spawn(serve(listener, routes, Arc::clone(&server.metrics), Limits::default(), shutdown));

    let mut stream = TcpStream::connect(address).await.unwrap();
    let requests =
        "GET /large HTTP/1.1\r\nhost: test\r\n\r\nGET /now HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    stream.write_all(requests.as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 16]).await.unwrap();
    let unanswered = async || !asked.load(Ordering::SeqCst);
    throughout(Duration::from_millis(300), "no answer while the one ahead is stalled", unanswered).await;
    assert!(read_all(&mut stream).await.ends_with(b"now"));
    assert!(asked.load(Ordering::SeqCst));
    server.shutdown.cancel();
    task.await.unwrap().unwrap();
}
