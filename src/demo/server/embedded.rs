//! The parent's side of the server process.

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::protocol::{Order, Ready, Reply, ShutdownMode};
use super::{ServerError, ServerOptions, give_install_dir, is_root, unprivileged_user};

/// Limit of the server process's own end: one immediate shutdown and the removal of a directory.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A server process. Dropping it closes the process's standard input, which ends it and removes all it made;
/// [`end`](Self::end) waits for that.
#[derive(Debug)]
pub struct EmbeddedServer {
    process: Child,
    orders: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl EmbeddedServer {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Errors
    /// As of [`spawn`](Self::spawn) and [`ready`](Self::ready).
    pub async fn start(executable: &Path, options: &ServerOptions) -> Result<(Self, Ready), ServerError> {
        let mut server = Self::spawn(executable, options)?;
        let ready = server.ready().await?;
        Ok((server, ready))
    }

    /// Starts the server process, which is `executable` (this program), and does not wait for it.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn spawn(executable: &Path, options: &ServerOptions) -> Result<Self, ServerError> {
        let file = File::open(executable).map_err(ServerError::path(executable))?;
        let mut command;
        if is_root() {
            let user = unprivileged_user(&std::fs::read_to_string("/etc/passwd").unwrap_or_default());
            give_install_dir(&options.install_dir, user)?;
            // By its open file: the user may not pass the directories above the executable.
            fcntl_setfd(&file, FdFlags::empty()).map_err(std::io::Error::from)?;
            command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
            command.uid(user.0).gid(user.1);
        } else {
            command = Command::new(executable);
        }
        command.arg0("retsu-collector").arg("demo-server");
        command.args(["--postgresql-version", &options.postgresql_version]);
        command.arg("--install-dir").arg(&options.install_dir);
        command.arg("--data-dir").arg(&options.data_dir);
        for (name, value) in &options.configuration {
            command.arg("--configuration").arg(format!("{name}={value}"));
        }
        for (name, _) in env::vars_os() {
            // Neither libpq's environment nor a collector's is meant for this server.
            if [&b"PG"[..], b"RETSU_"].iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        let mut process = command
            .env("LC_ALL", "C")
            .env("HOME", "/")
            .current_dir("/")
            // Ctrl-C is for the parent: it decides when the server goes.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(orders), Some(replies)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(ServerError::Ended("it has no pipes".to_owned()));
        };
        Ok(Self { process, orders, replies: BufReader::new(replies).lines() })
    }

    /// Waits until a spawned server accepts connections. The first time on a machine this includes a download.
    ///
    /// # Errors
    /// The server process failed, and why.
    pub async fn ready(&mut self) -> Result<Ready, ServerError> {
        match self.reply().await? {
            Reply::Ready(ready) => Ok(ready),
            Reply::Stopped => Err(ServerError::Refused("stopped".to_owned())),
            Reply::Failed(reason) => Err(ServerError::Refused(reason)),
        }
    }

    /// Stops PostgreSQL and starts it again on the same port.
    ///
    /// # Errors
    /// The server process failed, and why.
    pub async fn restart(&mut self, mode: ShutdownMode) -> Result<Ready, ServerError> {
        self.order(Order::Restart(mode)).await?;
        self.ready().await
    }

    /// Stops PostgreSQL; its directory stays.
    ///
    /// # Errors
    /// The server process failed, and why.
    pub async fn stop(&mut self, mode: ShutdownMode) -> Result<(), ServerError> {
        self.order(Order::Stop(mode)).await?;
        match self.reply().await? {
            Reply::Failed(reason) => Err(ServerError::Refused(reason)),
            Reply::Stopped | Reply::Ready(_) => Ok(()),
        }
    }

    /// Starts PostgreSQL after a [`stop`](Self::stop), on the same port.
    ///
    /// # Errors
    /// The server process failed, and why.
    pub async fn resume(&mut self) -> Result<Ready, ServerError> {
        self.order(Order::Start).await?;
        self.ready().await
    }

    /// Ends the server process and waits until PostgreSQL and its directory are gone.
    ///
    /// # Errors
    /// The process did not end in time, or says that something is left behind.
    pub async fn end(self) -> Result<(), ServerError> {
        let Self { mut process, orders, replies } = self;
        drop(orders);
        // Kept open until the end: the process may still have a reply to write.
        let status = timeout(END_TIMEOUT, process.wait()).await;
        drop(replies);
        match status {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(ServerError::Ended(status.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ServerError::Ended(format!("not within {} s", END_TIMEOUT.as_secs()))),
        }
    }

    async fn order(&mut self, order: Order) -> Result<(), ServerError> {
        self.orders.write_all(format!("{order}\n").as_bytes()).await?;
        self.orders.flush().await?;
        Ok(())
    }

    async fn reply(&mut self) -> Result<Reply, ServerError> {
        match self.replies.next_line().await? {
            Some(line) => serde_json::from_str(&line).map_err(|_| ServerError::Refused(line)),
            None => Err(ServerError::Ended(self.process.wait().await?.to_string())),
        }
    }
}
