//! The state gauges as text, rendered once per refresh, and the process's own metrics.
//!
//! An answer of `/metrics` is three pieces, one after another: the queue families of the last refresh
//! ([`Rendered`], never touched again), the few families that depend on the instant of the answer, and
//! the process's own registry ([`Metrics`]). With gzip each piece is a member of its own: RFC 1952 makes
//! a sequence of members one stream, so the large piece is compressed once per refresh.

mod encode;
mod gzip;
mod kubernetes;
mod metrics;
mod negotiate;
mod process;
mod publication;
mod registry;
mod rendered;
mod scrape;
mod state;
mod text;

pub use kubernetes::{Agreement, KubernetesMetrics};
pub use metrics::{AttemptOutcome, Metrics, MetricsError, PoolState, RejectReason};
pub use negotiate::{Answer, Format, negotiate};
pub use process::SamplerError;
pub use publication::{Publication, Published, View};
pub use rendered::Rendered;
pub use scrape::{Scrape, scrape};
