//! The one pointer that says which state gauges this process serves, if any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
pub struct Publication {
    view: ArcSwap<View>,
    fence: AtomicU64,
}

impl Default for Publication {
    fn default() -> Self {
        Self { view: ArcSwap::from_pointee(View::Absent), fence: AtomicU64::new(BootInstant::BOOT.as_nanos()) }
    }
}

impl Publication {
    /// Serves `rendered` from now on, until the fence.
    pub fn publish(&self, rendered: Rendered, fence: BootInstant) {
        self.view.store(Arc::new(View::Published(Arc::new(rendered))));
        self.fence.store(fence.as_nanos(), Ordering::Release);
    }

    /// Serves no state gauges from the very next answer on.
    pub fn withdraw(&self) {
        self.leave(View::Absent);
    }

    /// Like [`withdraw`](Self::withdraw), and says that the last collection failed until
    /// [`withdraw`](Self::withdraw) or [`publish`](Self::publish) is called.
    pub fn withdraw_failed(&self) {
        self.leave(View::Failed);
    }

    /// What an answer whose bytes are written at `now` may say.
    #[must_use]
    pub fn view(&self, now: BootInstant) -> View {
        let view = self.view.load();
        match &**view {
            View::Published(_) if now >= self.fence() => View::Absent,
            view => view.clone(),
        }
    }

    /// The instant after which nothing is served; in the past when nothing is published.
    #[must_use]
    pub fn fence(&self) -> BootInstant {
        BootInstant::from_nanos(self.fence.load(Ordering::Acquire))
    }

    fn leave(&self, view: View) {
        // The fence first: a reader that still sees the old view must already find it expired.
        self.fence.store(BootInstant::BOOT.as_nanos(), Ordering::Release);
        self.view.store(Arc::new(view));
    }
}
