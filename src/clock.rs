//! The clock that fences are measured on, and when this process was started by it.

use std::ops::Add;
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_millis;
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// An instant on `CLOCK_BOOTTIME`: it never steps, and it goes on while the machine is suspended, which
/// the monotonic clock does not. An instant is only comparable with others of the same boot.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The start of this boot: before every instant that [`now`](Self::now) returns.
    pub const BOOT: Self = Self(Duration::ZERO);

    /// The present instant.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // CLOCK_BOOTTIME counts up from the boot, so neither part is ever negative.
        Self(Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        ))
    }

    /// The time since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Whole nanoseconds since the boot, for storing in an atomic.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        let nanos = self.0.as_nanos();
        // A clock that counts from the boot needs 584 years to get there.
        if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
    }

    /// The instant `nanos` nanoseconds after the boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// `time` in UTC to the millisecond; `None` outside the years 1970 to 9999.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    (since < YEAR_10000).then(|| format_rfc3339_millis(time).to_string())
}

/// When this process was started, by the wall clock as it is set now; `None` when `/proc` does not tell.
#[must_use]
pub fn process_started() -> Option<SystemTime> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program is in parentheses, and may contain some. The 20th field after it counts ticks from the boot.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let since_boot = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1)));
    SystemTime::now().checked_sub(BootInstant::now().0.saturating_sub(since_boot))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use prometheus::core::Collector;
    use prometheus::process_collector::ProcessCollector;

    use super::*;

    #[test]
    fn the_start_of_this_process_is_that_of_its_process_metrics() {
        let metrics = ProcessCollector::for_self().collect();
        let start = metrics.iter().find(|family| family.name() == "process_start_time_seconds").unwrap();
        // Added up from the time of the boot and the time since then, each without its fraction of a second.
        let told = Duration::from_secs_f64(start.get_metric()[0].get_gauge().get_value());
        let started = process_started().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(started.abs_diff(told) <= Duration::from_millis(2100), "{started:?} {told:?}");
    }

    #[test]
    fn counts_forward_and_survives_the_round_trip() {
        let first = BootInstant::now();
        let second = BootInstant::now();
        assert!(second >= first && first > BootInstant::BOOT);
        assert_eq!(BootInstant::from_nanos(first.as_nanos()), first);
        assert_eq!(first.saturating_since(first + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!((first + Duration::from_secs(1)).saturating_since(first), Duration::from_secs(1));
    }
}
