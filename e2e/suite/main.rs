//! The end-to-end suite: the real image, installed by Helm on a real cluster, with faults of every kind.
//!
//! `make e2e-test` runs it on the cluster of `make e2e-up`, or on the one that `KUBECONFIG` names. docs/e2e.md says
//! what a cluster has to have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "a scenario is one future, and boxed once")]

#[allow(dead_code, reason = "tests/chaos uses all of it")]
#[path = "../../tests/chaos/checker.rs"]
mod checker;
mod cluster;
mod command;
mod enforcer;
mod faults;
mod postgresql;
mod prometheus;
mod recorded;
mod recording;
mod release;
mod report;
mod scenarios;
#[allow(dead_code, reason = "tests/chaos uses all of it")]
#[path = "../../tests/chaos/scrape.rs"]
mod scrape;
mod stage;
mod suite;
#[allow(dead_code, reason = "tests/it uses all of it")]
#[path = "../../tests/it/support/wait.rs"]
mod wait;
mod watched;

use std::process::ExitCode;
use std::time::Duration;

/// Time between two looks at a condition: a look may cost a connection to PostgreSQL, and all of it is one machine.
const POLL: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    suite::run(&libtest_mimic::Arguments::from_args())
}
