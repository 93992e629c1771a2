//! What happens to three replicas, and for how long it lasts.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use sqlx::PgPool;

use super::super::replicas::{LIMIT, is_patch, step_down};
use crate::support::kubernetes::{ApiProxy, Cluster, Fault, Labels, ROLE, led};
use crate::support::{self, Collector, Database, History, free_port};

/// Replicas of a scene.
const REPLICAS: usize = 3;

/// After its API answers again, a replica needs this long at most until a label is what it should be.
const RECOVERY: Duration = Duration::from_secs(2);

/// As before, after a permission was missing.
const PERMITTED: Duration = Duration::from_secs(5);

/// What is right for so long is taken for lasting.
const FOR_GOOD: Duration = Duration::from_millis(1500);

/// A fault. Those with a time last as long as that, and others happen meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// A replica, or all of them, cannot reach the API: connections are refused.
    Cut(Option<usize>, Duration),
    /// As before, but connections hang.
    Freeze(Option<usize>, Duration),
    /// Every connection of a replica to the API is reset, its watch among them.
    Reset(usize),
    /// The API answers every patch of a replica with this.
    Answer(usize, Fault, Duration),
    /// Nobody may patch Pods.
    Revoke(Duration),
    /// Somebody writes the label of a replica.
    Edit(usize, Option<&'static str>),
    /// The backend of the lock's holder is terminated.
    Terminate,
    /// The leader, or a replica when nobody leads, is stopped in order, and started again.
    Stop(usize),
    /// As before, killed; the kubelet says so.
    Kill(usize),
    /// As before, it stands still for a time.
    Pause(usize, Duration),
    /// As before, its Pod is deleted at once, its process a little later, and another Pod takes its place.
    Delete(usize, Duration),
}

impl Happening {
    pub(super) fn random(random: &mut StdRng) -> Self {
        let replica = random.random_range(0..REPLICAS);
        let some = random.random_bool(0.75).then_some(replica);
        let time = Duration::from_millis(random.random_range(100..2500));
        match random.random_range(0..17) {
            0 => Self::Cut(some, time),
            1 => Self::Freeze(some, time),
            2 => Self::Reset(replica),
            3 => Self::Answer(replica, Fault::TooManyRequests { header: Some(1), details: None }, time),
            4 => Self::Answer(replica, Fault::Status(500), time),
            5 => Self::Revoke(time),
            6 => Self::Edit(replica, None),
            7 => Self::Edit(replica, Some("leader")),
            8 => Self::Edit(replica, Some("standby")),
            9..11 => Self::Terminate,
            11..14 => Self::Stop(replica),
            14 => Self::Kill(replica),
            15 => Self::Pause(replica, 2 * time),
            _ => Self::Delete(replica, time),
        }
    }
}

/// What ends a fault that lasts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Heal {
    Mend(usize),
    Clear(usize),
    Grant,
    Continue(usize),
    Remove(usize),
}

struct Replica {
    /// Its Pod, and those that it had before, each since when.
    pods: Vec<(Instant, String)>,
    proxy: ApiProxy,
    port: u16,
    collector: Collector,
    /// When it could not have kept its label right: its API did not answer, it was stopped, killed or deleted, or
    /// somebody had written its label.
    troubled: Vec<(Instant, Instant)>,
}

impl Replica {
    fn pod(&self) -> &str {
        &self.pods.last().unwrap().1
    }

    fn pod_at(&self, at: Instant) -> &str {
        &self.pods.iter().rev().find(|(since, _)| *since <= at).unwrap_or(&self.pods[0]).1
    }

    fn is_troubled(&self, from: Instant, until: Instant) -> bool {
        self.troubled.iter().any(|(began, ended)| *began <= until && *ended >= from)
    }

    /// When its next trouble begins.
    fn trouble_after(&self, at: Instant) -> Option<Instant> {
        self.troubled.iter().map(|(began, _)| *began).filter(|began| *began > at).min()
    }
}

pub(super) struct Scene {
    cluster: Cluster,
    database: Database,
    observer: PgPool,
    labels: Labels,
    replicas: Vec<Replica>,
    history: History,
    /// The zero of the history's clock.
    zero: Instant,
    heals: Vec<(Instant, Heal)>,
    seed: u64,
}

