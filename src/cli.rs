//! Commands and flags. Parsing yields plain structs; what a command does lives elsewhere.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use secrecy::{ExposeSecret, SecretString};

use crate::config::{Assignment, Flag};
use crate::schema::Load;

#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "demo")]
pub use demo::{DemoArgs, DemoCollectorArgs, DemoServerArgs, Ports};
mod verify;
pub use verify::VerifyArgs;

/// The exit code of a program that was told to stop and did.
pub const EXIT_STOPPED: u8 = 0;
/// The exit code of a failure at run time.
pub const EXIT_FAILURE: u8 = 1;
/// The exit code of a usage error and of an invalid configuration.
pub const EXIT_USAGE: u8 = 2;

const AFTER_HELP: &str = "\
Without a command the collector runs.

Exit codes:
  0  stopped as asked
  1  failure at run time
  2  wrong usage or invalid configuration

Environment:
  RETSU_CONFIG           configuration file, when --config is not given
  RETSU_SECTION__KEY     any key of the configuration, such as RETSU_WORKER__MANAGEMENT__PORT
  PGHOST, PGPORT, ...    libpq's variables, when the configuration names no database
  NO_COLOR               no colours in the log";

#[derive(Parser)]
#[command(name = "retsu-collector", version, about, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: ConfigurationArgs,
}

/// What the program is asked to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the collector: the default
    Run(ConfigurationArgs),
    /// Print the effective configuration and where each value came from, or everything that is wrong with it
    Check(ConfigurationArgs),
    /// Verify from inside a cluster that one replica alone exports, and that the leader Service leads to it
    Verify(VerifyArgs),
    /// Watch a failover on a throwaway PostgreSQL
    #[cfg(feature = "demo")]
    Demo(DemoArgs),
    /// Serve the throwaway PostgreSQL of the demo
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoServer(DemoServerArgs),
    /// Run one of the demo's collectors
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoCollector(DemoCollectorArgs),
    /// Print tables, triggers and indexes compatible with Retsu's, or create and fill them
    Schema(SchemaArgs),
    /// Print the version
    Version,
}

/// The flags of everything that reads a configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigurationArgs {
    /// Configuration file, YAML [environment: RETSU_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set any key of the configuration; may be repeated. Never a secret: every user of the machine can read it
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<Pair>,
    /// TCP port of the management endpoint
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// File that holds the connection URL of the database
    #[arg(long, value_name = "FILE")]
    database_url_file: Option<String>,
    /// What is logged, such as info,sqlx=debug
    #[arg(long, value_name = "FILTER")]
    log_filter: Option<String>,
    /// pretty or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl ConfigurationArgs {
    /// The flags as the last source of the configuration.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        let everyday = [
            ("--port", "worker.management.port", &self.port),
            ("--database-url-file", "database.url_file", &self.database_url_file),
            ("--log-filter", "logging.filter", &self.log_filter),
            ("--log-format", "logging.format", &self.log_format),
        ];
        let pairs =
            self.set.iter().map(|Pair(pair)| Flag { name: "--set", assignment: Assignment::Pair(pair.clone()) });
        let everyday =
            everyday.into_iter().filter_map(|(name, path, value)| Some(key_flag(name, path, value.as_ref()?)));
        everyday.chain(pairs).collect()
    }
}

fn key_flag(name: &'static str, path: &'static str, value: &str) -> Flag {
    Flag { name, assignment: Assignment::Key { path, value: value.to_owned() } }
}

/// `key=value` as it was given. It may hold a secret, all advice notwithstanding, and does not print.
#[derive(Clone)]
struct Pair(String);

