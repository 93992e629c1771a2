//! The state gauges as text, rendered once per refresh, and the process's own metrics.

mod publication;

pub use publication::{Publication, View};
