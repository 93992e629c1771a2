//! How soon somebody is contradicted who undoes at once what was written: pure arithmetic.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::pause;

/// After so long without a repair the next one is the first of a row.
const QUIET: Duration = Duration::from_secs(10);

/// The shortest time between two lines in the log.
const LINES_APART: Duration = Duration::from_secs(60);

/// Repairs of one kind, in a row.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    row: u32,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Repairs {
    /// How long the next repair has to wait at `now`: the first of a row not at all, those after it longer and longer,
    /// up to a second, less up to half by `jitter`, 0 to 1.
    pub(super) fn wait(&self, now: Instant, jitter: f64) -> Duration {
        let due = self.last.filter(|&last| !is_quiet(last, now)).map(|last| last + pause(self.row - 1, None, jitter));
        due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
    }

    /// A repair was made at `now`.
    pub(super) fn made(&mut self, now: Instant) {
        if self.last.is_none_or(|last| is_quiet(last, now)) {
            self.row = 0;
        }
        self.row = self.row.saturating_add(1);
        self.last = Some(now);
    }

    /// Whether the log is to tell of one at `now`.
    pub(super) fn tells(&mut self, now: Instant) -> bool {
        let due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= LINES_APART);
        if due {
            self.told = Some(now);
        }
        due
    }
}

fn is_quiet(last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) >= QUIET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_repair_is_at_once_and_those_after_it_come_slower_until_there_is_quiet() {
        let (mut repairs, mut now) = (Repairs::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = repairs.wait(now, 0.0);
            waits.push(wait.as_millis());
            now += wait;
            assert_eq!(repairs.wait(now, 0.0), Duration::ZERO, "it has waited");
            repairs.made(now);
        }
        assert_eq!(waits, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(repairs.wait(now, 1.0), Duration::from_millis(500));
        assert_eq!(repairs.wait(now + Duration::from_millis(9999), 0.0), Duration::ZERO);
        repairs.made(now + QUIET);
        assert_eq!(repairs.wait(now + QUIET, 0.0), Duration::from_millis(50));
    }

    #[test]
    fn the_log_tells_once_a_minute() {
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let told = (0..180).filter(|&second| repairs.tells(start + Duration::from_secs(second))).count();
        assert_eq!(told, 3);
    }
}
