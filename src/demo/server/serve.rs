//! The server process: PostgreSQL for as long as standard input stays open.

use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use postgresql_embedded::{BOOTSTRAP_DATABASE, BOOTSTRAP_SUPERUSER, PostgreSQL, Settings, VersionReq};
use rand::RngExt;
use rand::distr::Alphanumeric;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::install::{exact_version, install};
use super::protocol::{Order, Ready, Reply, ShutdownMode};
use super::{ServerError, ServerOptions};

/// Limit of one command: `initdb` on a busy machine, and a start after an immediate shutdown, take seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);

/// How many free ports to try: another process may take one before PostgreSQL does.
const PORT_ATTEMPTS: u32 = 5;

/// Sets PostgreSQL up, says so on standard output, and obeys the orders `start`, `stop` and `restart`, the last
/// two followed by `fast` or `immediate`, on standard input. An order is a line of plain words, a reply is a line
/// of JSON. At the end of standard input, or at SIGTERM or SIGINT, stops the server and removes its directory.
///
/// # Errors
/// The server could not be set up, or something of it is left behind. The reason is on standard output too.
pub async fn serve(options: ServerOptions) -> Result<(), ServerError> {
    let mut orders = Orders::listen()?;
    let outcome = run(&options, &mut orders).await;
    let removed = match fs::remove_dir_all(&options.data_dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(ServerError::path(&options.data_dir)(error)),
        _ => Ok(()),
    };
    if let Err(error) = &outcome {
        reply(&Reply::Failed(error.to_string()));
    }
    outcome.and(removed)
}

async fn run(options: &ServerOptions, orders: &mut Orders) -> Result<(), ServerError> {
    let version = exact_version(&options.postgresql_version)?;
    let installation = tokio::select! {
        installation = install(&version, &options.install_dir) => installation?,
        () = orders.end() => return Ok(()),
    };
    let mut server = Server::initialize(options, version, installation).await?;
    match server.start().await {
        Ok(()) => reply(&Reply::Ready(server.ready()?)),
        Err(error) => {
            server.stop(ShutdownMode::Immediate).await.ok();
            return Err(error);
        }
    }
    while let Some(line) = orders.next().await {
        match server.obey(&line).await {
            Ok(answer) => reply(&answer),
            Err(error) => reply(&Reply::Failed(error.to_string())),
        }
    }
    // The data are about to be removed, so nothing is worth a checkpoint.
    server.stop(ShutdownMode::Immediate).await
}

