//! Tells Kubernetes who leads. It has no vote: PostgreSQL decides, and nothing here is asked about it.

mod report;

pub use report::{Denied, LabelReport, LabelState};
