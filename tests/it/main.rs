//! Integration tests, one binary. They start the real program on a real PostgreSQL.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chart;
mod collection;
mod commands;
mod connections;
mod demo;
mod election;
mod exposition;
mod failover;
mod http;
mod image;
mod kubernetes;
mod lease;
mod oracle;
mod poolers;
mod promotion;
mod queries;
mod quiet;
mod readme;
mod schema;
mod smoke;
mod supervision;
mod support;
#[cfg(feature = "otlp")]
mod traces;

/// Time between two looks at a condition.
const POLL: std::time::Duration = std::time::Duration::from_millis(10);
