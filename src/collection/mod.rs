//! Reading queue state: one statement, one database time, one immutable snapshot.

mod collector;
mod error;
mod retsu;
mod snapshot;

pub use collector::Collector;
pub use error::CollectError;
pub use snapshot::{Priority, PriorityState, QueueState, Snapshot};
