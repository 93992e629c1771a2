//! Brings the own Pod to what it should say, and keeps it there.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backoff::pause;
use super::label::Desired;
use super::pod::PodState;
use super::repairs::Repairs;
use super::report::{LabelReport, LabelState, Permission};
use super::request_error::{RequestError, RequestErrorKind};
use super::requests::Requests;
use super::view::View;
use super::witness::Told;
use crate::clock::BootInstant;
use crate::config::KubernetesSettings;
use crate::election::{Role, Status, Term};
use crate::exposition::KubernetesMetrics;
use crate::http::Serving;

/// How often the own Pod is read, whatever the watch says.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// What a step has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// The Pod says what it should, as was read back.
    Settled,
    /// Something has changed: look again.
    Again,
    /// A request has failed: nothing is asked before so much time has passed, or something else is wanted.
    Backoff(Duration),
    /// The Pod is another one of the same name.
    Replaced,
}

/// Reconciles the own Pod with the role of this process: one desired state, one patch at a time, each made from what was
/// read last. No patch waits behind another.
pub(super) struct Reconciler {
    pub(super) settings: Arc<KubernetesSettings>,
    pub(super) requests: Requests,
    pub(super) status: watch::Receiver<Status>,
    pub(super) view: watch::Receiver<View>,
    pub(super) report: watch::Sender<LabelReport>,
    pub(super) told: watch::Sender<Told>,
    pub(super) metrics: Arc<KubernetesMetrics>,
    pub(super) serving: Arc<Serving>,
    /// When this process was started, by the wall clock.
    pub(super) started: SystemTime,
    /// What the election asked for, as looked at last.
    pub(super) wanted: Desired,
    pub(super) known: Known,
}

/// What a reconciler knows.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The own Pod as it was read last.
    own: Option<PodState>,
    /// Whether nothing says that the Pod is different now.
    current: bool,
    /// Whether a patch of this process may have been made that it had no answer to.
    doubtful: bool,
    /// Whether the watch shows the own Pod.
    watched: bool,
    /// When the own Pod is read again, whatever the watch says; `None` for now.
    read_due: Option<Instant>,
    /// What the Pod was last seen to agree with.
    settled: Option<Desired>,
    /// Since when somebody else's role label is seen.
    drifted: Option<BootInstant>,
    /// What was set again although it had been right.
    repairs: Repairs,
    /// The term whose withdrawal marker was sent, whatever became of it.
    marked: Option<Term>,
    /// Failures in a row.
    failures: u32,
    /// The failure that the log knows of.
    complaint: Option<(RequestErrorKind, Option<u16>)>,
    /// The Pod that the label was yielded to.
    pub(super) yielded: Option<String>,
    /// The uid and resource version of the Pod that was swept last.
    pub(super) swept: Option<(String, Option<String>)>,
    /// Sweeps in a row that the API did not answer.
    pub(super) failed_sweeps: u32,
    /// When the next sweep may be tried; `None` for now.
    pub(super) sweep_due: Option<Instant>,
    /// Labels that were taken off.
    pub(super) sweeps: Repairs,
}

