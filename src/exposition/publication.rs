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
    /// The last term of this process ended in a failure (of a refresh, or of a proof), and nobody is known to have
    /// taken over since.
    Failed,
    /// The state gauges of one refresh.
    Published(Arc<Published>),
    /// No gauges, because this process leads without collecting.
    Elected(Arc<Lease>),
}

/// The state gauges of one refresh, and until when they may be served.
#[derive(Debug)]
pub struct Published {
    /// The gauges.
    pub rendered: Rendered,
    lease: Arc<Lease>,
    /// From here on the snapshot is too old.
    expires: BootInstant,
}

impl Published {
    /// Whether these gauges may be served at `now`.
    #[must_use]
    pub fn permits(&self, now: BootInstant) -> bool {
        self.lease.permits(now) && now < self.expires
    }
}

/// The published state gauges, guarded by the lease of the term that made them and by their own age.
///
/// The elector alone publishes, and the shutdown withdraws as well. Every answer reads it once; what it read is asked
/// again before each write of its bytes.
#[derive(Debug)]
pub struct Publication(ArcSwap<View>);

impl Default for Publication {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(View::Absent))
    }
}

impl Publication {
    /// Serves `rendered` whenever `lease` permits, until `expires`.
    pub fn publish(&self, rendered: Rendered, lease: Arc<Lease>, expires: BootInstant) {
        self.0.store(Arc::new(View::Published(Arc::new(Published { rendered, lease, expires }))));
    }

    /// Leads by `lease`, without gauges.
    pub fn elect(&self, lease: Arc<Lease>) {
        self.replace(View::Elected(lease));
    }

    /// Serves no state gauges from the very next answer on, and lets none of those that are under way be completed.
    pub fn withdraw(&self) {
        self.replace(View::Absent);
    }

    /// Like [`withdraw`](Self::withdraw), and says that collection has failed until
    /// [`withdraw`](Self::withdraw) or [`publish`](Self::publish) is called.
    pub fn withdraw_failed(&self) {
        self.replace(View::Failed);
    }

    fn replace(&self, view: View) {
        match &*self.0.swap(Arc::new(view)) {
            View::Published(published) => published.lease.end(),
            View::Elected(lease) => lease.end(),
            View::Absent | View::Failed => {}
        }
    }

    /// What an answer whose bytes are written at `now` may say.
    #[must_use]
    pub fn view(&self, now: BootInstant) -> View {
        match &**self.0.load() {
            View::Published(published) if !published.permits(now) => View::Absent,
            View::Elected(lease) if !lease.permits(now) => View::Absent,
            view => view.clone(),
        }
    }

    /// The instant from which the gauges are no longer served unless the lease is proved or a refresh is
    /// published before; `None` when none are served at `now`.
    #[must_use]
    pub fn fence(&self, now: BootInstant) -> Option<BootInstant> {
        match self.view(now) {
            View::Published(published) => Some(published.lease.fence().min(published.expires)),
            View::Elected(lease) => Some(lease.fence()),
            View::Absent | View::Failed => None,
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
    fn an_answer_under_way_ends_with_its_own_term_and_its_own_age_whatever_is_published_since() {
        let publication = Publication::default();
        let under_way = |publication: &Publication| match publication.view(at(1)) {
            View::Published(published) => published,
            view => unreachable!("{view:?}"),
        };
        let lease = Arc::new(Lease::new(at(0), at(20)));
        publication.publish(rendered(), Arc::clone(&lease), at(5));
        let first = under_way(&publication);
        publication.publish(rendered(), lease, at(10));
        assert!(first.permits(at(4)) && !first.permits(at(5)), "its own age counts");
        let second = under_way(&publication);
        publication.withdraw();
        publication.publish(rendered(), Arc::new(Lease::new(at(0), at(20))), at(20));
        assert!(!first.permits(at(2)) && !second.permits(at(2)), "their term is over");
        assert!(under_way(&publication).permits(at(2)));
    }

    #[test]
    fn a_leader_without_gauges_names_its_fence_until_it_withdraws() {
        let publication = Publication::default();
        publication.elect(Arc::new(Lease::new(at(3), at(6))));
        assert!(served(&publication).is_empty());
        assert_eq!([2, 3, 6].map(|second| publication.fence(at(second))), [None, Some(at(6)), None]);
        publication.withdraw();
        assert_eq!(publication.fence(at(3)), None);
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
