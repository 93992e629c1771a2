//! A real PgBouncer.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{Database, free_port, queue_database};

const LIMIT: Duration = Duration::from_secs(60);

/// The database of [`PgBouncer::session_mode_url`].
const SESSION_MODE: &str = "in_session_mode";

/// A PgBouncer on a free port of the loopback address; gone when dropped. It logs into its own directory, and the
/// log is printed when its test fails.
#[derive(Debug)]
pub(crate) struct PgBouncer {
    directory: TempDir,
    port: u16,
    /// URL of the server behind it.
    server: url::Url,
    /// Who runs it under root, which it refuses to be.
    owner: Option<(u32, u32)>,
    settings: Vec<(String, String)>,
    process: Child,
}

/// A database with the tables of a queue, somebody who looks at it directly, and a pooler before it.
pub(crate) async fn pooled(mode: &str, settings: &[(&str, &str)]) -> (Database, PgPool, PgBouncer) {
    let database = queue_database().await;
    let observer = database.pool().await;
    let pooler = PgBouncer::start(&database.url(), database.socket_dir().as_ref(), mode, settings).await;
    (database, observer, pooler)
}

impl PgBouncer {
    /// Starts one before the server of `url`, whose Unix socket is in `socket_dir`, with `pool_mode` and further
    /// settings of its section `[pgbouncer]`, and waits until it listens.
    pub(crate) async fn start(url: &str, socket_dir: &Path, pool_mode: &str, settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Whoever runs the server may not be root either.
        let socket = socket_dir.metadata().unwrap();
        let owner = geteuid().is_root().then(|| (socket.uid(), socket.gid()));
        if let Some((uid, gid)) = owner {
            chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let port = free_port();
        let mut all = vec![("pool_mode".to_owned(), pool_mode.to_owned())];
        all.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let server = url::Url::parse(url).unwrap();
        write_configuration(directory.path(), port, &server, &all);
        let process = spawn(directory.path(), owner);
        let pooler = Self { directory, port, server, owner, settings: all, process };
        pooler.wait_until_listening().await;
        pooler
    }

    /// The URL of the database through it.
    pub(crate) fn url(&self) -> String {
        let mut url = self.server.clone();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.into()
    }

    /// The URL of the same database through it in session mode, whatever mode it has for others.
    pub(crate) fn session_mode_url(&self) -> String {
        let mut url = url::Url::parse(&self.url()).unwrap();
        url.set_path(SESSION_MODE);
        url.into()
    }

    /// Its port on the loopback address.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Changes a setting and makes the running process read its configuration again.
    pub(crate) fn reload(&mut self, name: &str, value: &str) {
        self.settings.retain(|(other, _)| other != name);
        self.settings.push((name.to_owned(), value.to_owned()));
        write_configuration(self.directory.path(), self.port, &self.server, &self.settings);
        self.signal(Signal::HUP);
    }

    /// Kills it and starts another on the same port.
    pub(crate) async fn restart(&mut self) {
        self.stop();
        self.process = spawn(self.directory.path(), self.owner);
        self.wait_until_listening().await;
    }

    /// Kills it.
    pub(crate) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    async fn wait_until_listening(&self) {
        super::eventually(LIMIT, "PgBouncer listens", async || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok()
        })
        .await;
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("--- end of the log of PgBouncer on port {}", self.port);
            for line in lines.iter().skip(lines.len().saturating_sub(100)) {
                eprintln!("{line}");
            }
        }
    }
}

fn write_configuration(directory: &Path, port: u16, server: &url::Url, settings: &[(String, String)]) {
    let target = format!(
        "host=127.0.0.1 port={} dbname={} user={}{}",
        server.port().unwrap(),
        server.path().trim_start_matches('/'),
        server.username(),
        server.password().map(|password| format!(" password={password}")).unwrap_or_default(),
    );
    let mut text = format!("[databases]\n* = {target}\n{SESSION_MODE} = {target} pool_mode=session\n[pgbouncer]\n");
    let socket = directory.display();
    let defaults = [
        ("listen_addr", "127.0.0.1".to_owned()),
        ("listen_port", port.to_string()),
        ("unix_socket_dir", socket.to_string()),
        ("logfile", format!("{socket}/log")),
        ("auth_type", "any".to_owned()),
        ("ignore_startup_parameters", "extra_float_digits".to_owned()),
        ("max_client_conn", "200".to_owned()),
    ];
    for (name, value) in defaults {
        if !settings.iter().any(|(other, _)| other == name) {
            text += &format!("{name} = {value}\n");
        }
    }
    for (name, value) in settings {
        text += &format!("{name} = {value}\n");
    }
    fs::write(directory.join("pgbouncer.ini"), text).unwrap();
}

fn spawn(directory: &Path, owner: Option<(u32, u32)>) -> Child {
    // Debian's package puts it where an ordinary search path does not look.
    let search = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("pgbouncer");
    command.env("PATH", search).arg("-q").arg(directory.join("pgbouncer.ini"));
    if let Some((uid, gid)) = owner {
        command.uid(uid).gid(gid);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("no pgbouncer: install the package of that name")
}
