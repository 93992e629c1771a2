//! What the election tells the platform that it runs on, and learns from it. The platform has no vote: nothing
//! here can grant the lock, and an election without any of it only takes longer.

use std::future::{pending, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::Term;
use crate::clock::BootInstant;

/// The last holder of the lock that this process saw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// The holder's term.
    pub term: Term,
    /// Before the attempt was sent that the holder made fail.
    pub asked_at: BootInstant,
}

/// The lock, granted to this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// The term that began with it.
    pub term: Term,
    /// The server that granted it.
    pub system_identifier: u64,
}

/// The platform that replicas run on, such as a Kubernetes cluster.
pub trait Platform: Send + Sync {
    /// Resolves once it is *proven* that no process that was granted the lock before `grant` can still serve state
    /// gauges; without such a proof, never.
    ///
    /// `last` was seen less than a fence before the grant was received. So whoever was granted the lock between
    /// the two cannot have served the whole take-over wait by then, nor prove its lease after that: it can only
    /// export if it has ended its own wait early, on a platform that this one knows of.
    ///
    /// Only the holder's own word that it has withdrawn, or the kubelet's that the very container has terminated,
    /// proves an end. A session, a label or a Pod that is gone proves nothing.
    fn predecessors_ended(&self, grant: Grant, last: Sighting) -> BoxFuture<'static, ()>;

    /// Resolves once everybody can know that this process has withdrawn the gauges of `term`, or never will: the
    /// lock is freed after that.
    fn withdrawal_told(&self, term: Term) -> BoxFuture<'static, ()>;

    /// Resolves once no other replica is known to stand by; while one does, or nothing is known, it waits.
    fn nobody_stands_by(&self) -> BoxFuture<'static, ()>;

    /// A count of the occasions on which another holder of the lock seemed to give up its place.
    fn vacancies(&self) -> watch::Receiver<u64>;
}

/// A process that knows of no platform: every take-over wait is served in full.
#[derive(Debug, Default)]
pub struct Standalone(watch::Sender<u64>);

impl Platform for Standalone {
    fn predecessors_ended(&self, _grant: Grant, _last: Sighting) -> BoxFuture<'static, ()> {
        pending().boxed()
    }

    fn withdrawal_told(&self, _term: Term) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn nobody_stands_by(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }

    fn vacancies(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
