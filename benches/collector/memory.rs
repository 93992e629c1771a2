//! Resident memory of the release build as leader and as standby.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::Bounds;
use super::support::resident::Resident;
use super::{EXECUTABLE, Failure};

const LEADER_MIB: f64 = 64.0;
const STANDBY_MIB: f64 = 12.0;
/// Refreshes to wait for, one a second.
const REFRESHES: u64 = 20;
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const COUNT: &str = "queue_state_collection_duration_seconds_count{outcome=\"success\"} ";

/// A collector; killed when dropped.
struct Collector {
    process: Child,
    address: SocketAddr,
}

impl Collector {
    fn start(url: &str) -> Result<Self, Failure> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(EXECUTABLE);
        for (name, _) in std::env::vars_os() {
            if ["RETSU_", "PG"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let collector = "RETSU_WORKER__QUEUE__STATE_METRICS_COLLECTOR__";
        let process = command
            .arg("run")
            .env("RETSU_DATABASE__URL", url)
            .env("RETSU_WORKER__MANAGEMENT__BIND_ADDRESS", address.ip().to_string())
            .env("RETSU_WORKER__MANAGEMENT__PORT", address.port().to_string())
            .env(format!("{collector}COLLECTION_INTERVAL_SECONDS"), "1")
            .env(format!("{collector}LEADERSHIP_RETRY_INTERVAL_SECONDS"), "1")
            .env("RETSU_LOGGING__FILTER", "warn")
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self { process, address })
    }

    /// The whole answer of one scrape.
    async fn scrape(&self, encoding: &str) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).await?;
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\naccept-encoding: {encoding}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(answer)
    }

    /// Waits until it answers a scrape with `text`.
    async fn wait_for(&self, text: &str) {
        let began = Instant::now();
        while !self.scrape("identity").await.is_ok_and(|answer| String::from_utf8_lossy(&answer).contains(text)) {
            assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {text} in a scrape");
            tokio::time::sleep(POLL).await;
        }
    }

    fn resident(&self) -> Resident {
        Resident::of(self.process.id())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two readers each of the plain and of the compressed exposition scrape the leader without a pause while it
/// refreshes every second; the standby is scraped and tries the lock as often.
pub(super) async fn measure(url: &str, bounds: &mut Bounds) -> Result<(), Failure> {
    let leader = Collector::start(url)?;
    leader.wait_for(COUNT).await;
    let standby = Collector::start(url)?;
    standby.wait_for("retsu_collector_leader 0").await;
    let (mut refreshes, mut rounds) = (0, 0);
    let (mut plain_bytes, mut gzip_bytes) = (0, 0);
    let began = Instant::now();
    while refreshes < REFRESHES {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {REFRESHES} refreshes");
        let (plain, _, gzip, _, idle) = tokio::try_join!(
            leader.scrape("identity"),
            leader.scrape("identity"),
            leader.scrape("gzip"),
            leader.scrape("gzip"),
            standby.scrape("identity"),
        )?;
        (plain_bytes, gzip_bytes) = (plain.len(), gzip.len());
        refreshes = count(&plain);
        assert_eq!(count(&idle), 0, "the standby collects");
        rounds += 1;
        tokio::time::sleep(POLL).await;
    }
    println!("\n{refreshes} refreshes, {rounds} times two plain and two gzip scrapes of the leader at once");
    println!("  an answer has {plain_bytes} bytes, {gzip_bytes} with gzip");
    for (role, collector, limit) in [("leader", &leader, LEADER_MIB), ("standby", &standby, STANDBY_MIB)] {
        let resident = collector.resident();
        println!("  {role:<8} {resident}");
        bounds.at_most(format!("{role}, resident memory at its highest"), resident.peak, limit, "MiB");
    }
    Ok(())
}

/// Refreshes that an exposition tells of.
fn count(answer: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(answer);
    text.lines().rev().find_map(|line| line.strip_prefix(COUNT)?.parse().ok()).unwrap_or_default()
}
