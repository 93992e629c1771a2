//! The faults.

use std::fmt;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

use crate::checker::Injected;
use crate::cluster::{Cluster, Node};
use crate::eventually;
use crate::network::Lost;
use crate::server::Shutdown;

const LIMIT: Duration = Duration::from_secs(30);

/// A fault comes at any time within this one: longer than heartbeats, attempts and many refreshes are apart.
const PHASES: Duration = Duration::from_secs(2);

/// What a query is made to wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Slow {
    /// The refresh of the leader.
    Refresh,
    /// The first refresh of the next leader.
    FirstRefresh,
    /// Whatever reads the catalogue of databases and roles: new sessions, and `pg_stat_activity`.
    Catalogue,
    /// Whatever the lock session is asked, a proof most likely.
    LockSession,
}

/// One fault. Times are in fences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// SIGTERM of the leader.
    Stopped,
    /// SIGKILL of the leader.
    Killed,
    /// The leader's host is gone: no process, and no frame of it any more.
    HostLost,
    /// Frames between leader and server are lost.
    Cut(Lost),
    /// SIGSTOP of the leader for a time, between two refreshes or in the middle of one.
    Paused { fences: f64, refreshing: bool },
    /// `pg_terminate_backend` of the lock session.
    BackendTerminated,
    /// The server ends and is started again.
    ServerEnded(Shutdown),
    /// Every process of the server is stopped for a time.
    ServerPaused { fences: f64 },
    /// `DROP DATABASE ... WITH (FORCE)`, and the database is made again.
    DatabaseDropped,
    /// The server fails for want of disk space, and gets some.
    DiskFull,
    /// The server's clock is set, and after a while set back.
    ClockStepped { seconds: i64 },
    /// A query is made to wait for a time.
    SlowQuery { slow: Slow, fences: f64 },
    /// Everybody connects through PgBouncer, which is killed and started again.
    PoolerKilled,
    /// The standbys get a smaller fence; then the leader, with the larger, loses lock and network at once.
    SettingsRolled,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("leader stopped (SIGTERM)"),
            Self::Killed => f.write_str("leader killed (SIGKILL)"),
            Self::HostLost => f.write_str("leader's host lost"),
            Self::Cut(Lost::Both) => f.write_str("network cut both ways"),
            Self::Cut(Lost::ToServer) => f.write_str("network cut towards the server"),
            Self::Cut(Lost::FromServer) => f.write_str("network cut from the server"),
            Self::Paused { fences, refreshing: false } => write!(f, "leader paused for {fences} fences, idle"),
            Self::Paused { fences, refreshing: true } => write!(f, "leader paused for {fences} fences, refreshing"),
            Self::BackendTerminated => f.write_str("lock session terminated"),
            Self::ServerEnded(Shutdown::Fast) => f.write_str("server restarted"),
            Self::ServerEnded(Shutdown::Immediate) => f.write_str("server restarted, immediate"),
            Self::ServerEnded(Shutdown::Kill) => f.write_str("server killed (SIGKILL)"),
            Self::ServerPaused { fences } => write!(f, "server paused for {fences} fences"),
            Self::DatabaseDropped => f.write_str("database dropped by force"),
            Self::DiskFull => f.write_str("disk full on the server"),
            Self::ClockStepped { seconds } => write!(f, "server's clock stepped by {seconds:+} s"),
            Self::SlowQuery { slow: Slow::Refresh, fences } => write!(f, "refresh slow for {fences} fences"),
            Self::SlowQuery { slow: Slow::FirstRefresh, fences } => {
                write!(f, "leader killed, next refresh slow for {fences} fences")
            }
            Self::SlowQuery { slow: Slow::Catalogue, fences } => write!(f, "catalogue slow for {fences} fences"),
            Self::SlowQuery { slow: Slow::LockSession, fences } => write!(f, "lock session slow for {fences} fences"),
            Self::PoolerKilled => f.write_str("PgBouncer killed and started"),
            Self::SettingsRolled => f.write_str("smaller fence rolled out, lock and network lost"),
        }
    }
}

