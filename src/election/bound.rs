//! The timing of the lease, as arithmetic: settings in, inequalities checked, waits and bounds out.
//!
//! Everything here is pure: instants and spans are arguments, and nothing reads a clock.

mod fault;
mod rules;
#[cfg(test)]
pub(super) mod tests;

use std::fmt;
use std::time::Duration;

pub use fault::Fault;
pub use rules::{Passes, Rule, Violation};

use crate::clock::BootInstant;
use crate::config::{CollectorSettings, LeaseSettings};

/// `tcp_keepalives_idle` of the lock session: the silence after which the server's kernel probes its client.
pub(super) const TCP_KEEPALIVES_IDLE: Duration = Duration::from_secs(1);

/// `tcp_keepalives_interval` of the lock session: the time from one such probe to the next.
pub(super) const TCP_KEEPALIVES_INTERVAL: Duration = Duration::from_secs(1);

/// `tcp_keepalives_count` of the lock session. Linux counts time instead once `tcp_user_timeout` is set.
pub(super) const TCP_KEEPALIVES_COUNT: u32 = 2;

/// `client_connection_check_interval` of the lock session: how often a backend that runs a statement looks
/// whether its client's socket is still there.
pub(super) const CLIENT_CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The longest fence that a configuration may ask for, and the longest advertised one that is believed.
pub(super) const MAX_FENCE: Duration = Duration::from_secs(600);

/// `tcp_user_timeout` counts from the first retransmission; that comes within this time after an answer was
/// sent (Linux: round trip plus 200 ms).
const FIRST_RETRANSMISSION: Duration = Duration::from_millis(500);

/// The longest time that the pool lets pass between two refused connections.
const RECONNECT: Duration = Duration::from_secs(1);

/// What a bound allows for everything that has no setting: making a connection, the statements of an attempt,
/// and the granularity of the timers of PostgreSQL and the kernel.
const ALLOWANCE: Duration = Duration::from_millis(500);

/// How long a leader that has withdrawn keeps the lock for its platform to be told first.
pub(super) const HAND_OVER_LIMIT: Duration = Duration::from_secs(1);

const MILLISECOND: Duration = Duration::from_millis(1);

/// The settings that decide about time, known to satisfy every [`Rule`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timing {
    lease: LeaseSettings,
    retry_interval: Duration,
    refresh_timeout: Duration,
    collection_interval: Duration,
    /// The longest fence among the own one and those that others were seen to advertise.
    longest_fence: Duration,
    /// The shortest one among them.
    shortest_fence: Duration,
    /// How long a leader that stops may keep the lock after its withdrawal.
    hand_over: Duration,
}

impl Timing {
    /// Takes the settings when they hold together.
    ///
    /// # Errors
    ///
    /// Every inequality that does not hold.
    pub fn new(settings: &CollectorSettings) -> Result<Self, Vec<Violation>> {
        let timing = Self {
            lease: settings.lease,
            retry_interval: settings.leadership_retry_interval,
            refresh_timeout: settings.refresh_timeout,
            collection_interval: settings.collection_interval,
            longest_fence: settings.lease.fence,
            shortest_fence: settings.lease.fence,
            hand_over: Duration::ZERO,
        };
        let violations = rules::violations(&timing);
        if violations.is_empty() { Ok(timing) } else { Err(violations) }
    }

    /// The same, for a process with a platform that is told of the end of a term before the lock is freed.
    #[must_use]
    pub const fn on_platform(self) -> Self {
        Self { hand_over: HAND_OVER_LIMIT, ..self }
    }

    /// The settings of the lease, for the spans that need no arithmetic.
    #[must_use]
    pub const fn lease(&self) -> &LeaseSettings {
        &self.lease
    }

    /// The fence that a good proof moves to: `sent` is the instant before the proof was sent.
    #[must_use]
    pub fn fence_after(&self, sent: BootInstant) -> BootInstant {
        sent + self.lease.fence
    }

    /// Until when a snapshot may be served, whatever is proved: `sent` is the instant before its query was sent.
    #[must_use]
    pub fn snapshot_expiry(&self, sent: BootInstant) -> BootInstant {
        sent + self.collection_interval + self.lease.fence
    }

    /// A holder of the lock advertises `fence`. Returns whether that is longer than any that counted before.
    ///
    /// It counts from now on: whoever has it may hold the lock again at any time, seen or unseen.
    pub fn saw(&mut self, fence: Duration) -> bool {
        let longer = fence > self.longest_fence;
        self.longest_fence = fence.max(self.longest_fence);
        self.shortest_fence = fence.min(self.shortest_fence);
        longer
    }

