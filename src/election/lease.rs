//! The lease of one term, as the exporting side reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

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
    /// When the last good proof was sent.
    proved: AtomicU64,
    proved_again: Notify,
    ended: AtomicBool,
}

impl Lease {
    /// A lease that opens at `opens` or earlier and, unless it is proved again, ends at `fence`.
    #[must_use]
    pub const fn new(opens: BootInstant, fence: BootInstant) -> Self {
        Self {
            opens: AtomicU64::new(opens.as_nanos()),
            fence: AtomicU64::new(fence.as_nanos()),
            proved: AtomicU64::new(0),
            proved_again: Notify::const_new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Whether state gauges may be served at `now`.
    #[must_use]
    pub fn permits(&self, now: BootInstant) -> bool {
        !self.ended.load(Ordering::Acquire)
            && self.opens.load(Ordering::Relaxed) <= now.as_nanos()
            && now < self.fence()
    }

    /// The instant after which nothing may be served.
    #[must_use]
    pub fn fence(&self) -> BootInstant {
        BootInstant::from_nanos(self.fence.load(Ordering::Relaxed))
    }

    /// Waits for a good proof that was sent after `instant`. Never returns when the lease gets none.
    pub async fn proved_after(&self, instant: BootInstant) {
        loop {
            let mut again = std::pin::pin!(self.proved_again.notified());
            // Before the look at `proved`, so that no proof is missed.
            again.as_mut().enable();
            if self.proved.load(Ordering::Acquire) > instant.as_nanos() {
                return;
            }
            again.await;
        }
    }

    /// Opens the lease at `now`: the take-over wait is over, and the lock was still held then.
    pub(super) fn open(&self, now: BootInstant) {
        self.opens.fetch_min(now.as_nanos(), Ordering::Relaxed);
    }

    /// Ends the lease for good: no later proof brings it back.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Takes a good proof into account that was sent at `sent`: the fence is now `fence`, or stays where it is when
    /// that is later.
    pub(super) fn extend(&self, sent: BootInstant, fence: BootInstant) {
        self.fence.fetch_max(fence.as_nanos(), Ordering::Relaxed);
        self.proved.fetch_max(sent.as_nanos(), Ordering::Release);
        self.proved_again.notify_waiters();
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
        lease.extend(at(2), at(5));
        lease.extend(at(1), at(4));
        assert_eq!(lease.fence(), at(5));
    }

    #[test]
    fn an_ended_lease_permits_nothing_whatever_is_proved_later() {
        let lease = Lease::new(at(0), at(3));
        lease.end();
        lease.extend(at(6), at(9));
        lease.open(at(0));
        assert!(!lease.permits(at(1)));
    }

    #[test]
    fn once_opened_it_stays_open() {
        let lease = Lease::new(at(u64::from(u32::MAX)), at(20));
        assert!(!lease.permits(at(12)));
        lease.open(at(4));
        lease.open(at(12));
        assert!(lease.permits(at(4)) && !lease.permits(at(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_proof_wants_one_that_was_sent_later() {
        let lease = Lease::new(at(0), at(3));
        let waited = async {
            lease.proved_after(at(5)).await;
            lease.fence()
        };
        let proved = async {
            for sent in [4, 5, 6] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                lease.extend(at(sent), at(sent + 3));
            }
        };
        let (fence, ()) = tokio::join!(waited, proved);
        assert_eq!(fence, at(9));
        lease.proved_after(at(5)).await;
    }
}
