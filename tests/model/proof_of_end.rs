//! A new leader may skip its wait when it has proof that the old one ended. Of which old one?

use super::cluster::{Cluster, ProofOfEnd};
use super::properties::SAFETY;
use super::report::{counterexample, holds};

fn skipping(proof_of_end: ProofOfEnd) -> Cluster<2> {
    Cluster { proof_of_end, ..Cluster::of(2) }
}

#[test]
fn the_end_of_a_holder_that_had_exported_is_enough() {
    let cluster = Cluster { abandoned_attempts: true, interchangeable: true, ..skipping(ProofOfEnd::Exporter) };
    holds("skips the wait after an exporter", cluster, 90_000);
}

/// A holder that ended while it waited itself says nothing about the one before it.
#[test]
fn the_end_of_a_holder_that_was_still_waiting_is_not_enough() {
    counterexample("skips the wait after any holder", skipping(ProofOfEnd::AnyHolder), SAFETY);
}