    /// The longest fence that is [known](Self::saw), the own one among them.
    #[must_use]
    pub const fn longest_fence(&self) -> Duration {
        self.longest_fence
    }

    /// Whether nobody who was granted the lock between `seen`, before an attempt was sent that another holder made
    /// fail, and `granted`, the receipt of the own grant, can have served a whole take-over wait in between.
    ///
    /// With a shorter fence than the own one another waits for that long only. Never known when a longer one was seen:
    /// those who have it may go by an older sighting than this process would.
    #[must_use]
    pub fn excludes_between(&self, seen: BootInstant, granted: BootInstant) -> bool {
        self.longest_fence == self.lease.fence && granted.saturating_since(seen) < self.shortest_fence
    }

    /// How long after the receipt of the grant a new leader serves nothing: the longest fence among its own and
    /// those that it [saw](Self::saw), lengthened by the drift of clocks and rounded up to the nanosecond.
    #[must_use]
    pub fn take_over_wait(&self) -> Duration {
        stretched(self.longest_fence, self.lease.clock_drift_ppm)
    }

    /// The bound of each fault: from the fault to the first gauges of the new leader.
    ///
    /// It holds when refreshes are quick: the first one of the new leader ends within the take-over wait, and one
    /// that was in flight at the fault would have returned within a second (with the defaults; docs/failover.md).
    /// [`worst`](Self::worst) covers the others. [`Fault`] says what else is counted.
    ///
    /// It holds while another healthy standby runs. Alone, a replica has to notice first what ended its lease, after
    /// at most the interval and the timeout of its heartbeat; under `on_refresh_failure: exit` it is started again
    /// after its platform's delay, in Kubernetes 10 s doubling to 5 min. It is that of a direct connection, and of
    /// replicas with one fence: while a shorter one is rolled out, the longer one that this process
    /// [saw](Self::saw) is waited for.
    pub fn bounds(&self) -> impl Iterator<Item = (Fault, Duration)> + use<> {
        let timing = *self;
        Fault::ALL.into_iter().map(move |fault| (fault, timing.bound(fault)))
    }

    /// The bound of one fault. See [`bounds`](Self::bounds).
    #[must_use]
    pub fn bound(&self, fault: Fault) -> Duration {
        self.free_to_gauges(fault.detection(self), self.take_over_wait())
    }

    /// The bound of one fault however slow refreshes are, as long as the new leader's first one succeeds, and
    /// is not slower than the collection interval and the fence together: it would be too old to be exported.
    #[must_use]
    pub fn worst(&self, fault: Fault) -> Duration {
        self.free_to_gauges(fault.detection_in_statement(self), self.take_over_wait().max(self.refresh_timeout))
    }

    /// The lock is free after `detection`, tried within the retry interval, and followed by `preparation`.
    fn free_to_gauges(&self, detection: Duration, preparation: Duration) -> Duration {
        [detection, self.retry_interval, preparation, ALLOWANCE]
            .into_iter()
            .fold(Duration::ZERO, Duration::saturating_add)
    }
}

/// The declared bound for people, a line for each fault.
impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Declared bound: seconds from a fault to the first gauges of the next leader,")?;
        writeln!(f, "when refreshes are quick, and at the worst.")?;
        for (fault, bound) in self.bounds() {
            writeln!(
                f,
                "  {:<22} {:>9.3} {:>9.3}",
                fault.label(),
                bound.as_secs_f64(),
                self.worst(fault).as_secs_f64()
            )?;
        }
        writeln!(f, "It holds while another healthy standby runs. A replica alone adds the interval and the timeout")?;
        writeln!(f, "of its heartbeat under step_down, and under exit the restart delay of the platform (10 s")?;
        writeln!(f, "doubling to 5 min).")
    }
}

/// A span as PostgreSQL's settings take it: whole milliseconds, rounded up because 0 switches a limit off.
#[must_use]
pub(super) fn server_millis(span: Duration) -> i32 {
    i32::try_from(span.as_nanos().div_ceil(MILLISECOND.as_nanos())).unwrap_or(i32::MAX)
}

/// `span` on a clock that runs `ppm` millionths slower, rounded up to the nanosecond.
pub(super) fn stretched(span: Duration, ppm: u32) -> Duration {
    // 2^94 nanoseconds times 2^32 at the most: no overflow.
    let nanos = span.as_nanos();
    let longer = nanos + (nanos * u128::from(ppm)).div_ceil(1_000_000);
    let (seconds, rest) = (longer / 1_000_000_000, longer % 1_000_000_000);
    match (u64::try_from(seconds), u32::try_from(rest)) {
        (Ok(seconds), Ok(rest)) => Duration::new(seconds, rest),
        _ => Duration::MAX,
    }
}
