//! What the API refuses to this program.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::report::Permission;
use super::request_error::RequestError;

/// How it is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Denial {
    /// 401 or 403.
    pub(super) code: u16,
    /// The server's reason.
    pub(super) reason: String,
}

/// Everything that is refused now.
pub(super) type Denied = BTreeMap<Permission, Denial>;

/// Keeps what is refused. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Denials(Arc<watch::Sender<Denied>>);

impl Denials {
    /// Nothing is refused yet.
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Denied::new())))
    }

    /// What is refused now, and every change of it.
    pub(super) fn subscribe(&self) -> watch::Receiver<Denied> {
        self.0.subscribe()
    }

    /// `error` is a refusal. The log names it once, and again when the status code changes.
    pub(super) fn refused(&self, error: &RequestError) {
        let permission = Permission { verb: error.verb, resource: error.resource };
        let denial = Denial { code: error.code.unwrap_or_default(), reason: error.message.clone() };
        self.0.send_if_modified(|denied| {
            if denied.get(&permission).is_some_and(|known| known.code == denial.code) {
                return false;
            }
            tracing::warn!(
                verb = error.verb,
                resource = error.resource,
                status = denial.code,
                reason = denial.reason,
                "the Kubernetes API refuses what the Role has to permit; leadership is not affected"
            );
            denied.insert(permission, denial);
            true
        });
    }

    /// `verb` on `resource` has worked.
    pub(super) fn permitted(&self, verb: &'static str, resource: &'static str) {
        self.0.send_if_modified(|denied| {
            let cleared = denied.remove(&Permission { verb, resource }).is_some();
            if cleared {
                tracing::info!(verb, resource, "the Kubernetes API permits again what it had refused");
            }
            cleared
        });
    }
}
