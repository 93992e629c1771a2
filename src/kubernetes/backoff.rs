//! How long a failure is waited out: pure arithmetic.

use std::time::Duration;

/// The pause after a first failure, at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause of our own.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause that the server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// The pause after `failures` failures before this one: doubling, less up to half by `jitter`, 0 to 1, so that
/// replicas that failed together do not come back together. Never shorter than the server has `asked` for.
pub(super) fn pause(failures: u32, asked: Option<Duration>, jitter: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(LONGEST_PAUSE);
    let own = doubled.mul_f64(1.0 - 0.5 * jitter.clamp(0.0, 1.0));
    asked.map_or(own, |asked| asked.min(LONGEST_ASKED) + own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_less_half_at_most_and_never_undercut_the_server() {
        let longest: Vec<_> = (0..8).map(|failures| pause(failures, None, 0.0).as_millis()).collect();
        assert_eq!(longest, [50, 100, 200, 400, 800, 1000, 1000, 1000]);
        assert_eq!(pause(u32::MAX, None, 1.0), Duration::from_millis(500));
        for jitter in [0.0, 0.5, 1.0] {
            assert!(pause(0, Some(Duration::from_secs(7)), jitter) > Duration::from_secs(7));
            assert!(pause(9, Some(Duration::from_secs(3600)), jitter) <= LONGEST_ASKED + LONGEST_PAUSE);
        }
    }
}
