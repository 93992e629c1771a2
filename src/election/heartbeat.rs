//! A term while it lasts: when its next proof is due, and which one ends its take-over wait.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Lease;
use super::bound::Timing;
use super::proof::ProofError;
use crate::clock::BootInstant;

/// An instant that never comes.
const NEVER: BootInstant = BootInstant::from_nanos(u64::MAX);

/// How far a term is with its take-over wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Opening {
    /// It waits until then.
    Waiting(BootInstant),
    /// The wait is over, and a proof is due that the lock is still held.
    Due,
    /// That proof was good.
    Opened,
}

/// The heartbeat and the take-over wait of one term.
///
/// When the wait is over, a proof that is sent after it opens the lease. So whoever exports has held the lock for as
/// long as its wait: a process that lost it before, and was stopped meanwhile, does not.
pub(super) struct Heartbeat {
    lease: Arc<Lease>,
    timing: Timing,
    /// When the next proof is due.
    due: Instant,
    opening: Opening,
    /// Resolves when no earlier holder can still export.
    predecessors_ended: BoxFuture<'static, ()>,
}

impl Heartbeat {
    /// A term whose lock was asked for at `asked_at`, which is its first proof, and which waits until `opens`, unless
    /// `predecessors_ended` resolves before that.
    pub(super) fn new(
        timing: Timing,
        asked_at: BootInstant,
        opens: BootInstant,
        predecessors_ended: BoxFuture<'static, ()>,
    ) -> Self {
        let lease = Arc::new(Lease::new(NEVER, timing.fence_after(asked_at)));
        let since = BootInstant::now().saturating_since(asked_at);
        let due = Instant::now() + timing.lease().heartbeat_interval.saturating_sub(since);
        Self { lease, timing, due, opening: Opening::Waiting(opens), predecessors_ended }
    }

    /// The lease, which every publication of the term is bound to.
    pub(super) fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    /// Waits until a proof is due. May be cancelled and called again.
    pub(super) async fn next(&mut self) {
        while let Opening::Waiting(opens) = self.opening {
            let left = opens.saturating_since(BootInstant::now());
            if left == Duration::ZERO {
                self.opening = Opening::Due;
                break;
            }
            tokio::select! {
                () = sleep_until(self.due) => return,
                // This timer's clock stands still while the machine is suspended: the loop looks again.
                () = sleep(left) => {}
                () = &mut self.predecessors_ended => self.opening = Opening::Due,
            }
        }
        if self.opening == Opening::Opened {
            sleep_until(self.due).await;
        }
    }

    /// Takes `proof`, and moves the fence when it is good and in time. Returns whether it has opened the lease.
    ///
    /// # Errors
    ///
    /// That of the proof; [`ProofError::Late`] after the heartbeat timeout; [`ProofError::Fenced`] when the fence
    /// has passed, in whichever way the process lost the time.
    pub(super) async fn beat(
        &mut self,
        proof: impl Future<Output = Result<(), ProofError>>,
    ) -> Result<bool, ProofError> {
        self.check()?;
        let opens = self.opening == Opening::Due;
        let (sent_at, began) = (BootInstant::now(), Instant::now());
        let limit = self.timing.lease().heartbeat_timeout;
        timeout(limit, proof).await.map_err(|_| ProofError::Late(limit))??;
        self.check()?;
        self.lease.extend(sent_at, self.timing.fence_after(sent_at));
        self.due = began + self.timing.lease().heartbeat_interval;
        if opens {
            self.opening = Opening::Opened;
            self.lease.open(sent_at);
        }
        Ok(opens)
    }

