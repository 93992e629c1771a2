//! A model check of the lease: every interleaving of small clusters, with and without each guard.
//! `docs/model.md` says what is modelled and how to enlarge it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "one binary")]

mod action;
mod cluster;
mod fences;
mod guards;
mod holds;
mod liveness;
mod platform;

mod properties;
mod report;
mod skip;
mod step;
mod system;
