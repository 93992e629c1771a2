//! `verify`: whether a running installation is as it should be, seen from inside the cluster. `observe` looks,
//! `endpoints` and `exposition` read what was answered, `judge` decides.

mod endpoints;
mod exposition;
mod judge;
mod observe;

use std::ffi::OsString;
use std::time::Duration;

use http::Uri;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout_at};

#[cfg(feature = "demo")]
pub(crate) use self::exposition::names_state;
use self::judge::judge;
pub use self::judge::{Finding, Verified};
use self::observe::Observer;
use crate::kubernetes::ClientError;

/// The longest that one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What to verify.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The kubeconfig files; without them the service account of this Pod.
    pub kubeconfig: Option<OsString>,
    /// The namespace of the installation.
    pub namespace: String,
    /// The name of the Service that leads to the leader.
    pub leader_service: String,
    /// The name of the headless Service of all replicas.
    pub metrics_service: String,
    /// Where the leader Service answers with metrics.
    pub leader_url: Uri,
    /// The greatest age of a snapshot.
    pub max_age: Duration,
    /// How long to look again when something does not hold.
    pub timeout: Duration,
}

/// Why an installation is not verified.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// There is no way to the Kubernetes API.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Something does not hold, at the last look either.
    #[error("not verified within {within:?}:{}", list(findings))]
    Findings {
        /// How long it was looked.
        within: Duration,
        /// Everything that does not hold.
        findings: Vec<Finding>,
    },
}

impl VerifyError {
    /// Whether what is wrong is how the command was called.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Client(_))
    }
}

fn list(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("\n- {finding}")).collect()
}

/// Looks until everything holds: an installation that has just begun has no leader yet.
///
/// # Errors
///
/// What does not hold when the time is over, or no way to the API.
pub async fn verify(options: &Options) -> Result<Verified, VerifyError> {
    let deadline = Instant::now() + options.timeout;
    // A look takes two requests after one another: the first one is over in time, whatever hangs.
    let observer = Observer::new(options, REQUEST_LIMIT.min(options.timeout / 2))?;
    let mut observation = observer.observe(options).await;
    loop {
        let findings = match judge(&observation, options) {
            Ok(verified) => return Ok(verified),
            Err(findings) => findings,
        };
        let again = async {
            sleep(PAUSE).await;
            observer.observe(options).await
        };
        match timeout_at(deadline, again).await {
            Ok(next) => observation = next,
            Err(_) => return Err(VerifyError::Findings { within: options.timeout, findings }),
        }
    }
}
