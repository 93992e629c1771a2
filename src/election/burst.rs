//! Attempts in quick succession, when the leader's place seems to be free: pure arithmetic.

use std::time::Duration;

use tokio::time::Instant;

/// Attempts of one burst.
const ATTEMPTS: u32 = 5;

/// The longest pause before the first attempt of a burst. It doubles from one to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The shortest time from the beginning of one burst to that of the next.
const APART: Duration = Duration::from_secs(1);

/// The burst of attempts that is going on, if any.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Attempts that have not been made.
    left: u32,
    began: Option<Instant>,
    /// Whether there was an occasion since it began.
    again: bool,
}

impl Burst {
    /// There is an occasion for a burst at `now`. Returns the time to its first attempt; `None` while another one is
    /// going on, whose attempts come sooner, and which the new one follows. `jitter`, 0 to 1, keeps the replicas that
    /// see the same occasion apart.
    pub(super) fn begin(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        if self.left > 0 {
            self.again |= self.began.is_some_and(|began| began <= now);
            return None;
        }
        let earliest = self.began.map_or(now, |began| now.max(began + APART));
        self.began = Some(earliest);
        self.left = ATTEMPTS;
        Some(earliest - now + self.gap(jitter))
    }

    /// An attempt was made at `now`. Returns the time to the next one of the burst; `None` when it is over.
    pub(super) fn attempted(&mut self, now: Instant, jitter: f64) -> Option<Duration> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Some(self.gap(jitter));
        }
        std::mem::take(&mut self.again).then(|| self.begin(now, jitter)).flatten()
    }

    fn gap(&self, jitter: f64) -> Duration {
        let longest = FIRST_PAUSE * 2_u32.pow(ATTEMPTS - self.left);
        longest.mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// Ends the burst: the place is taken, or the server does not answer.
    pub(super) fn end(&mut self) {
        (self.left, self.again) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_burst_is_a_handful_of_attempts_with_growing_pauses() {
        let (mut burst, now) = (Burst::default(), Instant::now());
        assert_eq!(burst.attempted(now, 1.0), None, "none was begun");
        let first = burst.begin(now, 1.0).unwrap();
        let pauses: Vec<_> = std::iter::from_fn(|| burst.attempted(now, 1.0)).collect();
        assert_eq!(first, Duration::from_millis(20));
        assert_eq!(pauses, [40, 80, 160, 320].map(Duration::from_millis));
    }

    #[test]
    fn jitter_shortens_a_pause_and_never_lengthens_it() {
        for (jitter, millis) in [(0.0, 0), (0.25, 5), (1.0, 20), (7.0, 20), (-1.0, 0)] {
            let first = Burst::default().begin(Instant::now(), jitter).unwrap();
            assert_eq!(first, Duration::from_millis(millis), "{jitter}");
        }
    }

    #[test]
    fn occasions_that_come_fast_begin_one_burst_a_second_and_cut_none_short() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        let mut attempts = Vec::new();
        let mut next = None;
        // An occasion every 10 ms for two and a half seconds, and a long time after that.
        for millis in (0..6000).step_by(10) {
            let now = start + Duration::from_millis(millis);
            if millis < 2500
                && let Some(pause) = burst.begin(now, 0.5)
            {
                next = Some(now + pause);
            }
            if next.is_some_and(|next| next <= now) {
                attempts.push(millis);
                next = burst.attempted(now, 0.5).map(|pause| now + pause);
            }
        }
        let within = |second: u64| attempts.iter().filter(|&at| at / 1000 == second).count();
        assert_eq!([0, 1, 2, 3, 4, 5].map(within), [5, 5, 5, 5, 0, 0], "{attempts:?}");
        assert!(attempts[4] < 400, "the first burst goes on: {attempts:?}");
    }

    #[test]
    fn an_occasion_long_after_the_last_begins_a_burst_at_once() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        burst.begin(start, 0.0);
        while burst.attempted(start, 0.0).is_some() {}
        let soon = start + Duration::from_millis(600);
        assert_eq!(burst.begin(soon, 0.0), Some(Duration::from_millis(400)));
        while burst.attempted(soon, 0.0).is_some() {}
        assert_eq!(burst.begin(start + Duration::from_millis(3500), 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn a_burst_that_has_ended_makes_no_more_attempts() {
        let (mut burst, now) = (Burst::default(), Instant::now());
        burst.begin(now, 0.0);
        burst.begin(now, 0.0);
        burst.end();
        assert_eq!(burst.attempted(now, 0.0), None);
    }
}
