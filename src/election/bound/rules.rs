//! The inequalities between the settings.
//!
//! What is *not* required: `idle_session_timeout` against the fence, because the take-over wait covers a lock
//! that is freed early; the timeout of a heartbeat against its interval, because the next one waits for it; the
//! refresh timeout against anything, because a session that runs a statement is not idle and heartbeats go
//! another way meanwhile. The retry and collection intervals only lengthen bounds.

use std::fmt;
use std::time::Duration;

use super::{FIRST_RETRANSMISSION, MAX_FENCE, MILLISECOND, Timing, stretched};

const HEARTBEAT_INTERVAL: &str = "worker.queue.state_metrics_collector.lease.heartbeat_interval_seconds";
const HEARTBEAT_TIMEOUT: &str = "worker.queue.state_metrics_collector.lease.heartbeat_timeout_seconds";
const FENCE: &str = "worker.queue.state_metrics_collector.lease.fence_seconds";
const IDLE_SESSION_TIMEOUT: &str = "worker.queue.state_metrics_collector.lease.idle_session_timeout_seconds";
const TCP_USER_TIMEOUT: &str = "worker.queue.state_metrics_collector.lease.tcp_user_timeout_seconds";
const REFRESH_TIMEOUT: &str = "worker.queue.state_metrics_collector.refresh_timeout_seconds";

/// The longest span that a setting of PostgreSQL takes.
const SERVER_MAXIMUM: Duration = Duration::from_millis(i32::MAX as u64);

/// What settings have to satisfy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// Every span is at least a millisecond: the server's settings have no finer grain, and 0 switches a limit off.
    Granularity,
    /// No span is longer than a setting of PostgreSQL can be.
    ServerMaximum,
    /// `heartbeat_interval + heartbeat_timeout < fence`: until the next proof is known to be good or late, the
    /// last one has to hold. Otherwise the gauges go away although nothing has failed.
    FenceOutlastsHeartbeat,
    /// `heartbeat_interval + heartbeat_timeout < 10 min`, so that there is a fence for them.
    HeartbeatIsLimited,
    /// `fence <= 10 min`, so that a longer advertised one is known to be wrong and delays no leader.
    FenceIsLimited,
    /// `(heartbeat_interval + 2 * heartbeat_timeout) * (1 + drift) < idle_session_timeout`: an answer may come as
    /// late as its timeout, the next heartbeat an interval after that, and be as long on its way. The server
    /// must not end a session whose proofs are in time, by its own clock.
    IdleOutlastsHeartbeat,
    /// `heartbeat_timeout <= tcp_user_timeout`: the server must not end a connection on which an answer is as
    /// late as a good proof may be.
    AcknowledgementOutlastsHeartbeat,
    /// `tcp_user_timeout + 0.5 s <= idle_session_timeout`: a leader that does not read is not idle for a server
    /// that cannot send. Longer, the silence that the server bears would not be `idle_session_timeout`.
    AcknowledgementWithinIdle,
}

/// Which values of a key satisfy a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Passes {
    /// This one and every longer one.
    From(Duration),
    /// This one and every shorter one.
    UpTo(Duration),
}

/// An inequality that does not hold.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The inequality.
    pub rule: Rule,
    /// The full path of the key to change.
    pub key: &'static str,
    /// Its value.
    pub value: Duration,
    /// Its values that pass, all other settings being as they are.
    pub passes: Passes,
    /// The rule in words and numbers.
    because: String,
}

/// The rule in words and numbers, with the nearest value that passes.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (extreme, limit) = match self.passes {
            Passes::From(limit) => ("smallest", limit),
            Passes::UpTo(limit) => ("largest", limit),
        };
        write!(f, "must be {}; the {extreme} value that passes is {}", self.because, limit.as_secs_f64())
    }
}

/// Every rule that `timing` breaks.
pub(super) fn violations(timing: &Timing) -> Vec<Violation> {
    let ranges = ranges(timing);
    // Sums of values that are out of range say nothing.
    if ranges.is_empty() { relations(timing) } else { ranges }
}

fn ranges(timing: &Timing) -> Vec<Violation> {
    let lease = &timing.lease;
    let spans = [
        (HEARTBEAT_INTERVAL, lease.heartbeat_interval),
        (HEARTBEAT_TIMEOUT, lease.heartbeat_timeout),
        (FENCE, lease.fence),
        (IDLE_SESSION_TIMEOUT, lease.idle_session_timeout),
        (TCP_USER_TIMEOUT, lease.tcp_user_timeout),
        (REFRESH_TIMEOUT, timing.refresh_timeout),
    ];
    let of = |(key, value): (&'static str, Duration)| {
        let (rule, passes, because) = if value < MILLISECOND {
            let because = "at least a millisecond: the server's limits have no finer grain, and 0 switches one off";
            (Rule::Granularity, Passes::From(MILLISECOND), because)
        } else if value > SERVER_MAXIMUM {
            let because = "no longer than a setting of PostgreSQL can be, 2147483647 ms";
            (Rule::ServerMaximum, Passes::UpTo(SERVER_MAXIMUM), because)
        } else {
            return None;
        };
        Some(Violation { rule, key, value, passes, because: because.into() })
    };
    spans.into_iter().filter_map(of).collect()
}