impl Fault {
    /// Those of the leader's process.
    pub(crate) const OF_THE_PROCESS: [Self; 11] = [
        Self::Stopped,
        Self::Killed,
        Self::BackendTerminated,
        Self::Paused { fences: 0.5, refreshing: false },
        Self::Paused { fences: 1.5, refreshing: false },
        Self::Paused { fences: 3.0, refreshing: false },
        Self::Paused { fences: 0.5, refreshing: true },
        Self::Paused { fences: 1.5, refreshing: true },
        Self::Paused { fences: 3.0, refreshing: true },
        Self::SlowQuery { slow: Slow::FirstRefresh, fences: 0.5 },
        Self::SettingsRolled,
    ];

    /// Those of the network.
    pub(crate) const OF_THE_NETWORK: [Self; 4] =
        [Self::HostLost, Self::Cut(Lost::Both), Self::Cut(Lost::ToServer), Self::Cut(Lost::FromServer)];

    /// Those of the server, and of what is before it.
    pub(crate) const OF_THE_SERVER: [Self; 14] = [
        Self::ServerEnded(Shutdown::Fast),
        Self::ServerEnded(Shutdown::Immediate),
        Self::ServerEnded(Shutdown::Kill),
        Self::ServerPaused { fences: 0.5 },
        Self::ServerPaused { fences: 3.0 },
        Self::DatabaseDropped,
        Self::DiskFull,
        Self::ClockStepped { seconds: 3600 },
        Self::ClockStepped { seconds: -3600 },
        Self::SlowQuery { slow: Slow::Refresh, fences: 0.5 },
        Self::SlowQuery { slow: Slow::Refresh, fences: 3.0 },
        Self::SlowQuery { slow: Slow::Catalogue, fences: 1.5 },
        Self::SlowQuery { slow: Slow::LockSession, fences: 1.5 },
        Self::PoolerKilled,
    ];

    /// Every one.
    pub(crate) fn all() -> Vec<Self> {
        [&Self::OF_THE_PROCESS[..], &Self::OF_THE_NETWORK, &Self::OF_THE_SERVER].concat()
    }

