//! Logs on stderr, with a filter that is changeable at run time, and optional traces over OTLP/HTTP.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bridged::WithoutOrigin;
use evaluated::Evaluated;
use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::config::{FilterError, LogFormat, LoggingSettings, TracesSettings, parse_filter};
use crate::http::LogFilter;

mod bridged;
mod evaluated;
#[cfg(feature = "otlp")]
mod otlp;

/// Why logs or traces could not be set up or changed.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The log filter is not one.
    #[error("the log filter is invalid: {0}")]
    Filter(#[from] FilterError),
    /// Something else already logs in this process.
    #[error("logging is already set up in this process")]
    AlreadySetUp,
    /// The exporter of traces could not be built.
    #[error("traces cannot be exported: {0}")]
    Traces(String),
    /// The spans that were still queued were not delivered in time.
    #[error("traces were not flushed: {0}")]
    Flush(String),
}

/// The log filter of the running process. Clones change the same filter.
#[derive(Clone)]
pub struct FilterHandle {
    handle: reload::Handle<EnvFilter, Registry>,
    text: Arc<Mutex<String>>,
}

impl FilterHandle {
    /// The filter in force, as it was given.
    #[must_use]
    pub fn get(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another filter in force, at once and for every thread.
    ///
    /// # Errors
    ///
    /// An invalid filter; the old one stays in force.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        let parsed = parse_filter(filter)?;
        // Held across the change, so that the text never tells of another filter than the one in force.
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.reload(parsed).map_err(|_| TelemetryError::AlreadySetUp)?;
        filter.clone_into(&mut text);
        Ok(())
    }
}

impl LogFilter for FilterHandle {
    fn get(&self) -> String {
        Self::get(self)
    }

    fn set(&self, filter: &str) -> Result<(), String> {
        Self::set(self, filter).map_err(|error| error.to_string())
    }
}

/// What [`init`] set up.
pub struct Telemetry {
    filter: FilterHandle,
    #[cfg(feature = "otlp")]
    traces: Option<otlp::Traces>,
}

impl Telemetry {
    /// The handle that changes the log filter.
    #[must_use]
    pub fn filter(&self) -> FilterHandle {
        self.filter.clone()
    }

    /// Delivers the spans that are still queued. It blocks the calling thread for at most `limit`.
    ///
    /// # Errors
    ///
    /// The receiver did not take them within `limit`.
    #[cfg_attr(not(feature = "otlp"), expect(unused_variables, reason = "without traces there is nothing to flush"))]
    pub fn shutdown(self, limit: Duration) -> Result<(), TelemetryError> {
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            return traces.shutdown(limit);
        }
        Ok(())
    }
}

/// Sets up the process's logs, on stderr, and its traces.
///
/// # Errors
///
/// An invalid filter, an exporter that cannot be built, or a second call in one process.
pub fn init(logging: &LoggingSettings, traces: &TracesSettings) -> Result<Telemetry, TelemetryError> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (subscriber, telemetry) = build(logging, traces, io::stderr, colours)?;
    subscriber.try_init().map_err(|_| TelemetryError::AlreadySetUp)?;
    Ok(telemetry)
}

/// What [`init`] installs, for any writer.
fn build<W>(
    logging: &LoggingSettings,
    traces: &TracesSettings,
    writer: W,
    colours: bool,
) -> Result<(impl Subscriber + Send + Sync + 'static, Telemetry), TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse_filter(&logging.filter)?);
    let filter_handle = FilterHandle { handle, text: Arc::new(Mutex::new(logging.filter.clone())) };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    let lines = match logging.format {
        LogFormat::Pretty => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).map_event_format(WithoutOrigin).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(Evaluated(filter)));
    #[cfg(feature = "otlp")]
    {
        let (layer, traces) = otlp::layer(traces)?.unzip();
        Ok((registry.with(layer), Telemetry { filter: filter_handle, traces }))
    }
    #[cfg(not(feature = "otlp"))]
    {
        if traces.enabled {
            return Err(TelemetryError::Traces("this program was built without the feature `otlp`".into()));
        }
        Ok((registry, Telemetry { filter: filter_handle }))
    }
}

#[cfg(test)]
mod tests;
