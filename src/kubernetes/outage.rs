//! When the log says that the API is away.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two warnings.
const INTERVAL: Duration = Duration::from_secs(60);

/// What the log is to say.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Line {
    /// Requests fail, since so long and so many of them.
    Down { since: Duration, failures: u64 },
    /// The API answers again, after so long.
    Up { after: Duration },
}

/// Failures without an answer in between. Pure: it is told the time.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    failures: u64,
    /// Whether the log knows of this one.
    told: bool,
    /// The last warning, of this outage or an earlier one: an API that comes and goes is still one line a minute.
    warned: Option<Instant>,
}

impl Outage {
    /// A request has failed.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Line> {
        let since = *self.since.get_or_insert(now);
        self.failures += 1;
        if self.warned.is_some_and(|warned| now.duration_since(warned) < INTERVAL) {
            return None;
        }
        self.warned = Some(now);
        self.told = true;
        Some(Line::Down { since: now.duration_since(since), failures: self.failures })
    }

    /// A request was answered.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Line> {
        let since = self.since.take()?;
        self.failures = 0;
        std::mem::take(&mut self.told).then(|| Line::Up { after: now.duration_since(since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_line_a_minute_and_one_when_it_ends() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(outage.answered(at(0)), None);
        assert_eq!(outage.failed(at(1)), Some(Line::Down { since: Duration::ZERO, failures: 1 }));
        let later: Vec<_> = (2..=600).filter_map(|second| outage.failed(at(second))).collect();
        assert_eq!(later.len(), 9);
        assert_eq!(later[0], Line::Down { since: Duration::from_secs(60), failures: 61 });
        assert_eq!(outage.answered(at(601)), Some(Line::Up { after: Duration::from_secs(600) }));
        assert_eq!(outage.answered(at(602)), None);
    }

    #[test]
    fn an_api_that_comes_and_goes_is_still_one_warning_a_minute() {
        let (start, mut outage) = (Instant::now(), Outage::default());
        let mut lines = Vec::new();
        for second in 0..240 {
            let now = start + Duration::from_secs(second);
            lines.extend(if second % 2 == 0 { outage.failed(now) } else { outage.answered(now) });
        }
        let warnings = lines.iter().filter(|line| matches!(line, Line::Down { .. })).count();
        assert_eq!((warnings, lines.len()), (4, 8), "{lines:?}");
    }
}
