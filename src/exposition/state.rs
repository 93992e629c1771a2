//! The families of queue state that depend on the instant of the answer.

use std::time::{Duration, SystemTime};

use prometheus::proto::MetricFamily;

use super::encode::encode;
use super::negotiate::Format;
use super::rendered::cadence;
use super::text::{self, Kind};
use super::{Rendered, View};
use crate::clock::BootInstant;

/// What an answer at `now` says of `view`, and the `collection` families, which exist from the first
/// refresh on whatever the view is.
pub(super) fn render(
    view: &View,
    now: BootInstant,
    interval: Duration,
    collection: &[MetricFamily],
    format: Format,
) -> String {
    let mut out = String::with_capacity(4096);
    match view {
        View::Absent | View::Elected(_) => {}
        View::Failed => success(&mut out, 0.0, interval),
        View::Published(current) => {
            success(&mut out, 1.0, interval);
            published(&mut out, &current.rendered, now, interval);
        }
    }
    encode(&mut out, collection, format);
    out
}

fn success(out: &mut String, value: f64, interval: Duration) {
    let help = format!(
        "Whether queue state is collected: 0 after a failed refresh or a lost lease, until another is seen to hold the lock. {}",
        cadence(interval)
    );
    text::gauge(out, "queue_state_collection_success", &help, value);
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of queues stay far below 2^53")]
fn published(out: &mut String, rendered: &Rendered, now: BootInstant, interval: Duration) {
    let cadence = cadence(interval);
    text::gauge(
        out,
        "queue_state_snapshot_age_seconds",
        &format!("Time since the query behind the queue gauges was sent. {cadence}"),
        now.saturating_since(rendered.sent_at).as_secs_f64(),
    );
    text::gauge(
        out,
        "queue_state_snapshot_timestamp_seconds",
        &format!("Time of the database at which every queue gauge was true, since the Unix epoch. {cadence}"),
        unix_seconds(rendered.database_time),
    );
    text::gauge(
        out,
        "queue_state_queues_found",
        &format!("Queues that the database has. {cadence}"),
        rendered.queues_found as f64,
    );
    text::gauge(
        out,
        "queue_state_queues_dropped",
        &format!("Queues left out because telemetry.metrics.max_queues is exhausted. {cadence}"),
        rendered.queues_dropped as f64,
    );
    let bytes = "retsu_collector_exposition_bytes";
    text::header(out, bytes, Kind::Gauge, "Size of the queue gauges in an answer, by content encoding.");
    for (encoding, size) in [("identity", rendered.body().len()), ("gzip", rendered.gzip().len())] {
        out.push_str(bytes);
        out.push_str("{encoding=\"");
        out.push_str(encoding);
        out.push_str("\"} ");
        text::float(out, size as f64);
        out.push('\n');
    }
    text::gauge(
        out,
        "retsu_collector_exposition_series",
        "Series of the queue gauges in an answer.",
        rendered.series as f64,
    );
}

/// Seconds since the Unix epoch; negative before it.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}
