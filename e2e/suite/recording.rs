//! Scrapes every replica of a release, and its leader Service, each from a thread of its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checker::{Answer, Injected, Sample};
use crate::recorded::{Recorded, term};
use crate::scrape::sample;
use crate::wait::eventually;
use crate::watched::{Replica, Seen};

/// Time between two scrapes of one replica.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

/// The same where short times are measured.
pub(crate) const SHORT_PERIOD: Duration = Duration::from_millis(10);

/// When a scrape is given up. A machine with more to do than it can must not look like a replica without gauges.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The same through the ClusterIP, which drops what is meant for a Pod that has gone: the next try may be let through.
const SERVICE_TIMEOUT: Duration = Duration::from_millis(200);

/// From an EndpointSlice to what kube-proxy makes of it. After an outage of the API server it begins its watch anew only
/// after a pause that has grown meanwhile.
const FOLLOWED: Duration = Duration::from_secs(120);

/// Time between two looks for replicas that are new.
const LOOK: Duration = Duration::from_millis(10);

/// How long a process may outlive its Pod's object.
const OUTLIVES: Duration = Duration::from_secs(10);

/// One replica that is scraped.
#[derive(Clone, Debug)]
struct Target {
    name: String,
    samples: Arc<Mutex<Vec<Sample>>>,
}

/// What all the threads share.
#[derive(Debug)]
struct Shared {
    instances: BTreeSet<String>,
    port: u16,
    period: Duration,
    began: Instant,
    stop: AtomicBool,
    seen: Arc<Mutex<Seen>>,
    targets: Mutex<Vec<Target>>,
    service: Mutex<Vec<Sample>>,
}

/// Records until it is finished.
#[derive(Debug)]
pub(crate) struct Recording {
    shared: Arc<Shared>,
    service: String,
    oldest: Duration,
    faults: Mutex<Vec<Injected>>,
    threads: Vec<JoinHandle<()>>,
}

/// What is recorded.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The instance labels of the replicas.
    pub(crate) instances: BTreeSet<String>,
    /// The name of the leader Service.
    pub(crate) service: String,
    /// Where the leader Service is reached.
    pub(crate) cluster_ip: SocketAddr,
    /// The greatest age of a snapshot that a replica may export.
    pub(crate) oldest: Duration,
}

