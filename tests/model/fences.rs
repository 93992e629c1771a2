//! Settings that are rolled: replicas with fences of different lengths.

use super::cluster::{Cluster, Guard};
use super::properties::{SAFETY, SEEN_FENCES};
use super::report::{counterexample, holds, holds_except};

const LARGE: u8 = 3;
const SMALL: u8 = 2;

/// A replica that was not rolled yet and one that was.
fn rolled() -> Cluster<2> {
    Cluster { fences: [LARGE, SMALL], ..Cluster::of(LARGE) }
}

#[test]
fn a_replica_that_has_seen_the_larger_fence_never_overlaps() {
    holds_except(SAFETY, "fences of 3 and 2", rolled(), 90_000);
}

#[test]
fn when_all_replicas_know_the_larger_fence_two_never_export() {
    holds("fences of 3 and 2, known to all", Cluster { seen: LARGE, ..rolled() }, 50_000);
}

/// What is not covered, and documented so: nobody has told the new leader how long the old one may go on.
#[test]
fn a_replica_that_has_never_seen_the_larger_fence_can_overlap() {
    let path = counterexample("fences of 3 and 2, never seen", rolled(), SAFETY);
    let new = path.last_state().processes[1];
    assert_eq!(new.seen, 0, "the replica with the smaller fence was never refused by the holder of the larger one");
}

#[test]
fn without_the_advertised_fence_two_export() {
    counterexample("fences of 3 and 2, not advertised", rolled().without(Guard::AdvertisedFence), SEEN_FENCES);
}
