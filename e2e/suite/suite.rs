//! Which scenario runs when.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::runtime::{Builder, Handle};

use crate::cluster::Cluster;
use crate::report::Report;
use crate::scenarios::{Phase, SCENARIOS, Scenario};
use crate::stage::Stage;

/// Runs the scenarios that the arguments select, in an order of `E2E_SEED`.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let seed = std::env::var("E2E_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    let mut scenarios: Vec<&Scenario> = SCENARIOS.iter().collect();
    scenarios.shuffle(&mut StdRng::seed_from_u64(seed));
    if arguments.list {
        let trials = scenarios.iter().map(|scenario| Trial::test(scenario.name, || Ok(()))).collect();
        return libtest_mimic::run(arguments, trials).exit_code();
    }
    println!("E2E_SEED={seed}");
    let cluster = Arc::new(runtime.block_on(Cluster::connect()));
    let report = Arc::new(Mutex::new(Report::default()));
    let phase = |phase, threads| {
        let chosen = scenarios.iter().filter(|scenario| scenario.phase == phase);
        let trials: Vec<_> = chosen.map(|scenario| trial(scenario, runtime.handle(), &cluster, &report)).collect();
        let arguments = Arguments { test_threads: Some(threads), ..arguments.clone() };
        libtest_mimic::run(&arguments, trials)
    };
    // Those that mostly wait have threads of their own beside the others, and end before the cluster is disturbed.
    let conclusions = std::thread::scope(|scope| {
        let patient = scope.spawn(|| phase(Phase::Patient, SCENARIOS.len()));
        let others = [phase(Phase::Together, 1), phase(Phase::Measured, 1)];
        let patient = patient.join().unwrap();
        [&others[..], &[patient, phase(Phase::Alone, 1)]].concat()
    });
    let report = report.lock().unwrap();
    report.publish();
    let (failed, ran) = conclusions.iter().fold((false, 0), |(failed, ran), conclusion: &Conclusion| {
        (failed || conclusion.has_failed(), ran + conclusion.num_passed + conclusion.num_failed)
    });
    println!("{ran} scenarios of E2E_SEED={seed}, {}", if failed { "and some failed" } else { "none failed" });
    if ran == 0 {
        println!("no scenario ran, which is a failure");
    }
    if failed || ran == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn trial(scenario: &'static Scenario, runtime: &Handle, cluster: &Arc<Cluster>, report: &Arc<Mutex<Report>>) -> Trial {
    let (runtime, cluster, report) = (runtime.clone(), Arc::clone(cluster), Arc::clone(report));
    Trial::test(scenario.name, move || runtime.block_on(play(scenario, cluster, report)))
}

/// Plays a scenario on a stage of its own. One that fails is dumped, and its namespace is kept.
async fn play(scenario: &'static Scenario, cluster: Arc<Cluster>, report: Arc<Mutex<Report>>) -> Result<(), Failed> {
    let stage = Arc::new(Stage::set(cluster, report, scenario.name).await);
    let played = AssertUnwindSafe(async {
        (scenario.play)(Arc::clone(&stage)).await;
        stage.conclude().await;
    });
    let played = played.catch_unwind().await;
    // As it is, before anything is put right again; where that is the API server, after it.
    let dumped = played.is_ok() || stage.dump(scenario.name).await;
    stage.mend().await;
    if !dumped {
        stage.dump(scenario.name).await;
    }
    played.map_err(|_| format!("{} failed; its panic is printed above", scenario.name))?;
    stage.strike().await;
    Ok(())
}
