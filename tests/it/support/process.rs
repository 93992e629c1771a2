//! The real program as a process.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use retsu_collector::demo::watch::{GetError, get};
use retsu_collector::election::Fault;
use rustix::process::{Pid, Signal, kill_process};

/// The program under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_retsu-collector");

/// What a test configures on top of the defaults: the loopback address, a free port, an interval and a retry
/// interval of one second.
pub(crate) struct Config(Command);

impl Config {
    /// Sets a key of the configuration, such as `worker.shutdown_timeout_seconds`.
    pub(crate) fn set(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.0.env(format!("RETSU_{}", key.to_uppercase().replace('.', "__")), value.to_string());
        self
    }

    /// Takes a key back to the program's own default.
    pub(crate) fn unset(&mut self, key: &str) -> &mut Self {
        self.0.env_remove(format!("RETSU_{}", key.to_uppercase().replace('.', "__")));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(&mut self, name: &str, value: &str) -> &mut Self {
        self.0.env(name, value);
        self
    }

    /// Adds an argument after `run`.
    pub(crate) fn arg(&mut self, argument: &str) -> &mut Self {
        self.0.arg(argument);
        self
    }

    /// Runs the program inside another, such as `unshare`, given with its arguments.
    pub(crate) fn inside(&mut self, program: &str, arguments: &[&str]) -> &mut Self {
        let mut outer = Command::new(program);
        outer.args(arguments).arg(self.0.get_program()).args(self.0.get_args());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        self.0 = outer;
        self
    }

    /// Sets the management port.
    pub(crate) fn port(&mut self, port: u16) -> &mut Self {
        self.set("worker.management.port", port)
    }

    fn address(&self) -> SocketAddr {
        let value = |name: &str| {
            let (_, value) = self.0.get_envs().find(|(variable, _)| *variable == name).unwrap();
            value.unwrap().to_str().unwrap()
        };
        let ip: IpAddr = value("RETSU_WORKER__MANAGEMENT__BIND_ADDRESS").parse().unwrap();
        (ip, value("RETSU_WORKER__MANAGEMENT__PORT").parse().unwrap()).into()
    }
}

/// A collector; killed when it is dropped. When its test fails, its log is printed.
#[derive(Debug)]
pub(crate) struct Collector {
    process: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<(Instant, String)>>>,
    began: Instant,
}

impl Collector {
    /// Starts the program on a database and does not wait for it.
    pub(crate) fn start(database_url: &str, configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config(Command::new(EXECUTABLE));
        for (name, _) in std::env::vars_os() {
            if ["RETSU_", "PG", "POD_", "KUBE"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                config.0.env_remove(name);
            }
        }
        config
            .arg("run")
            .env("NO_COLOR", "1")
            .port(free_port())
            .set("database.url", database_url)
            .set("worker.management.bind_address", Ipv4Addr::LOCALHOST)
            .set("worker.queue.state_metrics_collector.collection_interval_seconds", 1)
            .set("worker.queue.state_metrics_collector.leadership_retry_interval_seconds", 1);
        configure(&mut config);
        let address = config.address();
        let mut process = config.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::default();
        keep_log(process.stdout.take().unwrap(), &log);
        keep_log(process.stderr.take().unwrap(), &log);
        Self { process, address, log, began: Instant::now() }
    }

    /// Its management endpoint.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id; that of the outer program after [`Config::inside`].
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The lines of its log so far, standard output and error, each with the instant it was read.
    pub(crate) fn log(&self) -> Vec<(Instant, String)> {
        self.log.lock().unwrap().clone()
    }

    /// How many lines of its log contain `text`.
    pub(crate) fn count_in_log(&self, text: &str) -> usize {
        self.log().iter().filter(|(_, line)| line.contains(text)).count()
    }

