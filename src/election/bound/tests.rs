#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::config::{self, Sources};

/// The defaults, on some database.
pub(in crate::election) fn settings() -> CollectorSettings {
    let database = vec![("PGHOST".into(), "db".into())];
    config::load(&Sources { environment: database, ..Sources::default() }).unwrap().settings.collector
}

pub(in crate::election) fn timing() -> Timing {
    Timing::new(&settings()).unwrap()
}

/// The defaults with a retry interval of 2 s.
fn eager() -> Timing {
    Timing::new(&CollectorSettings { leadership_retry_interval: Duration::from_secs(2), ..settings() }).unwrap()
}

/// The span that a key sets, by the last level of its path.
fn span<'a>(settings: &'a mut CollectorSettings, key: &str) -> &'a mut Duration {
    match key.rsplit('.').next().unwrap() {
        "heartbeat_interval_seconds" => &mut settings.lease.heartbeat_interval,
        "heartbeat_timeout_seconds" => &mut settings.lease.heartbeat_timeout,
        "fence_seconds" => &mut settings.lease.fence,
        "idle_session_timeout_seconds" => &mut settings.lease.idle_session_timeout,
        "tcp_user_timeout_seconds" => &mut settings.lease.tcp_user_timeout,
        "refresh_timeout_seconds" => &mut settings.refresh_timeout,
        "leadership_retry_interval_seconds" => &mut settings.leadership_retry_interval,
        "collection_interval_seconds" => &mut settings.collection_interval,
        _ => panic!("{key} is no span of the lease"),
    }
}

