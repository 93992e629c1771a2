//! With every guard in place no interleaving of any number of faults lets two replicas export.

use super::cluster::{Cluster, Guard};
use super::report::{holds, long};

#[test]
fn two_replicas_never_export_at_once() {
    let fence = if long() { 8 } else { 4 };
    holds(
        "two replicas",
        Cluster::<2> { early_refreshes: false, interchangeable: true, ..Cluster::of(fence) },
        100_000,
    );
}

#[test]
fn attempts_that_were_given_up_and_are_granted_make_no_second_exporter() {
    let cluster = Cluster::<2> { abandoned_attempts: true, interchangeable: true, ..Cluster::of(2) };
    holds("two replicas, abandoned attempts", cluster, 150_000);
}

#[test]
fn three_replicas_never_export_at_once() {
    let cluster =
        Cluster::<3> { early_refreshes: false, interchangeable: true, abandoned_attempts: long(), ..Cluster::of(2) };
    holds("three replicas", cluster, 370_000);
}

/// The proof with which a leader opens is for waits that are skipped.
#[test]
fn where_no_wait_is_skipped_a_lease_may_open_on_the_clock() {
    let cluster = Cluster::<2> { early_refreshes: false, interchangeable: true, ..Cluster::of(3) };
    holds("two replicas, without the opening proof", cluster.without(Guard::OpeningProof), 29_000);
}
