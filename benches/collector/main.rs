//! The collector on a database of 10,000 queues and 1.1 million messages: what a refresh costs beside the
//! straightforward form of its query, what leader and standby keep resident, what the heartbeat takes, and how the
//! cost of a queue grows.
//!
//! `cargo bench --bench collector` starts an embedded PostgreSQL; `RETSU_BENCH_DATABASE_URL` names another,
//! empty database to write to. Exits with 1 when the results differ or a bound is missed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench fails by panicking")]

mod heartbeat;
mod memory;
mod refresh;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::process::ExitCode;

use retsu_collector::demo::server::{EmbeddedServer, NEWEST_POSTGRESQL, ServerOptions};
use support::Bounds;

const EXECUTABLE: &str = env!("CARGO_BIN_EXE_retsu-collector");

/// The defaults, except that a crash may cost the data: they are loaded in a quarter of the time, and a query
/// does not notice.
const CONFIGURATION: [(&str, &str); 4] =
    [("fsync", "off"), ("full_page_writes", "off"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "1h")];

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Failure> {
    let Ok(url) = std::env::var("RETSU_BENCH_DATABASE_URL") else {
        let mut options = ServerOptions::new(NEWEST_POSTGRESQL);
        let setting = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        options.configuration = CONFIGURATION.into_iter().map(setting).collect();
        let (server, ready) = EmbeddedServer::start(Path::new(EXECUTABLE), &options).await?;
        let outcome = measure(&ready.url).await;
        server.end().await?;
        return outcome;
    };
    measure(&url).await
}

async fn measure(url: &str) -> Result<ExitCode, Failure> {
    let mut bounds = Bounds::default();
    let mut refreshes = refresh::Bench::connect(url).await?;
    refreshes.beside_the_straightforward_form(&mut bounds).await?;
    memory::measure(url, &mut bounds).await?;
    heartbeat::measure(url, &mut bounds).await?;
    refreshes.growth(&mut bounds).await?;
    Ok(bounds.report())
}