impl From<String> for Pair {
    fn from(pair: String) -> Self {
        Self(pair)
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Which database a command works on, besides the configuration's environment variables.
#[derive(Args, Clone, Debug, Default)]
pub struct DatabaseArgs {
    /// Connection URL of a throwaway database: every user of the machine can read a command line
    #[arg(long, value_name = "URL", conflicts_with = "database_url_file")]
    database_url: Option<SecretString>,
    /// File that holds the connection URL
    #[arg(long, value_name = "FILE")]
    database_url_file: Option<String>,
}

impl DatabaseArgs {
    /// The flags as the last source of the configuration.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        let url = self.database_url.as_ref().map(|url| key_flag("--database-url", "database.url", url.expose_secret()));
        let file =
            self.database_url_file.as_ref().map(|file| key_flag("--database-url-file", "database.url_file", file));
        url.into_iter().chain(file).collect()
    }
}

/// The flags of `schema`.
#[derive(Args, Clone, Debug)]
pub struct SchemaArgs {
    /// Which database to work on.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Create what is missing in the database instead of printing it
    #[arg(long)]
    pub apply: bool,
    /// Fill the database with queues and messages
    #[arg(long, value_name = "SIZE")]
    load: Option<LoadSize>,
    /// Number of queues, instead of the size's
    #[arg(long, value_name = "N", requires = "load", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queues: Option<u32>,
    /// Number of messages, instead of the size's
    #[arg(long, value_name = "N", requires = "load", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    messages: Option<u64>,
    /// Seed of the data: the same seed makes the same data
    #[arg(long, value_name = "N", requires = "load", default_value_t = 1)]
    seed: u64,
}

impl SchemaArgs {
    /// The data to make, if any.
    #[must_use]
    pub fn load(&self) -> Option<Load> {
        let (queues, messages) = self.load?.amounts();
        Some(Load {
            queues: self.queues.unwrap_or(queues),
            messages: self.messages.unwrap_or(messages),
            seed: self.seed,
            ..Load::default()
        })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "must be a number of seconds from 0.1 to 86400".into())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoadSize {
    /// 10 queues, 1,000 messages
    Small,
    /// 1,000 queues, 100,000 messages
    Medium,
    /// 10,000 queues, 1,100,000 messages
    Large,
}

impl LoadSize {
    const fn amounts(self) -> (u32, u64) {
        match self {
            Self::Small => (10, 1_000),
            Self::Medium => (1_000, 100_000),
            Self::Large => (10_000, 1_100_000),
        }
    }
}

/// Parses the command line of the process. Ends the process with code 2 after a usage error, and with
/// code 0 after `--help` and `--version`.
#[must_use]
pub fn parse() -> Command {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    match parse_from(&arguments) {
        Ok(command) => command,
        Err(answer) => answer.exit(),
    }
}

/// An answer that ends the process: help, the version or a usage error.
#[derive(Debug)]
pub struct Answer {
    text: String,
    code: u8,
}

impl Answer {
    /// The exit code that goes with it.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.code
    }

    fn exit(&self) -> ! {
        use std::io::Write;
        // Nobody is left to tell when the terminal is gone.
        let _ = if self.code == EXIT_STOPPED {
            std::io::stdout().write_all(self.text.as_bytes())
        } else {
            std::io::stderr().write_all(self.text.as_bytes())
        };
        std::process::exit(i32::from(self.code))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses a command line, the program's name first.
///
/// # Errors
///
/// Help and the version with code 0, a usage error with code 2. An argument that looks like a URL is not
/// repeated: it may hold a password.
pub fn parse_from(arguments: &[std::ffi::OsString]) -> Result<Command, Answer> {
    let error = match Cli::try_parse_from(arguments) {
        Ok(Cli { command, run }) => return Ok(command.unwrap_or(Command::Run(run))),
        Err(error) => error,
    };
    let usage = error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let mut text = error.render().to_string();
    if usage {
        for argument in arguments.iter().skip(1).map(|argument| argument.to_string_lossy()) {
            let value =
                argument.strip_prefix('-').and_then(|flag| flag.split_once('=')).map_or(&*argument, |(_, value)| value);
            if value.contains("://") || value.contains('@') || value.contains("password") {
                text = text.replace(value, "[redacted]");
            }
        }
    }
    Err(Answer { text, code: if usage { EXIT_USAGE } else { EXIT_STOPPED } })
}

#[cfg(test)]
mod tests;
