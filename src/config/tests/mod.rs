//! Tests of the whole path from sources to settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chart;
mod connections;
mod kubernetes;
mod lease;
mod names;
mod round_trip;
mod secrets;
mod urls;
mod values;

use super::*;
use crate::test_log::Log;

/// Sources with a file of this content, besides a database.
fn file(yaml: &str) -> Sources {
    Sources { file: Some(("test.yaml".into(), yaml.into())), ..Sources::default() }
}

fn environment(variables: &[(&str, &str)]) -> Sources {
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Sources { environment, ..Sources::default() }
}

/// Adds a database, so that the rest of the sources is what a test is about.
fn with_database(mut sources: Sources) -> Sources {
    sources.environment.push(("PGHOST".into(), "db".into()));
    sources
}

fn flag(path: &'static str, value: &str) -> Flag {
    Flag { name: "--set", assignment: Assignment::Key { path, value: value.into() } }
}

/// The one problem of the sources, as text.
fn problem(sources: &Sources) -> String {
    let error = load(sources).expect_err("refused");
    assert_eq!(error.problems().len(), 1, "{error}");
    error.to_string()
}
