//! Refreshes.
