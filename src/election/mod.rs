//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod advert;
mod bound;
mod cadence;
mod elector;
mod lease;
mod limits;
mod pooler;
mod predecessors;
mod proof;
mod session;
mod state;
mod status;
mod tenure;

pub use advert::Advert;
pub use bound::{
    CLIENT_CONNECTION_CHECK_INTERVAL, Fault, MAX_FENCE, Passes, Rule, TCP_KEEPALIVES_COUNT, TCP_KEEPALIVES_IDLE,
    TCP_KEEPALIVES_INTERVAL, Timing, Violation, server_millis,
};
pub use elector::{ACQUIRED, ElectionError, Elector};
pub use lease::Lease;
pub use limits::LimitError;
pub use pooler::{Evidence, Path, PoolerError, probe};
pub use predecessors::{Predecessors, Unwitnessed};
pub use proof::ProofError;
pub use session::{Attempt, AttemptError, Candidacy, LockSession, Refusal};
pub use state::{AfterFailure, State, after_failure};
pub use status::{Liveness, Role, Status, Term};