fn relations(timing: &Timing) -> Vec<Violation> {
    let lease = &timing.lease;
    let (interval, timeout, fence) = (lease.heartbeat_interval, lease.heartbeat_timeout, lease.fence);
    let (idle, user_timeout) = (lease.idle_session_timeout, lease.tcp_user_timeout);
    let mut found = Vec::new();
    let mut refuse = |rule, key, value, passes, because| {
        found.push(Violation { rule, key, value, passes, because });
    };

    let proof = interval + timeout;
    if proof >= MAX_FENCE {
        let because = format!(
            "shorter than {} s together with `heartbeat_timeout_seconds` ({} + {}), because no fence may be longer",
            MAX_FENCE.as_secs_f64(),
            interval.as_secs_f64(),
            timeout.as_secs_f64()
        );
        let (key, value, other) = if interval >= timeout {
            (HEARTBEAT_INTERVAL, interval, timeout)
        } else {
            (HEARTBEAT_TIMEOUT, timeout, interval)
        };
        let passes = Passes::UpTo(MAX_FENCE.saturating_sub(other).saturating_sub(MILLISECOND));
        refuse(Rule::HeartbeatIsLimited, key, value, passes, because);
    } else if fence <= proof {
        let because = format!(
            "longer than `heartbeat_interval_seconds` + `heartbeat_timeout_seconds` ({} + {} = {} s), because the last \
             proof has to hold until the next one is known to be good or late",
            interval.as_secs_f64(),
            timeout.as_secs_f64(),
            proof.as_secs_f64()
        );
        refuse(Rule::FenceOutlastsHeartbeat, FENCE, fence, Passes::From(floor_ms(proof) + MILLISECOND), because);
    }
    if fence > MAX_FENCE {
        let because = format!(
            "no longer than {} s, because a longer fence that another replica advertises is not believed",
            MAX_FENCE.as_secs_f64()
        );
        refuse(Rule::FenceIsLimited, FENCE, fence, Passes::UpTo(MAX_FENCE), because);
    }
    let silence = stretched(interval + 2 * timeout, lease.clock_drift_ppm);
    if idle <= silence {
        let because = format!(
            "longer than (`heartbeat_interval_seconds` + 2 * `heartbeat_timeout_seconds`) * (1 + \
             `clock_drift_ppm` / 1000000) (({} + 2 * {}) * (1 + {} / 1000000) = {} s), because the server must not end a \
             session whose heartbeats are in time",
            interval.as_secs_f64(),
            timeout.as_secs_f64(),
            lease.clock_drift_ppm,
            silence.as_secs_f64()
        );
        let passes = Passes::From(floor_ms(silence) + MILLISECOND);
        refuse(Rule::IdleOutlastsHeartbeat, IDLE_SESSION_TIMEOUT, idle, passes, because);
    }
    if user_timeout < timeout {
        let because = format!(
            "no shorter than `heartbeat_timeout_seconds` ({} s), because the server must not end a connection on which a \
             heartbeat's answer may still be in time",
            timeout.as_secs_f64()
        );
        let passes = Passes::From(ceil_ms(timeout));
        refuse(Rule::AcknowledgementOutlastsHeartbeat, TCP_USER_TIMEOUT, user_timeout, passes, because);
    }
    let acknowledged = user_timeout + FIRST_RETRANSMISSION;
    if idle < acknowledged {
        let because = format!(
            "no shorter than `tcp_user_timeout_seconds` + {} s ({} + {0} = {} s), because a leader that reads nothing \
             would be borne for longer than one that says nothing",
            FIRST_RETRANSMISSION.as_secs_f64(),
            user_timeout.as_secs_f64(),
            acknowledged.as_secs_f64()
        );
        let passes = Passes::From(ceil_ms(acknowledged));
        refuse(Rule::AcknowledgementWithinIdle, IDLE_SESSION_TIMEOUT, idle, passes, because);
    }
    found
}

/// Whole milliseconds, rounded down. Spans that passed [`ranges`] have fewer than 2^31.
fn floor_ms(span: Duration) -> Duration {
    span - Duration::from_nanos(u64::from(span.subsec_nanos() % 1_000_000))
}

fn ceil_ms(span: Duration) -> Duration {
    floor_ms(span + MILLISECOND - Duration::from_nanos(1))
}
