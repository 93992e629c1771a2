//! The one pointer that says which state gauges this process serves, if any.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Rendered;
use crate::clock::BootInstant;
use crate::election::Lease;

/// What an answer of `/metrics` says of queue state.
#[derive(Clone, Debug)]
pub enum View {
    /// Nothing: this process does not lead, or its belief has run out.
    Absent,
    /// The last refresh of this process failed, and nobody is known to have taken over since.
    Failed,
    /// The state gauges of one refresh.
    Published(Arc<Rendered>),
}

/// The published state gauges, guarded by the lease of the term that made them and by their own age.
///
/// The elector is the only writer; every answer reads it once, right before its bytes are written.
#[derive(Debug)]
pub struct Publication(ArcSwap<Entry>);

/// Swapped as one: no reader can pair one term's gauges with another's lease.
#[derive(Debug)]
enum Entry {
    Absent,
    Failed,
    Published {
        rendered: Arc<Rendered>,
        lease: Arc<Lease>,
        /// From here on the snapshot is too old.
        expires: BootInstant,
    },
}

impl Default for Publication {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Entry::Absent))
    }
}

impl Publication {
    /// Serves `rendered` whenever `lease` permits, until `expires`.
    pub fn publish(&self, rendered: Rendered, lease: Arc<Lease>, expires: BootInstant) {
        self.0.store(Arc::new(Entry::Published { rendered: Arc::new(rendered), lease, expires }));
    }

    /// Serves no state gauges from the very next answer on.
    pub fn withdraw(&self) {
        self.0.store(Arc::new(Entry::Absent));
    }

    /// Like [`withdraw`](Self::withdraw), and says that the last collection failed until
    /// [`withdraw`](Self::withdraw) or [`publish`](Self::publish) is called.
    pub fn withdraw_failed(&self) {
        self.0.store(Arc::new(Entry::Failed));
    }

    /// What an answer whose bytes are written at `now` may say.
    #[must_use]
    pub fn view(&self, now: BootInstant) -> View {
        match &**self.0.load() {
            Entry::Published { rendered, lease, expires } if lease.permits(now) && now < *expires => {
                View::Published(Arc::clone(rendered))
            }
            Entry::Published { .. } | Entry::Absent => View::Absent,
            Entry::Failed => View::Failed,
        }
    }

    /// Whether state gauges are served at `now`.
    #[must_use]
    pub fn exports(&self, now: BootInstant) -> bool {
        self.fence(now).is_some()
    }

    /// The instant from which the gauges are no longer served unless the lease is proved or a refresh is
    /// published before; `None` when none are served at `now`.
    #[must_use]
    pub fn fence(&self, now: BootInstant) -> Option<BootInstant> {
        match &**self.0.load() {
            Entry::Published { lease, expires, .. } if lease.permits(now) && now < *expires => {
                Some(lease.fence().min(*expires))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::collection::Snapshot;

    fn rendered() -> Rendered {
        let snapshot = Snapshot {
            queues: Vec::new(),
            queues_found: 0,
            database_time: SystemTime::UNIX_EPOCH,
            sent_at: BootInstant::BOOT,
            duration: Duration::ZERO,
        };
        Rendered::new(&snapshot, Duration::from_secs(15))
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::BOOT + Duration::from_secs(seconds)
    }

    /// The seconds, of the first twenty, at which gauges are served.
    fn served(publication: &Publication) -> Vec<u64> {
        (0..20).filter(|&second| matches!(publication.view(at(second)), View::Published(_))).collect()
    }

    #[test]
    fn serves_within_the_lease_and_while_the_snapshot_is_young_enough() {
        let publication = Publication::default();
        assert!(served(&publication).is_empty());
        publication.publish(rendered(), Arc::new(Lease::new(at(3), at(6))), at(10));
        assert_eq!(served(&publication), [3, 4, 5]);
        publication.publish(rendered(), Arc::new(Lease::new(at(3), at(16))), at(5));
        assert_eq!(served(&publication), [3, 4]);
    }

    #[test]
    fn names_the_earlier_of_fence_and_expiry_while_it_serves() {
        let publication = Publication::default();
        for (fence, expires, named) in [(6, 10, 6), (16, 5, 5)] {
            publication.publish(rendered(), Arc::new(Lease::new(at(3), at(fence))), at(expires));
            assert_eq!([2, 3, named].map(|second| publication.fence(at(second))), [None, Some(at(named)), None]);
        }
    }

    #[test]
    fn serves_nothing_after_a_withdrawal() {
        let publication = Publication::default();
        publication.publish(rendered(), Arc::new(Lease::new(at(0), at(10))), at(10));
        publication.withdraw_failed();
        assert!(matches!(publication.view(at(0)), View::Failed));
        publication.withdraw();
        assert!(matches!(publication.view(at(0)), View::Absent));
        assert_eq!(publication.fence(at(0)), None);
    }
}
