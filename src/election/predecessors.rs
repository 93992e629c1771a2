//! What may end a take-over wait early: proof that no earlier holder of the lock can still export.

use std::future::pending;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Term;

/// Knows of the end of earlier holders.
pub trait Predecessors: Send + Sync {
    /// Resolves once it is *proven* that no process that was granted the lock before `granted` can still serve
    /// state gauges; without such a proof, never. `last` is the term of the last holder that this process has
    /// seen: there may have been others since, whose end has to be proven as well.
    ///
    /// Only the holder's own word that it has withdrawn, or the kubelet's that the very container has terminated,
    /// proves an end. A session, a label or a Pod that is gone proves nothing.
    fn ended(&self, granted: Term, last: Option<Term>) -> BoxFuture<'static, ()>;
}

/// Nobody knows: every take-over wait is served in full.
#[derive(Clone, Copy, Debug)]
pub struct Unwitnessed;

impl Predecessors for Unwitnessed {
    fn ended(&self, _granted: Term, _last: Option<Term>) -> BoxFuture<'static, ()> {
        pending().boxed()
    }
}
