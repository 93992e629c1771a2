//! The one pointer that says which state gauges this process serves, if any.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Rendered;
use crate::clock::BootInstant;

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

/// The published state gauges, guarded by the *fence*: the instant after which this process must not
/// serve them, whatever else it was doing.
///
/// The elector is the only writer; every answer reads it once, right before its bytes are written.
#[derive(Debug)]
pub struct Publication(ArcSwap<Entry>);

/// A view and its fence, swapped together: no reader can pair one term's gauges with another's fence.
#[derive(Debug)]
struct Entry {
    view: View,
    fence: BootInstant,
}

impl Entry {
    const fn unfenced(view: View) -> Self {
        Self { view, fence: BootInstant::BOOT }
    }
}

impl Default for Publication {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Entry::unfenced(View::Absent)))
    }
}

impl Publication {
    /// Serves `rendered` from now on, until `fence`.
    pub fn publish(&self, rendered: Rendered, fence: BootInstant) {
        self.0.store(Arc::new(Entry { view: View::Published(Arc::new(rendered)), fence }));
    }

    /// Serves no state gauges from the very next answer on.
    pub fn withdraw(&self) {
        self.0.store(Arc::new(Entry::unfenced(View::Absent)));
    }

    /// Like [`withdraw`](Self::withdraw), and says that the last collection failed until
    /// [`withdraw`](Self::withdraw) or [`publish`](Self::publish) is called.
    pub fn withdraw_failed(&self) {
        self.0.store(Arc::new(Entry::unfenced(View::Failed)));
    }

    /// What an answer whose bytes are written at `now` may say.
    #[must_use]
    pub fn view(&self, now: BootInstant) -> View {
        let entry = self.0.load();
        match &entry.view {
            View::Published(_) if now >= entry.fence => View::Absent,
            view => view.clone(),
        }
    }

    /// The instant after which the gauges are no longer served, or `None` when none are served at `now`.
    #[must_use]
    pub fn fence(&self, now: BootInstant) -> Option<BootInstant> {
        let entry = self.0.load();
        (matches!(entry.view, View::Published(_)) && now < entry.fence).then_some(entry.fence)
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

    #[test]
    fn serves_what_is_published_until_the_fence_and_not_at_it() {
        let publication = Publication::default();
        let fence = BootInstant::BOOT + Duration::from_secs(10);
        assert!(matches!(publication.view(BootInstant::BOOT), View::Absent));
        publication.publish(rendered(), fence);
        assert!(matches!(publication.view(BootInstant::from_nanos(fence.as_nanos() - 1)), View::Published(_)));
        assert!(matches!(publication.view(fence), View::Absent));
        assert_eq!((publication.fence(BootInstant::BOOT), publication.fence(fence)), (Some(fence), None));
    }

    #[test]
    fn serves_nothing_after_a_withdrawal() {
        let publication = Publication::default();
        publication.publish(rendered(), BootInstant::BOOT + Duration::from_secs(10));
        publication.withdraw_failed();
        assert!(matches!(publication.view(BootInstant::BOOT), View::Failed));
        publication.withdraw();
        assert!(matches!(publication.view(BootInstant::BOOT), View::Absent));
        assert_eq!(publication.fence(BootInstant::BOOT), None);
    }
}