    /// Waits for the first line of its log that contains `text`, and returns when that was read.
    pub(crate) async fn wait_for_log(&self, text: &str, limit: Duration) -> Instant {
        let find = || self.log().into_iter().find(|(_, line)| line.contains(text)).map(|(at, _)| at);
        super::eventually(limit, &format!("{text:?} in the log"), async || find().is_some()).await;
        find().unwrap()
    }

    /// Waits until its management endpoint answers.
    pub(crate) async fn wait_until_serving(&self, limit: Duration) {
        super::eventually(limit, "the management endpoint answers", async || self.get("/health/live").await.is_ok())
            .await;
    }

    /// Status and body of a GET.
    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String), GetError> {
        get(self.address(), path).await
    }

    /// Its exposition, when it answers with status 200.
    pub(crate) async fn metrics(&self) -> Option<String> {
        self.get("/metrics").await.ok().filter(|(status, _)| *status == 200).map(|(_, body)| body)
    }

    /// Whether its exposition has state gauges now.
    pub(crate) async fn exports(&self) -> bool {
        self.metrics().await.is_some_and(|body| retsu_collector::demo::scrape::exports_state(&body))
    }

    pub(crate) fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn sigint(&self) {
        self.signal(Signal::INT);
    }

    pub(crate) fn sigkill(&self) {
        self.signal(Signal::KILL);
    }

    pub(crate) fn sigstop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn sigcont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The child is not waited for before its last signal, so its process id is still its own.
        kill_process(Pid::from_raw(self.process.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Waits until the process has ended.
    pub(crate) async fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let process = &mut self.process;
        super::eventually(limit, "the process has ended", async || process.try_wait().unwrap().is_some()).await;
        self.process.wait().unwrap()
    }

    /// Whether the process has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// The bound that it declares for the time without gauges after `fault`.
    pub(crate) async fn bound(&self, fault: Fault) -> Duration {
        let series = format!("retsu_collector_failover_bound_seconds{{fault=\"{}\"}} ", fault.label());
        let metrics = self.metrics().await.unwrap();
        let seconds = metrics.lines().find_map(|line| line.strip_prefix(&series));
        Duration::from_secs_f64(seconds.unwrap_or_else(|| panic!("no {series}in\n{metrics}")).parse().unwrap())
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the collector at {}, process {}", self.address, self.process.id());
            for (at, line) in self.log.lock().unwrap().iter() {
                eprintln!("{:8.3} s {line}", at.saturating_duration_since(self.began).as_secs_f64());
            }
        }
    }
}

fn keep_log(output: impl Read + Send + 'static, log: &Arc<Mutex<Vec<(Instant, String)>>>) {
    let log = Arc::clone(log);
    // Ends with the process, at the end of its output.
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            log.lock().unwrap().push((Instant::now(), line));
        }
    });
}

/// A TCP port that nobody uses, below the range from which the system takes ports for connections, so that
/// none of those takes it before its server does. No two calls in one process return the same.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const PORTS: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run at the same time start at different places.
    let start = (std::process::id() % 100) as u16 * (PORTS / 100);
    (0..PORTS)
        .map(|_| FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS)
        .find(|&port| is_free((Ipv4Addr::UNSPECIFIED, port)) && is_free((Ipv6Addr::UNSPECIFIED, port)))
        .unwrap()
}

fn is_free(address: impl ToSocketAddrs) -> bool {
    // A machine without IPv6 has no such address, and so nobody who uses it.
    TcpListener::bind(address).map_or_else(|error| error.kind() != ErrorKind::AddrInUse, |_| true)
}

/// The processes, as id and command line, that have `mark` in their command line or in their environment.
pub(crate) fn processes_with(mark: &str) -> Vec<(u32, String)> {
    let read = |pid: u32, file: &str| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()).into_owned()
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id())
        .map(|pid| (pid, read(pid, "cmdline")))
        .filter(|(pid, command)| command.contains(mark) || read(*pid, "environ").contains(mark))
        .collect()
}
