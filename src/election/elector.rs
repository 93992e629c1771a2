//! Drives the election: asks for the lock, leads while it has it, and leaves through one function.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::Connection;
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::cadence::Cadence;
use super::sentinel::Sentinel;
use super::session::{Attempt, AttemptError, LockSession};
use super::state::{AfterFailure, State, after_failure};
use super::{Liveness, Status};
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
    /// The lock session ended between two refreshes.
    #[error("the lock session ended: {0}")]
    Session(sqlx::Error),
    /// The leader could not refresh.
    #[error("refresh of queue state failed: {0}")]
    Refresh(#[from] CollectError),
}

/// Competes for the lock and, while it holds it, refreshes and publishes queue state on its session.
pub struct Elector {
    /// Where sessions come from.
    pub database: Database,
    /// Reads queue state.
    pub collector: Collector,
    /// Intervals, limits and the lock key.
    pub settings: CollectorSettings,
    /// Where the state gauges go.
    pub publication: Arc<Publication>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
    /// Who is told of a change of role.
    pub status: watch::Sender<Status>,
    /// Where the loop shows that it ticks.
    pub liveness: Arc<Liveness>,
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
    /// With `on_refresh_failure: exit`, the first failed attempt or refresh; with `step_down`, never.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ElectionError> {
        let allowance = Self::allowance(&self.settings, self.database.pool().options().get_acquire_timeout());
        Campaign::new(self, stop, allowance).run().await
    }
}

/// The running election.
struct Campaign {
    elector: Elector,
    stop: CancellationToken,
    allowance: Duration,
    state: State,
    /// Failed attempts and terms in a row.
    failures: u32,
    /// Whether attempts are failing.
    outage: bool,
    /// Whether the last attempt found the lock held, so that a change is logged once.
    waiting: bool,
    /// Queues that the last exposition left out for the budget.
    dropped: u64,
    sentinel: Sentinel,
}

impl Campaign {
    fn new(elector: Elector, stop: CancellationToken, allowance: Duration) -> Self {
        let (state, sentinel) = (State::starting(), Sentinel::closed());
        Self { elector, stop, allowance, state, failures: 0, outage: false, waiting: false, dropped: 0, sentinel }
    }

