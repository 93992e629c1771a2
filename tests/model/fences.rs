//! Settings that are rolled: replicas with fences of different lengths.

use super::cluster::{Cluster, Guard, Memory};
use super::properties::{SAFETY, SEEN_FENCES};
use super::report::{counterexample, holds, holds_except};

const LARGE: u8 = 2;
const SMALL: u8 = 1;

/// A replica that was not rolled yet and one that was.
fn rolled() -> Cluster<2> {
    Cluster { fences: [LARGE, SMALL], ..Cluster::of(LARGE) }
}

#[test]
fn a_replica_that_has_seen_the_holder_with_the_larger_fence_never_overlaps() {
    holds_except(SAFETY, "fences of 2 and 1", rolled(), 55_000);
}

#[test]
fn without_the_advertised_fence_two_export() {
    counterexample("fences of 2 and 1, not advertised", rolled().without(Guard::AdvertisedFence), SEEN_FENCES);
}

#[test]
fn without_the_fences_seen_before_an_earlier_term_two_export() {
    counterexample("fences of 2 and 1, forgotten", rolled().without(Guard::EarlierFences), SEEN_FENCES);
}

/// What is not covered, and documented so: nobody has told the new leader how long the old one may go on.
#[test]
fn a_replica_that_has_never_seen_the_larger_fence_can_overlap() {
    let overlap = counterexample("fences of 2 and 1, never seen", rolled(), SAFETY);
    assert!(overlap.processes[1].unseen, "the replica with the smaller fence knew of the larger one");
}

/// The same hole: the old replica led once more, between two attempts of the other one.
#[test]
fn a_replica_that_has_forgotten_the_larger_fence_can_overlap() {
    counterexample("fences of 2 and 1, seen once", Cluster { seen: LARGE, ..rolled() }, SAFETY);
}

#[test]
fn when_all_replicas_know_the_larger_fence_for_ever_two_never_export() {
    let cluster = Cluster { seen: LARGE, memory: Memory::Forever, ..rolled() };
    holds("fences of 2 and 1, known for ever", cluster, 35_000);
}
