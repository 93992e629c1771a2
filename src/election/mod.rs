//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod advert;
mod bound;
mod burst;
mod cadence;
mod elector;
mod heartbeat;
mod leading;
mod lease;
mod limits;
mod platform;
mod pooler;
mod proof;
mod session;
mod state;
mod status;

pub use advert::Advert;
pub use bound::{Fault, Passes, Rule, Timing, Violation};
pub use elector::{ACQUIRED, ElectionError, Elector};
pub use lease::Lease;
pub use limits::LimitError;
pub use platform::{Grant, Platform, Sighting, Standalone};
pub use pooler::{Evidence, Path, PoolerError, probe};
pub use proof::ProofError;
pub use session::{Attempt, AttemptError, Candidacy, LockSession, Refusal};
pub use state::State;
pub use status::{Holder, Liveness, NotATerm, Role, Status, Tenure, Term};
