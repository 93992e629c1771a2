//! A new leader may skip its wait when it has proof that the old one has ended. What does that take?

use super::action::Action::{
    self, Annotate, AnnotateLate, Answer, Attempt, Claim, Close, EndSession, Prove, Receive, Refresh, Restart, Tick,
    Withdraw,
};
use super::cluster::{Cluster, Guard};
use super::properties::SAFETY;
use super::report::{counterexample, holds, long};

fn skipping<const N: usize>(fence: u8) -> Cluster<N> {
    Cluster { skips: true, early_refreshes: false, ..Cluster::of(fence) }
}

#[test]
fn whoever_claims_the_end_of_a_holder_that_it_has_just_seen_may_skip_its_wait() {
    let cluster = Cluster { interchangeable: true, late_writes: long(), ..skipping::<2>(2) };
    holds("two replicas that skip", cluster, 180_000);
}

#[test]
fn three_replicas_never_export_at_once_even_if_they_skip() {
    if long() {
        let cluster = Cluster { interchangeable: true, pauses: false, ..skipping::<3>(1) };
        holds("three replicas that skip", cluster, 700_000);
    }
}

/// `after` is what is known to lead there; the check finds the rest.
fn needed<const N: usize>(guard: Guard, fence: u8, after: &[&[Action<N>]]) {
    let cluster =
        Cluster { after: after.concat(), late_writes: guard == Guard::Precondition, ..skipping(fence) }.without(guard);
    counterexample(&format!("skips, without {guard:?}"), cluster, SAFETY);
}

fn ask<const N: usize>(index: usize) -> [Action<N>; 3] {
    [Attempt(index), Answer(index), Receive(index)]
}

fn prove<const N: usize>(index: usize) -> [Action<N>; 3] {
    [Prove(index), Answer(index), Receive(index)]
}

/// 0 is granted the lock, waits for its fence of 2 by a fast clock, which is two ticks, and exports. The clocks of the
/// others are slow.
fn export<const N: usize>() -> Vec<Action<N>> {
    [&ask(0)[..], &wait(), &prove(0), &[Refresh(0)]].concat()
}

fn wait<const N: usize>() -> [Action<N>; 2] {
    let mut rates = [1; N];
    rates[0] = 2;
    [Tick(rates), Tick(rates)]
}

/// 0 ends, and its session with it.
const KILLED: [Action<2>; 2] = [Restart(0), EndSession];

/// 0 is killed while it exports. Started again, it is refused by its own session, outlives that and claims its own
/// end, which 1 has seen as well.
fn claimed_by_itself() -> Vec<Action<2>> {
    [&ask(1)[..], &[Restart(0)], &ask(0), &[EndSession], &ask(0), &[Claim(0)], &prove(0), &[Refresh(0)]].concat()
}

#[test]
fn without_the_opening_proof_two_export() {
    // With a fence of 3 the wait of 0 goes on for a third tick.
    let first = [&ask(0)[..], &wait(), &[wait()[0]], &prove(0), &[Refresh(0)]].concat();
    needed::<2>(Guard::OpeningProof, 3, &[&first, &[Annotate(0)], &ask(1), &KILLED, &ask(0), &wait()]);
}

#[test]
fn with_a_sighting_of_any_age_two_export() {
    needed::<2>(Guard::SightingAge, 2, &[&export(), &[Annotate(0)], &ask(1), &KILLED, &export()]);
}

#[test]
fn with_a_sighting_as_old_as_a_fence_two_export() {
    let after = [&export()[..], &[Annotate(0)], &ask(1), &KILLED, &export()].concat();
    let cluster = Cluster { after, sighting_slack: 1, ..skipping::<2>(2) };
    counterexample("skips, with a sighting as old as a fence", cluster, SAFETY);
}

#[test]
fn with_a_sighting_that_counts_from_its_answer_two_export() {
    let seen = [Attempt(1), Answer(1)];
    needed::<2>(Guard::SightingFromSending, 2, &[&export(), &[Annotate(0)], &seen, &KILLED, &export(), &[Receive(1)]]);
}

#[test]
fn with_a_sighting_that_counts_until_the_next_attempt_is_sent_two_export() {
    let again = [Attempt(1)];
    needed::<2>(Guard::SightingUntilReceipt, 2, &[&export(), &[Annotate(0)], &ask(1), &again, &KILLED, &export()]);
}

#[test]
fn with_the_end_of_a_holder_that_was_still_waiting_two_export() {
    // 1 is refused by the session that it has just given up.
    let left = [Withdraw(1), Annotate(1), Close(1)];
    needed::<2>(Guard::Exported, 2, &[&export(), &[EndSession], &ask(1), &left, &ask(1)]);
}

#[test]
fn with_the_end_of_another_term_of_the_holder_two_export() {
    needed::<2>(Guard::SameTerm, 2, &[&export(), &[Annotate(0)], &KILLED, &export(), &ask(1)]);
}

#[test]
fn with_the_end_of_another_container_of_the_pod_two_export() {
    needed::<2>(Guard::ContainerOfTerm, 2, &[&KILLED[..1], &export(), &[Annotate(0)], &ask(1)]);
}

#[test]
fn with_an_end_that_two_may_claim_two_export() {
    needed::<2>(Guard::ClaimedOnce, 2, &[&export(), &[Annotate(0)], &claimed_by_itself()]);
}

#[test]
fn with_a_claim_of_whatever_the_pod_says_by_now_two_export() {
    needed::<2>(Guard::ClaimOfJudged, 2, &[&export(), &[Annotate(0)], &claimed_by_itself(), &[Annotate(0)]]);
}

#[test]
fn with_late_writes_that_are_not_refused_two_export() {
    needed::<2>(Guard::Precondition, 2, &[&export(), &[AnnotateLate(0), Annotate(0)], &claimed_by_itself()]);
}

#[test]
fn with_a_withdrawal_that_is_written_again_two_export() {
    let left = [Withdraw(0), Annotate(0), EndSession];
    let skip = [&ask::<3>(1)[..], &[Claim(1)], &prove(1), &[Refresh(1)]].concat();
    needed(Guard::MarkedOnce, 2, &[&export(), &ask(1), &ask(2), &left, &skip]);
}
