//! What the election tells the rest of the process.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::Lease;
use crate::clock::BootInstant;

/// A term of leadership. Compared by timeline first: a transaction id may repeat on another timeline.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Term {
    /// The timeline of the server that granted the lock.
    pub timeline: u32,
    /// The transaction id taken on the lock session right after the grant.
    pub number: u64,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.timeline, self.number)
    }
}

/// A text that is no term: one is `timeline/number`, in digits.
#[derive(Debug, thiserror::Error)]
#[error("not a term")]
pub struct NotATerm;

impl FromStr for Term {
    type Err = NotATerm;

    fn from_str(text: &str) -> Result<Self, NotATerm> {
        let (timeline, term) = text.split_once('/').ok_or(NotATerm)?;
        Ok(Self { timeline: number(timeline)?, number: number(term)? })
    }
}

/// Digits only: `parse` alone would take a sign.
pub(super) fn number<N: FromStr>(digits: &str) -> Result<N, NotATerm> {
    let all = digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok()).flatten().ok_or(NotATerm)
}

/// What this process is in the election.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Exports no state gauges: waits for the lock, or holds it and may not export yet.
    Standby,
    /// Holds the lock and exports state gauges.
    Leader,
}

impl Role {
    /// Its name, as in `/leader`, in metrics and as the value of a label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Leader => "leader",
        }
    }

    /// The role of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Standby, Self::Leader].into_iter().find(|role| role.as_str() == name)
    }
}

/// A term of this process, from its grant on and beyond its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tenure {
    /// The term.
    pub term: Term,
    /// The system identifier of the server that granted it.
    pub system_identifier: u64,
    /// When it was granted, by the wall clock.
    pub granted: SystemTime,
    /// Whether its take-over wait was ever over and its gauges out.
    pub exported: bool,
    /// Why its gauges are withdrawn, for good: `stopping`, or the stable kind of what failed; `None` before that.
    pub ended: Option<&'static str>,
}

/// Who holds the lock, as far as this process knows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Holder {
    /// It has not looked yet, has failed to, or has just given the lock back.
    #[default]
    Unknown,
    /// It holds the lock itself.
    Own,
    /// Another session holds it, which advertised this term, or none.
    Other(Option<Term>),
}

/// What this process is in the election, published on a watch channel at every change.
#[derive(Clone, Debug)]
pub struct Status {
    /// The role.
    pub role: Role,
    /// The term that this process holds, with or without exporting yet, or the last one that it held.
    pub tenure: Option<Tenure>,
    /// The lease of the term that it holds; `None` when it holds none.
    pub lease: Option<Arc<Lease>>,
    /// When the role was taken, by the wall clock.
    pub since: SystemTime,
    /// Why the database server is refused, as a stable name; `None` when it is not.
    pub refusal: Option<&'static str>,
    /// Who holds the lock.
    pub holder: Holder,
}

impl Status {
    /// A process that has just started.
    #[must_use]
    pub fn starting() -> Self {
        Self {
            role: Role::Standby,
            tenure: None,
            lease: None,
            since: SystemTime::now(),
            refusal: None,
            holder: Holder::Unknown,
        }
    }

    /// The term that this process holds, with or without exporting yet.
    #[must_use]
    pub fn held(&self) -> Option<Tenure> {
        self.tenure.filter(|tenure| tenure.ended.is_none())
    }
}

/// Whether the election loop still ticks. The loop says until when it may be silent; past that instant
/// it hangs.
#[derive(Debug)]
pub struct Liveness(AtomicU64);

impl Liveness {
    /// A loop that has `allowance` to make its first tick.
    #[must_use]
    pub fn new(allowance: Duration) -> Self {
        Self(AtomicU64::new((BootInstant::now() + allowance).as_nanos()))
    }

    /// The loop ticked, and ticks again within `allowance`.
    pub fn tick(&self, allowance: Duration) {
        self.0.store((BootInstant::now() + allowance).as_nanos(), Ordering::Relaxed);
    }

    /// Whether the loop is within its allowance at `now`.
    #[must_use]
    pub fn is_alive(&self, now: BootInstant) -> bool {
        now <= BootInstant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
