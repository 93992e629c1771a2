//! Brings the own Pod to what it should say, and keeps it there.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::backoff::{LONGEST_PAUSE, pause};
use super::label::{Desired, label, superior, sweep};
use super::pod::PodState;
use super::report::{Denied, LabelReport, LabelState};
use super::request_error::{RequestError, RequestErrorKind};
use super::requests::Requests;
use super::view::View;
use super::witness::Told;
use crate::clock::BootInstant;
use crate::config::KubernetesSettings;
use crate::election::{Role, Status};
use crate::exposition::KubernetesMetrics;
use crate::http::Serving;

/// How often the own Pod is read, whatever the watch says.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// What a step has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// The Pod says what it should, as was read back.
    Settled,
    /// Something has changed: look again.
    Again,
    /// Nothing is to be done before so much time has passed, or something changes.
    After(Duration),
    /// What was tried is not tried again before so much time has passed, whatever the watch says meanwhile.
    Failed(Duration),
    /// The Pod is another one of the same name.
    Replaced,
}

/// Reconciles the own Pod with the role of this process: one desired state, one patch at a time, each made from what was
/// read last. No patch waits behind another.
pub(super) struct Reconciler {
    settings: Arc<KubernetesSettings>,
    requests: Requests,
    status: watch::Receiver<Status>,
    view: watch::Receiver<View>,
    report: watch::Sender<LabelReport>,
    told: watch::Sender<Told>,
    metrics: Arc<KubernetesMetrics>,
    serving: Arc<Serving>,
    /// When this process was started, by the wall clock.
    started: SystemTime,
    /// What the election asked for, as looked at last.
    wanted: Desired,
    /// The own Pod as it was read last.
    own: Option<PodState>,
    /// Whether that is known not to be what there is now.
    outdated: bool,
    /// What the own Pod was last seen to agree with.
    settled: Option<Desired>,
    /// Failures in a row.
    failures: u32,
    /// The Pod that the label was yielded to.
    yielded: Option<String>,
}

impl Reconciler {
    /// A process, started at `started`, that follows `status` and says through `report` and `told` how far it is.
    #[expect(clippy::too_many_arguments, reason = "each is another channel or value of the one caller")]
    pub(super) fn new(
        settings: Arc<KubernetesSettings>,
        requests: Requests,
        status: watch::Receiver<Status>,
        view: watch::Receiver<View>,
        (report, told): (watch::Sender<LabelReport>, watch::Sender<Told>),
        metrics: Arc<KubernetesMetrics>,
        serving: Arc<Serving>,
        started: SystemTime,
    ) -> Self {
        let wanted = Desired::of(&status.borrow());
        Self {
            settings,
            requests,
            status,
            view,
            report,
            told,
            metrics,
            serving,
            started,
            wanted,
            own: None,
            outdated: true,
            settled: None,
            failures: 0,
            yielded: None,
        }
    }

