//! What each command does: reads the configuration, starts a runtime, calls the library.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use indicatif::ProgressBar;
use retsu_collector::cli::{ConfigurationArgs, EXIT_FAILURE, EXIT_USAGE, SchemaArgs, VerifyArgs};
#[cfg(feature = "demo")]
use retsu_collector::cli::{DemoArgs, DemoCollectorArgs, DemoServerArgs};
use retsu_collector::config::{self, Flag, KubernetesMode, Loaded, Sources};
#[cfg(feature = "demo")]
use retsu_collector::demo;
use retsu_collector::schema::{self, Applied};
use retsu_collector::{COMMIT, supervisor, telemetry, verify};
use sqlx::{Connection, PgConnection};
use tokio::runtime::{Builder, Runtime};

/// How long the last traces may take to be delivered.
const TRACES_LIMIT: Duration = Duration::from_secs(2);

/// A failed command: what to say and how to exit.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The error, with its causes; `None` when the log has told it.
    pub(crate) error: Option<anyhow::Error>,
    /// The exit code.
    pub(crate) code: u8,
}

impl Failure {
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { error: Some(error.into()), code: EXIT_USAGE }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { error: Some(error), code: EXIT_FAILURE }
    }
}

/// `run`: collects until it is told to stop.
///
/// # Errors
///
/// An invalid configuration (2) or a failure at run time (1).
pub(crate) fn run(args: &ConfigurationArgs) -> Result<(), Failure> {
    let settings = load(args.config.as_deref(), args.flags())?.settings;
    let identity = identity(&settings.kubernetes);
    let telemetry = telemetry::init(&settings.logging, &settings.traces).map_err(Failure::usage)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(supervisor::run(settings, identity, Arc::new(telemetry.filter())));
    // A name being resolved or a file being read by a blocking thread must not keep a stopped process.
    runtime.shutdown_background();
    if let Err(error) = telemetry.shutdown(TRACES_LIMIT) {
        tell(&error);
    }
    outcome.map_err(|error| {
        let code = if error.is_configuration() { EXIT_USAGE } else { EXIT_FAILURE };
        Failure { error: None, code }
    })
}

/// `check`: prints the effective configuration and, as comments of that YAML file, the declared bound and what was
/// decided for Kubernetes.
///
/// # Errors
///
/// An invalid configuration (2), or a standard output that cannot be written (1).
pub(crate) fn check(args: &ConfigurationArgs) -> Result<(), Failure> {
    let Loaded { settings, report } = load(args.config.as_deref(), args.flags())?;
    settings.database.connect_options().map_err(Failure::usage)?;
    let bound: String = settings.timing.to_string().lines().map(|line| format!("# {line}\n")).collect();
    print(format_args!("{report}{bound}# {}\n", settings.kubernetes))
}

/// `schema`: prints the schema, or creates and fills it.
///
/// # Errors
///
/// An invalid configuration (2), or a database that refuses (1).
pub(crate) fn schema(args: &SchemaArgs) -> Result<(), Failure> {
    let load_size = args.load();
    if !args.apply && load_size.is_none() {
        return print(schema::SQL);
    }
    let settings = load(None, args.database.flags())?.settings;
    let options = settings.database.connect_options().map_err(Failure::usage)?;
    Ok(runtime()?.block_on(async {
        let mut session = PgConnection::connect_with(&options)
            .await
            .map_err(|error| anyhow!("connecting to the database failed: {error}"))?;
        if args.apply {
            match schema::apply(&mut session).await? {
                Applied::Created => write("schema created\n")?,
                Applied::Unchanged => write("schema unchanged\n")?,
            }
        }
        if let Some(size) = load_size {
            let bar = ProgressBar::new(size.messages);
            schema::load(&mut session, &size, |done, total| {
                bar.set_length(total);
                bar.set_position(done);
            })
            .await?;
            bar.finish_and_clear();
            write(format_args!("loaded {} queues and {} messages\n", size.queues, size.messages))?;
        }
        session.close().await.map_err(|error| anyhow!("closing the session failed: {error}"))
    })?)
}

