//! Drives the election: asks for the lock, leads while it has it, and leaves through one function.

use std::convert::Infallible;
use std::future::pending;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::advert::Advert;
use super::bound::Timing;
use super::cadence::Cadence;
use super::heartbeat::{Event, Heartbeat};
use super::pooler::Path;
use super::predecessors::Predecessors;
use super::proof::{Claim, ProofError};
use super::session::{Attempt, AttemptError, Candidacy, LockSession};
use super::state::{AfterFailure, State, after_failure};
use super::{Liveness, Status, Term};
use crate::clock::BootInstant;
use crate::collection::{CollectError, Collector};
use crate::config::CollectorSettings;
use crate::database::Database;
use crate::exposition::{AttemptOutcome, Metrics, Publication, Rendered};

/// The message that announces a new leader, as Retsu writes it.
pub const ACQUIRED: &str = "queue state metrics collector leadership acquired";

/// How far a loop may fall behind its own limits before it counts as hung.
const LIVENESS_SLACK: Duration = Duration::from_secs(30);

/// What ended a term, or kept one from beginning.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The lock could not be tried.
    #[error("attempt at leadership failed: {0}")]
    Attempt(#[from] AttemptError),
    /// The leader could not prove that it still holds the lock.
    #[error("the lease ended: {0}")]
    Proof(#[from] ProofError),
    /// The leader could not refresh.
    #[error("refresh of queue state failed: {0}")]
    Refresh(#[from] CollectError),
}

impl ElectionError {
    /// A stable name of the kind of error, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Attempt(error) => error.kind(),
            Self::Proof(error) => error.kind(),
            Self::Refresh(error) => error.kind(),
        }
    }

    /// Whether the cause is in the configuration, which a restart does not cure.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Attempt(AttemptError::Refused(refusal)) if refusal.is_configuration())
    }
}

/// Competes for the lock and, while it holds it, refreshes and publishes queue state on its session.
pub struct Elector {
    /// Where sessions come from.
    pub database: Database,
    /// Reads queue state.
    pub collector: Collector,
    /// Intervals, limits and the lock key.
    pub settings: CollectorSettings,
    /// The arithmetic of the settings.
    pub timing: Timing,
    /// The name under which this replica advertises itself on its lock session.
    pub identity: String,
    /// Where the state gauges go.
    pub publication: Arc<Publication>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
    /// Who is told of a change of role.
    pub status: watch::Sender<Status>,
    /// Where the loop shows that it ticks.
    pub liveness: Arc<Liveness>,
    /// What may end a take-over wait early.
    pub predecessors: Arc<dyn Predecessors>,
}

impl Elector {
    /// The silence that is normal for a loop with these settings.
    #[must_use]
    pub fn allowance(settings: &CollectorSettings, acquire_timeout: Duration) -> Duration {
        settings.collection_interval.max(settings.leadership_retry_interval)
            + acquire_timeout
            + 2 * settings.refresh_timeout
            + LIVENESS_SLACK
    }

    /// Runs until `stop` is cancelled. By then the gauges are withdrawn and the lock is free.
    ///
    /// # Errors
    ///
    /// With `on_refresh_failure: exit`, the first failed attempt, proof or refresh; with `step_down`, never.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ElectionError> {
        let allowance = Self::allowance(&self.settings, self.database.acquire_timeout());
        Campaign::new(self, stop, allowance).run().await
    }
}

/// The running election.
struct Campaign {
    elector: Elector,
    stop: CancellationToken,
    allowance: Duration,
    state: State,
    /// The term of the holder that was seen last.
    predecessor: Option<Term>,
    /// Failed attempts and terms in a row.
    failures: u32,
    /// The kind of error of the last attempt, when it failed.
    outage: Option<&'static str>,
    /// Whether the last attempt found the lock held, so that a change is logged once.
    waiting: bool,
    /// Queues that the last exposition left out for the budget.
    dropped: u64,
}

impl Campaign {
    fn new(elector: Elector, stop: CancellationToken, allowance: Duration) -> Self {
        Self {
            elector,
            stop,
            allowance,
            state: State::starting(),
            predecessor: None,
            failures: 0,
            outage: None,
            waiting: false,
            dropped: 0,
        }
    }

