//! The demo's view: a frame that is redrawn in place on a terminal, lines elsewhere.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::scrape::{Gauges, QueueGauges};

/// Queues shown one by one; the rest is in the total.
const QUEUES_SHOWN: usize = 8;

/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// What is to be seen of one collector.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seen {
    /// It exports state gauges.
    Leader,
    /// It answers without them.
    Standby,
    /// It does not answer.
    Down,
}

/// Everything that a frame shows.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) collectors: Vec<(u16, Seen)>,
    /// The gauges of the leader.
    pub(super) gauges: Option<Gauges>,
    /// What happens next.
    pub(super) note: String,
}

pub(super) enum Screen {
    Terminal(ProgressBar),
    Lines { began: Instant, next: Duration },
}

impl Screen {
    pub(super) fn open() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::Lines { began: Instant::now(), next: Duration::ZERO };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        Self::Terminal(
            bar.with_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar())),
        )
    }

    /// Says what happened, to stay on the screen.
    pub(super) fn say(&self, event: &str) {
        match self {
            Self::Terminal(bar) => bar.println(event),
            Self::Lines { began, .. } => line(began.elapsed(), event),
        }
    }

    pub(super) fn show(&mut self, frame: &Frame) {
        match self {
            Self::Terminal(bar) => bar.set_message(table(frame)),
            Self::Lines { began, next } => {
                let now = began.elapsed();
                if now >= *next {
                    *next = now + LINE_INTERVAL;
                    line(now, &summary(frame));
                }
            }
        }
    }

    /// Takes the frame off the screen; what was said stays.
    pub(super) fn close(&self) {
        if let Self::Terminal(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn line(at: Duration, text: &str) {
    // Nobody is left to tell when standard output is gone; the demo ends by its own means.
    let _ = writeln!(std::io::stdout(), "{:7.2} s  {text}", at.as_secs_f64());
}

fn total(gauges: &Gauges) -> QueueGauges {
    gauges.queues.values().fold(QueueGauges::default(), |sum, queue| QueueGauges {
        ready: sum.ready + queue.ready,
        in_flight: sum.in_flight + queue.in_flight,
        oldest_ready_age: sum.oldest_ready_age.max(queue.oldest_ready_age),
    })
}

fn role(seen: Seen) -> &'static str {
    match seen {
        Seen::Leader => "leader",
        Seen::Standby => "standby",
        Seen::Down => "down",
    }
}

fn snapshot_age(gauges: &Gauges) -> String {
    gauges.snapshot_age_seconds.map(|age| format!("snapshot {age:.1} s old")).unwrap_or_default()
}

fn summary(frame: &Frame) -> String {
    let mut parts: Vec<String> =
        frame.collectors.iter().map(|&(port, seen)| format!("{port} {}", role(seen))).collect();
    if let Some(gauges) = &frame.gauges {
        let total = total(gauges);
        parts.push(format!("{} queues, {} ready, {} in flight", gauges.queues.len(), total.ready, total.in_flight));
        parts.push(snapshot_age(gauges));
    }
    parts.join("; ")
}

fn table(frame: &Frame) -> String {
    let mut text = String::from("\n");
    for &(port, seen) in &frame.collectors {
        let detail = frame.gauges.as_ref().filter(|_| seen == Seen::Leader).map(snapshot_age).unwrap_or_default();
        let _ = writeln!(text, "  http://127.0.0.1:{port}/metrics   {:8} {detail}", role(seen));
    }
    if let Some(gauges) = &frame.gauges {
        let _ = writeln!(text, "\n  {:<20} {:>8} {:>10} {:>14}", "queue", "ready", "in flight", "oldest ready");
        let shown = gauges.queues.iter().take(QUEUES_SHOWN).map(|(name, queue)| (name.as_str(), *queue));
        for (name, queue) in shown.chain([("all queues", total(gauges))]) {
            let QueueGauges { ready, in_flight, oldest_ready_age } = queue;
            let _ = writeln!(text, "  {name:<20} {ready:>8} {in_flight:>10} {oldest_ready_age:>12.1} s");
        }
    }
    let _ = write!(text, "\n  {}", frame.note);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        let queues = (0..10).map(|n| {
            (format!("queue-{n}"), QueueGauges { ready: 2.0, in_flight: 1.0, oldest_ready_age: f64::from(n) })
        });
        Frame {
            collectors: vec![(24350, Seen::Leader), (24351, Seen::Down)],
            gauges: Some(Gauges { queues: queues.collect(), snapshot_age_seconds: Some(0.44) }),
            note: "next".to_owned(),
        }
    }

    #[test]
    fn a_line_says_who_leads_and_adds_the_gauges_up() {
        assert_eq!(
            summary(&frame()),
            "24350 leader; 24351 down; 10 queues, 20 ready, 10 in flight; snapshot 0.4 s old"
        );
    }

    #[test]
    fn a_frame_is_of_bounded_height_and_totals_every_queue() {
        let table = table(&frame());
        assert!(table.contains("queue-7 ") && !table.contains("queue-8 "), "{table}");
        assert!(table.lines().any(|line| line.split_whitespace().eq(["all", "queues", "20", "10", "9.0", "s"])));
        assert!(table.lines().any(|line| line.contains(":24350/metrics") && line.contains("snapshot 0.4 s old")));
    }

    #[test]
    fn nobody_leading_shows_no_gauges() {
        let frame = Frame { collectors: vec![(1, Seen::Standby)], gauges: None, note: String::new() };
        assert_eq!(summary(&frame), "1 standby");
        assert!(!table(&frame).contains("ready"));
    }
}
