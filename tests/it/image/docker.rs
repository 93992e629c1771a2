//! The image, its containers, and a network with a DNS server.

use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use retsu_collector::demo::watch::get;

use crate::support::eventually;

/// The port of the management endpoint, as the image declares it.
const PORT: u16 = 24247;

/// How a container is confined: nothing to write to, and nothing that root may do.
const CONFINED: [&str; 5] = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"];

const LIMIT: Duration = Duration::from_secs(60);

/// The image that `make image` has built.
pub(super) fn image() -> String {
    std::env::var("RETSU_TEST_IMAGE").unwrap_or_else(|_| format!("retsu-collector:{}", env!("CARGO_PKG_VERSION")))
}

fn docker(arguments: &[&str]) -> Output {
    let program = std::env::var("DOCKER").unwrap_or_else(|_| "docker".to_owned());
    Command::new(program).args(arguments).output().expect("no Docker client: run `make image-test`, or set DOCKER")
}

/// What Docker prints.
pub(super) fn told(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = docker(arguments);
    assert!(status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().trim_end().to_owned()
}

/// Exit code and both outputs of a confined container that ends by itself; `options` are those of `docker run`.
pub(super) fn run(options: &[&str], command: &[&str]) -> (i32, String) {
    let image = image();
    let arguments = [&["run", "--rm"], &CONFINED[..], options, &[&image], command].concat();
    let Output { status, stdout, stderr } = docker(&arguments);
    let said = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(said).unwrap())
}

/// A confined container of the image; gone when dropped. When its test fails, its log is printed.
pub(super) struct Container(String);

impl Container {
    /// Starts one; `options` are those of `docker run`.
    pub(super) fn start(options: &[&str]) -> Self {
        let image = image();
        Self(told(&[&["run", "--detach"], &CONFINED[..], options, &[&image]].concat()))
    }

    /// A field of `docker inspect`.
    pub(super) fn inspect(&self, field: &str) -> String {
        told(&["inspect", "--format", &format!("{{{{{field}}}}}"), &self.0])
    }

    /// Its process id outside of the container.
    pub(super) fn pid(&self) -> u32 {
        self.inspect(".State.Pid").parse().unwrap()
    }

    /// A field of the status that the kernel gives of its process.
    pub(super) fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field} in\n{status}")).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Both outputs of its process.
    pub(super) fn log(&self) -> String {
        let Output { stdout, stderr, .. } = docker(&["logs", &self.0]);
        String::from_utf8([stdout, stderr].concat()).unwrap()
    }

    /// Its management endpoint on a network of its own.
    pub(super) fn address(&self) -> SocketAddr {
        let ip = self.inspect("range .NetworkSettings.Networks}}{{.IPAddress}}{{end");
        SocketAddr::new(ip.parse().unwrap(), PORT)
    }

    /// Waits until it leads, as its management endpoint says.
    pub(super) async fn wait_until_leading(&self) {
        let address = self.address();
        eventually(LIMIT, "it leads", async || get(address, "/leader").await.is_ok_and(|(status, _)| status == 200))
            .await;
    }

    /// Stops it as the kubelet does, with SIGTERM and, after `grace`, SIGKILL. Its exit code.
    pub(super) fn stop(&self, grace: Duration) -> i32 {
        told(&["stop", "--time", &grace.as_secs().to_string(), &self.0]);
        self.inspect(".State.ExitCode").parse().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of container {}\n{}", self.0, self.log());
        }
        docker(&["rm", "--force", "--volumes", &self.0]);
    }
}

/// A bridge network of containers; gone when dropped.
pub(super) struct Network {
    name: String,
    gateway: String,
}

impl Network {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("retsu-collector-{}-{number}", std::process::id());
        told(&["network", "create", &name]);
        let gateway = told(&["network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", &name]);
        Self { name, gateway }
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// This machine's address on it.
    pub(super) fn gateway(&self) -> &str {
        &self.gateway
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        docker(&["network", "rm", &self.name]);
    }
}

/// A DNS server on the gateway of a network, which knows names under `.test`; it ends when dropped.
pub(super) struct Dns {
    process: Child,
    log: tempfile::NamedTempFile,
}

impl Dns {
    /// One that answers with the gateway's address when asked for one of `names`, which end with `.test`.
    pub(super) async fn start(network: &Network, names: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("dnsmasq");
        command
            // Debian has it where only root looks.
            .env("PATH", format!("{path}:/usr/sbin"))
            .args([
                "--no-daemon",
                "--conf-file=/dev/null",
                "--no-hosts",
                "--no-resolv",
                "--log-queries",
                "--local=/test/",
            ])
            .args(["--bind-interfaces", "--except-interface=lo"])
            .arg(format!("--listen-address={}", network.gateway()))
            .args(names.iter().map(|name| format!("--host-record={name},{}", network.gateway())))
            .stderr(log.reopen().unwrap())
            .stdin(Stdio::null());
        let dns = Self { process: command.spawn().expect("no dnsmasq: install dnsmasq-base"), log };
        eventually(LIMIT, "the DNS server has started", async || dns.log().contains("started, version")).await;
        dns
    }

    /// What it was asked and what it answered.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the DNS server\n{}", self.log());
        }
    }
}
