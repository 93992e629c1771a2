//! Integration tests, one binary. They start the real program on a real PostgreSQL.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod demo;
mod exposition;
mod http;
mod smoke;
mod support;
