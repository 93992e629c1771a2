//! A new leader may skip its wait when it has proof that the old one has ended. What does that take?

use super::cluster::{Cluster, Guard};
use super::platform::Skip;
use super::properties::SAFETY;
use super::report::{counterexample, holds};

fn claiming() -> Cluster<2> {
    Cluster { skip: Skip::Claim, early_refreshes: false, ..Cluster::of(2) }
}

#[test]
fn claim_holds() {
    holds("claims", Cluster { interchangeable: true, ..claiming() }, 1);
}

#[test]
fn without_opening_proof() {
    counterexample("claims, without the opening proof", claiming().without(Guard::OpeningProof), SAFETY);
}
#[test]
fn without_age() {
    counterexample("claims, without the age", claiming().without(Guard::SightingAge), SAFETY);
}
