//! The chaos suite: real processes on hosts of their own, faults of every kind, a recorder and a checker.
//!
//! Every fault is injected once, and some at random; `make chaos` injects 300 at random. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod checker;
mod cluster;
mod faults;
mod network;
#[allow(dead_code, reason = "tests/it uses all of it")]
#[path = "../it/support/process.rs"]
mod process;
mod recorder;
mod report;
mod scrape;
mod server;
#[allow(dead_code, reason = "tests/it uses all of it")]
#[path = "../it/support/wait.rs"]
mod wait;

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use cluster::{Cluster, Settings};
use faults::Fault;
use report::Report;
use wait::eventually;

/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(10);

/// Collectors of one cluster.
const SIZE: usize = 3;

/// The number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{variable}={value}: {error}")))
}

/// Injects the faults one after another into a new cluster, and returns it with what it showed.
async fn inject(settings: Settings, faults: &[Fault], seed: u64) -> (Cluster, checker::Verdict) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start(SIZE, settings).await;
    for fault in faults {
        fault.inject(&mut cluster, &mut rng).await;
    }
    let verdict = cluster.verdict();
    for (place, gap) in &verdict.gaps {
        let fault = place.map_or("no fault", |place| &cluster.injected[place].fault);
        let outage = place.map_or(Duration::ZERO, |place| cluster.injected[place].outage);
        println!("{fault}: gap of {:?} to {:?}, outage of {outage:?}", gap.at_least, gap.at_most);
    }
    for violation in &verdict.violations {
        println!("VIOLATION {violation}");
    }
    let samples = cluster.recorder.samples();
    let [median, most] = [0.5, 0.95].map(|share| checker::resolution(&samples, share));
    println!(
        "seed {seed}: {} faults, {} scrapes, every {median:?} at the median and {most:?} at the 95th percentile, {} violations",
        faults.len(),
        samples.len(),
        verdict.violations.len()
    );
    assert!(most < Duration::from_millis(100), "scrapes every {most:?} prove too little");
    (cluster, verdict)
}

async fn inject_and_check(settings: Settings, faults: &[Fault]) -> (Cluster, checker::Verdict) {
    let seed = number("CHAOS_SEED").unwrap_or_else(rand::random);
    println!("CHAOS_SEED={seed}");
    let (cluster, verdict) = inject(settings, faults, seed).await;
    assert_eq!(verdict.violations, [], "CHAOS_SEED={seed}");
    (cluster, verdict)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_leaders_process_break_no_promise() {
    inject_and_check(Settings::SHORT_AND_IDLE, &Fault::OF_THE_PROCESS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_server_break_no_promise() {
    inject_and_check(Settings::SHORT, &Fault::OF_THE_SERVER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_network_and_a_lost_host_leave_no_gap_above_ten_seconds_with_the_charts_settings() {
    let (_cluster, verdict) = inject_and_check(Settings::CHART, &Fault::OF_THE_NETWORK).await;
    assert!(verdict.gaps.len() >= Fault::OF_THE_NETWORK.len(), "{:?}", verdict.gaps);
    for (_, gap) in verdict.gaps {
        assert!(gap.at_most <= Duration::from_secs(10), "{gap:?}");
    }
}

/// `CHAOS_FAULTS` of them, from `CHAOS_SEED`, on `CHAOS_CLUSTERS` clusters at a time, every other one with many
/// refreshes; without the first, ten with shorter settings.
#[test]
fn random_faults_break_no_promise() {
    const FEW: u64 = 10;
    let (count, settings) = match number("CHAOS_FAULTS") {
        Some(count) => (count, [Settings::CHART, Settings::REFRESHING]),
        None => (FEW, [Settings::SHORT; 2]),
    };
    let clusters = number("CHAOS_CLUSTERS").unwrap_or(1);
    let seed = number("CHAOS_SEED").unwrap_or_else(rand::random);
    println!("CHAOS_SEED={seed} CHAOS_FAULTS={count} CHAOS_CLUSTERS={clusters}");
    let mut rng = StdRng::seed_from_u64(seed);
    // Every kind as often as any other, in any order.
    let mut faults = Vec::new();
    while faults.len() < usize::try_from(count).unwrap() {
        let mut round = Fault::all();
        round.shuffle(&mut rng);
        faults.extend(round);
    }
    faults.truncate(count.try_into().unwrap());
    let shares = faults.chunks(faults.len().div_ceil(clusters.try_into().unwrap()));
    let shares: Vec<_> = shares.map(<[Fault]>::to_vec).zip(seed..).zip(settings.into_iter().cycle()).collect();
    let running: Vec<_> = shares
        .into_iter()
        .map(|((share, seed), settings)| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(inject(settings, &share, seed))
            })
        })
        .collect();
    let (mut report, mut violations, mut broken) = (Report::default(), Vec::new(), Vec::new());
    for cluster in running {
        let (cluster, verdict) = cluster.join().unwrap();
        report.add(&cluster.injected, &verdict);
        if !verdict.violations.is_empty() {
            violations.extend(verdict.violations);
            // Its logs are printed when the test fails.
            broken.push(cluster);
        }
    }
    println!("{}", report.table());
    if std::env::var_os("UPDATE_DOCS").is_some() && violations.is_empty() {
        report.write(&format!(
            "{count} random faults on {clusters} clusters of {SIZE} collectors at a time, seed {seed}."
        ));
    }
    assert_eq!(violations, [], "CHAOS_SEED={seed}");
}
