//! With every guard in place no interleaving of any number of faults lets two replicas export.

use super::cluster::Cluster;
use super::report::holds;

#[test]
fn two_replicas_never_export_at_once() {
    holds("two replicas", Cluster::<2> { interchangeable: true, ..Cluster::of(4) }, 100_000);
}

#[test]
fn three_replicas_never_export_at_once() {
    holds("three replicas", Cluster::<3> { interchangeable: true, ..Cluster::of(2) }, 300_000);
}
