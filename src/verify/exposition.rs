//! What an exposition in text format says of its collector. Read line by line as it arrives: a test Pod has no memory
//! for the series of every queue.

use thiserror::Error;

/// The longest line, in bytes; those of a collector have a few hundred.
const LINE_LIMIT: usize = 16 * 1024;

/// How much of a line that is refused is told, in characters.
const SHOWN: usize = 120;

/// The family that only an exporter has. Without queues it has HELP and TYPE and no series.
const STATE_FAMILY: &str = "queue_messages_ready";

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exposition {
    /// Whether there are state gauges.
    pub(super) exports: bool,
    /// `queue_state_collection_success`
    pub(super) success: Option<f64>,
    /// `queue_state_snapshot_age_seconds`
    pub(super) age: Option<f64>,
    /// `retsu_collector_term_timeline`
    pub(super) timeline: Option<f64>,
    /// `retsu_collector_term`
    pub(super) number: Option<f64>,
}

impl Exposition {
    /// The term, written as `/leader` writes it.
    pub(super) fn term(&self) -> Option<String> {
        Some(format!("{}/{}", self.timeline?, self.number?))
    }

    fn gauge(&mut self, family: &str) -> Option<&mut Option<f64>> {
        match family {
            "queue_state_collection_success" => Some(&mut self.success),
            "queue_state_snapshot_age_seconds" => Some(&mut self.age),
            "retsu_collector_term_timeline" => Some(&mut self.timeline),
            "retsu_collector_term" => Some(&mut self.number),
            _ => None,
        }
    }

    fn line(&mut self, line: &str) -> Result<(), ExpositionError> {
        self.exports |= names_state(line);
        let family = line.split(['{', ' ']).next().unwrap_or_default();
        let Some(gauge) = self.gauge(family) else { return Ok(()) };
        let malformed = || ExpositionError::Malformed(line.chars().take(SHOWN).collect());
        let value = line.split_once(' ').filter(|(name, _)| *name == family).ok_or_else(malformed)?.1;
        let value = value.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(malformed)?;
        match gauge.replace(value) {
            None => Ok(()),
            Some(_) => Err(ExpositionError::Twice(family.to_owned())),
        }
    }
}

/// Whether a line of an exposition shows that its collector exports state gauges.
#[must_use]
pub(crate) fn names_state(line: &str) -> bool {
    of_family(line, "# TYPE ", STATE_FAMILY).is_some()
        || line.strip_prefix(STATE_FAMILY).is_some_and(|rest| rest.starts_with(['{', ' ']))
}

/// What such a comment says of a family.
fn of_family<'l>(line: &'l str, comment: &str, family: &str) -> Option<&'l str> {
    line.strip_prefix(comment)?.strip_prefix(family)?.strip_prefix(' ')
}

/// Why an exposition cannot be relied on.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub(super) enum ExpositionError {
    /// A gauge that is needed is not written as one.
    #[error("it has the line {0:?}")]
    Malformed(String),
    /// A gauge that is needed is there more than once.
    #[error("it has {0} twice")]
    Twice(String),
    /// A line without an end.
    #[error("it has a line without an end")]
    Unended,
    /// Not UTF-8.
    #[error("it is not UTF-8")]
    Encoding,
}

/// An exposition that is arriving.
#[derive(Debug, Default)]
pub(super) struct Reader {
    begun: Vec<u8>,
    read: Exposition,
}

impl Reader {
    /// Reads the next bytes.
    ///
    /// # Errors
    ///
    /// Any [`ExpositionError`].
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), ExpositionError> {
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        lines.try_for_each(|piece| {
            self.begun.extend_from_slice(piece);
            if self.begun.len() > LINE_LIMIT {
                return Err(ExpositionError::Unended);
            }
            if let Some(line) = self.begun.strip_suffix(b"\n") {
                self.read.line(std::str::from_utf8(line).map_err(|_| ExpositionError::Encoding)?)?;
                self.begun.clear();
            }
            Ok(())
        })
    }

    /// What was read, when that was all.
    ///
    /// # Errors
    ///
    /// It ends within a line.
    pub(super) fn finish(self) -> Result<Exposition, ExpositionError> {
        if self.begun.is_empty() { Ok(self.read) } else { Err(ExpositionError::Unended) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const LEADER: &str = "\
# HELP queue_messages_ready Messages that a consumer could receive now. Refreshed in the background every 0.5 s.
# TYPE queue_messages_ready gauge
queue_messages_ready{queue_name=\"retsu_collector_term 9\",message_priority=\"HIGH\"} 3
queue_state_collection_success 1
queue_state_snapshot_age_seconds 0.25
retsu_collector_term 731
retsu_collector_term_info{system_identifier=\"7\",timeline=\"2\"} 1
retsu_collector_term_timeline 2
retsu_collector_terms_lost_total{kind=\"stopping\"} 4
";

    fn read(text: &[u8]) -> Result<Exposition, ExpositionError> {
        let mut reader = Reader::default();
        reader.push(text)?;
        reader.finish()
    }

    #[test]
    fn the_few_gauges_are_found_wherever_the_answer_is_cut_on_its_way() {
        let whole = read(LEADER.as_bytes()).unwrap();
        let wanted =
            Exposition { exports: true, success: Some(1.0), age: Some(0.25), timeline: Some(2.0), number: Some(731.0) };
        assert_eq!((whole.term().as_deref(), &whole), (Some("2/731"), &wanted));
        for cut in 0..LEADER.len() {
            let mut reader = Reader::default();
            reader.push(&LEADER.as_bytes()[..cut]).unwrap();
            reader.push(&LEADER.as_bytes()[cut..]).unwrap();
            assert_eq!(reader.finish().unwrap(), wanted, "{cut}");
        }
    }

    #[test]
    fn a_database_without_queues_has_the_family_and_no_series() {
        assert!(read(b"# TYPE queue_messages_ready gauge\n").unwrap().exports);
        for other in ["# TYPE queue_messages_ready_other gauge\n", "# HELP x queue_messages_ready \n", "", "\n"] {
            assert_eq!(read(other.as_bytes()).unwrap(), Exposition::default(), "{other}");
        }
    }

    #[test]
    fn a_gauge_that_is_not_written_as_one_is_refused() {
        for line in [
            "queue_state_collection_success",
            "queue_state_collection_success ",
            "queue_state_collection_success NaN",
            "queue_state_snapshot_age_seconds +Inf",
            "queue_state_snapshot_age_seconds 1 1700000000000",
            "queue_state_snapshot_age_seconds{pod=\"a\"} 1",
            "retsu_collector_term seven",
        ] {
            assert_eq!(read(format!("{line}\n").as_bytes()), Err(ExpositionError::Malformed(line.to_owned())));
        }
        let twice = "retsu_collector_term 7\nretsu_collector_term 8\n";
        assert_eq!(read(twice.as_bytes()), Err(ExpositionError::Twice("retsu_collector_term".to_owned())));
        assert_eq!(read(b"retsu_collector_term 7"), Err(ExpositionError::Unended));
        assert_eq!(read(&vec![b'x'; LINE_LIMIT + 1]), Err(ExpositionError::Unended));
        assert_eq!(read(b"\xff\n"), Err(ExpositionError::Encoding));
    }
}
