//! A new leader may skip its wait when it has proof that the old one has ended. Of which old one?

use super::cluster::{Cluster, ProofOfEnd};
use super::properties::SAFETY;
use super::report::{counterexample, holds, long};

fn skipping(proof_of_end: ProofOfEnd) -> Cluster<2> {
    Cluster { proof_of_end, ..Cluster::of(2) }
}

#[test]
fn the_end_of_the_last_holder_is_enough_if_it_had_exported() {
    let cluster = skipping(ProofOfEnd::LastExporter);
    let cluster = Cluster { abandoned_attempts: true, early_refreshes: long(), interchangeable: true, ..cluster };
    holds("skips the wait after the last exporter", cluster, 70_000);
}

/// A holder that ended while it waited itself says nothing about the one before it.
#[test]
fn the_end_of_a_holder_that_was_still_waiting_is_not_enough() {
    counterexample("skips the wait after the last holder", skipping(ProofOfEnd::LastHolder), SAFETY);
}

/// Another one may have held the lock since, have skipped its wait for the same proof, and still export.
#[test]
fn the_end_of_an_exporter_before_the_last_holder_is_not_enough() {
    counterexample("skips the wait after some exporter", skipping(ProofOfEnd::SomeExporter), SAFETY);
}
