//! Each guard is needed: without it the check finds a way to two exporters.

use super::cluster::{Cluster, Guard};
use super::properties::SAFETY;
use super::report::counterexample;

fn needed(guard: Guard, fence: u8) {
    counterexample(&format!("without {guard:?}"), Cluster::<2>::of(fence).without(guard), SAFETY);
}

#[test]
fn without_the_fence_two_export() {
    needed(Guard::Fence, 2);
}

#[test]
fn without_the_wait_two_export() {
    needed(Guard::Wait, 2);
}

#[test]
fn with_proofs_that_are_good_without_the_lock_two_export() {
    needed(Guard::ExclusiveProofs, 2);
}

#[test]
fn without_the_drift_allowance_two_export() {
    needed(Guard::DriftAllowance, 2);
}

#[test]
fn with_an_allowance_for_one_of_the_two_clocks_two_export() {
    needed(Guard::AllowanceForTwo, 3);
}

#[test]
fn with_a_wait_from_the_attempt_instead_of_its_grant_two_export() {
    needed(Guard::WaitFromReceipt, 2);
}

#[test]
fn with_a_fence_from_the_answer_instead_of_the_question_two_export() {
    needed(Guard::FenceFromSending, 2);
}

#[test]
fn with_a_clock_that_stands_still_while_its_process_does_two_export() {
    needed(Guard::ClockThroughPauses, 2);
}
