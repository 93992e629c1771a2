//! The clock that fences are measured on.

use std::ops::Add;
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

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
