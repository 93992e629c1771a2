//! The election as a state machine: pure, named states, asserted transitions.
//!
//! `docs/election.md` draws it. The elector calls one method per transition, so that a transition the
//! diagram does not have fails at the line that made it.

use std::time::Duration;

use super::{Role, Term};
use crate::config::OnRefreshFailure;

/// Where this process stands in the election.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Waits for its next attempt; holds no lock.
    Standby,
    /// An attempt is under way; the lock may or may not be ours.
    Attempting,
    /// Holds the lock, exports nothing yet.
    Preparing {
        /// The term that began with the grant.
        term: Term,
        /// Whether the take-over wait is over.
        waited: bool,
        /// Whether a refresh has succeeded.
        refreshed: bool,
    },
    /// Holds the lock and exports state gauges.
    Leading(Term),
    /// Has withdrawn its gauges; the lock session is being closed.
    Leaving(Term),
}

impl State {
    /// Every process starts as a standby.
    #[must_use]
    pub const fn starting() -> Self {
        Self::Standby
    }

    /// A standby tries the lock.
    pub fn attempt(&mut self) {
        assert!(matches!(self, Self::Standby), "attempt from {self:?}");
        *self = Self::Attempting;
    }

    /// Somebody else holds the lock, or the attempt failed or was cancelled.
    pub fn rejected(&mut self) {
        assert!(matches!(self, Self::Attempting), "rejected from {self:?}");
        *self = Self::Standby;
    }

    /// The lock is ours.
    pub fn granted(&mut self, term: Term) {
        assert!(matches!(self, Self::Attempting), "granted from {self:?}");
        *self = Self::Preparing { term, waited: false, refreshed: false };
    }

    /// The take-over wait is over. Returns whether the gauges are out now.
    pub fn waited(&mut self) -> bool {
        let Self::Preparing { term, waited: false, refreshed } = *self else {
            unreachable!("waited from {self:?}");
        };
        *self = if refreshed { Self::Leading(term) } else { Self::Preparing { term, waited: true, refreshed } };
        refreshed
    }

    /// A refresh succeeded. Returns whether the gauges are out now, and were not before.
    pub fn refreshed(&mut self) -> bool {
        let Self::Preparing { term, waited, .. } = *self else {
            assert!(matches!(self, Self::Leading(_)), "refreshed from {self:?}");
            return false;
        };
        *self = if waited { Self::Leading(term) } else { Self::Preparing { term, waited, refreshed: true } };
        waited
    }

    /// The gauges are withdrawn, for whatever reason.
    pub fn withdrawn(&mut self) {
        let (Self::Preparing { term, .. } | Self::Leading(term)) = *self else {
            unreachable!("withdrawn from {self:?}");
        };
        *self = Self::Leaving(term);
    }

    /// The lock session is closed.
    pub fn released(&mut self) {
        assert!(matches!(self, Self::Leaving(_)), "released from {self:?}");
        *self = Self::Standby;
    }

    /// The role that others see: a leader is one that exports.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Leading(_) => Role::Leader,
            Self::Standby | Self::Attempting | Self::Preparing { .. } | Self::Leaving(_) => Role::Standby,
        }
    }

    /// The term whose lock this process holds.
    #[must_use]
    pub const fn term(self) -> Option<Term> {
        match self {
            Self::Preparing { term, .. } | Self::Leading(term) => Some(term),
            Self::Standby | Self::Attempting | Self::Leaving(_) => None,
        }
    }
}

/// What the process does after the database has failed it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AfterFailure {
    /// End with an error, for the platform to restart.
    Exit,
    /// Wait this long as a standby, then try the lock again.
    Retry(Duration),
}

/// Decides what follows the `failures`th failure in a row (1 for the first).
///
/// The wait doubles from an eighth of `retry_interval` and is never longer than `retry_interval`.
/// `jitter`, 0 to 1, takes up to half of it away, so that replicas that failed together do not come
/// back together.
#[must_use]
pub(super) fn after_failure(
    policy: OnRefreshFailure,
    failures: u32,
    retry_interval: Duration,
    jitter: f64,
) -> AfterFailure {
    match policy {
        OnRefreshFailure::Exit => AfterFailure::Exit,
        OnRefreshFailure::StepDown => {
            let doublings = failures.saturating_sub(1).min(3);
            let wait = retry_interval / 8 * 2_u32.pow(doublings);
            AfterFailure::Retry(wait.mul_f64(1.0 - 0.5 * jitter.clamp(0.0, 1.0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { timeline: 1, number: 7 };

    const fn preparing(waited: bool, refreshed: bool) -> State {
        State::Preparing { term: TERM, waited, refreshed }
    }

    #[test]
    fn leads_from_the_end_of_the_wait_and_the_first_refresh_whichever_is_later_until_the_withdrawal() {
        for wait_first in [true, false] {
            let mut state = State::starting();
            state.attempt();
            state.granted(TERM);
            assert_eq!((state.role(), state.term()), (Role::Standby, Some(TERM)));
            assert!(!if wait_first { state.waited() } else { state.refreshed() });
            assert_eq!(state.role(), Role::Standby);
            assert!(if wait_first { state.refreshed() } else { state.waited() });
            assert_eq!((state.role(), state.term()), (Role::Leader, Some(TERM)));
            assert!(!state.refreshed(), "a later refresh");
            state.withdrawn();
            assert_eq!((state.role(), state.term()), (Role::Standby, None));
            state.released();
            assert_eq!(state, State::Standby);
        }
    }

    #[test]
    fn every_transition_that_the_diagram_lacks_is_refused() {
        type Transition = (&'static str, fn(&mut State));
        let transitions: [Transition; 7] = [
            ("attempt", State::attempt),
            ("rejected", State::rejected),
            ("granted", |state| state.granted(TERM)),
            ("waited", |state| _ = state.waited()),
            ("refreshed", |state| _ = state.refreshed()),
            ("withdrawn", State::withdrawn),
            ("released", State::released),
        ];
        let allowed = [
            (State::Standby, vec!["attempt"]),
            (State::Attempting, vec!["rejected", "granted"]),
            (preparing(false, false), vec!["waited", "refreshed", "withdrawn"]),
            (preparing(false, true), vec!["waited", "refreshed", "withdrawn"]),
            (preparing(true, false), vec!["refreshed", "withdrawn"]),
            (State::Leading(TERM), vec!["refreshed", "withdrawn"]),
            (State::Leaving(TERM), vec!["released"]),
        ];
        for (from, allowed) in allowed {
            for (name, transition) in transitions {
                let mut state = from;
                let outcome = std::panic::catch_unwind(move || transition(&mut state));
                assert_eq!(outcome.is_ok(), allowed.contains(&name), "{name} from {from:?}");
            }
        }
    }

    #[test]
    fn stepping_down_backs_off_and_is_never_slower_than_the_retry_interval() {
        let retry = Duration::from_secs(16);
        let waits: Vec<_> =
            [1, 2, 3, 4, 5, u32::MAX].map(|n| after_failure(OnRefreshFailure::StepDown, n, retry, 0.0)).into();
        assert_eq!(waits, [2, 4, 8, 16, 16, 16].map(|s| AfterFailure::Retry(Duration::from_secs(s))));
        let jittered = after_failure(OnRefreshFailure::StepDown, 1, retry, 1.0);
        assert_eq!(jittered, AfterFailure::Retry(Duration::from_secs(1)));
        assert_eq!(after_failure(OnRefreshFailure::Exit, 1, retry, 0.0), AfterFailure::Exit);
    }
}
