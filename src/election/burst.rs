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
    left: u32,
    began: Option<Instant>,
}

impl Burst {
    /// Begins a burst for an occasion at `now`. Returns the time to its first attempt. `jitter`, 0 to 1, keeps the
    /// replicas that see the same occasion apart.
    pub(super) fn begin(&mut self, now: Instant, jitter: f64) -> Duration {
        let earliest = self.began.map_or(now, |began| now.max(began + APART));
        self.began = Some(earliest);
        self.left = ATTEMPTS;
        earliest - now + self.pause(jitter).unwrap_or_default()
    }

    /// The time to the next attempt of the burst; `None` when it is over.
    pub(super) fn pause(&mut self, jitter: f64) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let longest = FIRST_PAUSE * 2_u32.pow(ATTEMPTS - 1 - self.left);
        Some(longest.mul_f64(jitter.clamp(0.0, 1.0)))
    }

    /// Ends the burst: the place is taken, or the server does not answer.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_burst_is_a_handful_of_attempts_with_growing_pauses() {
        let mut burst = Burst::default();
        assert_eq!(burst.pause(1.0), None, "none was begun");
        let first = burst.begin(Instant::now(), 1.0);
        let pauses: Vec<_> = std::iter::from_fn(|| burst.pause(1.0)).collect();
        assert_eq!(first, Duration::from_millis(20));
        assert_eq!(pauses, [40, 80, 160, 320].map(Duration::from_millis));
    }

    #[test]
    fn jitter_shortens_a_pause_and_never_lengthens_it() {
        for (jitter, millis) in [(0.0, 0), (0.25, 5), (1.0, 20), (7.0, 20), (-1.0, 0)] {
            assert_eq!(Burst::default().begin(Instant::now(), jitter), Duration::from_millis(millis), "{jitter}");
        }
    }

    #[test]
    fn occasions_that_come_fast_begin_one_burst_a_second() {
        let mut burst = Burst::default();
        let now = Instant::now();
        let begun = [0, 100, 900, 3500].map(|millis| {
            let at = Duration::from_millis(millis);
            (at + burst.begin(now + at, 0.0)).as_millis()
        });
        assert_eq!(begun, [0, 1000, 2000, 3500]);
    }

    #[test]
    fn a_burst_that_has_ended_makes_no_more_attempts() {
        let mut burst = Burst::default();
        burst.begin(Instant::now(), 0.0);
        burst.end();
        assert_eq!(burst.pause(0.0), None);
    }
}
