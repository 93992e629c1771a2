//! Demo.
pub mod history;
pub mod scrape;
pub mod server;
pub mod watch;
