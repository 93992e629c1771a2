//! Who exported state gauges when, told from scrapes of every collector.
//!
//! A scrape proves one thing: at some instant between sending the request and having the whole answer, its
//! collector did or did not serve state gauges. Everything here follows from those intervals, so a slow
//! machine makes a gap less precise and never invents an overlap.

use std::time::Duration;

/// What one scrape saw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// State gauges.
    Exporting,
    /// An answer without state gauges.
    Silent,
    /// No answer.
    Unreachable,
}

/// One scrape of one collector. Both times count from the start of the history, on one clock.
#[derive(Clone, Copy, Debug)]
pub struct Scrape {
    /// Right before the request was sent.
    pub sent: Duration,
    /// When the answer was complete or the scrape was given up.
    pub received: Duration,
    /// What it saw.
    pub answer: Answer,
}

/// Consecutive scrapes of one collector that all saw state gauges.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which collector, by its place in the list of targets.
    pub target: usize,
    /// The first of the scrapes, sent and received.
    pub first: (Duration, Duration),
    /// The last of the scrapes, sent and received.
    pub last: (Duration, Duration),
    /// How many scrapes.
    pub scrapes: usize,
    /// When the scrape after the last, which saw no state gauges, was received; `None` while the run goes on.
    pub ended_by: Option<Duration>,
}

/// A time in which nobody exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Who exported before it.
    pub from: usize,
    /// Who exported after it.
    pub to: usize,
    /// When the last export before it was received.
    pub began: Duration,
    /// The shortest that it can have been.
    pub at_least: Duration,
    /// The longest that it can have been.
    pub at_most: Duration,
}

/// Two collectors that certainly exported at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// The two collectors.
    pub targets: (usize, usize),
    /// The instant from which both certainly exported.
    pub began: Duration,
    /// For how long they certainly did.
    pub at_least: Duration,
}

/// The scrapes of a fixed number of collectors, kept as runs.
#[derive(Clone, Debug)]
pub struct History {
    runs: Vec<Run>,
    /// The run of each target that its last scrape belongs to.
    open: Vec<Option<usize>>,
    scrapes: u64,
}

impl History {
    /// An empty history of `targets` collectors.
    #[must_use]
    pub fn new(targets: usize) -> Self {
        Self { runs: Vec::new(), open: vec![None; targets], scrapes: 0 }
    }

    /// Adds a scrape of the collector `target`; scrapes of one collector come in their order. A target that
    /// the history was not made for is ignored.
    pub fn record(&mut self, target: usize, scrape: Scrape) {
        let Some(open) = self.open.get_mut(target) else { return };
        self.scrapes += 1;
        let span = (scrape.sent, scrape.received);
        match (scrape.answer, *open) {
            (Answer::Exporting, Some(run)) => {
                self.runs[run].last = span;
                self.runs[run].scrapes += 1;
            }
            (Answer::Exporting, None) => {
                *open = Some(self.runs.len());
                self.runs.push(Run { target, first: span, last: span, scrapes: 1, ended_by: None });
            }
            (Answer::Silent | Answer::Unreachable, Some(run)) => {
                self.runs[run].ended_by = Some(scrape.received);
                *open = None;
            }
            (Answer::Silent | Answer::Unreachable, None) => {}
        }
    }

    /// How many scrapes it has seen of all collectors together.
    #[must_use]
    pub fn scrapes(&self) -> u64 {
        self.scrapes
    }

    /// Every run, in the order of their first scrapes' answers.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whoever exported at its last scrape.
    #[must_use]
    pub fn exporting(&self) -> Vec<usize> {
        (0..self.open.len()).filter(|&target| self.open[target].is_some()).collect()
    }

