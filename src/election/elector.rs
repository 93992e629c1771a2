//! Drives the election: asks for the lock, and leads while it has it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::advert::Advert;
use super::bound::Timing;
use super::burst::Burst;
use super::cadence::Cadence;
use super::platform::{Platform, Sighting};
use super::proof::ProofError;
use super::session::{Attempt, AttemptError, Candidacy, LockSession};
use super::state::{AfterFailure, State, after_failure};
use super::{Holder, Lease, Liveness, Status, Tenure};
use crate::clock::BootInstant;
use crate::collection::{CollectError, Collector};
use crate::config::CollectorSettings;
use crate::database::Database;
use crate::exposition::{AttemptOutcome, Metrics, Publication};

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
    /// What is told of the role, and may speed a take-over up.
    pub platform: Arc<dyn Platform>,
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
pub(super) struct Campaign {
    pub(super) elector: Elector,
    pub(super) stop: CancellationToken,
    pub(super) allowance: Duration,
    pub(super) state: State,
    /// The term that it holds, or the last one that it held.
    pub(super) tenure: Option<Tenure>,
    /// The lease of the term that it holds.
    pub(super) lease: Option<Arc<Lease>>,
    /// The holder that was seen last, unless this process has held the lock since.
    pub(super) sighting: Option<Sighting>,
    /// The attempts in quick succession that are going on.
    burst: Burst,
    /// Failed attempts and terms in a row, until a refresh succeeds or a holder is seen a second time.
    pub(super) failures: u32,
    /// The kind of error of the last attempt, when it failed.
    outage: Option<&'static str>,
    /// Whether the last attempt found the lock held, so that a change is logged once.
    pub(super) waiting: bool,
    /// Queues that the last exposition left out for the budget.
    pub(super) dropped: u64,
}

impl Campaign {
    fn new(elector: Elector, stop: CancellationToken, allowance: Duration) -> Self {
        Self {
            elector,
            stop,
            allowance,
            state: State::starting(),
            tenure: None,
            lease: None,
            sighting: None,
            burst: Burst::default(),
            failures: 0,
            outage: None,
            waiting: false,
            dropped: 0,
        }
    }

    async fn run(mut self) -> Result<(), ElectionError> {
        let stop = self.stop.clone();
        self.give_way().await;
        // What became free before is found by the first attempt.
        let mut vacancies = self.elector.platform.vacancies();
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
                Ok(()) => {
                    let retry = self.elector.settings.leadership_retry_interval;
                    self.burst.attempted(Instant::now(), rand::random()).map_or(retry, |pause| pause.min(retry))
                }
                Err(error) => {
                    self.burst.end();
                    self.retry_after(error)?
                }
            };
            let mut next = Instant::now() + pause;
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep_until(next) => break,
                    Ok(()) = vacancies.changed() => {
                        let now = Instant::now();
                        // Replicas that all fail would otherwise pass the lock round as fast as they free it.
                        if self.failures == 0
                            && let Some(pause) = self.burst.begin(now, rand::random())
                        {
                            next = now + pause;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets those who stand by already try first, for a retry interval, in which each of them tries once. They have seen
    /// the last holder and may have proof of its end, where a process that has just started has to serve the whole
    /// take-over wait. To give way for longer than that would be worse.
    async fn give_way(&self) {
        let turn = self.elector.settings.leadership_retry_interval.min(self.elector.timing.take_over_wait());
        let nobody = self.elector.platform.nobody_stands_by();
        _ = self.stop.run_until_cancelled(timeout(turn, nobody)).await;
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
        self.elector.holder(match &attempt {
            Ok(Attempt::Granted(_)) => Holder::Own,
            Ok(Attempt::Held { holder, .. }) if self.is_own(holder.as_ref()) => Holder::Unknown,
            Ok(Attempt::Held { holder, .. }) => Holder::Other(holder.as_ref().and_then(Advert::term)),
            Err(_) => Holder::Unknown,
        });
        match attempt {
            Ok(Attempt::Granted(session)) => {
                self.elector.metrics.attempt(AttemptOutcome::Acquired);
                self.lead(session).await
            }
            Ok(Attempt::Held { holder, asked_at }) => {
                self.elector.metrics.attempt(AttemptOutcome::Held);
                self.state.rejected();
                if self.is_own(holder.as_ref()) {
                    tracing::info!("the session of the last term still holds the advisory lock, waiting for its end");
                    return Ok(());
                }
                self.seen(holder.as_ref(), asked_at);
                if !std::mem::replace(&mut self.waiting, true) {
                    let retry = self.elector.settings.leadership_retry_interval;
                    let holder = holder.map(|holder| holder.to_string());
                    tracing::info!(?retry, holder, "another session holds the advisory lock, waiting as a standby");
                }
                // Somebody leads: what became of our own last collection no longer matters.
                self.elector.publication.withdraw();
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

    /// Whether the holder of the lock is the session of this process's last term, whose end the server has not noticed
    /// yet: a term belongs to one grant. Nobody leads by it.
    fn is_own(&self, holder: Option<&Advert>) -> bool {
        let last = self.tenure.map(|tenure| tenure.term);
        last.is_some() && holder.and_then(Advert::term) == last
    }

    /// Remembers what the `holder` of the lock says of itself, which made an attempt fail.
    fn seen(&mut self, holder: Option<&Advert>, asked_at: BootInstant) {
        let sighting = holder.and_then(Advert::term).map(|term| Sighting { term, asked_at });
        let [before, now] = [self.sighting, sighting].map(|sighting| sighting.map(|sighting| sighting.term));
        if before != now {
            // The place is taken.
            self.burst.end();
        } else if now.is_some() {
            // A holder that stays can lead. One that is new, or that nobody knows, may fail as this process did.
            self.failures = 0;
        }
        self.sighting = sighting;
        let Some(holder) = holder else { return };
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

    /// Tells the role that comes with the state, and the term.
    pub(super) fn announce(&self) {
        let role = self.state.role();
        self.elector.status.send_modify(|status| {
            if status.role != role {
                status.since = SystemTime::now();
            }
            status.role = role;
            status.tenure = self.tenure;
            status.lease = self.lease.clone();
            self.elector.metrics.role(status);
        });
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
    pub(super) const fn cadence(&self) -> Cadence {
        Cadence { interval: self.settings.collection_interval }
    }

    pub(super) fn failed(&self, error: CollectError, began: BootInstant) -> ElectionError {
        self.metrics.refresh_failed(error.kind(), BootInstant::now().saturating_since(began));
        error.into()
    }

    /// Tells who holds the lock.
    pub(super) fn holder(&self, holder: Holder) {
        self.status.send_if_modified(|status| std::mem::replace(&mut status.holder, holder) != holder);
    }

    /// Tells why the database server is refused, or that it is not.
    fn refusal(&self, reason: Option<&'static str>) {
        let changed = self.status.send_if_modified(|status| std::mem::replace(&mut status.refusal, reason) != reason);
        if changed {
            self.metrics.refusal(reason);
        }
    }
}
