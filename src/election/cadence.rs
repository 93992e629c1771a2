//! When the next refresh is due: pure arithmetic.

use std::time::Duration;

/// The times of a leader's refreshes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cadence {
    /// Time from one tick to the next.
    pub(super) interval: Duration,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const CADENCE: Cadence = Cadence { interval: Duration::from_secs(15) };

    #[test]
    fn a_tick_that_comes_during_a_refresh_is_skipped_and_not_queued() {
        let skipped = [0, 14_999, 15_000, 22_500, 30_000].map(|ms| CADENCE.skipped(Duration::from_millis(ms)));
        assert_eq!(skipped, [0, 0, 1, 1, 2]);
        assert_eq!([0, 2].map(|n| CADENCE.until_next(n).as_secs()), [15, 45]);
        assert!(CADENCE.skipped(Duration::MAX) < u32::MAX, "one more can be added");
    }
}
