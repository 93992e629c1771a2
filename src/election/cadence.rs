//! When the next refresh is due and how long the last one may be served: pure arithmetic.

use std::time::Duration;

/// How much later than due a refresh may start: the sentinel may have to be opened first, and the last
/// snapshot rendered.
const LATENESS: Duration = Duration::from_secs(2);

/// The times of a leader's refreshes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cadence {
    /// Time from one tick to the next.
    pub(super) interval: Duration,
    /// Limit of one refresh.
    pub(super) refresh_timeout: Duration,
}

impl Cadence {
    /// How many ticks have come in the time `elapsed` since one. They are skipped, not queued.
    pub(super) fn skipped(self, elapsed: Duration) -> u32 {
        u32::try_from(elapsed.as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(u32::MAX - 1)
    }

    /// The time from the tick of a refresh that covered `skipped` further ticks to the next one that counts.
    pub(super) fn until_next(self, skipped: u32) -> Duration {
        self.interval.saturating_mul(skipped.saturating_add(1))
    }

    /// How long the snapshot of that refresh may be served, from before its query was sent: until the next
    /// refresh has ended, one way or the other.
    ///
    /// A refresh that was not slow but stopped, together with its process, is past its timeout. That must not
    /// extend what may be served.
    pub(super) fn validity(self, skipped: u32) -> Duration {
        let next = self.until_next(skipped).min(self.refresh_timeout + self.interval);
        next + LATENESS + self.refresh_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CADENCE: Cadence = Cadence { interval: Duration::from_secs(15), refresh_timeout: Duration::from_secs(10) };

    #[test]
    fn a_tick_that_comes_during_a_refresh_is_skipped_and_not_queued() {
        let skipped = [0, 14_999, 15_000, 22_500, 30_000].map(|ms| CADENCE.skipped(Duration::from_millis(ms)));
        assert_eq!(skipped, [0, 0, 1, 1, 2]);
        assert_eq!([0, 2].map(|n| CADENCE.until_next(n).as_secs()), [15, 45]);
        assert!(CADENCE.skipped(Duration::MAX) < u32::MAX, "one more can be added");
    }

    #[test]
    fn a_snapshot_is_good_until_the_next_refresh_has_ended_however_slow_the_last_was() {
        let slow = Cadence { interval: Duration::from_secs(1), refresh_timeout: Duration::from_secs(10) };
        for took in [0.2, 1.5, 8.0, 10.0] {
            let skipped = slow.skipped(Duration::from_secs_f64(took));
            assert!(slow.validity(skipped) >= slow.until_next(skipped) + slow.refresh_timeout, "{took}");
        }
    }

    #[test]
    fn a_process_that_stopped_for_an_hour_in_mid_refresh_gains_nothing() {
        let skipped = CADENCE.skipped(Duration::from_secs(3600));
        assert_eq!(CADENCE.validity(skipped), Duration::from_secs(10 + 15 + 2 + 10));
    }
}
