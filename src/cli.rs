//! Commands and flags.
