//! Drives the election: asks for the lock, leads while it has it, and leaves through one function.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::Connection;
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

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
        Campaign { elector: self, stop, allowance, state: State::starting(), failures: 0, left_out: (0, 0) }.run().await
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
    /// Queues that the last exposition left out: for the budget, and for having the name of another.
    left_out: (u64, usize),
}

impl Campaign {
    async fn run(mut self) -> Result<(), ElectionError> {
        let stop = self.stop.clone();
        while !stop.is_cancelled() {
            self.elector.liveness.tick(self.allowance);
            self.state.attempt();
            let Some(attempt) = stop.run_until_cancelled(self.elector.attempt()).await else { break };
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
        let mut ticks = interval(self.elector.settings.collection_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut sentinel = Sentinel::closed();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sentinel.ended() => {
                    self.elector.prove(session).await?;
                    continue;
                }
            }
            self.elector.liveness.tick(self.allowance);
            // Before the refresh: that proves the lock session to be as young as the sentinel's, so that
            // no restart can have come between them.
            if !sentinel.is_open() {
                sentinel = Sentinel::open(&self.elector.database).await;
            }
            let rendered = self.elector.refresh(session).await?;
            self.publish(rendered);
        }
    }

    fn publish(&mut self, rendered: Rendered) {
        let left_out = (rendered.queues_dropped, rendered.duplicates);
        if left_out != std::mem::replace(&mut self.left_out, left_out) {
            tracing::warn!(
                found = rendered.queues_found,
                over_budget = left_out.0,
                duplicate_names = left_out.1,
                "the number of queues left out has changed"
            );
        }
        let settings = &self.elector.settings;
        // The next refresh has ended, one way or the other, by then.
        let fence = rendered.sent_at + settings.collection_interval + settings.refresh_timeout;
        self.elector.publication.publish(rendered, fence);
        self.failures = 0;
        if self.state.refreshed() {
            self.elector.announce(self.state);
        }
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
                // The end of a term has been logged, and the first of several failures says it for all.
                if self.failures == 1 && matches!(error, ElectionError::Attempt(_)) {
                    tracing::warn!(%error, "trying again until it works");
                }
                Ok(pause)
            }
        }
    }
}

impl Elector {
    async fn attempt(&self) -> Result<Attempt, AttemptError> {
        LockSession::attempt(&self.database, self.settings.lock_key, self.settings.refresh_timeout).await
    }

    async fn prepare(&self, session: &mut LockSession) -> Result<(), ElectionError> {
        let began = BootInstant::now();
        self.collector.prepare(session).await.map_err(|error| self.failed(error, began))
    }

    async fn refresh(&self, session: &mut LockSession) -> Result<Rendered, ElectionError> {
        let began = BootInstant::now();
        let snapshot = self.collector.refresh(session).await.map_err(|error| self.failed(error, began))?;
        let interval = self.settings.collection_interval;
        if snapshot.duration > interval {
            self.metrics.refresh_overrun();
            tracing::warn!(
                duration = ?snapshot.duration,
                ?interval,
                "the refresh took longer than its interval, ticks are skipped"
            );
        }
        self.metrics.refresh_succeeded(&snapshot);
        // Tens of milliseconds for 10,000 queues: the other worker answers scrapes meanwhile.
        Ok(block_in_place(|| Rendered::new(&snapshot, interval)))
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
