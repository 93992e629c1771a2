//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod cadence;
mod elector;
mod pooler;
mod sentinel;
mod session;
mod state;
mod status;

pub use elector::{ACQUIRED, ElectionError, Elector};
pub use pooler::{Evidence, Path, PoolerError, probe};
pub use session::{Attempt, AttemptError, LockSession};
pub use state::{AfterFailure, State, after_failure};
pub use status::{Liveness, Role, Status, Term};
