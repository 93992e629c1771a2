//! One term: from the grant of the lock to its release, through one function out.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::{Pin, pin};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};

use super::bound::HAND_OVER_LIMIT;
use super::elector::{ACQUIRED, Campaign, ElectionError};
use super::heartbeat::Heartbeat;
use super::pooler::Path;
use super::proof::{Claim, ProofError};
use super::session::LockSession;
use super::state::State;
use super::{Holder, Tenure};
use crate::clock::BootInstant;
use crate::exposition::Rendered;

/// Why a term ends.
#[derive(Clone, Copy)]
enum Ending<'a> {
    /// The process is told to stop.
    Stopping,
    /// A proof or a refresh failed.
    Failed(&'a ElectionError),
    /// This program is wrong.
    Panicked,
}

impl Ending<'_> {
    /// A stable name.
    const fn kind(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Failed(error) => error.kind(),
            Self::Panicked => "panic",
        }
    }
}

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("stopping"),
            Self::Failed(error) => error.fmt(f),
            Self::Panicked => f.write_str("a panic"),
        }
    }
}

impl Campaign {
    /// Leads with `session` until it is told to stop, a proof or a refresh fails.
    pub(super) async fn lead(&mut self, mut session: LockSession) -> Result<(), ElectionError> {
        let grant = session.grant();
        self.state.granted(grant.term);
        self.waiting = false;
        let timing = self.elector.timing;
        let wait = timing.take_over_wait();
        let opens = session.granted_at() + wait;
        tracing::info!(
            term = %grant.term,
            system_identifier = grant.system_identifier,
            ?wait,
            "{ACQUIRED}"
        );
        if session.path() == Path::SessionPooler {
            tracing::warn!(
                "the lock session leads through a connection pooler in session mode: the server sees only the \
                 pooler's socket, and the declared bound is that of a direct connection"
            );
        }
        let last = self.sighting.take().filter(|last| timing.excludes_between(last.asked_at, session.granted_at()));
        let predecessors_ended = match last {
            Some(last) => self.elector.platform.predecessors_ended(grant, last),
            None => pending().boxed(),
        };
        let heartbeat = Heartbeat::new(timing, session.asked_at(), opens, predecessors_ended);
        self.tenure = Some(Tenure {
            term: grant.term,
            system_identifier: grant.system_identifier,
            granted: SystemTime::now(),
            exported: false,
            ended: None,
        });
        self.lease = Some(heartbeat.lease());
        self.announce();
        let stop = self.stop.clone();
        let outcome =
            AssertUnwindSafe(stop.run_until_cancelled(self.hold(&mut session, heartbeat))).catch_unwind().await;
        let ending = match &outcome {
            Ok(Some(Err(error))) => Ending::Failed(error),
            Ok(Some(Ok(never))) => match *never {},
            Ok(None) => Ending::Stopping,
            Err(_) => Ending::Panicked,
        };
        self.leave(session, ending).await;
        match outcome {
            Ok(Some(Err(error))) => Err(error),
            Ok(Some(Ok(never))) => match never {},
            Ok(None) => Ok(()),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Does the work of a leader until it fails.
    async fn hold(&mut self, session: &mut LockSession, heartbeat: Heartbeat) -> Result<Infallible, ElectionError> {
        if self.elector.settings.collection {
            self.collect(session, heartbeat).await
        } else {
            self.stand(session, heartbeat).await
        }
    }

    /// Proves that `session` holds the lock until that fails, and does nothing else.
    async fn stand(
        &mut self,
        session: &mut LockSession,
        mut heartbeat: Heartbeat,
    ) -> Result<Infallible, ElectionError> {
        self.elector.publication.elect(heartbeat.lease());
        // Nothing is refreshed: the end of the take-over wait alone makes a leader.
        self.state.refreshed();
        loop {
            self.elector.liveness.tick(self.allowance);
            self.shorten_advert(&mut heartbeat, session).await?;
            heartbeat.next().await;
            self.prove(&mut heartbeat, session).await?;
        }
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
                () = heartbeat.next() => self.prove(&mut heartbeat, session).await?,
                () = sleep_until(tick) => {
                    let rendered = self.refresh(&mut heartbeat, session).await?;
                    tick += self.publish(rendered, tick, &heartbeat);
                }
            }
        }
    }

    /// Proves on `session` that it holds the lock.
    async fn prove(&mut self, heartbeat: &mut Heartbeat, session: &mut LockSession) -> Result<(), ElectionError> {
        let opened = heartbeat.beat(Box::pin(session.prove())).await?;
        self.proved(opened);
        Ok(())
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
                () = heartbeat.next() => {
                    let proof = heartbeat.beat(Box::pin(claim.prove_from(&self.elector.database)));
                    tokio::select! {
                        biased;
                        // The proof is due still, and comes next, from the lock session.
                        done = &mut busy => return Ok(done),
                        opened = proof => {
                            let opened = opened?;
                            self.proved(opened);
                        }
                    }
                }
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

    /// A proof was good, and has `opened` the lease or not.
    fn proved(&mut self, opened: bool) {
        if opened && self.state.waited() {
            self.exports();
        }
    }

    /// Publishes the refresh that was due at `tick`. Returns the time from `tick` to the next one.
    fn publish(&mut self, rendered: Rendered, tick: Instant, heartbeat: &Heartbeat) -> Duration {
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
            self.exports();
        }
        cadence.until_next(skipped)
    }

    /// The gauges are out, for the first time of the term.
    fn exports(&mut self) {
        self.failures = 0;
        if let Some(tenure) = &mut self.tenure {
            tenure.exported = true;
            let (term, system_identifier) = (tenure.term, tenure.system_identifier);
            let what =
                if self.elector.settings.collection { "queue state is exported" } else { "leads, without collecting" };
            tracing::info!(%term, system_identifier, "{what}");
        }
        self.announce();
    }

    /// The one way out of a term: withdraw first, then tell, then free the lock.
    async fn leave(&mut self, session: LockSession, ending: Ending<'_>) {
        match ending {
            Ending::Failed(_) | Ending::Panicked if self.elector.settings.collection => {
                self.elector.publication.withdraw_failed();
            }
            _ => self.elector.publication.withdraw(),
        }
        if let Some(lease) = self.lease.take() {
            lease.end();
        }
        if !matches!(ending, Ending::Stopping) {
            self.elector.metrics.term_lost(ending.kind());
        }
        let term = session.term();
        self.state.withdrawn();
        if let Some(tenure) = &mut self.tenure {
            tenure.ended = Some(ending.kind());
        }
        self.announce();
        if timeout(HAND_OVER_LIMIT, self.elector.platform.withdrawal_told(term)).await.is_err() {
            tracing::warn!(%term, limit = ?HAND_OVER_LIMIT, "freeing the lock before the platform knows that the term is over");
        }
        session.release().await;
        self.state.released();
        self.elector.holder(Holder::Unknown);
        match ending {
            Ending::Stopping => {
                tracing::info!(%term, reason = "stopping", "queue state metrics collector leadership released");
            }
            _ => tracing::warn!(%term, reason = %ending, "queue state metrics collector leadership lost"),
        }
    }
}
