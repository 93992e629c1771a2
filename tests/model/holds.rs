//! With every guard in place no interleaving of any number of faults lets two replicas export.

use super::cluster::Cluster;
use super::report::holds;

#[test]
fn two_replicas_never_export_at_once() {
    holds("two replicas, F=2", Cluster::<2>::of(2), 1000);
    holds("two replicas, F=3", Cluster::<2>::of(3), 1000);
}
