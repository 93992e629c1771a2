//! What a recording shows: promises that were broken, and how long each take-over took. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use retsu_collector::demo::history::Gap;

use crate::checker::{self, Answer, Injected, Sample, Term, Verdict, Violation};
use crate::recording::TIMEOUT;

/// A finished recording. All times count from its beginning.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// The Pods, in the order of the targets.
    pub(crate) names: Vec<String>,
    /// Every scrape of a replica.
    pub(crate) samples: Vec<Sample>,
    /// Every scrape of the leader Service, by its ClusterIP.
    pub(crate) service: Vec<Sample>,
    /// What was done.
    pub(crate) faults: Vec<Injected>,
    /// Every change of a label: when, which Pod, what it became.
    pub(crate) roles: Vec<(Duration, String, Option<String>)>,
    /// Every change of the ready endpoints of the leader Service.
    pub(crate) endpoints: Vec<(Duration, BTreeSet<String>)>,
    /// What the checker says of the scrapes.
    pub(crate) verdict: Verdict,
}

/// One take-over after a fault.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TakeOver {
    /// The new leader's Pod.
    pub(crate) to: String,
    /// For how long there were no gauges, at the most.
    pub(crate) gap: Duration,
    /// From the fault to the new leader's first gauges.
    pub(crate) first_snapshot: Duration,
    /// From the label of the new leader to the EndpointSlice that has it alone; `None` where one of them was not seen.
    pub(crate) endpoints: Option<Duration>,
    /// From then to the first answer of the new leader through the ClusterIP.
    pub(crate) cluster_ip: Option<Duration>,
    /// From the fault to the label of the new leader.
    pub(crate) label: Option<Duration>,
    /// The declared bound.
    pub(crate) bound: Duration,
}

/// What scrapes tell of one term of one replica.
#[derive(Clone, Copy, Debug)]
struct ExportedTerm {
    target: usize,
    term: Term,
    /// When its first answer was there.
    first: Duration,
    /// When its last answer was asked for.
    last: Duration,
}

impl Recorded {
    /// Judges what was recorded. `oldest` is the greatest age of a snapshot.
    pub(crate) fn new(
        names: Vec<String>,
        samples: Vec<Sample>,
        service: Vec<Sample>,
        faults: Vec<Injected>,
        oldest: Duration,
        roles: Vec<(Duration, String, Option<String>)>,
        endpoints: Vec<(Duration, BTreeSet<String>)>,
    ) -> Self {
        let verdict = checker::check(&samples, &faults, &vec![oldest; names.len()]);
        Self { names, samples, service, faults, roles, endpoints, verdict }
    }

    /// Fails when two exported at once, an old term or an old snapshot was exported, or there were no gauges for longer
    /// than the fault before allows.
    pub(crate) fn assert_kept(&self) -> &Self {
        let scrapes = self.samples.iter().filter(|sample| sample.answer != Answer::Unreachable).count();
        assert!(scrapes > 0, "no replica was ever scraped: {:?}", self.names);
        let late =
            |violation: &&Violation| matches!(violation, Violation::Gap { gap, .. } if self.is_a_late_scrape(gap));
        let broken: Vec<_> = self.verdict.violations.iter().filter(|violation| !late(violation)).collect();
        let broken: Vec<_> = broken.into_iter().map(ToString::to_string).collect();
        let names: Vec<_> = self.names.iter().enumerate().collect();
        assert!(broken.is_empty(), "{broken:#?}\nreplicas: {names:?}\nfaults: {:#?}", self.faults);
        self
    }

    /// Fails when anybody but `leader` exported, or the leader did so in two terms, or ever answered without gauges.
    pub(crate) fn assert_led_throughout(&self, leader: &str) {
        let leaders = self.leaders();
        assert!(matches!(&leaders[..], [(name, _)] if name == leader), "not one term of {leader}: {leaders:?}");
        let own = self.samples.iter().filter(|sample| self.names[sample.target] == leader);
        let silent: Vec<_> = own.filter(|sample| sample.answer == Answer::Silent).collect();
        assert!(silent.is_empty(), "{leader} answered without gauges: {silent:?}");
    }

