//! Decides, from scrapes alone, whether the election kept what it promises. Pure.
//!
//! A scrape proves one thing: at some instant between sending the request and having the whole answer, its process
//! wrote that answer. Every violation below follows from such intervals, so a slow machine hides a short violation
//! and never invents one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use retsu_collector::demo::history::{self, Gap, History, Overlap};

/// A term as an exposition names it: timeline, number.
pub(crate) type Term = (u64, u64);

/// What one answer said of queue state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exported {
    /// The term; the first answers of a leader may not name it yet.
    pub(crate) term: Option<Term>,
    /// `queue_state_snapshot_timestamp_seconds`, which identifies the snapshot.
    pub(crate) snapshot: f64,
    /// `queue_state_snapshot_age_seconds`.
    pub(crate) age: Duration,
}

/// What one scrape saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    /// State gauges.
    Exporting(Exported),
    /// An answer without state gauges.
    Silent,
    /// No answer.
    Unreachable,
}

/// One scrape of one process. Both times count from the start of the recording, on one clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Which process, by its place in the cluster.
    pub(crate) target: usize,
    /// Right before the request was sent.
    pub(crate) sent: Duration,
    /// When the answer was complete or the scrape was given up.
    pub(crate) received: Duration,
    /// What it saw.
    pub(crate) answer: Answer,
}

/// A fault that was injected. Every gap until the next one is its gap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Injected {
    /// The fault.
    pub(crate) fault: String,
    /// Right before it was injected.
    pub(crate) began: Duration,
    /// The declared bound: how long nobody may export.
    pub(crate) bound: Duration,
    /// The time in which no process could have led; it adds to the bound.
    pub(crate) outage: Duration,
}

impl Injected {
    fn allowed(&self) -> Duration {
        self.bound + self.outage
    }
}

/// A promise that was certainly broken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Violation {
    /// Two exported at once, as their uninterrupted runs show.
    Overlap(Overlap),
    /// A term was exported after a later one had been.
    OldTerm {
        /// Who exported the old term, and who the later one.
        targets: (usize, usize),
        /// The old term and the later one.
        terms: (Term, Term),
        /// When the first answer of the later term was there.
        later: Duration,
        /// When the requests of the old term's first and last answer after that were sent.
        old: (Duration, Duration),
    },
    /// Nobody exported for longer than the fault before it allows.
    Gap {
        /// The gap.
        gap: Gap,
        /// The fault; `None` is no fault at all.
        fault: Option<String>,
        /// How long it may be.
        allowed: Duration,
    },
    /// A snapshot said itself that it was too old.
    StaleAge {
        /// Who exported it.
        target: usize,
        /// When the answer was there.
        at: Duration,
        /// The age it said.
        age: Duration,
    },
    /// A snapshot was exported too long after it had first been seen.
    StaleSight {
        /// Who exported it.
        target: usize,
        /// When the request was sent.
        at: Duration,
        /// The time since the first answer that carried it.
        seen_for: Duration,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap(Overlap { targets, began, at_least }) => {
                write!(f, "{began:?}: {targets:?} both exported for at least {at_least:?}")
            }
            Self::OldTerm { targets, terms, later, old } => write!(
                f,
                "{} exported term {:?} from {:?} to {:?}, after {} had exported {:?} at {later:?}",
                targets.0, terms.0, old.0, old.1, targets.1, terms.1
            ),
            Self::Gap { gap, fault, allowed } => write!(
                f,
                "{:?}: nobody exported for {:?} to {:?} after {}; {allowed:?} are allowed",
                gap.began,
                gap.at_least,
                gap.at_most,
                fault.as_deref().unwrap_or("no fault"),
            ),
            Self::StaleAge { target, at, age } => write!(f, "{at:?}: {target} exported a snapshot of age {age:?}"),
            Self::StaleSight { target, at, seen_for } => {
                write!(f, "{at:?}: {target} exported a snapshot first seen {seen_for:?} before")
            }
        }
    }
}

/// What a recording shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// Every broken promise.
    pub(crate) violations: Vec<Violation>,
    /// Every gap, with the place of its fault in the list.
    pub(crate) gaps: Vec<(Option<usize>, Gap)>,
}

