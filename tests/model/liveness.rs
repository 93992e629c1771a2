//! Once faults have ended somebody exports within the declared bound, and goes on.

use super::cluster::{Cluster, Guard};
use super::properties::LIVENESS;
use super::report::{counterexample, holds, long};

fn until_the_bound() -> Cluster<2> {
    let cluster = Cluster { early_refreshes: long(), interchangeable: true, ..Cluster::of(3) };
    Cluster { bound: Some(cluster.declared_bound()), ..cluster }
}

#[test]
fn somebody_exports_within_the_declared_bound_and_no_shorter_one() {
    let cluster = Cluster { abandoned_attempts: long(), ..until_the_bound() };
    holds("two replicas, until the bound", cluster, 115_000);
}

#[test]
fn without_the_idle_limit_nobody_may_ever_lead() {
    counterexample("without the idle limit", until_the_bound().without(Guard::IdleLimit), LIVENESS);
}
