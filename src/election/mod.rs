//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod advert;
mod bound;
mod cadence;
mod elector;
mod heartbeat;
mod lease;
mod limits;
mod pooler;
mod predecessors;
mod proof;
mod session;
mod state;
mod status;

pub use advert::Advert;
pub use bound::{Fault, Passes, Rule, Timing, Violation};
pub use elector::{ACQUIRED, ElectionError, Elector};
pub use lease::Lease;
pub use limits::LimitError;
pub use pooler::{Evidence, Path, PoolerError, probe};
pub use predecessors::{Predecessors, Unwitnessed};
pub use proof::ProofError;
pub use session::{Attempt, AttemptError, Candidacy, LockSession, Refusal};
pub use state::State;
pub use status::{Liveness, Role, Status, Term};
