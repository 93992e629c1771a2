//! The answer of `/leader`.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::clock::{BootInstant, rfc3339};
use crate::election::{Role, Status, Term};
use crate::kubernetes::{LabelReport, LabelState, Permission};

/// What `/leader` says.
#[derive(Debug, Serialize)]
pub(super) struct LeaderAnswer<'a> {
    role: Role,
    term: Option<Term>,
    /// Text: JSON readers round numbers of that size.
    system_identifier: Option<String>,
    since: Option<String>,
    fence: Option<Fence>,
    identity: &'a str,
    /// Why the database server is refused.
    refusal: Option<&'static str>,
    label: Label,
}

/// The role label of the own Pod.
#[derive(Debug, Serialize)]
struct Label {
    state: &'static str,
    /// What it said when it was last read.
    role: Option<Role>,
    /// Since when `state` is so.
    since: Option<String>,
    /// The permission that is missing.
    denied: Option<Permission>,
}

/// The instant after which this process exports nothing unless it proves its lease again.
#[derive(Debug, Serialize)]
struct Fence {
    /// Seconds from the answer to the fence.
    seconds: f64,
    /// The fence by this machine's wall clock.
    time: String,
}

impl<'a> LeaderAnswer<'a> {
    /// `fence` is that of the published view, or `None` when nothing is published.
    pub(super) fn new(
        status: &Status,
        label: &LabelReport,
        fence: Option<BootInstant>,
        identity: &'a str,
        now: BootInstant,
        wall: SystemTime,
    ) -> Self {
        let held = status.held();
        Self {
            role: status.role,
            term: held.map(|tenure| tenure.term),
            system_identifier: held.map(|tenure| tenure.system_identifier.to_string()),
            since: rfc3339(status.since),
            fence: fence.and_then(|fence| Fence::after(fence.saturating_since(now), wall)),
            identity,
            refusal: status.refusal,
            label: Label::new(label),
        }
    }
}

impl Label {
    fn new(report: &LabelReport) -> Self {
        let (state, denied) = match report.state {
            LabelState::Off => return Self { state: "off", role: None, since: None, denied: None },
            LabelState::Pending => ("pending", None),
            LabelState::Set => ("set", None),
            LabelState::Denied(denied) => ("denied", Some(denied)),
            LabelState::Replaced => ("replaced", None),
        };
        Self { state, role: report.role, since: rfc3339(report.since), denied }
    }
}

impl Fence {
    /// `None` when the fence is beyond what a date can say: then there is none to speak of.
    fn after(left: Duration, wall: SystemTime) -> Option<Self> {
        let time = rfc3339(wall.checked_add(left)?)?;
        Some(Self { seconds: left.as_secs_f64(), time })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::election::Tenure;

    fn json(status: &Status, fence: Option<BootInstant>) -> String {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        let now = BootInstant::BOOT + Duration::from_secs(100);
        serde_json::to_string(&LeaderAnswer::new(status, &LabelReport::off(), fence, "collector-0", now, wall)).unwrap()
    }

    #[test]
    fn a_leader_names_its_term_and_fence() {
        let status = Status {
            role: Role::Leader,
            tenure: Some(Tenure {
                term: Term { timeline: 2, number: 731 },
                system_identifier: u64::MAX,
                granted: SystemTime::UNIX_EPOCH,
                exported: true,
                ended: None,
            }),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            ..Status::starting()
        };
        let fence = BootInstant::BOOT + Duration::from_millis(102_500);
        assert_eq!(
            json(&status, Some(fence)),
            r#"{"role":"leader","term":{"timeline":2,"number":731},"system_identifier":"18446744073709551615","since":"2023-11-14T22:13:20.000Z","fence":{"seconds":2.5,"time":"2023-11-14T22:13:22.750Z"},"identity":"collector-0","refusal":null,"label":{"state":"off","role":null,"since":null,"denied":null}}"#
        );
    }

    #[test]
    fn a_standby_has_neither_and_says_why_its_server_is_refused() {
        let refusal = Some("hot_standby");
        let status = Status { since: SystemTime::UNIX_EPOCH, refusal, ..Status::starting() };
        assert_eq!(
            json(&status, None),
            r#"{"role":"standby","term":null,"system_identifier":null,"since":"1970-01-01T00:00:00.000Z","fence":null,"identity":"collector-0","refusal":"hot_standby","label":{"state":"off","role":null,"since":null,"denied":null}}"#
        );
    }

    #[test]
    fn every_state_of_the_label_has_its_word() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let json = |state, role| serde_json::to_string(&Label::new(&LabelReport { state, role, since })).unwrap();
        let denied = LabelState::Denied(Permission { verb: "patch", resource: "pods" });
        for (state, role, wanted) in [
            (LabelState::Off, None, r#"{"state":"off","role":null,"since":null,"denied":null}"#),
            (
                LabelState::Pending,
                None,
                r#"{"state":"pending","role":null,"since":"2023-11-14T22:13:20.000Z","denied":null}"#,
            ),
            (
                LabelState::Set,
                Some(Role::Leader),
                r#"{"state":"set","role":"leader","since":"2023-11-14T22:13:20.000Z","denied":null}"#,
            ),
            (
                denied,
                Some(Role::Standby),
                r#"{"state":"denied","role":"standby","since":"2023-11-14T22:13:20.000Z","denied":{"verb":"patch","resource":"pods"}}"#,
            ),
            (
                LabelState::Replaced,
                None,
                r#"{"state":"replaced","role":null,"since":"2023-11-14T22:13:20.000Z","denied":null}"#,
            ),
        ] {
            assert_eq!(json(state, role), wanted);
        }
    }

    #[test]
    fn times_that_no_date_can_say_are_left_out() {
        let before_epoch = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        let status = Status { since: before_epoch, ..Status::starting() };
        let answer = json(&status, Some(BootInstant::from_nanos(u64::MAX)));
        assert!(answer.contains(r#""since":null"#), "{answer}");
        assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800)), None);
    }
}