/// Judges the samples of a cluster, in any order, against the faults, in the order of time. `oldest` is the
/// greatest age of a snapshot that each process may export.
pub(crate) fn check(samples: &[Sample], faults: &[Injected], oldest: &[Duration]) -> Verdict {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| (sample.received, sample.sent));
    let mut history = History::new(oldest.len());
    for sample in &samples {
        let answer = match sample.answer {
            Answer::Exporting(_) => history::Answer::Exporting,
            Answer::Silent => history::Answer::Silent,
            Answer::Unreachable => history::Answer::Unreachable,
        };
        history.record(sample.target, history::Scrape { sent: sample.sent, received: sample.received, answer });
    }
    let mut violations: Vec<_> = history.overlaps().into_iter().map(Violation::Overlap).collect();
    violations.extend(old_terms(&samples));
    violations.extend(stale(&samples, oldest));
    let gaps: Vec<_> = history.gaps().into_iter().map(|gap| (fault_of(&gap, faults), gap)).collect();
    for &(place, gap) in &gaps {
        let fault = place.map(|place| &faults[place]);
        let allowed = fault.map_or(Duration::ZERO, Injected::allowed);
        if gap.at_least > allowed {
            violations.push(Violation::Gap { gap, fault: fault.map(|fault| fault.fault.clone()), allowed });
        }
    }
    Verdict { violations, gaps }
}

/// The last fault that began before the gap had certainly ended.
fn fault_of(gap: &Gap, faults: &[Injected]) -> Option<usize> {
    faults.iter().rposition(|fault| fault.began <= gap.began + gap.at_most)
}

/// Answers that carry a term although a later one of another process had been received before their request
/// was sent. Terms grow with every acquisition, so this also finds one stale answer long after a hand-over, when
/// the later term has ended again and no two runs overlap.
fn old_terms(received: &[Sample]) -> Vec<Violation> {
    let term = |sample: &Sample| match sample.answer {
        Answer::Exporting(exported) => exported.term,
        _ => None,
    };
    let mut sent: Vec<&Sample> = received.iter().filter(|sample| term(sample).is_some()).collect();
    sent.sort_by_key(|sample| sample.sent);
    let mut answers = received.iter().filter(|sample| term(sample).is_some()).peekable();
    // The greatest term that each process has exported so far, and when its first answer was there.
    let mut greatest: BTreeMap<usize, (Term, Duration)> = BTreeMap::new();
    let mut found: BTreeMap<(usize, Term), Violation> = BTreeMap::new();
    for sample in sent {
        let Some(own) = term(sample) else { continue };
        while let Some(answer) = answers.next_if(|answer| answer.received < sample.sent) {
            let Some(other) = term(answer) else { continue };
            let entry = greatest.entry(answer.target).or_insert((other, answer.received));
            if other > entry.0 {
                *entry = (other, answer.received);
            }
        }
        let later = greatest.iter().filter(|(target, (other, _))| **target != sample.target && *other > own);
        let Some((&by, &(other, later))) = later.min_by_key(|(_, (_, at))| *at) else { continue };
        let violation = found.entry((sample.target, own)).or_insert(Violation::OldTerm {
            targets: (sample.target, by),
            terms: (own, other),
            later,
            old: (sample.sent, sample.sent),
        });
        if let Violation::OldTerm { old, .. } = violation {
            old.1 = sample.sent;
        }
    }
    found.into_values().collect()
}

/// The worst answer of each snapshot that was exported past its greatest age, by its own word and by ours.
fn stale(received: &[Sample], oldest: &[Duration]) -> Vec<Violation> {
    let mut first_sight: BTreeMap<(usize, u64), Duration> = BTreeMap::new();
    let mut ages: BTreeMap<(usize, u64), (Duration, Duration)> = BTreeMap::new();
    let mut sights: BTreeMap<(usize, u64), (Duration, Duration)> = BTreeMap::new();
    for sample in received {
        let Answer::Exporting(exported) = sample.answer else { continue };
        let key = (sample.target, exported.snapshot.to_bits());
        let limit = oldest[sample.target];
        let worst = |found: &mut BTreeMap<_, _>, age, at| {
            let entry = found.entry(key).or_insert((age, at));
            *entry = (*entry).max((age, at));
        };
        if exported.age > limit {
            worst(&mut ages, exported.age, sample.received);
        }
        let first = *first_sight.entry(key).or_insert(sample.received);
        let seen_for = sample.sent.saturating_sub(first);
        if seen_for > limit {
            worst(&mut sights, seen_for, sample.sent);
        }
    }
    let ages = ages.into_iter().map(|((target, _), (age, at))| Violation::StaleAge { target, at, age });
    let sights = sights.into_iter().map(|((target, _), (seen_for, at))| Violation::StaleSight { target, at, seen_for });
    ages.chain(sights).collect()
}