#[test]
fn every_inequality_that_is_broken_is_told_with_the_nearest_value_that_holds() {
    use Rule::*;
    // What is set, the rule that breaks, the key to blame, the nearest value that passes and what is said.
    type Case = (&'static [(&'static str, f64)], Rule, &'static str, Passes, &'static str);
    const YEAR: f64 = 3e7;
    let ms = Duration::from_millis;
    let from = |millis| Passes::From(ms(millis));
    let longest = Passes::UpTo(ms(i32::MAX as u64));
    let table: [Case; 21] = [
        (&[("heartbeat_interval_seconds", 0.0)], Granularity, "heartbeat_interval_seconds", from(1), "a millisecond"),
        (&[("heartbeat_timeout_seconds", 0.0)], Granularity, "heartbeat_timeout_seconds", from(1), "a millisecond"),
        (&[("fence_seconds", 0.000_9)], Granularity, "fence_seconds", from(1), "a millisecond"),
        (
            &[("idle_session_timeout_seconds", 0.0)],
            Granularity,
            "idle_session_timeout_seconds",
            from(1),
            "switches one off",
        ),
        (
            &[("tcp_user_timeout_seconds", 0.000_4)],
            Granularity,
            "tcp_user_timeout_seconds",
            from(1),
            "switches one off",
        ),
        (&[("refresh_timeout_seconds", 0.0)], Granularity, "refresh_timeout_seconds", from(1), "switches one off"),
        (
            &[("heartbeat_interval_seconds", YEAR)],
            ServerMaximum,
            "heartbeat_interval_seconds",
            longest,
            "2147483647 ms",
        ),
        (&[("heartbeat_timeout_seconds", YEAR)], ServerMaximum, "heartbeat_timeout_seconds", longest, "2147483647 ms"),
        (&[("fence_seconds", YEAR)], ServerMaximum, "fence_seconds", longest, "2147483647 ms"),
        (
            &[("idle_session_timeout_seconds", YEAR)],
            ServerMaximum,
            "idle_session_timeout_seconds",
            longest,
            "2147483647 ms",
        ),
        (&[("tcp_user_timeout_seconds", YEAR)], ServerMaximum, "tcp_user_timeout_seconds", longest, "2147483647 ms"),
        (&[("refresh_timeout_seconds", YEAR)], ServerMaximum, "refresh_timeout_seconds", longest, "2147483647 ms"),
        (&[("fence_seconds", 2.0)], FenceOutlastsHeartbeat, "fence_seconds", from(2001), "(1 + 1 = 2 s)"),
        (
            &[("heartbeat_interval_seconds", 1.9), ("heartbeat_timeout_seconds", 1.0), ("fence_seconds", 2.899)],
            FenceOutlastsHeartbeat,
            "fence_seconds",
            from(2901),
            "(1.9 + 1 = 2.9 s)",
        ),
        (&[("fence_seconds", 600.001)], FenceIsLimited, "fence_seconds", Passes::UpTo(MAX_FENCE), "600 s"),
        (
            &[("idle_session_timeout_seconds", 3.003)],
            IdleOutlastsHeartbeat,
            "idle_session_timeout_seconds",
            from(3004),
            "(1 + 2 * 1) * (1 + 1000 / 1000000) = 3.003 s",
        ),
        (
            &[("heartbeat_timeout_seconds", 1.6)],
            IdleOutlastsHeartbeat,
            "idle_session_timeout_seconds",
            from(4205),
            "(1 + 2 * 1.6)",
        ),
        (
            &[("tcp_user_timeout_seconds", 0.999)],
            AcknowledgementOutlastsHeartbeat,
            "tcp_user_timeout_seconds",
            from(1000),
            "(1 s)",
        ),
        (
            &[("heartbeat_timeout_seconds", 1.000_1), ("tcp_user_timeout_seconds", 1.0)],
            AcknowledgementOutlastsHeartbeat,
            "tcp_user_timeout_seconds",
            from(1001),
            "(1.0001 s)",
        ),
        (
            &[("tcp_user_timeout_seconds", 3.501)],
            AcknowledgementWithinIdle,
            "idle_session_timeout_seconds",
            from(4001),
            "(3.501 + 0.5 = 4.001 s)",
        ),
        (
            &[("tcp_user_timeout_seconds", 20.0)],
            AcknowledgementWithinIdle,
            "idle_session_timeout_seconds",
            from(20_500),
            "(20 + 0.5 = 20.5 s)",
        ),
    ];
    for (changes, rule, key, passes, said) in table {
        let mut settings = settings();
        for (key, seconds) in changes {
            *span(&mut settings, key) = Duration::from_secs_f64(*seconds);
        }
        let violations = Timing::new(&settings).expect_err(key);
        let [violation] = violations.as_slice() else { panic!("{changes:?}: {violations:?}") };
        assert_eq!((violation.rule, violation.passes), (rule, passes), "{changes:?}");
        assert_eq!(violation.key.rsplit('.').next(), Some(key), "{changes:?}");
        assert!(violation.key.starts_with("worker.queue.state_metrics_collector."), "{}", violation.key);
        assert_eq!(violation.value, *span(&mut settings, key));
        let (Passes::From(nearest) | Passes::UpTo(nearest)) = passes;
        let text = violation.to_string();
        assert!(text.contains(said) && text.ends_with(&format!("passes is {}", nearest.as_secs_f64())), "{text}");

        *span(&mut settings, key) = nearest;
        let left = Timing::new(&settings).err().unwrap_or_default();
        assert!(left.iter().all(|left| left.rule != rule), "{nearest:?} breaks the rule, too: {left:?}");
        // What only just is a span at all seldom fits the other settings.
        assert!(left.is_empty() || matches!(rule, Granularity | ServerMaximum), "{changes:?}: {left:?}");
        let beyond = match passes {
            Passes::From(_) => nearest - Duration::from_millis(1),
            Passes::UpTo(_) => nearest + Duration::from_millis(1),
        };
        *span(&mut settings, key) = beyond;
        let broken = Timing::new(&settings).expect_err("one step beyond");
        assert!(broken.iter().any(|broken| broken.rule == rule), "{changes:?}: {broken:?}");
    }
    let rules: HashSet<_> = table.iter().map(|(_, rule, ..)| format!("{rule:?}")).collect();
    assert_eq!(rules.len(), 7, "every rule");
}

#[test]
fn inequalities_that_break_together_are_all_told() {
    let mut settings = settings();
    settings.lease.heartbeat_timeout = Duration::from_secs(30);
    let rules: Vec<_> = Timing::new(&settings).unwrap_err().iter().map(|violation| violation.rule).collect();
    use Rule::*;
    assert_eq!(rules, [FenceOutlastsHeartbeat, IdleOutlastsHeartbeat, AcknowledgementOutlastsHeartbeat]);
}

