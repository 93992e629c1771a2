//! The lease of one term, as the exporting side reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::BootInstant;

/// The held lock as a span of time: state gauges may be served from the end of the take-over wait until the
/// *fence*, the instant until which the holder may believe in its lock.
///
/// The elector moves both instants, every answer reads them. A lease belongs to one term and is never
/// used again: what was published under it ends with it.
#[derive(Debug)]
pub struct Lease {
    opens: AtomicU64,
    fence: AtomicU64,
    ended: AtomicBool,
}

impl Lease {
    /// A lease that opens at `opens` and, unless it is proved again, ends at `fence`.
    #[must_use]
    pub const fn new(opens: BootInstant, fence: BootInstant) -> Self {
        Self {
            opens: AtomicU64::new(opens.as_nanos()),
            fence: AtomicU64::new(fence.as_nanos()),
            ended: AtomicBool::new(false),
        }
    }

    /// Whether state gauges may be served at `now`.
    #[must_use]
    pub fn permits(&self, now: BootInstant) -> bool {
        !self.ended.load(Ordering::Acquire) && self.opens() <= now && now < self.fence()
    }

    /// The end of the take-over wait.
    #[must_use]
    pub fn opens(&self) -> BootInstant {
        BootInstant::from_nanos(self.opens.load(Ordering::Relaxed))
    }

    /// The instant after which nothing may be served.
    #[must_use]
    pub fn fence(&self) -> BootInstant {
        BootInstant::from_nanos(self.fence.load(Ordering::Relaxed))
    }

    /// Ends the take-over wait at `now`: no earlier holder can still export.
    pub(super) fn open(&self, now: BootInstant) {
        self.opens.fetch_min(now.as_nanos(), Ordering::Relaxed);
    }

    /// Ends the lease for good: no later proof brings it back.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Takes a good proof into account: the fence is now `fence`, or stays where it is when that is later.
    pub(super) fn extend(&self, fence: BootInstant) {
        self.fence.fetch_max(fence.as_nanos(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::BOOT + Duration::from_secs(seconds)
    }

    #[test]
    fn permits_from_the_end_of_the_wait_until_the_fence_and_not_at_it() {
        let lease = Lease::new(at(10), at(13));
        let permitted: Vec<_> = (8..15).filter(|&second| lease.permits(at(second))).collect();
        assert_eq!(permitted, [10, 11, 12]);
    }

    #[test]
    fn a_proof_moves_the_fence_and_never_backwards() {
        let lease = Lease::new(at(0), at(3));
        lease.extend(at(5));
        lease.extend(at(4));
        assert_eq!(lease.fence(), at(5));
    }

    #[test]
    fn an_ended_lease_permits_nothing_whatever_is_proved_later() {
        let lease = Lease::new(at(0), at(3));
        lease.end();
        lease.extend(at(9));
        lease.open(at(0));
        assert!(!lease.permits(at(1)));
    }

    #[test]
    fn the_wait_ends_early_or_as_planned_and_never_late() {
        let lease = Lease::new(at(10), at(20));
        lease.open(at(12));
        assert_eq!(lease.opens(), at(10));
        lease.open(at(4));
        assert!(lease.permits(at(4)) && !lease.permits(at(3)));
    }
}