    /// Runs until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(Box::pin(self.reconcile())).await;
    }

    async fn reconcile(&mut self) {
        let mut read = Instant::now();
        loop {
            self.look();
            self.wanted = Desired::of(&self.status.borrow_and_update());
            let mut desired = self.wanted;
            if self.yields(&desired) {
                desired.role = Role::Standby;
            }
            let step = if self.outdated || read.elapsed() >= READ_INTERVAL {
                read = Instant::now();
                self.read(&desired).await
            } else {
                self.step(&desired).await
            };
            let pause = match step {
                Step::Again => continue,
                Step::Settled => read + READ_INTERVAL,
                Step::After(pause) | Step::Failed(pause) => Instant::now() + pause,
                Step::Replaced => {
                    self.replaced();
                    return std::future::pending().await;
                }
            };
            loop {
                tokio::select! {
                    changed = self.status.changed() => if changed.is_err() { return },
                    changed = self.view.changed() => if changed.is_err() { return },
                    () = sleep_until(pause) => break,
                }
                // Each patch is an event of the watch: without this, two that disagree would go on at full speed.
                if !matches!(step, Step::Failed(_)) || Desired::of(&self.status.borrow()) != self.wanted {
                    break;
                }
                self.look();
            }
        }
    }

    /// Takes what the watch says into account.
    fn look(&mut self) {
        let view = self.view.borrow_and_update();
        if let Some(pod) = view.pod(&self.settings.pod.uid)
            && self.own.as_ref().is_none_or(|own| is_newer(pod, own))
        {
            self.own = Some(pod.clone());
        }
        let status = self.status.borrow();
        self.metrics.agreement(view.agreement(&self.settings.pod.uid, status.held(), status.holder));
    }

    /// Reads the own Pod.
    async fn read(&mut self, desired: &Desired) -> Step {
        let (requests, settings) = (self.requests.clone(), Arc::clone(&self.settings));
        let Some(result) = self.unless_changed(requests.get(&settings.pod.name)).await else { return Step::Again };
        match result {
            Ok(pod) => {
                let own = PodState::of(&pod, &settings);
                if own.uid != settings.pod.uid {
                    return Step::Replaced;
                }
                self.found(own);
                Step::Again
            }
            // What cannot be read can perhaps be patched, which reads it as well.
            Err(error) if error.kind == RequestErrorKind::Denied => {
                if self.outdated {
                    self.own = None;
                }
                self.step(desired).await
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Compares, and patches where there is a difference.
    async fn step(&mut self, desired: &Desired) -> Step {
        let container = self.own.as_ref().and_then(|own| own.container_of(&self.settings.container_name, self.started));
        let Some(patch) = desired.patch(self.own.as_ref(), container, &self.settings) else {
            self.settle(*desired);
            return self.sweep(desired).await;
        };
        let drifted = self.own.as_ref().is_some_and(|own| own.role.as_deref() != Some(label(desired.role)))
            && self.settled.is_some_and(|settled| settled.role == desired.role);
        if drifted && desired.role == Role::Leader && !self.proved_again().await {
            return Step::Again;
        }
        let (requests, name) = (self.requests.clone(), self.settings.pod.name.clone());
        if !matches!(self.report.borrow().state, LabelState::Denied(_)) {
            self.tell(LabelState::Pending);
        }
        let Some(result) = self.unless_changed(requests.merge(&name, &patch)).await else { return Step::Again };
        match result {
            Ok(pod) => {
                let own = PodState::of(&pod, &self.settings);
                if drifted {
                    self.metrics.repaired(desired.role);
                    tracing::warn!(
                        role = label(desired.role),
                        "the label of this Pod had been changed, and is set again"
                    );
                }
                let container = own.container_of(&self.settings.container_name, self.started);
                let stuck = desired.patch(Some(&own), container, &self.settings).is_some();
                self.found(own);
                // Somebody else in the way of the patch has changed it.
                if stuck { self.after(None) } else { Step::Again }
            }
            Err(error) => self.failed(&error),
        }
    }

    fn found(&mut self, own: PodState) {
        self.own = Some(own);
        self.outdated = false;
    }

    /// The lease was proved after the label was seen to be gone: whoever took it may have known that it is over.
    async fn proved_again(&mut self) -> bool {
        let Some(lease) = self.status.borrow().lease.clone() else { return false };
        let seen = BootInstant::now();
        self.unless_changed(lease.proved_after(seen)).await.is_some()
    }

    /// Whether the label is left to the Pod of a later term.
    fn yields(&mut self, desired: &Desired) -> bool {
        let tenure = desired.tenure.filter(|_| desired.role == Role::Leader);
        let name = tenure.and_then(|tenure| {
            let view = self.view.borrow();
            superior(&tenure, view.others(&self.settings.pod.uid)).map(|pod| pod.name.clone())
        });
        if name != self.yielded {
            if let Some(pod) = &name {
                tracing::warn!(
                    pod,
                    "another Pod has the leader label and a later term, this one leaves the label to it"
                );
            }
            self.yielded = name;
        }
        self.yielded.is_some()
    }

    /// Takes the leader label off other Pods. Only an exporting leader gets here: its take-over wait is over.
    async fn sweep(&mut self, desired: &Desired) -> Step {
        if desired.role != Role::Leader {
            return Step::Settled;
        }
        let other = self.view.borrow().others(&self.settings.pod.uid).find(|pod| pod.is_leader()).cloned();
        let Some(other) = other else { return Step::Settled };
        let (requests, patch) = (self.requests.clone(), sweep(&other, &self.settings));
        match self.unless_changed(requests.json_patch(&other.name, patch)).await {
            None => return Step::Again,
            Some(Ok(_)) => {
                self.metrics.swept();
                tracing::warn!(pod = other.name, "the leader label was taken off another Pod");
            }
            // It has changed since it was read, or has gone, or the API does not answer.
            Some(Err(error)) => return Step::After(error.wait().unwrap_or(LONGEST_PAUSE)),
        }
        // The watch tells sooner what has become of it.
        Step::After(LONGEST_PAUSE)
    }

    fn failed(&mut self, error: &RequestError) -> Step {
        match error.kind {
            RequestErrorKind::Replaced => return Step::Replaced,
            RequestErrorKind::Conflict | RequestErrorKind::Invalid | RequestErrorKind::NotFound => {
                self.outdated = true;
            }
            RequestErrorKind::Denied => {
                self.tell(LabelState::Denied(Denied { verb: error.verb, resource: error.resource }));
                self.told.send_if_modified(|told| !std::mem::replace(&mut told.hopeless, true));
            }
            _ => {}
        }
        if error.kind != RequestErrorKind::Denied {
            self.tell(LabelState::Pending);
        }
        self.after(error.wait())
    }

    /// Later, and not before what was `asked` for.
    fn after(&mut self, asked: Option<Duration>) -> Step {
        let pause = pause(self.failures, asked, rand::random());
        self.failures = self.failures.saturating_add(1);
        Step::Failed(pause)
    }

    /// The Pod says what it should.
    fn settle(&mut self, desired: Desired) {
        self.failures = 0;
        self.settled = Some(desired);
        self.tell(if self.yielded.is_some() { LabelState::Pending } else { LabelState::Set });
        let ended = desired.tenure.filter(|tenure| {
            tenure.ended.is_some() && self.own.as_ref().is_some_and(|own| Desired::is_told(own, tenure))
        });
        let told = Told { ended: ended.map(|tenure| tenure.term), hopeless: false };
        self.told.send_if_modified(|last| std::mem::replace(last, told) != told);
    }

    fn tell(&self, state: LabelState) {
        let labelled = self.own.as_ref().map(PodState::is_leader);
        if labelled == Some(false) {
            self.serving.clear();
        }
        self.metrics.leader_label(labelled);
        let role = self.own.as_ref().and_then(|own| match own.role.as_deref() {
            Some(value) if value == label(Role::Leader) => Some(Role::Leader),
            Some(value) if value == label(Role::Standby) => Some(Role::Standby),
            _ => None,
        });
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
        self.own = None;
        self.tell(LabelState::Replaced);
        self.told.send_replace(Told { ended: None, hopeless: true });
    }

    /// Awaits `request`, unless the status changes meanwhile: then the request is given up, and the next one is made for
    /// what is wanted now. Should the old one still arrive, its resource version is old.
    async fn unless_changed<T>(&mut self, request: impl Future<Output = T>) -> Option<T> {
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

/// Whether `pod` was read after `own`. The API server defines that versions grow, as numbers.
fn is_newer(pod: &PodState, own: &PodState) -> bool {
    let version = |pod: &PodState| pod.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
    match (version(pod), version(own)) {
        (Some(pod), Some(own)) => pod > own,
        _ => pod != own,
    }
}
