//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod advert;
mod bound;
mod cadence;
mod elector;
mod holders;
mod sentinel;
mod session;
mod state;
mod status;

pub use advert::Advert;
pub use bound::{
    CLIENT_CONNECTION_CHECK_INTERVAL, Fault, MAX_FENCE, Passes, Rule, TCP_KEEPALIVES_COUNT, TCP_KEEPALIVES_IDLE,
    TCP_KEEPALIVES_INTERVAL, Timing, Violation, server_millis,
};
pub use elector::{ACQUIRED, ElectionError, Elector};
pub use holders::Holders;
pub use session::{Attempt, AttemptError, LockSession};
pub use state::{AfterFailure, State, after_failure};
pub use status::{Liveness, Role, Status, Term};
