//! The chart: what Helm renders of it, what API servers and the program take of that, and what it refuses.

mod api;
mod dashboard;
mod helm;
mod installs;
mod manifests;
mod monitors;
mod names;
mod nulls;
mod objects;
mod pods;
mod program;
mod readme;
mod refusals;
mod rules;
mod scaling;
mod schemas;
mod selectors;
mod subchart;
mod values;
mod values_schema;

/// The oldest and the newest Kubernetes that the chart is checked for.
const OLDEST: &str = "1.27.0";
const NEWEST: &str = "1.37.0";
/// The oldest that has the admission policy.
const OLDEST_WITH_POLICY: &str = "1.30.0";