/// How closely the processes were watched: the longest time that was not covered by a scrape of a process, of the
/// `share` of all times between two scrapes that were shortest.
pub(crate) fn resolution(samples: &[Sample], share: f64) -> Duration {
    let mut last: BTreeMap<usize, Duration> = BTreeMap::new();
    let mut samples: Vec<&Sample> = samples.iter().collect();
    samples.sort_by_key(|sample| sample.sent);
    let mut between: Vec<Duration> = samples
        .into_iter()
        .filter_map(|sample| Some(sample.sent.saturating_sub(last.insert(sample.target, sample.sent)?)))
        .collect();
    between.sort_by_key(|&time| Reverse(time));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
    let place = (between.len() as f64 * (1.0 - share)) as usize;
    between.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const OLDEST: [Duration; 2] = [Duration::from_millis(1000); 2];

    /// An answer of `target` that took a millisecond; the snapshot is as old as the term's last whole second.
    fn exporting(target: usize, at: u64, number: u64) -> Sample {
        let exported = Exported { term: Some((1, number)), snapshot: (at / 500) as f64, age: ms(at % 500) };
        Sample { target, sent: ms(at), received: ms(at + 1), answer: Answer::Exporting(exported) }
    }

    fn silent(target: usize, at: u64) -> Sample {
        Sample { target, sent: ms(at), received: ms(at + 1), answer: Answer::Silent }
    }

    /// Scrapes every 10 ms in `from..to`.
    fn every_10_ms(from: u64, to: u64, sample: impl Fn(u64) -> Sample) -> Vec<Sample> {
        (from..to).step_by(10).map(sample).collect()
    }

    /// Process 0 leads with term 5 until 1 s, process 1 with term 6 from 3 s to 4 s.
    fn hand_over() -> Vec<Sample> {
        [
            every_10_ms(0, 1000, |at| exporting(0, at, 5)),
            every_10_ms(1000, 4000, |at| silent(0, at)),
            every_10_ms(0, 3000, |at| silent(1, at)),
            every_10_ms(3000, 4000, |at| exporting(1, at, 6)),
        ]
        .concat()
    }

    /// Half of what is allowed is the bound, the rest an outage.
    fn killed(allowed: u64) -> Injected {
        let bound = allowed / 2;
        Injected { fault: "killed".to_owned(), began: ms(990), bound: ms(bound), outage: ms(allowed - bound) }
    }

    #[test]
    fn a_hand_over_within_its_bound_breaks_nothing_and_its_gap_is_that_of_its_fault() {
        let verdict = check(&hand_over(), &[killed(2011)], &OLDEST);
        assert_eq!(verdict.violations, []);
        let [(Some(0), gap)] = verdict.gaps[..] else { panic!("{verdict:?}") };
        assert_eq!((gap.at_least, gap.at_most), (ms(3000 - 1001), ms(3001 - 990)));
    }

    #[test]
    fn a_planted_gap_beyond_the_bound_is_found_and_one_at_it_is_not() {
        let verdict = check(&hand_over(), &[killed(1998)], &OLDEST);
        assert!(matches!(&verdict.violations[..], [Violation::Gap { fault: Some(_), .. }]), "{verdict:?}");
        assert_eq!(check(&hand_over(), &[killed(1999)], &OLDEST).violations, []);
    }

    #[test]
    fn a_gap_without_a_fault_may_not_be() {
        let verdict = check(&hand_over(), &[], &OLDEST);
        assert!(matches!(verdict.violations[..], [Violation::Gap { fault: None, .. }]), "{verdict:?}");
    }

    #[test]
    fn a_gap_is_judged_by_the_last_fault_before_its_end() {
        let faults = [50, 995, 3500].map(|at| Injected { began: ms(at), ..killed(0) });
        let verdict = check(&hand_over(), &faults, &OLDEST);
        assert_eq!(verdict.gaps[0].0, Some(1));
    }

    #[test]
    fn a_planted_overlap_is_found_by_the_runs_and_by_the_terms() {
        let mut samples = hand_over();
        samples.retain(|sample| sample.target != 0 || !(ms(990)..ms(3200)).contains(&sample.sent));
        samples.extend(every_10_ms(990, 3200, |at| exporting(0, at, 5)));
        let verdict = check(&samples, &[killed(5000)], &OLDEST);
        let [Violation::Overlap(overlap), Violation::OldTerm { old, later, .. }] = verdict.violations[..] else {
            panic!("{verdict:?}")
        };
        assert_eq!((overlap.began, overlap.at_least), (ms(3001), ms(3190 - 3001)));
        assert_eq!((later, old), (ms(3001), (ms(3010), ms(3190))));
    }

    #[test]
    fn one_stale_answer_in_the_term_of_another_is_found() {
        let samples = [hand_over(), vec![exporting(0, 3505, 5)]].concat();
        assert_eq!(check(&samples, &[killed(5000)], &OLDEST).violations.len(), 2);
    }

    #[test]
    fn the_old_leader_after_the_new_one_has_ended_is_found_by_the_terms_alone() {
        let samples = [
            hand_over(),
            every_10_ms(4000, 5000, |at| silent(1, at)),
            every_10_ms(4100, 4300, |at| exporting(0, at, 5)),
        ]
        .concat();
        let verdict = check(&samples, &[killed(5000)], &OLDEST);
        let [Violation::OldTerm { targets, terms, .. }] = verdict.violations[..] else { panic!("{verdict:?}") };
        assert_eq!((targets, terms), ((0, 1), ((1, 5), (1, 6))));
    }

    #[test]
    fn the_old_leader_may_lead_again_in_a_term_of_its_own() {
        let samples = [
            hand_over(),
            every_10_ms(4000, 5000, |at| silent(1, at)),
            every_10_ms(4500, 5000, |at| exporting(0, at, 7)),
        ]
        .concat();
        assert_eq!(check(&samples, &[killed(5000)], &OLDEST).violations, []);
    }

    #[test]
    fn an_answer_that_was_written_before_a_hand_over_and_read_after_it_proves_nothing() {
        let mut samples = hand_over();
        let mut slow = exporting(0, 995, 5);
        slow.received = ms(3500);
        samples.retain(|sample| sample.target != 0 || sample.sent < ms(990) || sample.sent > ms(3500));
        samples.push(slow);
        assert_eq!(check(&samples, &[killed(5000)], &OLDEST).violations, []);
    }

    #[test]
    fn a_planted_old_snapshot_is_found_by_its_own_word() {
        let mut samples = hand_over();
        let Answer::Exporting(exported) = &mut samples[50].answer else { panic!() };
        exported.age = ms(1001);
        let verdict = check(&samples, &[killed(5000)], &OLDEST);
        assert!(matches!(verdict.violations[..], [Violation::StaleAge { target: 0, .. }]), "{verdict:?}");
        let Answer::Exporting(exported) = &mut samples[50].answer else { panic!() };
        exported.age = ms(1000);
        assert_eq!(check(&samples, &[killed(5000)], &OLDEST).violations, []);
    }

    #[test]
    fn a_planted_old_snapshot_that_claims_to_be_young_is_found_by_its_first_sight() {
        let stuck = |at| {
            let mut sample = exporting(0, at, 5);
            let Answer::Exporting(exported) = &mut sample.answer else { panic!() };
            exported.snapshot = 7.0;
            sample
        };
        assert_eq!(check(&every_10_ms(0, 1010, stuck), &[], &OLDEST).violations, []);
        let verdict = check(&every_10_ms(0, 1100, stuck), &[], &OLDEST);
        let [Violation::StaleSight { target: 0, seen_for, .. }] = verdict.violations[..] else { panic!("{verdict:?}") };
        assert_eq!(seen_for, ms(1090 - 1));
    }

    #[test]
    fn the_resolution_is_the_time_between_scrapes() {
        assert_eq!(resolution(&hand_over(), 0.99), ms(10));
        assert_eq!(resolution(&[], 0.99), ms(0));
    }
}
