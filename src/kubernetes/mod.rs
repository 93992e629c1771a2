//! The Kubernetes API, which is told who leads and never asked.
#![expect(dead_code, reason = "the reconciler is what makes requests")]

mod calls;
mod changes;
mod client;
mod denials;
mod events;
mod outage;
mod report;
mod request_error;
mod requests;
#[cfg(test)]
mod tests;

pub use report::{Denied, LabelReport, LabelState};