/// `demo`: shows a failover.
///
/// # Errors
///
/// A connection URL that breaks a rule, or a version of PostgreSQL that there is not (2); a part of the demo failed, or
/// two collectors exported at once (1).
#[cfg(feature = "demo")]
pub(crate) fn demo(args: DemoArgs) -> Result<(), Failure> {
    let options = demo::DemoOptions {
        database_url: args.database_url,
        postgresql_version: args.postgresql_version,
        ports: (args.ports.0, args.ports.1),
        kill_after: args.kill_after,
        duration: args.duration,
        queues: args.queues,
    };
    runtime()?.block_on(demo::run(options)).map_err(|error| {
        let code = if error.is_configuration() { EXIT_USAGE } else { EXIT_FAILURE };
        Failure { error: Some(error.into()), code }
    })
}

/// `demo-server`: serves the demo's PostgreSQL until its standard input ends.
///
/// # Errors
///
/// The server could not be set up, or something of it is left behind (1).
#[cfg(feature = "demo")]
pub(crate) fn demo_server(args: DemoServerArgs) -> Result<(), Failure> {
    let options = demo::server::ServerOptions {
        postgresql_version: args.postgresql_version,
        install_dir: args.install_dir,
        data_dir: args.data_dir,
        configuration: args.configuration,
    };
    Ok(runtime()?.block_on(demo::server::serve(options)).map_err(anyhow::Error::from)?)
}

/// `demo-collector`: becomes a collector that ends with the demo.
///
/// # Errors
///
/// It cannot (1).
#[cfg(feature = "demo")]
pub(crate) fn demo_collector(args: DemoCollectorArgs) -> Result<(), Failure> {
    Err(anyhow::Error::from(demo::become_collector(args.parent)).into())
}

/// `verify`: says who leads an installation, when that is right.
///
/// # Errors
///
/// No way to the Kubernetes API (2), or something that does not hold (1).
pub(crate) fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let kubeconfig = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
    let options = args.options(kubeconfig).map_err(|error| Failure::usage(anyhow!(error)))?;
    let verified = runtime()?.block_on(verify::verify(&options)).map_err(|error| {
        let code = if error.is_configuration() { EXIT_USAGE } else { EXIT_FAILURE };
        Failure { error: Some(error.into()), code }
    })?;
    print(verified)
}

/// `version`: prints version and commit.
///
/// # Errors
///
/// Standard output cannot be written (1).
pub(crate) fn version() -> Result<(), Failure> {
    print(format_args!("retsu-collector {} ({})\n", env!("CARGO_PKG_VERSION"), COMMIT))
}

/// Writes to standard output. The macros of the standard library panic when it is full or closed.
fn write(text: impl Display) -> Result<(), anyhow::Error> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| anyhow!("standard output cannot be written: {error}"))
}

fn print(text: impl Display) -> Result<(), Failure> {
    Ok(write(text)?)
}

/// Says on standard error what went wrong. Nobody is left to tell when that cannot be written.
pub(crate) fn tell(error: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "retsu-collector: {error}");
}

fn load(file: Option<&std::path::Path>, flags: Vec<Flag>) -> Result<Loaded, Failure> {
    Sources::read(file, flags).and_then(|sources| config::load(&sources)).map_err(Failure::usage)
}

fn runtime() -> Result<Runtime, Failure> {
    // The collector waits nearly all of its time: two workers let a scrape be answered while a snapshot is
    // rendered, and more would only cost memory.
    Ok(Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .map_err(|error| anyhow!("starting the asynchronous runtime failed: {error}"))?)
}

/// The name of this replica: that of its Pod, or host and process elsewhere.
fn identity(kubernetes: &KubernetesMode) -> String {
    if let KubernetesMode::On(settings) = kubernetes {
        return settings.pod.name.clone();
    }
    std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{host}/{}", std::process::id())
    })
}
