//! Reading queue state: one statement, one database time, one immutable snapshot.

mod collector;
mod retsu;
mod snapshot;

pub use collector::{CollectError, Collector};
pub use snapshot::{Priority, PriorityState, QueueState, Snapshot};