#[test]
fn the_wait_is_the_longer_fence_with_the_drift_rounded_up() {
    let mut timing = timing();
    assert_eq!(timing.take_over_wait(), Duration::from_millis(3003));
    let own = timing.bound(Fault::ProcessKilled);
    assert!(!timing.saw(Duration::from_secs(1)) && !timing.saw(Duration::from_secs(3)));
    assert_eq!(timing.take_over_wait(), Duration::from_millis(3003));
    assert!(timing.saw(Duration::from_secs(10)) && !timing.saw(Duration::from_secs(10)));
    assert_eq!(timing.take_over_wait(), Duration::from_millis(10_010), "the longer one");
    assert_eq!(timing.bound(Fault::ProcessKilled), own + Duration::from_millis(10_010 - 3003));
    assert!(!timing.saw(Duration::from_secs(4)));
    assert_eq!(timing.take_over_wait(), Duration::from_millis(10_010), "and it is not forgotten");
    assert_eq!(stretched(Duration::from_nanos(1), 1), Duration::from_nanos(2), "rounded up");
    assert_eq!(stretched(Duration::from_secs(3), 0), Duration::from_secs(3));
    assert_eq!(stretched(Duration::MAX, u32::MAX), Duration::MAX);
}

#[test]
fn nobody_can_have_waited_unseen_for_less_than_the_shortest_fence_that_was_seen() {
    let (seen, millis) = (BootInstant::BOOT + Duration::from_secs(100), Duration::from_millis);
    let within = |timing: &Timing, age| timing.excludes_between(seen, seen + millis(age));
    let mut timing = timing();
    assert!(within(&timing, 2999) && !within(&timing, 3000));
    timing.saw(millis(3000));
    assert!(within(&timing, 2999));
    timing.saw(millis(1000));
    assert!(within(&timing, 999) && !within(&timing, 1000), "with that fence another waits for a second only");
    timing.saw(millis(3001));
    assert!(!within(&timing, 0), "those with a longer fence may believe an older sighting");
}

#[test]
fn a_fence_counts_from_the_instant_before_the_proof_was_sent() {
    let sent = BootInstant::BOOT + Duration::from_secs(100);
    assert_eq!(timing().fence_after(sent), sent + Duration::from_secs(3));
    assert_eq!(timing().snapshot_expiry(sent), sent + Duration::from_secs(18));
}

#[test]
fn a_limit_of_the_server_is_never_rounded_to_nothing_nor_past_its_maximum() {
    for (nanos, millis) in [(1, 1), (1_000_000, 1), (1_000_001, 2), (2_500_000_000, 2500)] {
        assert_eq!(server_millis(Duration::from_nanos(nanos)), millis);
    }
    assert_eq!(server_millis(Duration::MAX), i32::MAX);
}

#[test]
fn a_lost_host_and_a_cut_network_are_over_within_ten_seconds_at_a_retry_interval_of_two() {
    use Fault::*;
    for fault in [HostLost, NetworkCut, NetworkCutToServer, NetworkCutToClient] {
        assert!(eager().bound(fault) <= Duration::from_secs(10), "{fault:?}: {:?}", eager().bound(fault));
    }
}

#[test]
fn labels_are_distinct_and_snake_case() {
    let labels: HashSet<_> = Fault::ALL.map(Fault::label).into();
    assert_eq!(labels.len(), Fault::ALL.len());
    assert!(labels.iter().all(|label| label.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())));
}

/// How each fault's time until the lock is free reads in the documentation, quick and at the worst.
const fn detection(fault: Fault) -> (&'static str, &'static str) {
    match fault {
        Fault::Graceful | Fault::ProcessKilled => ("C", "C"),
        Fault::HostLost | Fault::NetworkCut | Fault::NetworkCutToServer => {
            ("max(S, K + C)", "max(S, K + C, min(R, K) + U + 0.5 s)")
        }
        Fault::NetworkCutToClient => ("max(H + U + 0.5 s, K + C)", "max(H + U + 0.5 s, K + C, R + U + 0.5 s)"),
        Fault::ServerRestarted => ("1 s", "1 s"),
        Fault::BackendTerminated | Fault::ServerClockStepped => ("0", "0"),
        Fault::PausedIdle => ("S", "S"),
        Fault::PausedInRefresh => ("R + S", "R + S"),
    }
}

