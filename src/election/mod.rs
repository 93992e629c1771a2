//! Who leads: the advisory lock, the session that holds it and the loop that keeps asking for it.

mod status;

pub use status::{Liveness, Role, Status, Term};