impl Reconciler {
    /// Runs until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.reconcile())).await;
    }

    async fn reconcile(&mut self) {
        loop {
            self.look();
            self.wanted = self.wants();
            let mut desired = self.wanted;
            if self.yields(&desired) {
                desired.role = Role::Standby;
            }
            let step = if !self.known.current || self.known.read_due.is_none_or(|due| Instant::now() >= due) {
                Box::pin(self.read(&desired)).await
            } else {
                self.step(&desired).await
            };
            let (until, settled) = match step {
                Step::Again => continue,
                Step::Settled => (self.known.next_due(), true),
                Step::Backoff(pause) => (Instant::now() + pause, false),
                Step::Replaced => {
                    self.replaced();
                    return std::future::pending().await;
                }
            };
            self.wait(until, settled).await;
        }
    }

    /// What the election asks for. When it has ended without a word, by a panic, the label is taken off and nothing else
    /// is said.
    fn wants(&mut self) -> Desired {
        let over = self.status.has_changed().is_err();
        let desired = Desired::of(&self.status.borrow_and_update());
        if over && desired.role == Role::Leader { Desired { role: Role::Standby, tenure: None } } else { desired }
    }

    /// Waits for `until` or until something else is wanted; once `settled`, for the next news of the watch at most.
    async fn wait(&mut self, until: Instant, settled: bool) {
        loop {
            let over = self.status.has_changed().is_err();
            tokio::select! {
                // The end of the election is a change as well, once.
                _ = self.status.changed(), if !over => {}
                Ok(()) = self.view.changed() => if settled { return },
                () = sleep_until(until) => return,
            }
            if settled || self.wants() != self.wanted {
                return;
            }
            // Whatever happens to Pods is no reason to ask a server sooner that wants to be left alone.
            self.look();
        }
    }

    /// Takes what the watch says into account.
    fn look(&mut self) {
        let view = self.view.borrow_and_update();
        let known = &mut self.known;
        let watched = view.pod(&self.settings.pod.uid);
        // Gone, perhaps to be made again under the same name: the next patch is not to find that out.
        known.current &= !(std::mem::replace(&mut known.watched, watched.is_some()) && watched.is_none());
        if let Some(pod) = watched
            && known.own.as_ref().is_none_or(|own| is_newer(pod, own))
        {
            known.found(pod.clone());
        }
        let status = self.status.borrow();
        self.metrics.agreement(view.agreement(&self.settings.pod.uid, status.held(), status.holder));
    }

    /// Reads the own Pod.
    async fn read(&mut self, desired: &Desired) -> Step {
        self.known.read_due = Some(Instant::now() + READ_INTERVAL);
        let (requests, settings) = (self.requests.clone(), Arc::clone(&self.settings));
        let Some(result) = self.unless_changed(requests.get(&settings.pod.name)).await else { return Step::Again };
        match result {
            Ok(pod) => {
                let own = PodState::of(&pod, &settings);
                if own.uid != settings.pod.uid {
                    return Step::Replaced;
                }
                self.known.found(own);
                Step::Again
            }
            // What cannot be read can perhaps be patched, which reads it as well.
            Err(error) if error.kind == RequestErrorKind::Denied => {
                self.known.read_due = Some(Instant::now() + error.wait().unwrap_or(READ_INTERVAL));
                if !self.known.current {
                    self.known.own = None;
                }
                self.step(desired).await
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Compares, and patches where there is a difference.
    async fn step(&mut self, desired: &Desired) -> Step {
        let Some(patch) = self.patch(desired) else {
            self.settle(desired);
            return self.sweep(desired).await;
        };
        let (own, settled) = (self.known.own.as_ref(), self.known.settled);
        let differs = own.is_some_and(|own| own.role.as_deref() != Some(desired.role.as_str()));
        let drifted = differs && settled.is_some_and(|settled| settled.role == desired.role);
        // Also after the label was left to another Pod.
        let restored = drifted || differs && settled.is_some_and(|settled| settled.tenure == desired.tenure);
        self.known.drifted = restored.then(|| self.known.drifted.unwrap_or_else(BootInstant::now));
        let undone = settled == Some(*desired);
        let pause = self.known.repairs.wait(Instant::now(), rand::random());
        if undone && pause > Duration::ZERO {
            return Step::Backoff(pause);
        }
        if let Some(seen) = self.known.drifted.filter(|_| desired.role == Role::Leader) {
            // Whoever took the label may have known that the lease is over, or have a later term.
            if !self.proved_after(seen).await {
                return Step::Again;
            }
            self.look();
            if self.yields(desired) {
                return Step::Again;
            }
        }
        if let Some(tenure) = desired.tenure.filter(|tenure| tenure.ended.is_some()) {
            self.known.marked = Some(tenure.term);
        }
        if !matches!(self.report.borrow().state, LabelState::Denied(_)) {
            self.tell(LabelState::Pending);
        }
        let (requests, name) = (self.requests.clone(), self.settings.pod.name.clone());
        let Some(result) = self.unless_changed(requests.merge(&name, &patch)).await else {
            self.known.doubt();
            return Step::Again;
        };
        match result {
            Ok(pod) => {
                let own = PodState::of(&pod, &self.settings);
                let now = Instant::now();
                if undone {
                    self.known.repairs.made(now);
                }
                if drifted && !self.known.doubtful && own.role.as_deref() == Some(desired.role.as_str()) {
                    self.metrics.repaired(desired.role);
                    if self.known.repairs.tells(now) {
                        tracing::warn!(
                            role = desired.role.as_str(),
                            "the label of this Pod had been changed, and is set again"
                        );
                    }
                }
                self.known.found(own);
                // Somebody else in the way of the patch may have changed it.
                if self.patch(desired).is_some() { self.backoff(None) } else { Step::Again }
            }
            Err(error) => {
                if error.kind.is_outage() {
                    self.known.doubt();
                }
                self.failed(&error)
            }
        }
    }

    fn patch(&self, desired: &Desired) -> Option<serde_json::Value> {
        let own = self.known.own.as_ref();
        let container = own.and_then(|own| own.container_of(&self.settings.container_name, self.started));
        let marked = self.known.marked.is_some() && self.known.marked == desired.tenure.map(|tenure| tenure.term);
        desired.patch(own, container, marked, &self.settings)
    }

    async fn proved_after(&mut self, seen: BootInstant) -> bool {
        let Some(lease) = self.status.borrow().lease.clone() else { return false };
        self.unless_changed(lease.proved_after(seen)).await.is_some()
    }

    fn failed(&mut self, error: &RequestError) -> Step {
        use RequestErrorKind::{Conflict, Denied as Refused, Invalid, NotFound, Replaced};
        match error.kind {
            Replaced => return Step::Replaced,
            Conflict => self.known.current = false,
            Invalid | NotFound => {
                self.known.current = false;
                let complaint = Some((error.kind, error.code));
                if std::mem::replace(&mut self.known.complaint, complaint) != complaint {
                    tracing::warn!(%error, status = error.code, "the label of this Pod cannot be set, trying until it can");
                }
            }
            _ => {}
        }
        // Only of the end: what was refused before may be permitted by then.
        let ended = self.wanted.tenure.filter(|tenure| tenure.ended.is_some());
        if let (Refused | Invalid | NotFound, Some(tenure)) = (error.kind, ended) {
            self.told.send_if_modified(|told| told.refused.replace(tenure.term) != Some(tenure.term));
        }
        self.tell(match error.kind {
            Refused => LabelState::Denied(Permission { verb: error.verb, resource: error.resource }),
            _ => LabelState::Pending,
        });
        self.backoff(error.wait())
    }

    /// Later, and not before what was `asked` for.
    fn backoff(&mut self, asked: Option<Duration>) -> Step {
        let pause = pause(self.known.failures, asked, rand::random());
        self.known.failures = self.known.failures.saturating_add(1);
        Step::Backoff(pause)
    }

    /// The Pod says what it should.
    fn settle(&mut self, desired: &Desired) {
        let known = &mut self.known;
        (known.settled, known.drifted, known.doubtful, known.complaint) = (Some(*desired), None, false, None);
        known.failures = 0;
        self.tell(if self.known.yielded.is_some() { LabelState::Pending } else { LabelState::Set });
        let ended = desired.tenure.filter(|tenure| tenure.ended.is_some()).map(|tenure| tenure.term);
        let told = Told { ended, ..Told::default() };
        self.told.send_if_modified(|last| std::mem::replace(last, told) != told);
    }

    fn tell(&self, state: LabelState) {
        let own = self.known.own.as_ref();
        let labelled = own.map(PodState::is_leader);
        if labelled == Some(false) {
            self.serving.clear();
        }
        self.metrics.leader_label(labelled);
        let role = own.and_then(|own| Role::parse(own.role.as_deref()?));
        self.report.send_if_modified(|report| {
            let changed = report.state != state || report.role != role;
            if report.state != state {
                report.since = SystemTime::now();
            }
            (report.state, report.role) = (state, role);
            changed
        });
    }

    /// The Pod of this name is another one: it is not touched, and nobody is told of this process any more.
    fn replaced(&mut self) {
        tracing::error!(
            pod = self.settings.pod.name,
            uid = self.settings.pod.uid,
            "the Pod of this process was replaced by another of the same name, whose label is left alone"
        );
        self.known.own = None;
        self.metrics.agreement(None);
        self.tell(LabelState::Replaced);
        self.told.send_replace(Told { replaced: true, ..Told::default() });
    }

    /// Awaits `request`, unless something else is wanted meanwhile: then the request is given up, and the next one is made
    /// for that.
    pub(super) async fn unless_changed<T>(&mut self, request: impl Future<Output = T>) -> Option<T> {
        let wanted = self.wanted;
        let changed = async {
            // An error says that the election is over: nothing will change any more.
            if self.status.wait_for(|status| Desired::of(status) != wanted).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            answer = request => Some(answer),
            () = changed => None,
        }
    }
}

impl Known {
    /// When there is something to do again though nothing changes.
    fn next_due(&self) -> Instant {
        [self.read_due, self.sweep_due].into_iter().flatten().min().unwrap_or_else(Instant::now)
    }

    fn found(&mut self, own: PodState) {
        self.own = Some(own);
        self.current = true;
    }

    /// A patch may still arrive. It has no effect any more once a later one has changed anything: each has the resource
    /// version as a precondition.
    fn doubt(&mut self) {
        (self.current, self.doubtful) = (false, true);
    }
}

/// Whether `pod` was read after `own`. The API server defines that versions grow, as numbers.
fn is_newer(pod: &PodState, own: &PodState) -> bool {
    let version = |pod: &PodState| pod.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
    match (version(pod), version(own)) {
        (Some(pod), Some(own)) => pod > own,
        _ => pod != own,
    }
}