fn reply(reply: &Reply) {
    let line = serde_json::to_string(reply).unwrap_or_default();
    // A parent that is gone does not read; the end of standard input says so too.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// What the parent and the system tell this process to do.
struct Orders {
    lines: mpsc::Receiver<String>,
    terminate: Signal,
    interrupt: Signal,
}

impl Orders {
    fn listen() -> Result<Self, ServerError> {
        let (sender, lines) = mpsc::channel(1);
        // A thread of its own, never joined: a read of standard input cannot be cancelled, and the runtime
        // would wait for one of its own at its shutdown.
        std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { lines, terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next order; `None` is the end.
    async fn next(&mut self) -> Option<String> {
        tokio::select! {
            line = self.lines.recv() => line,
            _ = self.terminate.recv() => None,
            _ = self.interrupt.recv() => None,
        }
    }

    async fn end(&mut self) {
        while self.next().await.is_some() {}
    }
}

/// One cluster, running or not.
struct Server {
    settings: Settings,
    version: String,
    /// Dropping it stops the server.
    running: Option<PostgreSQL>,
}

impl Server {
    async fn initialize(options: &ServerOptions, version: String, installation: PathBuf) -> Result<Self, ServerError> {
        let directory = &options.data_dir;
        DirBuilder::new().mode(0o700).create(directory).map_err(ServerError::path(directory))?;
        let socket_dir = directory.join("socket");
        fs::create_dir(&socket_dir).map_err(ServerError::path(&socket_dir))?;
        let settings = Settings {
            releases_url: String::new(),
            version: VersionReq::STAR,
            installation_dir: installation,
            password_file: directory.join("password"),
            data_dir: directory.join("data"),
            host: "127.0.0.1".to_owned(),
            // A free one.
            port: 0,
            username: BOOTSTRAP_SUPERUSER.to_owned(),
            password: rand::rng().sample_iter(Alphanumeric).take(24).map(char::from).collect(),
            // The directory goes as a whole, at the end of this process.
            temporary: false,
            timeout: Some(COMMAND_TIMEOUT),
            configuration: std::collections::HashMap::new(),
            trust_installation_dir: true,
            socket_dir: None,
        };
        PostgreSQL::new(settings.clone()).setup().await.map_err(postgresql)?;
        let configuration = configuration_file(&socket_dir, &options.configuration);
        let path = settings.data_dir.join("postgresql.auto.conf");
        fs::write(&path, configuration).map_err(ServerError::path(&path))?;
        Ok(Self { settings, version, running: None })
    }

    async fn obey(&mut self, line: &str) -> Result<Reply, ServerError> {
        match line.parse()? {
            Order::Start => self.start().await?,
            Order::Stop(mode) => {
                self.stop(mode).await?;
                return Ok(Reply::Stopped);
            }
            Order::Restart(mode) => {
                self.stop(mode).await?;
                self.start().await?;
            }
        }
        Ok(Reply::Ready(self.ready()?))
    }

    async fn start(&mut self) -> Result<(), ServerError> {
        if self.running.is_some() {
            return Ok(());
        }
        let mut attempts = if self.settings.port == 0 { PORT_ATTEMPTS } else { 1 };
        loop {
            let mut server = PostgreSQL::new(self.settings.clone());
            let started = server.start().await;
            attempts -= 1;
            match started {
                Ok(()) => {
                    // The port that was chosen stays, over every restart.
                    self.settings.port = server.settings().port;
                    self.running = Some(server);
                    return Ok(());
                }
                Err(error) if attempts == 0 => {
                    let log = fs::read_to_string(self.settings.data_dir.join("start.log")).unwrap_or_default();
                    return Err(ServerError::Postgresql { reason: format!("{error}\n{}", log.trim_end()) });
                }
                Err(_) => {}
            }
        }
    }

    async fn stop(&mut self, mode: ShutdownMode) -> Result<(), ServerError> {
        if self.running.is_none() && !self.settings.data_dir.join("postmaster.pid").exists() {
            return Ok(());
        }
        let output = Command::new(self.settings.binary_dir().join("pg_ctl"))
            .args(["stop", "--wait", "--mode", mode.as_str(), "--pgdata"])
            .arg(&self.settings.data_dir)
            .stdin(Stdio::null())
            .output()
            .await?;
        if !output.status.success() {
            return Err(postgresql(String::from_utf8_lossy(&output.stderr).trim_end()));
        }
        self.running = None;
        Ok(())
    }

    fn ready(&self) -> Result<Ready, ServerError> {
        let path = self.settings.data_dir.join("postmaster.pid");
        let file = fs::read_to_string(&path).map_err(ServerError::path(&path))?;
        let pid = file.lines().next().and_then(|pid| pid.trim().parse().ok());
        Ok(Ready {
            url: self.settings.url(BOOTSTRAP_DATABASE),
            port: self.settings.port,
            pid: pid.ok_or_else(|| postgresql("postmaster.pid holds no process id"))?,
            data_dir: self.settings.data_dir.clone(),
            socket_dir: self.settings.data_dir.with_file_name("socket"),
            version: self.version.clone(),
        })
    }
}

fn postgresql(reason: impl Display) -> ServerError {
    ServerError::Postgresql { reason: reason.to_string() }
}

/// The lines of `postgresql.auto.conf`; of two for one parameter the later holds.
fn configuration_file(socket_dir: &Path, configuration: &[(String, String)]) -> String {
    let ours = [
        // Where the machine has no IPv6, PostgreSQL warns and goes on.
        ("listen_addresses", "127.0.0.1,::1"),
        ("unix_socket_directories", &socket_dir.to_string_lossy()),
        ("max_connections", "300"),
        ("timezone", "UTC"),
    ];
    let theirs = configuration.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    ours.into_iter().chain(theirs).map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_given_ones_come_last() {
        let file = configuration_file(Path::new("/tmp/it's"), &[("max_connections".to_owned(), "5".to_owned())]);
        assert!(file.contains("unix_socket_directories = '/tmp/it''s'\n"));
        assert!(file.ends_with("max_connections = '5'\n"), "{file}");
    }
}