/// `docs/failover.md` holds the formulas; this test the figures.
#[test]
fn the_documented_figures_are_the_computed_ones() {
    let seconds = |span: Duration| format!("{:.3} s", span.as_secs_f64());
    let (eager, default) = (eager(), timing());
    let mut table = String::from(
        "| fault | lock free after | bound, P = 15 s | bound, P = 2 s | at the worst, free after | worst, P = 15 s | worst, P = 2 s |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for fault in Fault::ALL {
        let (quick, slow) = detection(fault);
        let (bound, worst) = ([default, eager].map(|t| t.bound(fault)), [default, eager].map(|t| t.worst(fault)));
        let [bound, worst] = [bound, worst].map(|spans| spans.map(seconds).join(" | "));
        writeln!(table, "| `{}` | {quick} | {bound} | {slow} | {worst} |", fault.label()).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/failover.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- table of bounds -->\n\n", "\n<!-- end of table -->");
    let (before, rest) = document.split_once(begin).expect("a place for the table");
    let (found, after) = rest.split_once(end).expect("its end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "UPDATE_DOCS=1 cargo test --lib bound writes it anew");
    }
}

/// Settings near the limits, most of which hold.
fn any_settings() -> impl Strategy<Value = CollectorSettings> {
    let spans = (50_u64..3000, 50_u64..3000, 100_u64..12_000, 100_u64..15_000, 50_u64..6000);
    (spans, 50_u64..20_000, 50_u64..20_000, 0_u32..=100_000).prop_map(|(spans, retry, refresh, drift)| {
        let ms = Duration::from_millis;
        let mut settings = settings();
        let (interval, timeout, fence, idle, user_timeout) = spans;
        settings.lease = LeaseSettings {
            heartbeat_interval: ms(interval),
            heartbeat_timeout: ms(timeout),
            fence: ms(fence),
            clock_drift_ppm: drift,
            idle_session_timeout: ms(idle),
            tcp_user_timeout: ms(user_timeout),
        };
        (settings.leadership_retry_interval, settings.refresh_timeout) = (ms(retry), ms(refresh));
        settings
    })
}

proptest! {
    #[test]
    fn settings_that_hold_have_a_lease_that_holds(settings in any_settings()) {
        let lease = settings.lease;
        let Ok(timing) = Timing::new(&settings) else { return Ok(()) };
        prop_assert!(lease.heartbeat_interval + lease.heartbeat_timeout < lease.fence);
        prop_assert!(lease.heartbeat_interval + 2 * lease.heartbeat_timeout < lease.idle_session_timeout);
        prop_assert!(timing.take_over_wait() >= lease.fence);
        let exact = lease.fence.as_nanos() * u128::from(1_000_000 + lease.clock_drift_ppm);
        prop_assert!(timing.take_over_wait().as_nanos() * 1_000_000 >= exact);
        for (fault, bound) in timing.bounds() {
            prop_assert!(bound >= timing.take_over_wait() + settings.leadership_retry_interval);
            prop_assert!(timing.worst(fault) >= bound);
        }
    }

    /// Each suggestion is right whatever the other settings are.
    #[test]
    fn the_suggested_value_satisfies_the_rule(settings in any_settings()) {
        for violation in Timing::new(&settings).err().unwrap_or_default() {
            let mut settings = settings.clone();
            let (Passes::From(nearest) | Passes::UpTo(nearest)) = violation.passes;
            *span(&mut settings, violation.key) = nearest;
            let left = Timing::new(&settings).err().unwrap_or_default();
            prop_assert!(left.iter().all(|left| left.rule != violation.rule), "{violation} {left:?}");
        }
    }

    #[test]
    fn no_bound_falls_when_a_setting_grows(settings in any_settings(), which in 0_usize..9, more in 1_u64..5000) {
        const SPANS: [&str; 8] = [
            "heartbeat_interval_seconds", "heartbeat_timeout_seconds", "fence_seconds", "idle_session_timeout_seconds",
            "tcp_user_timeout_seconds", "refresh_timeout_seconds", "leadership_retry_interval_seconds",
            "collection_interval_seconds",
        ];
        let mut grown = settings.clone();
        match SPANS.get(which) {
            Some(key) => *span(&mut grown, key) += Duration::from_millis(more),
            None => grown.lease.clock_drift_ppm += u32::try_from(more).unwrap(),
        }
        let (Ok(less), Ok(more)) = (Timing::new(&settings), Timing::new(&grown)) else { return Ok(()) };
        for fault in Fault::ALL {
            prop_assert!(less.bound(fault) <= more.bound(fault) && less.worst(fault) <= more.worst(fault), "{fault:?}");
        }
    }
}