    /// Fails once the fence has passed: from then on others may export, and no later proof undoes that.
    pub(super) fn check(&self) -> Result<(), ProofError> {
        if BootInstant::now() < self.lease.fence() { Ok(()) } else { Err(ProofError::Fenced) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;
    use crate::election::bound::tests::timing;

    const SECOND: Duration = Duration::from_secs(1);

    /// A term whose lock was asked for and granted `ago`, and whose take-over wait has `left`.
    fn heartbeat(ago: Duration, left: Duration, predecessors_ended: BoxFuture<'static, ()>) -> Heartbeat {
        let now = BootInstant::now();
        let asked_at =
            BootInstant::from_nanos((now.saturating_since(BootInstant::BOOT) - ago).as_nanos().try_into().unwrap());
        Heartbeat::new(timing(), asked_at, now + left, predecessors_ended)
    }

    #[tokio::test]
    async fn a_proof_that_is_sent_after_the_wait_opens_the_lease_once() {
        let mut heartbeat = heartbeat(Duration::ZERO, SECOND / 5, pending().boxed());
        heartbeat.next().await;
        assert!(!heartbeat.lease().permits(BootInstant::now()), "nothing is proved yet");
        assert!(heartbeat.beat(ready(Ok(()))).await.unwrap());
        assert!(heartbeat.lease().permits(BootInstant::now()));
        heartbeat.next().await;
        assert!(!heartbeat.beat(ready(Ok(()))).await.unwrap());
    }

    #[tokio::test]
    async fn a_proof_that_was_sent_before_the_end_of_the_wait_opens_nothing() {
        let mut heartbeat = heartbeat(Duration::ZERO, SECOND / 5, pending().boxed());
        let slow = async {
            sleep(SECOND / 4).await;
            Ok(())
        };
        assert!(!heartbeat.beat(slow).await.unwrap());
        assert!(!heartbeat.lease().permits(BootInstant::now()));
        heartbeat.next().await;
        assert!(heartbeat.beat(ready(Ok(()))).await.unwrap(), "the next one does, at once");
    }

    #[tokio::test]
    async fn a_failed_proof_after_the_wait_opens_nothing() {
        let mut heartbeat = heartbeat(Duration::ZERO, Duration::ZERO, pending().boxed());
        heartbeat.next().await;
        assert!(matches!(heartbeat.beat(ready(Err(ProofError::NotHeld))).await, Err(ProofError::NotHeld)));
        assert!(!heartbeat.lease().permits(BootInstant::now()));
    }

    #[tokio::test]
    async fn proof_that_nobody_before_can_export_ends_the_wait() {
        let mut heartbeat = heartbeat(Duration::ZERO, 100 * SECOND, ready(()).boxed());
        heartbeat.next().await;
        assert!(!heartbeat.lease().permits(BootInstant::now()), "the lock may be lost since");
        assert!(heartbeat.beat(ready(Ok(()))).await.unwrap());
        assert!(heartbeat.lease().permits(BootInstant::now()));
    }

    #[tokio::test]
    async fn past_the_fence_nothing_opens_and_no_proof_counts() {
        let fence = timing().lease().fence;
        let mut heartbeat = heartbeat(fence, Duration::ZERO, pending().boxed());
        heartbeat.next().await;
        assert!(matches!(heartbeat.beat(ready(Ok(()))).await, Err(ProofError::Fenced)));
        assert!(!heartbeat.lease().permits(BootInstant::now()));
    }

    #[tokio::test]
    async fn a_good_proof_moves_the_fence_to_before_it_was_sent_and_a_late_one_moves_nothing() {
        let mut heartbeat = heartbeat(SECOND, Duration::ZERO, pending().boxed());
        let (before, fence) = (heartbeat.lease().fence(), timing().lease().fence);
        let sent_after = BootInstant::now();
        let slow = async {
            sleep(SECOND / 10).await;
            Ok(())
        };
        heartbeat.beat(slow).await.unwrap();
        let moved = heartbeat.lease().fence();
        assert!(moved > before && moved >= sent_after + fence && moved < BootInstant::now() + fence);
        assert!(matches!(heartbeat.beat(pending()).await, Err(ProofError::Late(_))));
        assert_eq!(heartbeat.lease().fence(), moved);
    }

    #[tokio::test]
    async fn a_proof_that_comes_when_the_fence_has_passed_moves_nothing() {
        let fence = timing().lease().fence;
        let mut heartbeat = heartbeat(fence - SECOND / 10, Duration::ZERO, pending().boxed());
        let before = heartbeat.lease().fence();
        let slow = async {
            sleep(SECOND / 4).await;
            Ok(())
        };
        assert!(matches!(heartbeat.beat(slow).await, Err(ProofError::Fenced)));
        assert_eq!(heartbeat.lease().fence(), before);
    }
}
