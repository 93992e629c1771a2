//! The two collectors of the demo: this program again, as child processes.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// This program, also after its file was replaced.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// Limit of a graceful end before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

const LOG_LINES: usize = 20;

/// A running collector.
#[derive(Debug)]
pub(super) struct Collector {
    port: u16,
    process: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    // Dropping the set ends the readers.
    _readers: JoinSet<()>,
}

impl Collector {
    /// Starts a collector of `database_url` whose management endpoint is on `port` of the loopback address.
    pub(super) fn start(database_url: &SecretString, port: u16) -> io::Result<Self> {
        const RETRY_SECONDS: &str = "2";
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("retsu-collector").arg("demo-collector");
        command.arg("--parent").arg(std::process::id().to_string());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"RETSU_") {
                command.env_remove(name);
            }
        }
        let collector = "RETSU_WORKER__QUEUE__STATE_METRICS_COLLECTOR__";
        // The environment is as private as a file of mode 0600, and leaves nothing behind.
        command
            .env("RETSU_DATABASE__URL", database_url.expose_secret())
            .env("RETSU_WORKER__MANAGEMENT__BIND_ADDRESS", Ipv4Addr::LOCALHOST.to_string())
            .env("RETSU_WORKER__MANAGEMENT__PORT", port.to_string())
            .env(format!("{collector}LEADERSHIP_RETRY_INTERVAL_SECONDS"), RETRY_SECONDS)
            .env(format!("{collector}COLLECTION_INTERVAL_SECONDS"), RETRY_SECONDS)
            .env(format!("{collector}ON_REFRESH_FAILURE"), "step_down")
            .env("NO_COLOR", "1");
        // Ctrl-C is for the demo: it decides when its collectors go.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let log = Arc::default();
        let mut readers = JoinSet::new();
        if let Some(output) = process.stdout.take() {
            readers.spawn(keep_last_lines(output, Arc::clone(&log)));
        }
        if let Some(output) = process.stderr.take() {
            readers.spawn(keep_last_lines(output, Arc::clone(&log)));
        }
        Ok(Self { port, process, log, _readers: readers })
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The exit status, once the process has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// The last lines of its log.
    pub(super) fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().map(|line| format!("\n    {line}")).collect()
    }

    /// SIGKILL, and waits for the end.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// SIGTERM, then SIGKILL when that takes too long.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        if let Some(pid) = self.process.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            kill_process(pid, Signal::TERM)?;
        }
        match timeout(STOP_TIMEOUT, self.process.wait()).await {
            Ok(status) => status.map(drop),
            Err(_) => self.process.kill().await,
        }
    }
}

async fn keep_last_lines(output: impl AsyncRead + Unpin, log: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LOG_LINES {
            log.pop_front();
        }
        log.push_back(line);
    }
}

/// Turns this process into a collector that the kernel kills when `parent`, the demo, ends for any reason.
/// Returns only when it cannot.
#[must_use]
pub fn become_collector(parent: u32) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // A parent that ended before the signal was set will not send it.
    if getppid().map(|pid| pid.as_raw_pid().unsigned_abs()) != Some(parent) {
        return io::Error::other("the demo has ended");
    }
    std::process::Command::new(THIS_PROGRAM).arg0("retsu-collector").arg("run").exec()
}
