//! Tests of the whole path from sources to settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod connections;
mod lease;
mod names;
mod round_trip;
mod secrets;
mod urls;
mod values;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::*;

/// A log that keeps every line of every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Logs of this thread go here as long as the guard lives.
    fn capture(&self) -> tracing::subscriber::DefaultGuard {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
        tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
