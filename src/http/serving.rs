//! Whether this Pod may be routed to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::BootInstant;

/// How long a process that hears nothing from Kubernetes holds back.
const LIMIT: Duration = Duration::from_secs(2);

/// Opens once, and stays open: when the Pod is known not to have the leader label of an earlier start, with which a
/// Service would reach a standby, or when that has taken too long.
#[derive(Debug)]
pub struct Serving {
    cleared: AtomicBool,
    opens: BootInstant,
}

impl Serving {
    /// Closed until [`clear`](Self::clear), but no longer than two seconds.
    #[must_use]
    pub fn closed() -> Self {
        Self::closed_at(BootInstant::now())
    }

    fn closed_at(now: BootInstant) -> Self {
        Self { cleared: AtomicBool::new(false), opens: now + LIMIT }
    }

    /// Open from the start, for a process that has no label.
    #[must_use]
    pub const fn open() -> Self {
        Self { cleared: AtomicBool::new(true), opens: BootInstant::BOOT }
    }

    /// The own label was read back as not that of a leader.
    pub fn clear(&self) {
        self.cleared.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_open(&self, now: BootInstant) -> bool {
        now >= self.opens || self.cleared.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootInstant = BootInstant::BOOT;

    #[test]
    fn it_opens_when_the_label_is_clear_and_stays_open() {
        let serving = Serving::closed_at(START);
        assert!(!serving.is_open(START));
        serving.clear();
        assert!(serving.is_open(START) && serving.is_open(START + LIMIT * 2));
    }

    #[test]
    fn it_opens_after_two_seconds_whatever_the_label_is() {
        let serving = Serving::closed_at(START);
        assert!(!serving.is_open(START + Duration::from_millis(1999)));
        assert!(serving.is_open(START + Duration::from_secs(2)) && serving.is_open(START + LIMIT * 9));
    }

    #[test]
    fn without_kubernetes_it_is_open_from_the_start() {
        assert!(Serving::open().is_open(START));
    }
}
