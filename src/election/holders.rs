//! Which holders of the lock a standby has seen, and until when any of them may still serve.

use std::time::Duration;

use super::bound::{Timing, stretched};
use crate::clock::BootInstant;

/// The holders that this process has seen, so far as they still matter. `Id` tells one holding of the lock from
/// the next: a term, or the backend's pid and start.
///
/// A holder stops proving its lease when it loses the lock, and serves for its own fence after its last proof. When
/// it lost the lock is known only to be before the next holder was seen, or before the own grant was received.
///
/// A holder that came and went between two observations is not known. It is taken for one with the own fence: a
/// fence can only be shortened safely while every replica sees the one with the longer fence hold the lock.
#[derive(Clone, Debug)]
pub struct Holders<Id> {
    fence: Duration,
    drift_ppm: u32,
    /// The holder seen last, and its fence.
    last: Option<(Id, Duration)>,
    /// Until when the ones before it may serve.
    earlier: BootInstant,
}

impl<Id: PartialEq> Holders<Id> {
    /// None seen yet.
    #[must_use]
    pub fn new(timing: &Timing) -> Self {
        let lease = timing.lease();
        Self { fence: lease.fence, drift_ppm: lease.clock_drift_ppm, last: None, earlier: BootInstant::BOOT }
    }

    /// `holder` was seen to hold the lock, with the fence that it advertises, or without one. `received` is the
    /// instant when that was known here.
    pub fn seen(&mut self, holder: Id, advertised: Option<Duration>, received: BootInstant) {
        let fence = advertised.unwrap_or(self.fence);
        match &mut self.last {
            // Whichever of its two texts is the wrong one, the longer fence is safe.
            Some((known, longest)) if *known == holder => *longest = fence.max(*longest),
            _ => {
                self.replaced(received);
                self.last = Some((holder, fence));
            }
        }
    }

    /// The lock was granted to this process, which knew it at `received`. Returns the instant before which it
    /// must not serve: by then every holder before it has stopped, as far as it was seen or has the own fence.
    pub fn granted(&mut self, received: BootInstant) -> BootInstant {
        self.replaced(received);
        self.earlier.max(self.end(received, self.fence))
    }

    /// The holder seen last has lost the lock, at the latest at `received`.
    fn replaced(&mut self, received: BootInstant) {
        if let Some((_, fence)) = self.last.take() {
            self.earlier = self.earlier.max(self.end(received, fence));
        }
    }

    fn end(&self, lost: BootInstant, fence: Duration) -> BootInstant {
        lost + stretched(fence, self.drift_ppm)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;
    use crate::election::bound::tests::{settings, timing};

    fn at(millis: u64) -> BootInstant {
        BootInstant::BOOT + Duration::from_millis(millis)
    }

    fn fence(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    /// 3 s, without drift.
    fn holders() -> Holders<u32> {
        let mut settings = settings();
        settings.lease.clock_drift_ppm = 0;
        Holders::new(&Timing::new(&settings).unwrap())
    }

    #[test]
    fn who_saw_nobody_waits_for_its_own_fence() {
        assert_eq!(holders().granted(at(1000)), at(4000));
        assert_eq!(Holders::<u32>::new(&timing()).granted(at(1000)), at(4003), "and for the drift");
    }

    #[test]
    fn the_longer_fence_of_the_holder_seen_last_is_waited_for_from_the_grant() {
        let mut holders = holders();
        holders.seen(1, fence(10_000), at(0));
        holders.seen(1, fence(10_000), at(50_000));
        assert_eq!(holders.granted(at(60_000)), at(70_000));
    }

    #[test]
    fn a_shorter_fence_of_another_does_not_shorten_the_own() {
        let mut holders = holders();
        holders.seen(1, fence(500), at(0));
        assert_eq!(holders.granted(at(1000)), at(4000));
    }

    #[test]
    fn a_longer_fence_is_waited_for_from_its_successor_and_not_for_ever() {
        let mut holders = holders();
        holders.seen(1, fence(10_000), at(0));
        holders.seen(2, fence(3000), at(20_000));
        assert_eq!(holders.clone().granted(at(20_100)), at(30_000), "the first of them may serve until then");
        holders.seen(2, fence(3000), at(40_000));
        assert_eq!(holders.granted(at(41_000)), at(44_000));
        assert_eq!(holders.granted(at(90_000)), at(93_000), "a later term of this process");
    }

    #[test]
    fn a_holder_seen_before_an_own_term_was_replaced_by_that() {
        let mut holders = holders();
        holders.seen(1, fence(10_000), at(0));
        assert_eq!(holders.granted(at(1000)), at(11_000));
        assert_eq!(holders.granted(at(2000)), at(11_000), "the first holder's fence still counts");
        assert_eq!(holders.granted(at(9000)), at(12_000));
    }

    #[test]
    fn a_holder_that_changes_what_it_advertises_is_believed_the_longer() {
        let mut holders = holders();
        holders.seen(1, fence(10_000), at(0));
        holders.seen(1, None, at(1000));
        assert_eq!(holders.granted(at(2000)), at(12_000));
    }

    proptest! {
        /// Against the definition: each holder seen ends at the instant when the next was known.
        #[test]
        fn nothing_is_served_before_every_holder_seen_has_stopped(
            seen in prop::collection::vec((0_u32..4, prop::option::of(1_u64..20_000), 0_u64..30_000), 0..12),
            until_grant in 0_u64..30_000,
            drift_ppm in 0_u32..100_000,
        ) {
            let mut settings = settings();
            settings.lease.clock_drift_ppm = drift_ppm;
            let timing = Timing::new(&settings).unwrap();
            let own = timing.lease().fence;
            let (mut holders, mut now) = (Holders::new(&timing), 0);
            let mut observed = Vec::new();
            for (holder, millis, pause) in seen {
                now += pause;
                let advertised = millis.map(Duration::from_millis);
                holders.seen(holder, advertised, at(now));
                observed.push((holder, advertised.unwrap_or(own), at(now)));
            }
            let grant = at(now + until_grant);
            let earliest = holders.granted(grant);
            prop_assert!(earliest >= grant + timing.take_over_wait(None));
            for (index, (holder, fence, _)) in observed.iter().enumerate() {
                let next = observed[index..].iter().find(|(other, _, _)| other != holder);
                let lost = next.map_or(grant, |(_, _, seen)| *seen);
                prop_assert!(earliest >= lost + stretched(*fence, drift_ppm));
            }
            let longest = observed.iter().map(|(_, fence, _)| *fence).max();
            prop_assert!(earliest <= grant + timing.take_over_wait(longest));
        }
    }
}
