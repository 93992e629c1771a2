//! Once faults have ended somebody exports within the declared bound, and goes on.

use super::cluster::{Cluster, Guard};
use super::properties::LIVENESS;
use super::report::{counterexample, holds};

fn until_the_bound(fence: u8) -> Cluster<2> {
    let cluster = Cluster::of(fence);
    Cluster { bound: Some(cluster.declared_bound()), ..cluster }
}

#[test]
fn somebody_exports_within_the_declared_bound() {
    let cluster = Cluster { abandoned_attempts: true, interchangeable: true, ..until_the_bound(3) };
    holds("two replicas, until the bound", cluster, 1000);
}

#[test]
fn the_declared_bound_is_reached() {
    let cluster = until_the_bound(3);
    let bound = cluster.bound.map(|bound| bound - 1);
    counterexample("a tick less than the bound", Cluster { bound, ..cluster }, LIVENESS);
}

#[test]
fn without_the_idle_limit_nobody_may_ever_lead() {
    counterexample("no idle limit", until_the_bound(3).without(Guard::IdleLimit), LIVENESS);
}