    async fn run(mut self) -> Result<(), ElectionError> {
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            self.elector.liveness.tick(self.allowance);
            self.state.attempt();
            let Some(attempt) = stop.run_until_cancelled(self.attempt()).await else {
                self.state.rejected();
                break;
            };
            if attempt.is_ok() && self.outage.take().is_some() {
                tracing::info!("attempts at leadership work again");
            }
            let pause = match self.follow(attempt).await {
                Ok(()) => self.elector.settings.leadership_retry_interval,
                Err(error) => self.retry_after(error)?,
            };
            stop.run_until_cancelled(sleep(pause)).await;
        }
        Ok(())
    }

    #[tracing::instrument(name = "attempt", skip_all)]
    async fn attempt(&self) -> Result<Attempt, AttemptError> {
        let Elector { database, settings, identity, timing, .. } = &self.elector;
        LockSession::attempt(database, &Candidacy::new(settings, identity, timing.longest_fence())).await
    }

    /// Does what the outcome of an attempt asks for: waits, or leads.
    async fn follow(&mut self, attempt: Result<Attempt, AttemptError>) -> Result<(), ElectionError> {
        match &attempt {
            Err(AttemptError::Refused(refusal)) => self.elector.refusal(Some(refusal.kind())),
            // A server that gives no answer is refused no less than before.
            Err(_) => {}
            Ok(_) => self.elector.refusal(None),
        }
        match attempt {
            Ok(Attempt::Granted(session)) => {
                self.elector.metrics.attempt(AttemptOutcome::Acquired);
                self.lead(session).await
            }
            Ok(Attempt::Held(holder)) => {
                self.elector.metrics.attempt(AttemptOutcome::Held);
                self.state.rejected();
                if let Some(holder) = &holder {
                    self.seen(holder);
                }
                if !std::mem::replace(&mut self.waiting, true) {
                    let retry = self.elector.settings.leadership_retry_interval;
                    let holder = holder.map(|holder| holder.to_string());
                    tracing::info!(?retry, holder, "another session holds the advisory lock, waiting as a standby");
                }
                // Somebody leads: what became of our own last collection no longer matters.
                self.elector.publication.withdraw();
                self.failures = 0;
                Ok(())
            }
            Err(error) => {
                self.elector.metrics.attempt(match error {
                    AttemptError::Refused(_) => AttemptOutcome::Refused,
                    _ => AttemptOutcome::Failed,
                });
                self.state.rejected();
                Err(error.into())
            }
        }
    }

    /// Remembers what a holder of the lock says of itself.
    fn seen(&mut self, holder: &Advert) {
        self.predecessor = holder.term();
        let timing = &mut self.elector.timing;
        if timing.saw(holder.fence()) {
            self.elector.metrics.declare(timing.bounds());
            tracing::warn!(
                %holder,
                own = ?timing.lease().fence,
                "the holder of the lock has a longer fence, which this process will wait for in every take-over"
            );
        }
    }

    /// Leads with `session` until it is told to stop, a proof or a refresh fails.
    async fn lead(&mut self, mut session: LockSession) -> Result<(), ElectionError> {
        let claim = session.claim();
        let term = claim.term;
        self.state.granted(term);
        self.waiting = false;
        let wait = self.elector.timing.take_over_wait();
        let opens = session.granted_at() + wait;
        tracing::info!(
            %term,
            system_identifier = claim.system_identifier,
            ?wait,
            "{ACQUIRED}"
        );
        if session.path() == Path::SessionPooler {
            tracing::warn!(
                "the lock session leads through a connection pooler in session mode: the server sees only the \
                 pooler's socket, and the declared bound is that of a direct connection"
            );
        }
        self.elector.announce(self.state, Some(claim.system_identifier));
        let predecessors_ended = self.elector.predecessors.ended(term, self.predecessor.take());
        let heartbeat = Heartbeat::new(self.elector.timing, session.asked_at(), opens, predecessors_ended);
        let stop = self.stop.clone();
        let outcome = match stop.run_until_cancelled(self.collect(&mut session, heartbeat)).await {
            Some(Err(error)) => Err(error),
            Some(Ok(never)) => match never {},
            None => Ok(()),
        };
        self.leave(session, outcome.as_ref().err()).await;
        outcome
    }

    /// Refreshes on `session`, and proves that it holds the lock, until either fails.
    async fn collect(
        &mut self,
        session: &mut LockSession,
        mut heartbeat: Heartbeat,
    ) -> Result<Infallible, ElectionError> {
        let collector = self.elector.collector.clone();
        let began = BootInstant::now();
        let claim = session.claim();
        let prepared = self.meanwhile(&mut heartbeat, claim, pin!(collector.prepare(session))).await?;
        prepared.map_err(|error| self.elector.failed(error, began))?;
        // A new term refreshes at once, whatever the cadence of an earlier one was.
        let mut tick = Instant::now();
        loop {
            self.elector.liveness.tick(self.allowance);
            self.shorten_advert(&mut heartbeat, session).await?;
            tokio::select! {
                event = heartbeat.next() => match event {
                    Event::ProofDue => heartbeat.beat(Box::pin(session.prove())).await?,
                    Event::Opened => self.waited(session.claim()),
                },
                () = sleep_until(tick) => {
                    let rendered = self.refresh(&mut heartbeat, session).await?;
                    tick += self.publish(rendered, tick, &heartbeat, session.claim());
                }
            }
        }
    }

    #[tracing::instrument(name = "refresh", skip_all, fields(term = %session.term()))]
    async fn refresh(
        &mut self,
        heartbeat: &mut Heartbeat,
        session: &mut LockSession,
    ) -> Result<Rendered, ElectionError> {
        let collector = self.elector.collector.clone();
        let began = BootInstant::now();
        let claim = session.claim();
        let snapshot = self.meanwhile(heartbeat, claim, pin!(collector.refresh(session))).await?;
        let snapshot = snapshot.map_err(|error| self.elector.failed(error, began))?;
        self.elector.metrics.refresh_succeeded(&snapshot);
        // Tens of milliseconds for 10,000 queues, and more where the CPU is short: neither proofs nor scrapes wait.
        let interval = self.elector.settings.collection_interval;
        let rendering = pin!(spawn_blocking(move || Rendered::new(&snapshot, interval)));
        let rendered = match self.meanwhile(heartbeat, claim, rendering).await? {
            Ok(rendered) => rendered,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Cancelled, because the runtime is being shut down.
                Err(_) => pending().await,
            },
        };
        // A refresh that began within the lease may end beyond it, when the process was stopped.
        heartbeat.check()?;
        Ok(rendered)
    }

    /// Waits for `busy`, which occupies the lock session. Proofs come from another connection meanwhile.
    async fn meanwhile<T>(
        &mut self,
        heartbeat: &mut Heartbeat,
        claim: Claim,
        mut busy: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, ElectionError> {
        loop {
            tokio::select! {
                biased;
                done = &mut busy => return Ok(done),
                event = heartbeat.next() => match event {
                    Event::Opened => self.waited(claim),
                    Event::ProofDue => {
                        let proof = heartbeat.beat(Box::pin(claim.prove_from(&self.elector.database)));
                        tokio::select! {
                            biased;
                            // The proof is due still, and comes next, from the lock session.
                            done = &mut busy => return Ok(done),
                            proved = proof => proved?,
                        }
                    }
                },
            }
        }
    }

    /// After the take-over wait nobody has to wait any more for those before this term: from then on its own fence
    /// counts, for whoever comes after it.
    async fn shorten_advert(
        &mut self,
        heartbeat: &mut Heartbeat,
        session: &mut LockSession,
    ) -> Result<(), ElectionError> {
        let fence = self.elector.timing.lease().fence;
        if matches!(self.state, State::Leading(_)) && session.advertised_fence() > fence {
            let claim = session.claim();
            let advertised = self.meanwhile(heartbeat, claim, pin!(session.advertise(fence))).await?;
            advertised.map_err(ProofError::Statement)?;
        }
        Ok(())
    }

    /// The take-over wait is over.
    fn waited(&mut self, claim: Claim) {
        if self.state.waited() {
            self.exports(claim);
        }
    }

    /// Publishes the refresh that was due at `tick`. Returns the time from `tick` to the next one.
    fn publish(&mut self, rendered: Rendered, tick: Instant, heartbeat: &Heartbeat, claim: Claim) -> Duration {
        let cadence = self.elector.cadence();
        let skipped = cadence.skipped(tick.elapsed());
        if skipped > 0 {
            self.elector.metrics.refreshes_skipped(skipped);
            tracing::warn!(
                since_tick = ?tick.elapsed(),
                interval = ?cadence.interval,
                skipped,
                "the refresh took longer than its interval, ticks are skipped"
            );
        }
        let (queues_found, queues_dropped) = (rendered.queues_found, rendered.queues_dropped);
        if queues_dropped != std::mem::replace(&mut self.dropped, queues_dropped) {
            tracing::warn!(
                queues_found,
                queues_dropped,
                "the number of queues beyond telemetry.metrics.max_queues has changed"
            );
        }
        let expires = self.elector.timing.snapshot_expiry(rendered.sent_at);
        let exported = BootInstant::now() < expires;
        if !exported {
            tracing::warn!(
                "the refresh took longer than its interval and the fence, its result is too old to be exported"
            );
        }
        self.elector.publication.publish(rendered, heartbeat.lease(), expires);
        self.failures = 0;
        if exported && self.state.refreshed() {
            self.exports(claim);
        }
        cadence.until_next(skipped)
    }

    /// The gauges are out, for the first time of the term.
    fn exports(&self, claim: Claim) {
        tracing::info!(term = %claim.term, system_identifier = claim.system_identifier, "queue state is exported");
        self.elector.announce(self.state, Some(claim.system_identifier));
    }

    /// The one way out of a term: withdraw first, then free the lock.
    async fn leave(&mut self, session: LockSession, failure: Option<&ElectionError>) {
        match failure {
            Some(_) => self.elector.publication.withdraw_failed(),
            None => self.elector.publication.withdraw(),
        }
        if let Some(error) = failure {
            self.elector.metrics.term_lost(error.kind());
        }
        let term = session.term();
        self.state.withdrawn();
        self.elector.announce(self.state, None);
        session.release().await;
        self.state.released();
        match failure {
            None => tracing::info!(%term, reason = "stopping", "queue state metrics collector leadership released"),
            Some(error) => tracing::warn!(%term, reason = %error, "queue state metrics collector leadership lost"),
        }
    }

    fn retry_after(&mut self, error: ElectionError) -> Result<Duration, ElectionError> {
        self.failures = self.failures.saturating_add(1);
        let settings = &self.elector.settings;
        let retry = settings.leadership_retry_interval;
        match after_failure(settings.on_refresh_failure, self.failures, retry, rand::random()) {
            AfterFailure::Exit => Err(error),
            AfterFailure::Retry(pause) => {
                // The end of a term has been logged, and the first failed attempt of a kind speaks for all.
                if let ElectionError::Attempt(attempt) = &error
                    && self.outage.replace(attempt.kind()) != Some(attempt.kind())
                {
                    tracing::warn!(%error, "attempts at leadership fail, trying until they work");
                }
                Ok(pause)
            }
        }
    }
}

impl Elector {
    const fn cadence(&self) -> Cadence {
        Cadence { interval: self.settings.collection_interval }
    }

    fn failed(&self, error: CollectError, began: BootInstant) -> ElectionError {
        self.metrics.refresh_failed(error.kind(), BootInstant::now().saturating_since(began));
        error.into()
    }

    /// Tells the role and the term that come with `state`.
    fn announce(&self, state: State, system_identifier: Option<u64>) {
        self.status.send_modify(|status| {
            if status.role != state.role() {
                status.since = SystemTime::now();
            }
            status.role = state.role();
            status.term = state.term();
            status.system_identifier = system_identifier;
            self.metrics.role(status);
        });
    }

    /// Tells why the database server is refused, or that it is not.
    fn refusal(&self, reason: Option<&'static str>) {
        let changed = self.status.send_if_modified(|status| std::mem::replace(&mut status.refusal, reason) != reason);
        if changed {
            self.metrics.refusal(reason);
        }
    }
}