    /// The take-overs that followed `fault`, in the order of time: one for each term that came after another. A short
    /// one may leave no gap in the scrapes, and a gap within one term is a scrape that failed.
    pub(crate) fn takeovers(&self, fault: &str) -> Vec<TakeOver> {
        let terms = self.terms();
        let changes = terms.iter().enumerate().skip(1).filter_map(|(place, after)| {
            let injected = self.faults.iter().rfind(|injected| injected.began <= after.first)?;
            let until = terms.get(place + 1).map_or(Duration::MAX, |next| next.first);
            (injected.fault == fault).then_some((injected, terms[place - 1].last, after, until))
        });
        changes
            .map(|(injected, since, after, until)| {
                let to = &self.names[after.target];
                let during = since..until;
                let label = self
                    .roles
                    .iter()
                    .find(|(at, pod, role)| during.contains(at) && pod == to && role.as_deref() == Some("leader"));
                let label = label.map(|(at, ..)| *at);
                // Two watches tell of label and EndpointSlice, in any order when they are close.
                let alone = self.endpoints.iter().find(|(at, pods)| during.contains(at) && pods.iter().eq([to]));
                let alone = alone.map(|(at, _)| *at);
                let served = self.service.iter().find(|sample| term(sample) == Some(after.term));
                TakeOver {
                    to: to.clone(),
                    gap: after.first.saturating_sub(since + injected.outage),
                    first_snapshot: after.first.saturating_sub(injected.began + injected.outage),
                    endpoints: alone.zip(label).map(|(alone, label)| alone.saturating_sub(label)),
                    cluster_ip: alone.zip(served).map(|(alone, served)| served.received.saturating_sub(alone)),
                    label: label.map(|label| label.saturating_sub(injected.began)),
                    bound: injected.bound,
                }
            })
            .collect()
    }

    /// Whoever exported, with each term, in the order of time.
    pub(crate) fn leaders(&self) -> Vec<(String, Term)> {
        self.terms().into_iter().map(|exported| (self.names[exported.target].clone(), exported.term)).collect()
    }

    /// Every term that was exported, in the order of the first answers.
    fn terms(&self) -> Vec<ExportedTerm> {
        let mut exported: BTreeMap<_, ExportedTerm> = BTreeMap::new();
        for sample in &self.samples {
            let Some(term) = term(sample) else { continue };
            let (target, first, last) = (sample.target, sample.received, sample.sent);
            let seen = exported.entry((target, term)).or_insert(ExportedTerm { target, term, first, last });
            seen.first = seen.first.min(first);
            seen.last = seen.last.max(last);
        }
        let mut exported: Vec<_> = exported.into_values().collect();
        exported.sort_by_key(|exported| exported.first);
        exported
    }

    /// The terms with which the leader Service answered.
    pub(crate) fn served(&self) -> BTreeSet<Term> {
        self.service.iter().filter_map(term).collect()
    }

    /// Whether all that is known of a gap is that a busy machine gave scrapes of one leader up: no other one exported
    /// after it, no term changed, and it never answered without gauges.
    fn is_a_late_scrape(&self, gap: &Gap) -> bool {
        let during = |sample: &&Sample| {
            sample.target == gap.from && sample.sent >= gap.began && sample.received <= gap.began + gap.at_most
        };
        let silent = |sample: &Sample| sample.answer == Answer::Silent;
        gap.from == gap.to
            && gap.at_least <= TIMEOUT
            && !self.changed_term(gap)
            && !self.samples.iter().filter(during).any(silent)
    }

    /// Whether the gauges after a gap are of another term than those before it.
    fn changed_term(&self, gap: &Gap) -> bool {
        let of = |target: usize| self.samples.iter().filter(move |sample| sample.target == target);
        let before = of(gap.from).filter(|sample| sample.received <= gap.began).rev().find_map(term);
        let after = of(gap.to).filter(|sample| sample.received >= gap.began + gap.at_most).find_map(term);
        before != after
    }

    /// Fails when the leader Service answered with a term after a replica had exported a later one.
    pub(crate) fn assert_service_followed(&self) -> &Self {
        let terms = self.terms();
        let old = |sample: &&Sample| {
            let own = term(sample);
            terms.iter().any(|later| own.is_some_and(|own| own < later.term) && later.first < sample.sent)
        };
        let stale: Vec<_> = self.service.iter().filter(old).collect();
        assert!(!self.served().is_empty(), "the Service has answered with no term");
        assert!(stale.is_empty(), "the Service answered with old terms: {stale:?}; all of them: {terms:?}");
        self
    }
}

/// The term that an answer was exported in.
pub(crate) fn term(sample: &Sample) -> Option<Term> {
    match sample.answer {
        Answer::Exporting(exported) => exported.term,
        _ => None,
    }
}