    /// Every gap between two runs that do not touch, in the order of time.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by_key(|run| run.first.1);
        let mut gaps = Vec::new();
        let mut before: Option<&Run> = None;
        for run in runs {
            if let Some(before) = before.filter(|before| before.last.1 < run.first.0) {
                // Exporting ended before the scrape that no longer saw it was received, and the next export
                // began after the first scrape that might have seen it was sent.
                let ended = before.ended_by.unwrap_or(before.last.1);
                gaps.push(Gap {
                    from: before.target,
                    to: run.target,
                    began: before.last.1,
                    at_least: run.first.0.saturating_sub(ended),
                    at_most: run.first.1.saturating_sub(before.last.0),
                });
            }
            if before.is_none_or(|before| before.last.1 <= run.last.1) {
                before = Some(run);
            }
        }
        gaps
    }

    /// Every pair of runs of two collectors that certainly overlapped.
    #[must_use]
    pub fn overlaps(&self) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for (index, a) in self.runs.iter().enumerate() {
            for b in self.runs[index + 1..].iter().filter(|b| b.target != a.target) {
                // At the latest a run began when its first answer was received; at the earliest it ended when
                // its last scrape was sent.
                if a.first.1 <= b.last.0 && b.first.1 <= a.last.0 {
                    let began = a.first.1.max(b.first.1);
                    let at_least = a.last.0.min(b.last.0).saturating_sub(began);
                    overlaps.push(Overlap { targets: (a.target, b.target), began, at_least });
                }
            }
        }
        overlaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// `(target, sent, received, answer)`, milliseconds.
    fn history(scrapes: &[(usize, u64, u64, Answer)]) -> History {
        let mut history = History::new(2);
        for &(target, sent, received, answer) in scrapes {
            history.record(target, Scrape { sent: ms(sent), received: ms(received), answer });
        }
        history
    }

    use Answer::{Exporting, Silent, Unreachable};

    #[test]
    fn a_hand_over_is_one_gap_with_both_bounds() {
        let history = history(&[
            (0, 0, 1, Exporting),
            (1, 0, 1, Silent),
            (0, 20, 21, Exporting),
            (0, 40, 41, Unreachable),
            (1, 1000, 1001, Silent),
            (1, 1020, 1022, Exporting),
            (1, 1040, 1041, Exporting),
        ]);
        assert_eq!(
            history.gaps(),
            [Gap { from: 0, to: 1, began: ms(21), at_least: ms(1020 - 41), at_most: ms(1022 - 20) }]
        );
        assert_eq!(history.overlaps(), []);
        assert_eq!(history.exporting(), [1]);
        assert_eq!(history.runs()[0].scrapes, 2);
    }

    #[test]
    fn two_that_export_at_once_overlap_for_at_least_the_common_time() {
        let history = history(&[
            (0, 0, 1, Exporting),
            (1, 50, 51, Exporting),
            (0, 100, 101, Exporting),
            (1, 150, 151, Exporting),
            (0, 160, 161, Silent),
        ]);
        assert_eq!(history.overlaps(), [Overlap { targets: (0, 1), began: ms(51), at_least: ms(100 - 51) }]);
        assert_eq!(history.gaps(), []);
    }

    #[test]
    fn one_stale_answer_in_the_term_of_another_is_an_overlap() {
        let history = history(&[
            (0, 0, 1, Exporting),
            (0, 20, 520, Unreachable),
            (1, 400, 401, Exporting),
            (0, 520, 900, Exporting),
            (1, 1000, 1001, Exporting),
            (0, 910, 911, Silent),
        ]);
        assert_eq!(history.overlaps(), [Overlap { targets: (1, 0), began: ms(900), at_least: ms(0) }]);
    }

    #[test]
    fn a_slow_answer_from_before_a_hand_over_is_no_overlap() {
        let history = history(&[
            (0, 0, 1, Exporting),
            // Written at once, read 80 ms later by a busy scraper.
            (0, 20, 100, Exporting),
            (1, 60, 61, Exporting),
            (1, 120, 121, Exporting),
            (0, 130, 131, Unreachable),
        ]);
        assert_eq!(history.overlaps(), []);
    }

    #[test]
    fn an_interruption_of_one_collector_ends_its_run() {
        let history = history(&[
            (0, 0, 1, Exporting),
            (0, 20, 21, Unreachable),
            (1, 100, 101, Exporting),
            (1, 120, 121, Exporting),
            (1, 140, 141, Silent),
            (0, 300, 301, Exporting),
        ]);
        assert_eq!(history.overlaps(), []);
        assert_eq!(history.gaps().iter().map(|gap| (gap.from, gap.to)).collect::<Vec<_>>(), [(0, 1), (1, 0)]);
    }

    #[test]
    fn an_unknown_target_is_ignored() {
        assert_eq!(history(&[(7, 0, 1, Exporting)]).runs(), []);
    }
}