    async fn run(mut self) -> Result<(), ElectionError> {
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            self.elector.liveness.tick(self.allowance);
            self.state.attempt();
            let Some(attempt) = stop.run_until_cancelled(self.elector.attempt()).await else {
                self.state.rejected();
                break;
            };
            if attempt.is_ok() && std::mem::take(&mut self.outage) {
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

    /// Does what the outcome of an attempt asks for: waits, or leads.
    async fn follow(&mut self, attempt: Result<Attempt, AttemptError>) -> Result<(), ElectionError> {
        match attempt {
            Ok(Attempt::Granted(session)) => {
                self.elector.metrics.attempt(AttemptOutcome::Acquired);
                self.lead(session).await
            }
            Ok(Attempt::Held) => {
                self.elector.metrics.attempt(AttemptOutcome::Held);
                self.state.rejected();
                if !std::mem::replace(&mut self.waiting, true) {
                    let retry = self.elector.settings.leadership_retry_interval;
                    tracing::info!(?retry, "another session holds the advisory lock, waiting as a standby");
                }
                // Somebody leads: what became of our own last collection no longer matters.
                self.elector.publication.withdraw();
                self.failures = 0;
                Ok(())
            }
            Err(error) => {
                self.elector.metrics.attempt(AttemptOutcome::Failed);
                self.state.rejected();
                Err(error.into())
            }
        }
    }

    /// Leads with `session` until it is told to stop or a refresh fails.
    async fn lead(&mut self, mut session: LockSession) -> Result<(), ElectionError> {
        let term = session.term();
        self.state.granted(term);
        self.waiting = false;
        tracing::info!(%term, "{ACQUIRED}");
        let stop = self.stop.clone();
        let outcome = match stop.run_until_cancelled(self.collect(&mut session)).await {
            Some(Err(error)) => Err(error),
            Some(Ok(never)) => match never {},
            None => Ok(()),
        };
        self.leave(session, outcome.as_ref().err()).await;
        outcome
    }

    /// Refreshes on `session` until that fails.
    async fn collect(&mut self, session: &mut LockSession) -> Result<Infallible, ElectionError> {
        self.elector.prepare(session).await?;
        // A new term refreshes at once, whatever the cadence of an earlier one was.
        let mut tick = Instant::now();
        let mut watched_again = false;
        loop {
            tokio::select! {
                () = sleep_until(tick) => {}
                () = self.sentinel.ended() => {
                    self.elector.liveness.tick(self.allowance);
                    self.elector.prove(session).await?;
                    // A server that stops ends its sessions one after another, and the lock session may have
                    // answered just before its turn. No server opens a session after that, so a second proof
                    // decides. Once for each refresh: what keeps ending the sentinel keeps nobody busy.
                    if !std::mem::replace(&mut watched_again, true) {
                        self.sentinel.open(&self.elector.database).await;
                        self.elector.prove(session).await?;
                    }
                    continue;
                }
            }
            self.elector.liveness.tick(self.allowance);
            watched_again = false;
            // Before the refresh: that proves the lock session to be as young as the sentinel's, so that
            // no restart can have come between them.
            if !self.sentinel.is_open() {
                self.sentinel.open(&self.elector.database).await;
            }
            let rendered = self.elector.refresh(session).await?;
            tick += self.publish(rendered, tick);
        }
    }

    /// Publishes the refresh that was due at `tick`. Returns the time from `tick` to the next one.
    fn publish(&mut self, rendered: Rendered, tick: Instant) -> Duration {
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
        let fence = rendered.sent_at + cadence.validity(skipped);
        self.elector.publication.publish(rendered, fence);
        self.failures = 0;
        if self.state.refreshed() {
            self.elector.announce(self.state);
        }
        cadence.until_next(skipped)
    }

    /// The one way out of a term: withdraw first, then free the lock.
    async fn leave(&mut self, session: LockSession, failure: Option<&ElectionError>) {
        match failure {
            Some(_) => self.elector.publication.withdraw_failed(),
            None => self.elector.publication.withdraw(),
        }
        let (term, role) = (session.term(), self.state.role());
        self.state.withdrawn();
        if self.state.role() != role {
            self.elector.announce(self.state);
        }
        session.release().await;
        self.sentinel.close().await;
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
                // The end of a term has been logged, and the first failed attempt of an outage speaks for all.
                if matches!(error, ElectionError::Attempt(_)) && !std::mem::replace(&mut self.outage, true) {
                    tracing::warn!(%error, "attempts at leadership fail, trying until they work");
                }
                Ok(pause)
            }
        }
    }
}

impl Elector {
    #[tracing::instrument(name = "attempt", skip_all)]
    async fn attempt(&self) -> Result<Attempt, AttemptError> {
        LockSession::attempt(&self.database, self.settings.lock_key, self.settings.refresh_timeout).await
    }

    async fn prepare(&self, session: &mut LockSession) -> Result<(), ElectionError> {
        let began = BootInstant::now();
        self.collector.prepare(session).await.map_err(|error| self.failed(error, began))
    }

    #[tracing::instrument(name = "refresh", skip_all, fields(term = %session.term()))]
    async fn refresh(&self, session: &mut LockSession) -> Result<Rendered, ElectionError> {
        let began = BootInstant::now();
        let snapshot = self.collector.refresh(session).await.map_err(|error| self.failed(error, began))?;
        self.metrics.refresh_succeeded(&snapshot);
        // Tens of milliseconds for 10,000 queues: the other worker answers scrapes meanwhile.
        Ok(block_in_place(|| Rendered::new(&snapshot, self.settings.collection_interval)))
    }

    const fn cadence(&self) -> Cadence {
        Cadence { interval: self.settings.collection_interval, refresh_timeout: self.settings.refresh_timeout }
    }

    fn failed(&self, error: CollectError, began: BootInstant) -> ElectionError {
        self.metrics.refresh_failed(error.kind(), BootInstant::now().saturating_since(began));
        error.into()
    }

    /// Proves that the lock session lives.
    async fn prove(&self, session: &mut LockSession) -> Result<(), ElectionError> {
        match timeout(self.settings.refresh_timeout, session.ping()).await {
            Ok(answer) => answer.map_err(ElectionError::Session),
            Err(_) => Err(ElectionError::Session(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))),
        }
    }

    fn announce(&self, state: State) {
        let status = Status { role: state.role(), term: state.term(), since: SystemTime::now() };
        self.metrics.role(&status);
        self.status.send_replace(status);
    }
}