impl Scene {
    pub(super) async fn new(seed: u64) -> Self {
        let (cluster, database) = (Cluster::new().await, support::queue_database().await);
        let observer = database.pool().await;
        let labels = Labels::watch(&cluster).await;
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            let (proxy, port, pod) = (ApiProxy::start(cluster.server()).await, free_port(), format!("r{number}-0"));
            let collector = start(&cluster, &database, &proxy, port, &pod).await;
            replicas.push(Replica { pods: vec![(Instant::now(), pod)], proxy, port, collector, troubled: Vec::new() });
        }
        let history = History::watch(&replicas.iter().map(|replica| &replica.collector).collect::<Vec<_>>());
        let zero = Instant::now().checked_sub(history.elapsed()).unwrap();
        let heals = Vec::new();
        let scene = Self { cluster, database, observer, labels, replicas, history, zero, heals, seed };
        scene.wait_until_right(LIMIT).await;
        scene
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.history.elapsed()
    }

    /// Lets time pass, in which what has lasted long enough ends.
    pub(super) async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(at) = self.heals.iter().map(|(at, _)| *at).filter(|at| *at <= until).min() {
            tokio::time::sleep_until(at.into()).await;
            self.heal_due().await;
        }
        tokio::time::sleep_until(until.into()).await;
    }

    async fn heal_due(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.heals).into_iter().partition(|(at, _)| *at <= now);
        self.heals = later;
        for (_, heal) in Vec::<(Instant, Heal)>::from_iter(due) {
            self.heal(heal).await;
        }
    }

    /// Ends all that lasts.
    pub(super) async fn heal_all(&mut self) {
        for (_, heal) in std::mem::take(&mut self.heals) {
            self.heal(heal).await;
        }
    }

    fn last(&mut self, heal: Heal, time: Duration) {
        let until = Instant::now() + time;
        // Two of one kind on one replica are one that ends later.
        let known = self.heals.iter_mut().find(|(_, known)| *known == heal);
        match known {
            Some((at, _)) => *at = until.max(*at),
            None => self.heals.push((until, heal)),
        }
    }

    /// Nothing is said of what `replica` does about its label for this time from now on.
    fn excuse(&mut self, replica: usize, time: Duration) {
        let now = Instant::now();
        self.replicas[replica].troubled.push((now, now + time));
    }

    /// The replica that exports, or else this one.
    fn leader_or(&self, replica: usize) -> usize {
        self.history.exporting().first().copied().unwrap_or(replica)
    }

    pub(super) async fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Cut(some, time) => self.separate(some, time, ApiProxy::cut),
            Happening::Freeze(some, time) => self.separate(some, time, ApiProxy::freeze),
            Happening::Reset(replica) => {
                self.excuse(replica, Duration::from_secs(1));
                self.replicas[replica].proxy.reset_connections();
            }
            Happening::Answer(replica, fault, time) => {
                self.excuse(replica, time + RECOVERY);
                self.replicas[replica].proxy.inject(is_patch, fault);
                self.last(Heal::Clear(replica), time);
            }
            Happening::Revoke(time) => {
                if self.heals.iter().any(|(_, heal)| *heal == Heal::Grant) {
                    return;
                }
                self.cluster.revoke("patch", "pods").await;
                self.excuse_all(time + PERMITTED);
                self.last(Heal::Grant, time);
            }
            Happening::Edit(replica, role) => {
                if self.heals.iter().any(|(_, heal)| *heal == Heal::Remove(replica)) {
                    return;
                }
                if role == Some("leader") {
                    self.excuse(replica, Duration::from_millis(2500));
                }
                let pod = self.replicas[replica].pod().to_owned();
                self.cluster.set_label(&pod, ROLE, role).await;
            }
            Happening::Terminate => {
                let terminate = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                sqlx::query(terminate).execute(&self.observer).await.unwrap();
            }
            Happening::Stop(replica) => {
                let replica = self.leader_or(replica);
                if !self.is_going(replica) {
                    return;
                }
                self.replicas[replica].collector.sigterm();
                self.replicas[replica].collector.wait_exit(LIMIT).await;
                self.restart(replica).await;
            }
            Happening::Kill(replica) => {
                let replica = self.leader_or(replica);
                if !self.is_going(replica) {
                    return;
                }
                self.excuse(replica, PERMITTED);
                self.replicas[replica].collector.sigkill();
                self.replicas[replica].collector.wait_exit(LIMIT).await;
                self.cluster.terminate(self.replicas[replica].pod()).await;
                self.restart(replica).await;
            }
            Happening::Pause(replica, time) => {
                let replica = self.leader_or(replica);
                if !self.is_going(replica) {
                    return;
                }
                self.excuse(replica, time + Duration::from_secs(1));
                self.replicas[replica].collector.sigstop();
                self.last(Heal::Continue(replica), time);
            }
            Happening::Delete(replica, time) => {
                let replica = self.leader_or(replica);
                if !self.is_going(replica) {
                    return;
                }
                self.excuse(replica, time + RECOVERY);
                self.cluster.delete(self.replicas[replica].pod(), true).await;
                self.last(Heal::Remove(replica), time);
            }
        }
    }

    /// Whether its process runs and its Pod is there.
    fn is_going(&self, replica: usize) -> bool {
        let stands = [Heal::Continue(replica), Heal::Remove(replica)];
        !self.heals.iter().any(|(_, heal)| stands.contains(heal))
    }

    fn separate(&mut self, some: Option<usize>, time: Duration, how: fn(&ApiProxy)) {
        for replica in 0..REPLICAS {
            if some.is_none_or(|some| some == replica) {
                self.excuse(replica, time + RECOVERY);
                how(&self.replicas[replica].proxy);
                self.last(Heal::Mend(replica), time);
            }
        }
    }

    fn excuse_all(&mut self, time: Duration) {
        (0..REPLICAS).for_each(|replica| self.excuse(replica, time));
    }

    async fn heal(&mut self, heal: Heal) {
        println!("seed {}: {:?} ends: {heal:?}", self.seed, self.elapsed());
        match heal {
            Heal::Mend(replica) => self.replicas[replica].proxy.mend(),
            Heal::Clear(replica) => self.replicas[replica].proxy.clear(),
            Heal::Grant => self.cluster.grant("patch", "pods").await,
            Heal::Continue(replica) => self.replicas[replica].collector.sigcont(),
            Heal::Remove(replica) => {
                self.replicas[replica].collector.sigkill();
                self.replicas[replica].collector.wait_exit(LIMIT).await;
                let pod = format!("r{replica}-{}", self.replicas[replica].pods.len());
                let Self { cluster, database, replicas, .. } = self;
                let replica = &mut replicas[replica];
                replica.collector = start(cluster, database, &replica.proxy, replica.port, &pod).await;
                replica.pods.push((Instant::now(), pod));
            }
        }
    }

    /// Starts the container of a Pod again.
    async fn restart(&mut self, replica: usize) {
        let pod = self.replicas[replica].pod().to_owned();
        self.cluster.restart_container(&pod).await;
        let Self { cluster, database, replicas, .. } = self;
        let replica = &mut replicas[replica];
        replica.collector = start(cluster, database, &replica.proxy, replica.port, &pod).await;
    }

    /// The Pod that is labelled and exports, when it is the only one that does either.
    fn right(&self) -> Option<String> {
        match (&self.history.exporting()[..], &self.labels.leaders()[..]) {
            ([replica], [pod]) if self.replicas[*replica].pod() == pod => Some(pod.clone()),
            _ => None,
        }
    }

    /// Waits until one Pod is labelled, and it is that of the one replica that exports, for good: at the latest after
    /// `limit`. Returns its name, and after which time it was so.
    pub(super) async fn wait_until_right(&self, limit: Duration) -> (String, Duration) {
        let began = Instant::now();
        let mut right: Option<(String, Duration)> = None;
        loop {
            let (now, known) = (self.right(), right.take());
            right = now.map(|pod| known.filter(|(known, _)| *known == pod).unwrap_or_else(|| (pod, began.elapsed())));
            match &right {
                Some((_, since)) if began.elapsed() >= *since + FOR_GOOD => return right.unwrap(),
                Some((_, since)) if *since <= limit => {}
                _ => assert!(
                    began.elapsed() <= limit,
                    "seed {}: not within {limit:?}: one Pod has the label, and it exports: {:?}, {:?} export",
                    self.seed,
                    self.labels.now(),
                    self.history.exporting(),
                ),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Fails the test when a Pod carried the label for longer than `limit` although its process had withdrawn and
    /// nothing kept it from saying so. Returns how many withdrawals that was looked at for.
    pub(super) fn assert_no_stale_label(&self, limit: Duration) -> usize {
        let (history, changes, end) = (self.history.so_far(), self.labels.history(), Instant::now());
        let runs = history.runs();
        let mut judged = 0;
        for run in runs {
            let Some(ended) = run.ended_by.map(|ended| self.zero + ended) else { continue };
            let next = runs.iter().find(|next| next.target == run.target && next.first.0 >= run.last.1);
            let again = next.map_or(end, |next| self.zero + next.first.0);
            let replica = &self.replicas[run.target];
            if replica.is_troubled(self.zero + run.last.0, ended + limit) {
                continue;
            }
            let until = again.min(replica.trouble_after(ended).unwrap_or(end));
            let pod = replica.pod_at(self.zero + run.last.0);
            let stale = led(&changes, pod, ended, until);
            assert!(stale <= limit, "seed {}: {pod} had withdrawn and was labelled for {stale:?}", self.seed);
            judged += 1;
        }
        judged
    }

    /// Fails the test when two replicas certainly exported at once.
    pub(super) fn assert_no_overlap(&self) {
        let overlaps = self.history.so_far().overlaps();
        assert!(overlaps.is_empty(), "seed {}: {overlaps:?}", self.seed);
    }
}

async fn start(cluster: &Cluster, database: &Database, proxy: &ApiProxy, port: u16, pod: &str) -> Collector {
    cluster
        .collector_at(&proxy.url(), pod, &database.url(), |config| {
            step_down(config);
            config.port(port);
        })
        .await
}
