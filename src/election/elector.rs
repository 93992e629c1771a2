//! Drives the election: asks for the lock, leads while it has it, and leaves through one function.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::Connection;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::sentinel::Sentinel;
use super::session::{Attempt, AttemptError, LockSession};
use super::state::{AfterFailure, State, after_failure};
use super::{Liveness, Status};
use crate::clock::BootInstant;
use crate::collection::{CollectError, Collector, Snapshot};
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
        let mut state = State::starting();
        let mut failures = 0;
        loop {
            self.liveness.tick(allowance);
            state.attempt();
            let attempt = LockSession::attempt(&self.database, self.settings.lock_key, self.settings.refresh_timeout)
                .instrument(tracing::info_span!("election attempt"));
            let Some(attempt) = stop.run_until_cancelled(attempt).await else { return Ok(()) };
            let outcome = match attempt {
                Ok(Attempt::Granted(session)) => {
                    self.metrics.attempt(AttemptOutcome::Acquired);
                    self.lead(session, &mut state, &mut failures, &stop, allowance).await
                }
                Ok(Attempt::Held) => {
                    self.metrics.attempt(AttemptOutcome::Held);
                    state.rejected();
                    // Somebody leads: what became of our own last collection no longer matters.
                    self.publication.withdraw();
                    failures = 0;
                    Ok(())
                }
                Err(error) => {
                    self.metrics.attempt(AttemptOutcome::Failed);
                    state.rejected();
                    Err(error.into())
                }
            };
            if stop.is_cancelled() {
                return Ok(());
            }
            let pause = match outcome {
                Ok(()) => self.settings.leadership_retry_interval,
                Err(error) => {
                    failures += 1;
                    self.retry_after(error, failures)?
                }
            };
            stop.run_until_cancelled(sleep(pause)).await;
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Leads with `session` until `stop` is cancelled or a refresh fails.
    async fn lead(
        &self,
        mut session: LockSession,
        state: &mut State,
        failures: &mut u32,
        stop: &CancellationToken,
        allowance: Duration,
    ) -> Result<(), ElectionError> {
        let term = session.term();
        state.granted(term);
        tracing::info!(%term, "{ACQUIRED}");
        let outcome = match stop.run_until_cancelled(self.collect(&mut session, state, failures, allowance)).await {
            Some(Err(error)) => Err(error),
            Some(Ok(never)) => match never {},
            None => Ok(()),
        };
        self.leave(session, state, outcome.as_ref().err()).await;
        outcome
    }

    /// Refreshes on `session` until one fails.
    async fn collect(
        &self,
        session: &mut LockSession,
        state: &mut State,
        failures: &mut u32,
        allowance: Duration,
    ) -> Result<Infallible, ElectionError> {
        self.collector.prepare(session).await?;
        // A new term refreshes at once, whatever the cadence of an earlier one was.
        let mut tick = Instant::now();
        let mut dropped = 0;
        let mut sentinel = Sentinel::closed();
        let mut reopened = false;
        loop {
            tokio::select! {
                () = sleep_until(tick) => {}
                () = sentinel.ended() => {
                    self.liveness.tick(allowance);
                    self.prove(session).await?;
                    // A server that stops ends its sessions one after another, and the lock session may have
                    // answered just before its turn. No server opens a session after that, so a second proof
                    // decides. Once for each refresh: something that keeps ending the sentinel keeps nobody busy.
                    if !reopened {
                        reopened = true;
                        sentinel = Sentinel::open(&self.database).await;
                        self.prove(session).await?;
                    }
                    continue;
                }
            }
            self.liveness.tick(allowance);
            reopened = false;
            // Before the refresh: that proves the lock session to be as young as the sentinel's, so that
            // no restart can have come between them.
            if !sentinel.is_open() {
                sentinel = Sentinel::open(&self.database).await;
            }
            tick = self.refresh(session, tick, &mut dropped).await?;
            *failures = 0;
            if state.refreshed() {
                self.announce(*state);
            }
        }
    }

    /// Proves that the lock session lives.
    async fn prove(&self, session: &mut LockSession) -> Result<(), ElectionError> {
        let limit = self.settings.refresh_timeout;
        match timeout(limit, session.ping()).await {
            Ok(answer) => answer.map_err(ElectionError::Session),
            Err(_) => Err(ElectionError::Session(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))),
        }
    }

    /// Refreshes for `tick` and publishes the result. Returns the next tick: one that came meanwhile is skipped.
    async fn refresh(
        &self,
        session: &mut LockSession,
        tick: Instant,
        dropped: &mut u64,
    ) -> Result<Instant, ElectionError> {
        let sent_at = BootInstant::now();
        let refresh = self.collector.refresh(session).instrument(tracing::info_span!("queue state refresh"));
        let snapshot = match refresh.await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.metrics.refresh_failed(error.kind(), BootInstant::now().saturating_since(sent_at));
                return Err(error.into());
            }
        };
        let CollectorSettings { collection_interval: interval, refresh_timeout, .. } = self.settings;
        self.metrics.refresh_succeeded(&snapshot);
        report_budget(&snapshot, dropped);
        let rendered = Rendered::new(&snapshot, interval);
        let duration = tick.elapsed();
        let skipped = skipped_ticks(duration, interval);
        let wait = interval * (skipped + 1);
        if skipped > 0 {
            self.metrics.refreshes_skipped(skipped);
            tracing::warn!(
                ?duration,
                ?interval,
                skipped,
                "the refresh took longer than its interval, ticks are skipped"
            );
        }
        // The next refresh has ended, one way or the other, by then. A refresh that was not slow but stopped, with
        // its whole process, is past its timeout: that must not move the fence.
        let fence = snapshot.sent_at + wait.min(refresh_timeout + interval) + refresh_timeout;
        self.publication.publish(rendered, fence);
        Ok(tick + wait)
    }

    /// The one way out of a term: withdraw first, then free the lock.
    async fn leave(&self, session: LockSession, state: &mut State, failure: Option<&ElectionError>) {
        if failure.is_some() {
            self.publication.withdraw_failed();
        } else {
            self.publication.withdraw();
        }
        let term = session.term();
        let led = state.role();
        state.withdrawn();
        if led != state.role() {
            self.announce(*state);
        }
        session.release().await;
        state.released();
        match failure {
            None => tracing::info!(%term, reason = "stopping", "queue state metrics collector leadership released"),
            Some(error) => {
                tracing::warn!(%term, reason = %error, "queue state metrics collector leadership lost");
            }
        }
    }

    fn announce(&self, state: State) {
        let status = Status { role: state.role(), term: state.term(), since: SystemTime::now() };
        self.metrics.role(&status);
        self.status.send_replace(status);
    }

    fn retry_after(&self, error: ElectionError, failures: u32) -> Result<Duration, ElectionError> {
        let retry = self.settings.leadership_retry_interval;
        match after_failure(self.settings.on_refresh_failure, failures, retry, rand::random()) {
            AfterFailure::Exit => Err(error),
            AfterFailure::Retry(pause) => {
                // The end of a term has been logged, and the first of several failures says it for all.
                if failures == 1 && matches!(error, ElectionError::Attempt(_)) {
                    tracing::warn!(%error, "trying again until it works");
                }
                Ok(pause)
            }
        }
    }
}

/// Says once per change how many queues the budget leaves out; `dropped` is what was said last.
fn report_budget(snapshot: &Snapshot, dropped: &mut u64) {
    let (queues_found, queues_dropped) = (snapshot.queues_found, snapshot.queues_dropped());
    if std::mem::replace(dropped, queues_dropped) == queues_dropped {
        return;
    }
    if queues_dropped > 0 {
        tracing::warn!(queues_found, queues_dropped, "queues are left out: telemetry.metrics.max_queues is exhausted");
    } else {
        tracing::info!(queues_found, "every queue is within telemetry.metrics.max_queues again");
    }
}

/// How many ticks have come in the time `elapsed` since one, at one every `interval`.
fn skipped_ticks(elapsed: Duration, interval: Duration) -> u32 {
    u32::try_from(elapsed.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_comes_during_a_refresh_is_skipped_and_not_queued() {
        let interval = Duration::from_secs(15);
        let skipped = [0, 14_999, 15_000, 22_500, 30_000].map(|ms| skipped_ticks(Duration::from_millis(ms), interval));
        assert_eq!(skipped, [0, 0, 1, 1, 2]);
        assert!(skipped_ticks(Duration::MAX, Duration::from_millis(50)) < u32::MAX, "one more can be added");
    }
}
