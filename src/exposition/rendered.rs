//! One snapshot as exposition text.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::gzip;
use super::text::{self, Kind};
use crate::clock::BootInstant;
use crate::collection::{Priority, PriorityState, QueueState, Snapshot};

/// A family with one sample for each queue and priority.
struct QueueFamily {
    name: &'static str,
    help: &'static str,
    value: fn(&mut String, &PriorityState),
}

const QUEUE_FAMILIES: [QueueFamily; 4] = [
    QueueFamily {
        name: "queue_messages_ready",
        help: "Messages that a consumer could receive now.",
        value: |out, state| text::integer(out, state.ready),
    },
    QueueFamily {
        name: "queue_messages_in_flight",
        help: "Messages that a consumer holds under a live lease.",
        value: |out, state| text::integer(out, state.in_flight),
    },
    QueueFamily {
        name: "queue_oldest_ready_message_age_seconds",
        help: "Age of the oldest ready message, 0 when there is none.",
        value: |out, state| text::float(out, state.oldest_ready_age),
    },
    QueueFamily {
        name: "queue_oldest_in_flight_message_age_seconds",
        help: "Age of the oldest message under a live lease, 0 when there is none.",
        value: |out, state| text::float(out, state.oldest_in_flight_age),
    },
];

/// Enough for the longest of the common values: 20 digits of a u64, 17 of a float and its point.
const VALUE_BYTES: usize = 20;

/// The queue families of one snapshot as bytes that every answer shares, and the numbers that the rest of
/// an answer says about them. The bytes are the same in the text format and in OpenMetrics.
#[derive(Clone, Debug)]
pub struct Rendered {
    body: Bytes,
    gzip: Bytes,
    /// Samples in the body.
    pub series: usize,
    /// [`Snapshot::queues_found`]
    pub queues_found: u64,
    /// [`Snapshot::queues_dropped`]
    pub queues_dropped: u64,
    /// [`Snapshot::database_time`]
    pub database_time: SystemTime,
    /// [`Snapshot::sent_at`]
    pub sent_at: BootInstant,
}

impl Rendered {
    /// Renders and compresses `snapshot`, which is refreshed every `interval`. Takes milliseconds for
    /// 10,000 queues: run it off the async workers.
    #[must_use]
    pub fn new(snapshot: &Snapshot, interval: Duration) -> Self {
        let queues = &snapshot.queues;
        let cadence = cadence(interval);

        let mut body = String::with_capacity(capacity(queues, &cadence));
        let mut labels = String::new();
        for family in &QUEUE_FAMILIES {
            text::header(&mut body, family.name, Kind::Gauge, &format!("{} {cadence}", family.help));
            for queue in queues {
                labels.clear();
                labels.push_str("{queue_name=\"");
                text::label_value(&mut labels, &queue.name);
                labels.push_str("\",message_priority=\"");
                for (priority, state) in Priority::ALL.iter().zip(&queue.priorities) {
                    body.push_str(family.name);
                    body.push_str(&labels);
                    body.push_str(priority.label());
                    body.push_str("\"} ");
                    (family.value)(&mut body, state);
                    body.push('\n');
                }
            }
        }
        body.shrink_to_fit();

        let body = Bytes::from(body);
        Self {
            gzip: gzip::member(&body),
            body,
            series: queues.len() * Priority::ALL.len() * QUEUE_FAMILIES.len(),
            queues_found: snapshot.queues_found,
            queues_dropped: snapshot.queues_dropped(),
            database_time: snapshot.database_time,
            sent_at: snapshot.sent_at,
        }
    }

    /// The queue families as text; shared, not copied.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// The same as one gzip member; shared, not copied.
    #[must_use]
    pub fn gzip(&self) -> Bytes {
        self.gzip.clone()
    }
}

/// The sentence that every HELP of queue state ends with.
pub(super) fn cadence(interval: Duration) -> String {
    format!("Refreshed in the background every {} s.", interval.as_secs_f64())
}

fn capacity(queues: &[QueueState], cadence: &str) -> usize {
    let names: usize = queues.iter().map(|queue| text::label_value_len(&queue.name)).sum();
    let priorities: usize = Priority::ALL.iter().map(|priority| priority.label().len()).sum();
    let line = "{queue_name=\"\",message_priority=\"\"} \n".len() + VALUE_BYTES;
    QUEUE_FAMILIES
        .iter()
        .map(|family| {
            let header =
                "# HELP  \n# TYPE  gauge\n".len() + 2 * family.name.len() + family.help.len() + cadence.len() + 1;
            header + 3 * names + queues.len() * (priorities + 3 * (line + family.name.len()))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Read;

    use flate2::read::MultiGzDecoder;

    use super::*;

    fn queue(name: &str, ready: u64, age: f64) -> QueueState {
        let state = PriorityState { ready, in_flight: 2, oldest_ready_age: age, oldest_in_flight_age: 0.25 };
        QueueState { name: name.to_owned(), priorities: [state, PriorityState::default(), PriorityState::default()] }
    }

    fn snapshot(queues: Vec<QueueState>) -> Snapshot {
        Snapshot {
            queues_found: queues.len() as u64,
            queues,
            database_time: SystemTime::UNIX_EPOCH,
            sent_at: BootInstant::BOOT,
            duration: Duration::from_millis(3),
        }
    }

    fn text(rendered: &Rendered) -> String {
        String::from_utf8(rendered.body().to_vec()).unwrap()
    }

    #[test]
    fn lines_of_a_family_stay_together_and_values_are_exact() {
        let rendered =
            Rendered::new(&snapshot(vec![queue("a", u64::MAX, 0.1), queue("b", 0, 3.0)]), Duration::from_secs(15));
        insta::assert_snapshot!(text(&rendered));
        assert_eq!(rendered.series, 24);
    }

    #[test]
    fn no_queue_is_four_families_without_samples() {
        let rendered = Rendered::new(&snapshot(Vec::new()), Duration::from_millis(500));
        assert_eq!(rendered.series, 0);
        assert_eq!(text(&rendered).lines().count(), 8);
        assert!(text(&rendered).contains("every 0.5 s."));
    }

    #[test]
    fn one_hundred_and_twenty_thousand_series_fit_the_reserved_capacity_and_decompress_to_the_same_bytes() {
        let queues: Vec<_> = (0..10_000u32)
            .map(|n| queue(&format!("tenant-{n:05}.emails_outbound"), u64::from(n), f64::from(n) / 7.0))
            .collect();
        let rendered = Rendered::new(&snapshot(queues.clone()), Duration::from_secs(15));
        assert_eq!(rendered.series, 120_000);
        assert_eq!(text(&rendered).lines().filter(|line| !line.starts_with('#')).count(), 120_000);
        assert!(rendered.body().len() <= capacity(&queues, &cadence(Duration::from_secs(15))));

        let mut plain = Vec::new();
        MultiGzDecoder::new(&*rendered.gzip()).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, rendered.body());
    }
}