    /// Its name in `retsu_collector_failover_bound_seconds`; `None` when nobody may notice it.
    fn bound(self) -> Option<&'static str> {
        Some(match self {
            Self::Stopped => "graceful",
            Self::Killed | Self::SlowQuery { slow: Slow::FirstRefresh, .. } => "process_killed",
            Self::HostLost => "host_lost",
            Self::Cut(Lost::Both) | Self::SettingsRolled => "network_cut",
            Self::Cut(Lost::ToServer) => "network_cut_to_server",
            Self::Cut(Lost::FromServer) => "network_cut_to_client",
            Self::Paused { refreshing: false, .. } => "paused_idle",
            Self::Paused { refreshing: true, .. } => "paused_in_refresh",
            Self::BackendTerminated => "backend_terminated",
            Self::ClockStepped { .. } => "server_clock_stepped",
            Self::SlowQuery { slow: Slow::Refresh, fences } if fences < 1.0 => return None,
            Self::ServerEnded(_)
            | Self::ServerPaused { .. }
            | Self::DatabaseDropped
            | Self::DiskFull
            | Self::PoolerKilled
            | Self::SlowQuery { slow: Slow::Refresh | Slow::Catalogue | Slow::LockSession, .. } => "server_restarted",
        })
    }

    /// Injects the fault at a random time, mends what it broke and waits until one alone
    /// exports again.
    pub(crate) async fn inject(self, cluster: &mut Cluster, rng: &mut StdRng) {
        let leader = cluster.settle().await;
        let settings = cluster.nodes[leader].settings;
        match self {
            Self::SettingsRolled => {
                change_standbys(cluster, leader, |node| node.settings = settings.with_a_smaller_fence()).await;
            }
            Self::PoolerKilled => {
                cluster.server.start_pooler().await;
                change_all(cluster, rng, |node| node.pooled = true).await;
            }
            _ => {}
        }
        let leader = cluster.settle().await;
        sleep(PHASES.mul_f64(rng.random())).await;
        let bound = match self.bound() {
            Some(fault) => cluster.bound(fault).await,
            None => Duration::ZERO,
        };
        let began = cluster.recorder.elapsed();
        println!("{:8.3} s {self} ({leader} leads)", began.as_secs_f64());
        let injected = Injected { fault: self.to_string(), began, bound, outage: Duration::ZERO };
        cluster.injected.push(injected);
        let outage = self.happen(cluster, leader).await;
        cluster.injected.last_mut().unwrap().outage = outage;
        cluster.settle().await;
        match self {
            Self::SettingsRolled => change_all(cluster, rng, |node| node.settings = settings).await,
            Self::PoolerKilled => {
                change_all(cluster, rng, |node| node.pooled = false).await;
                cluster.server.kill_pooler().await;
            }
            _ => {}
        }
    }

    /// Does it, waits for what must follow, and mends it. Returns for how long nobody could have led.
    async fn happen(self, cluster: &mut Cluster, leader: usize) -> Duration {
        let began = Instant::now();
        let (term, fence) = (cluster.term(), cluster.nodes[leader].settings.fence);
        match self {
            Self::Stopped | Self::Killed => {
                let collector = cluster.nodes[leader].collector();
                if self == Self::Killed {
                    collector.sigkill();
                } else {
                    collector.sigterm();
                }
                collector.wait_exit(LIMIT).await;
                cluster.wait_for_term_after(term).await;
                cluster.nodes[leader].restart();
            }
            Self::HostLost => {
                cluster.nodes[leader].links.cut(Lost::Both);
                cluster.nodes[leader].collector().sigkill();
                cluster.wait_for_term_after(term).await;
                cluster.nodes[leader].links.mend();
                cluster.nodes[leader].restart();
            }
            Self::Cut(lost) => {
                cluster.nodes[leader].links.cut(lost);
                cluster.wait_for_term_after(term).await;
                cluster.nodes[leader].links.mend();
            }
            Self::Paused { fences, refreshing } => {
                let lock = if refreshing { Some(hold_a_refresh(cluster).await) } else { None };
                let mut volley = cluster.recorder.volley(leader);
                cluster.nodes[leader].collector().sigstop();
                let until = Instant::now() + fence.mul_f64(fences);
                if let Some((lock, backend)) = lock {
                    // The server has to get rid of the statement by itself; then others must be able to refresh.
                    while Instant::now() < until && is_waiting(cluster, Some(backend)).await.is_some() {
                        sleep(Duration::from_millis(20)).await;
                    }
                    lock.close().await.unwrap();
                }
                sleep(until.saturating_duration_since(Instant::now())).await;
                cluster.recorder.send(&mut volley);
                cluster.nodes[leader].collector().sigcont();
                cluster.recorder.receive(volley);
            }
            Self::BackendTerminated => {
                terminate_holder(cluster).await;
                cluster.wait_for_term_after(term).await;
            }
            Self::ServerEnded(how) => {
                cluster.server.end(how).await;
                cluster.server.resume_after_end().await;
                let outage = began.elapsed();
                cluster.wait_for_term_after(term).await;
                return outage;
            }
            Self::ServerPaused { fences } => {
                cluster.server.pause();
                sleep(fence.mul_f64(fences)).await;
                cluster.server.go_on();
                return began.elapsed();
            }
            Self::DatabaseDropped => {
                cluster.server.drop_database().await;
                cluster.server.create_database().await;
                let outage = began.elapsed();
                cluster.wait_for_term_after(term).await;
                return outage;
            }
            Self::DiskFull => {
                cluster.server.run_out_of_disk().await;
                cluster.server.free_disk();
                cluster.server.recover().await;
                let outage = began.elapsed();
                cluster.wait_for_term_after(term).await;
                return outage;
            }
            Self::ClockStepped { seconds } => {
                for seconds in [seconds, 0] {
                    cluster.server.step_clock(seconds);
                    // Every limit of the server that was running has passed after this.
                    sleep(cluster.nodes[leader].settings.idle_session_timeout.mul_f64(1.5)).await;
                }
            }
            Self::SlowQuery { slow, fences } => {
                let lock = match slow {
                    Slow::Refresh => Some(hold_a_refresh(cluster).await.0),
                    Slow::FirstRefresh => Some(lock(cluster, "queue").await),
                    Slow::Catalogue => Some(lock(cluster, "pg_database, pg_authid").await),
                    Slow::LockSession => {
                        let mut observer = cluster.server.connect().await;
                        let holder = sqlx::query_scalar(HOLDER).fetch_one(&mut observer).await.unwrap();
                        cluster.server.pause_backend(holder);
                        None
                    }
                };
                let held = Instant::now();
                if slow == Slow::FirstRefresh {
                    cluster.nodes[leader].collector().sigkill();
                }
                sleep(fence.mul_f64(fences)).await;
                match lock {
                    Some(lock) => lock.close().await.unwrap(),
                    None => cluster.server.go_on(),
                }
                let outage = held.elapsed();
                if slow == Slow::FirstRefresh {
                    cluster.wait_for_term_after(term).await;
                    cluster.nodes[leader].restart();
                }
                return outage;
            }
            Self::SettingsRolled => {
                cluster.nodes[leader].links.cut(Lost::Both);
                terminate_holder(cluster).await;
                cluster.wait_for_term_after(term).await;
                cluster.nodes[leader].links.mend();
            }
            Self::PoolerKilled => {
                cluster.server.kill_pooler().await;
                cluster.server.start_pooler().await;
                let outage = began.elapsed();
                cluster.wait_for_term_after(term).await;
                return outage;
            }
        }
        Duration::ZERO
    }
}

