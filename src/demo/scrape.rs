//! What the demo reads in an exposition: enough to show it, no more.

use std::collections::BTreeMap;

use crate::verify::names_state;

/// The state gauges of one scrape, added up over the priorities.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges {
    /// By queue name.
    pub queues: BTreeMap<String, QueueGauges>,
    /// `queue_state_snapshot_age_seconds`
    pub snapshot_age_seconds: Option<f64>,
}

/// One queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueGauges {
    /// Sum of `queue_messages_ready`.
    pub ready: f64,
    /// Sum of `queue_messages_in_flight`.
    pub in_flight: f64,
    /// Greatest `queue_oldest_ready_message_age_seconds`.
    pub oldest_ready_age: f64,
}

/// Whether an exposition has the family `queue_messages_ready`: its collector exports state gauges. A leader
/// of a database without queues has the family too, with HELP and TYPE and no series.
#[must_use]
pub fn exports_state(exposition: &str) -> bool {
    exposition.lines().any(names_state)
}

/// Reads the state gauges of an exposition in text format.
#[must_use]
pub fn gauges(exposition: &str) -> Gauges {
    let mut gauges = Gauges::default();
    for line in exposition.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (family, labels) = series.split_once('{').unwrap_or((series, ""));
        if family == "queue_state_snapshot_age_seconds" {
            gauges.snapshot_age_seconds = Some(value);
            continue;
        }
        // The names of queues need no escaping, so the value ends at the next quotation mark.
        let Some((_, name)) = labels.split_once("queue_name=\"") else { continue };
        let Some((name, _)) = name.split_once('"') else { continue };
        match family {
            "queue_messages_ready" => gauges.queue(name).ready += value,
            "queue_messages_in_flight" => gauges.queue(name).in_flight += value,
            "queue_oldest_ready_message_age_seconds" => {
                let queue = gauges.queue(name);
                queue.oldest_ready_age = queue.oldest_ready_age.max(value);
            }
            _ => {}
        }
    }
    gauges
}

impl Gauges {
    fn queue(&mut self, name: &str) -> &mut QueueGauges {
        self.queues.entry(name.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPOSITION: &str = "\
# HELP queue_messages_ready Messages that a consumer could receive.
# TYPE queue_messages_ready gauge
queue_messages_ready{queue_name=\"emails\",message_priority=\"HIGH\"} 3
queue_messages_ready{queue_name=\"emails\",message_priority=\"LOW\"} 4
queue_messages_in_flight{message_priority=\"LOW\",queue_name=\"emails\"} 2
queue_oldest_ready_message_age_seconds{queue_name=\"emails\",message_priority=\"HIGH\"} 1.5
queue_oldest_ready_message_age_seconds{queue_name=\"emails\",message_priority=\"LOW\"} 0.5
queue_state_snapshot_age_seconds 0.25
process_open_fds 12
";

    #[test]
    fn priorities_are_added_up_and_the_oldest_age_is_kept() {
        let gauges = gauges(EXPOSITION);
        assert_eq!(gauges.snapshot_age_seconds, Some(0.25));
        assert_eq!(gauges.queues.len(), 1);
        assert_eq!(gauges.queues["emails"], QueueGauges { ready: 7.0, in_flight: 2.0, oldest_ready_age: 1.5 });
    }

    #[test]
    fn only_the_family_itself_counts_as_an_export() {
        assert!(exports_state(EXPOSITION));
        assert!(exports_state("# TYPE queue_messages_ready gauge\n"));
        assert!(!exports_state("# TYPE process_open_fds gauge\nprocess_open_fds 12\n"));
        assert!(!exports_state("queue_messages_ready_other 1\n# HELP x mentions queue_messages_ready \n"));
    }
}
