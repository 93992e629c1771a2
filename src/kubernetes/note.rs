//! The term annotation: what a Pod says of the last term of its process.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::election::{Tenure, Term};

/// The value of the term annotation, a JSON object.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct TermNote {
    /// The term.
    #[serde(with = "text")]
    pub(super) term: Term,
    /// System identifier of the server that granted it. Text: JSON readers round numbers of that size.
    #[serde(rename = "system", with = "text")]
    pub(super) system_identifier: u64,
    /// The container whose process has the term; `None` when it is not known for sure.
    pub(super) container: Option<String>,
    /// When it was granted, by the clock of the Pod's node.
    #[serde(with = "humantime_millis")]
    pub(super) granted: SystemTime,
    /// Whether its take-over wait was over and its gauges out.
    pub(super) exported: bool,
    /// The withdrawal marker: its gauges are withdrawn, for good.
    pub(super) withdrawn: bool,
}

/// The last second that the annotation can say.
fn end_of_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799)
}

impl TermNote {
    /// The note of `tenure`, whose process runs in `container`.
    pub(super) fn new(tenure: &Tenure, container: Option<&str>) -> Self {
        Self {
            term: tenure.term,
            system_identifier: tenure.system_identifier,
            container: container.map(str::to_owned),
            // By a clock that is that wrong nothing ends after the grant.
            granted: if rfc3339(tenure.granted).is_some() { tenure.granted } else { end_of_time() },
            exported: tenure.exported,
            withdrawn: tenure.ended.is_some(),
        }
    }

    /// Reads an annotation. `None` for any other text than a note: it proves nothing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl fmt::Display for TermNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// A value as its text.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A time in UTC, to the millisecond.
mod humantime_millis {
    use std::time::SystemTime;

    use humantime::parse_rfc3339;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::clock::rfc3339;

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let text = rfc3339(*time).ok_or_else(|| S::Error::custom("a time outside the years 1970 to 9999"))?;
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"{"term":"1/731","system":"18446744073709551615","container":"containerd://ab","granted":"2023-11-14T22:13:20.250Z","exported":true,"withdrawn":false}"#;

    fn tenure() -> Tenure {
        Tenure {
            term: Term { timeline: 1, number: 731 },
            system_identifier: u64::MAX,
            granted: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            exported: true,
            ended: None,
        }
    }

    #[test]
    fn says_term_server_container_and_how_far_the_term_has_come() {
        let note = TermNote::new(&tenure(), Some("containerd://ab"));
        assert_eq!(note.to_string(), TEXT);
        let ended = Tenure { ended: Some("stopping"), ..tenure() };
        assert!(TermNote::new(&ended, None).to_string().ends_with(r#""exported":true,"withdrawn":true}"#));
    }

    #[test]
    fn a_clock_that_no_date_can_say_lets_nothing_end_after_the_grant() {
        for granted in [SystemTime::UNIX_EPOCH - Duration::from_secs(1), end_of_time() + Duration::from_secs(1)] {
            let note = TermNote::new(&Tenure { granted, ..tenure() }, None);
            assert_eq!(TermNote::parse(&note.to_string()).unwrap().granted, end_of_time());
        }
    }

    #[test]
    fn anything_else_is_no_note() {
        for (from, to) in [
            ("1/731", "1/-7"),
            ("1/731", "731"),
            ("18446744073709551615", "18446744073709551616"),
            ("2023-11", "2023-13"),
            ("true", "\"true\""),
            ("}", ""),
            (",\"withdrawn\":false", ""),
        ] {
            let text = TEXT.replace(from, to);
            assert_ne!(text, TEXT);
            assert_eq!(TermNote::parse(&text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(
            timeline: u32, number: u64, system_identifier: u64, container in prop::option::of(".{0,80}"),
            millis in 0_u64..253_402_300_800_000, exported: bool, withdrawn: bool,
        ) {
            let granted = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            let term = Term { timeline, number };
            let note = TermNote { term, system_identifier, container, granted, exported, withdrawn };
            prop_assert_eq!(TermNote::parse(&note.to_string()), Some(note));
        }
    }
}