/// Changes every node but the leader's, and starts its collector anew.
async fn change_standbys(cluster: &mut Cluster, leader: usize, change: impl Fn(&mut Node)) {
    for place in (0..cluster.nodes.len()).filter(|&place| place != leader) {
        change(&mut cluster.nodes[place]);
        cluster.nodes[place].restart();
    }
    cluster.settle().await;
}

/// Changes every node as a rolling update does: the standbys, and then the leader, which is stopped in order. That
/// is a fault like any other.
async fn change_all(cluster: &mut Cluster, rng: &mut StdRng, change: impl Fn(&mut Node)) {
    let leader = cluster.settle().await;
    change_standbys(cluster, leader, &change).await;
    // It is started again with what is changed now.
    change(&mut cluster.nodes[leader]);
    Box::pin(Fault::Stopped.inject(cluster, rng)).await;
}

/// A transaction that keeps everybody from reading `tables`.
async fn lock(cluster: &Cluster, tables: &str) -> PgConnection {
    let mut connection = cluster.server.connect().await;
    sqlx::query("BEGIN").execute(&mut connection).await.unwrap();
    let lock = format!("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE");
    sqlx::query(AssertSqlSafe(lock)).execute(&mut connection).await.unwrap();
    connection
}

/// Makes the leader's next refresh wait. Returns what it waits for, and its backend.
async fn hold_a_refresh(cluster: &Cluster) -> (PgConnection, i32) {
    let lock = lock(cluster, "queue").await;
    let mut backend = None;
    eventually(LIMIT, "the leader refreshes", async || {
        backend = is_waiting(cluster, None).await;
        backend.is_some()
    })
    .await;
    (lock, backend.unwrap())
}

/// The backend, that one or any, whose query waits for a table.
async fn is_waiting(cluster: &Cluster, backend: Option<i32>) -> Option<i32> {
    let query = "SELECT pid FROM pg_locks WHERE locktype = 'relation' AND NOT granted AND pid = coalesce($1, pid)";
    let mut observer = cluster.server.connect().await;
    sqlx::query_scalar(query).bind(backend).fetch_optional(&mut observer).await.unwrap()
}

/// The backends that hold the lock.
const HOLDER: &str = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Ends the session that holds the lock.
async fn terminate_holder(cluster: &Cluster) {
    let mut observer = cluster.server.connect().await;
    let terminate = format!("SELECT pg_terminate_backend(pid) FROM ({HOLDER}) AS holder");
    let ended: Vec<bool> = sqlx::query_scalar(AssertSqlSafe(terminate)).fetch_all(&mut observer).await.unwrap();
    assert_eq!(ended, [true], "exactly one session holds the lock");
}