impl Recording {
    /// Begins to scrape whoever is there and whoever comes.
    pub(crate) fn begin(subject: Subject, seen: Arc<Mutex<Seen>>, period: Duration) -> Self {
        let Subject { instances, service, cluster_ip, oldest } = subject;
        let shared = Arc::new(Shared {
            instances,
            port: cluster_ip.port(),
            period,
            began: Instant::now(),
            stop: AtomicBool::new(false),
            seen,
            targets: Mutex::default(),
            service: Mutex::default(),
        });
        let (looks, serves) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            std::thread::spawn(move || look(&looks)),
            std::thread::spawn(move || scrape_service(&serves, cluster_ip)),
        ];
        Self { shared, service, oldest, faults: Mutex::default(), threads }
    }

    /// The present instant on the clock of the recording.
    pub(crate) fn elapsed(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Says what is about to be done, and how long there may be no gauges after it.
    pub(crate) fn fault(&self, fault: &str, bound: Duration) {
        let (began, outage) = (self.elapsed(), Duration::ZERO);
        self.faults.lock().unwrap().push(Injected { fault: fault.to_owned(), began, bound, outage });
    }

    /// Adds the time since the last fault to its outage: only now can somebody lead again.
    pub(crate) fn over(&self) {
        let now = self.elapsed();
        if let Some(fault) = self.faults.lock().unwrap().last_mut() {
            fault.outage = now.saturating_sub(fault.began);
        }
    }

    /// The replicas that exported at their last scrape.
    pub(crate) fn exporting(&self) -> Vec<String> {
        let targets = self.shared.targets.lock().unwrap().clone();
        let exports = |target: &Target| {
            matches!(target.samples.lock().unwrap().last(), Some(Sample { answer: Answer::Exporting(_), .. }))
        };
        targets.into_iter().filter(exports).map(|target| target.name).collect()
    }

    /// Waits until the leader Service leads to whoever exports: kube-proxy follows an EndpointSlice some time later.
    pub(crate) async fn followed(&self) {
        let last = |samples: &Mutex<Vec<Sample>>| samples.lock().unwrap().last().and_then(term);
        eventually(FOLLOWED, "the ClusterIP answers as the leader does", async || {
            let served = last(&self.shared.service);
            let targets = self.shared.targets.lock().unwrap().clone();
            served.is_some() && targets.iter().any(|target| last(&target.samples) == served)
        })
        .await;
    }

    /// Ends the recording.
    pub(crate) fn finish(mut self) -> Recorded {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let targets = std::mem::take(&mut *self.shared.targets.lock().unwrap());
        let names = targets.iter().map(|target| target.name.clone()).collect();
        let samples = targets.iter().flat_map(|target| target.samples.lock().unwrap().clone()).collect();
        let service = std::mem::take(&mut *self.shared.service.lock().unwrap());
        let faults = std::mem::take(&mut *self.faults.lock().unwrap());
        let seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: Instant| at.saturating_duration_since(self.shared.began);
        let roles = seen.roles.iter().map(|(at, pod, role)| (since(*at), pod.clone(), role.clone()));
        let endpoints = seen.endpoints.iter().filter(|(_, service, _)| *service == self.service);
        Recorded::new(
            names,
            samples,
            service,
            faults,
            self.oldest,
            roles.collect(),
            endpoints.map(|(at, _, pods)| (since(*at), pods.clone())).collect(),
        )
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// Finds replicas that have an address, and scrapes each; returns when all their threads have.
fn look(shared: &Arc<Shared>) {
    let mut found: BTreeSet<(String, IpAddr)> = BTreeSet::new();
    let mut threads = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let replicas: Vec<Replica> = {
            let seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.replicas.values().filter(|replica| shared.instances.contains(&replica.instance)).cloned().collect()
        };
        for replica in replicas {
            let Some(address) = replica.address else { continue };
            // A Pod has another address after its node was away.
            if found.insert((replica.uid.clone(), address)) {
                let shared = Arc::clone(shared);
                threads.push(std::thread::spawn(move || scrape_replica(&shared, &replica, address)));
            }
        }
        std::thread::sleep(LOOK);
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

fn scrape_replica(shared: &Shared, replica: &Replica, own: IpAddr) {
    let address = SocketAddr::new(own, shared.port);
    let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let place = {
        let mut targets = shared.targets.lock().unwrap();
        targets.push(Target { name: replica.name.clone(), samples: Arc::clone(&samples) });
        targets.len() - 1
    };
    let mut connection = None;
    let mut gone: Option<Instant> = None;
    every(shared, || {
        let sample = sample(place, shared.began, &mut connection, (address, TIMEOUT));
        let unreachable = sample.answer == Answer::Unreachable;
        samples.lock().unwrap().push(sample);
        let exists = {
            let seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.replicas
                .get(&replica.name)
                .is_some_and(|now| now.uid == replica.uid && now.address.is_none_or(|now| now == own))
        };
        // Its address may be another Pod's some time after it has gone.
        if exists || !unreachable {
            gone = None;
        } else {
            gone = gone.or_else(|| Some(Instant::now()));
        }
        gone.is_none_or(|gone| gone.elapsed() < OUTLIVES)
    });
}

/// A connection for each scrape: one that is kept stays with the replica that it once reached.
fn scrape_service(shared: &Shared, address: SocketAddr) {
    every(shared, || {
        let sample = sample(usize::MAX, shared.began, &mut None, (address, SERVICE_TIMEOUT));
        shared.service.lock().unwrap().push(sample);
        true
    });
}

/// Goes on at the period of the recording until it stops or `step` says that it is over.
fn every(shared: &Shared, mut step: impl FnMut() -> bool) {
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) && step() {
        next = (next + shared.period).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
