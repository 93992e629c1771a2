//! Lines of dependencies that log through the crate `log`.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// The target of every event that comes from `log`; the record's own one is among its fields.
const TARGET: &str = "log";

/// The JSON format `F`, without the fields `log.*`: they repeat the target and name a file of the machine that
/// built the program.
pub(super) struct WithoutOrigin<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for WithoutOrigin<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if event.metadata().target() != TARGET {
            return self.0.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        let mut fields: Map<String, Value> = serde_json::from_str(&line).map_err(|_| fmt::Error)?;
        fields.retain(|name, _| !name.starts_with("log."));
        let line = serde_json::to_string(&fields).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}
