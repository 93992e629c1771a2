//! A PostgreSQL on a host of its own: network, processes, a disk that can fill up and a clock that can be stepped.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use retsu_collector::demo::server::{EmbeddedServer, NEWEST_POSTGRESQL, ServerOptions};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::eventually;
use crate::network::Namespace;
use crate::process::EXECUTABLE;

/// Limit of a start, recovery included.
const START: Duration = Duration::from_secs(60);

/// The user and group `nobody`: PostgreSQL refuses to run as root.
const UNPRIVILEGED: u32 = 65_534;

/// The database of the queues.
const DATABASE: &str = "queues";

/// Where PgBouncer listens.
const POOLER_PORT: u16 = 6432;

/// How PostgreSQL is told to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Shutdown {
    /// Sessions are ended in order.
    Fast,
    /// As in a crash of every process but the first: recovery follows.
    Immediate,
    /// SIGKILL of the first process.
    Kill,
}

/// The server; everything of it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    host: Namespace,
    directory: TempDir,
    binaries: PathBuf,
    /// `nsenter`, whose only child is the first process of PostgreSQL.
    running: Option<Child>,
    /// The same for PgBouncer.
    pooler: Option<Child>,
}

impl Server {
    /// A server with the tables of a queue.
    pub(crate) async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("retsu-chaos-").tempdir().unwrap();
        let mut server =
            Self { host: Namespace::host(), binaries: binaries().await, directory, running: None, pooler: None };
        let (data, socket) = (server.file("data"), server.file("socket"));
        chown(server.directory.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        for directory in [&data, &socket] {
            std::fs::create_dir(directory).unwrap();
            chown(directory, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
        // Small enough to be filled in a moment.
        let options = format!("size=192m,uid={UNPRIVILEGED},gid={UNPRIVILEGED},mode=700");
        server.host.run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", &text(&data)]);
        server.step_clock(0);
        server.compile_clock();
        let mut initialize = server.unprivileged("initdb");
        initialize.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync", "--pgdata"]).arg(&data);
        let output = initialize.output().unwrap();
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let configuration = format!(
            "listen_addresses = '*'\nunix_socket_directories = '{}'\nmax_connections = 100\nfsync = off\n\
             shared_buffers = '16MB'\nmin_wal_size = '32MB'\nmax_wal_size = '64MB'\ntimezone = 'UTC'\n",
            socket.display()
        );
        std::fs::write(server.host.path(&data.join("postgresql.auto.conf")), configuration).unwrap();
        std::fs::write(server.host.path(&data.join("pg_hba.conf")), "local all all trust\nhost all all all trust\n")
            .unwrap();
        server.resume_after_end().await;
        server.create_database().await;
        server
    }

    /// Its namespace.
    pub(crate) fn host(&self) -> &Namespace {
        &self.host
    }

    /// The URL of the database of the queues, at one of the server's addresses, of PostgreSQL itself or through
    /// PgBouncer.
    pub(crate) fn url(address: Ipv4Addr, pooled: bool) -> String {
        format!("postgres://postgres@{address}:{}/{DATABASE}", if pooled { POOLER_PORT } else { 5432 })
    }

    /// A session of the superuser in the database of the queues, past every link.
    pub(crate) async fn connect(&self) -> PgConnection {
        self.connect_to(DATABASE).await.unwrap()
    }

    async fn connect_to(&self, database: &str) -> sqlx::Result<PgConnection> {
        let url = format!("postgres://postgres@localhost/{database}?host={}", self.file("socket").display());
        PgConnection::connect(&url).await
    }

    /// Creates the database of the queues and its tables.
    pub(crate) async fn create_database(&self) {
        let mut connection = self.connect_to("postgres").await.unwrap();
        sqlx::query("CREATE DATABASE queues").execute(&mut connection).await.unwrap();
        let mut connection = self.connect().await;
        retsu_collector::schema::apply(&mut connection).await.unwrap();
        sqlx::query("INSERT INTO queue (name) VALUES ('emails')").execute(&mut connection).await.unwrap();
    }

    /// Drops the database of the queues with every session in it.
    pub(crate) async fn drop_database(&self) {
        let mut connection = self.connect_to("postgres").await.unwrap();
        sqlx::query("DROP DATABASE queues WITH (FORCE)").execute(&mut connection).await.unwrap();
    }

    /// Ends PostgreSQL and waits until every process of it is gone.
    pub(crate) async fn end(&mut self, how: Shutdown) {
        let signal = match how {
            Shutdown::Fast => Signal::INT,
            Shutdown::Immediate => Signal::QUIT,
            Shutdown::Kill => Signal::KILL,
        };
        send(self.first_process(), signal);
        eventually(START, "PostgreSQL has ended", async || self.host.processes().is_empty()).await;
        self.running.take().unwrap().wait().unwrap();
    }

    /// Starts PostgreSQL and waits until it accepts connections.
    pub(crate) async fn resume_after_end(&mut self) {
        let mut postgres = self.unprivileged("postgres");
        let log = File::options().create(true).append(true).open(self.file("log")).unwrap();
        postgres.arg("-D").arg(self.file("data")).stdout(log.try_clone().unwrap()).stderr(log);
        self.running = Some(postgres.spawn().unwrap());
        self.wait_until_ready().await;
    }

    /// Starts a PgBouncer in session mode, and waits until it passes connections on.
    pub(crate) async fn start_pooler(&mut self) {
        let configuration = format!(
            "[databases]\n* = host={} user=postgres\n[pgbouncer]\nlisten_addr = *\nlisten_port = {POOLER_PORT}\n\
             unix_socket_dir = {0}\nlogfile = {0}/pgbouncer.log\npool_mode = session\nauth_type = any\n\
             ignore_startup_parameters = extra_float_digits\n",
            self.file("socket").display()
        );
        std::fs::write(self.file("pgbouncer.ini"), configuration).unwrap();
        let mut pgbouncer = self.unprivileged(&pgbouncer());
        self.pooler = Some(pgbouncer.arg("-q").arg(self.file("pgbouncer.ini")).spawn().unwrap());
        let socket = self.file("socket");
        let url = format!("postgres://postgres@localhost:{POOLER_PORT}/{DATABASE}?host={}", socket.display());
        eventually(START, "PgBouncer passes connections on", async || PgConnection::connect(&url).await.is_ok()).await;
    }

    /// Kills it.
    pub(crate) async fn kill_pooler(&mut self) {
        let mut nsenter = self.pooler.take().unwrap();
        send(only_child(&nsenter).expect("PgBouncer runs"), Signal::KILL);
        eventually(START, "PgBouncer has ended", async || nsenter.try_wait().unwrap().is_some()).await;
    }

    /// Waits until PostgreSQL accepts connections, and starts it when it has ended by itself.
    pub(crate) async fn recover(&mut self) {
        let mut ready = false;
        eventually(START, "PostgreSQL has recovered or ended", async || {
            ready = self.connect_to("postgres").await.is_ok();
            ready || self.host.processes().is_empty()
        })
        .await;
        if !ready {
            self.running.take().unwrap().wait().unwrap();
            self.resume_after_end().await;
        }
    }

    async fn wait_until_ready(&self) {
        eventually(START, "PostgreSQL accepts connections", async || self.connect_to("postgres").await.is_ok()).await;
    }

    /// Stops every process of PostgreSQL where it is.
    pub(crate) fn pause(&self) {
        // The first one forks the others: no new one comes after it is stopped.
        send(self.first_process(), Signal::STOP);
        self.host.processes().into_iter().for_each(|pid| send(pid, Signal::STOP));
    }

    /// Stops the backend that PostgreSQL knows by this process id.
    pub(crate) fn pause_backend(&self, backend: i32) {
        let is_it = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            ids.split_whitespace().next_back() == Some(&backend.to_string())
        };
        send(self.host.processes().into_iter().find(is_it).expect("the backend lives"), Signal::STOP);
    }

    /// Lets every process go on.
    pub(crate) fn go_on(&self) {
        self.host.processes().into_iter().for_each(|pid| send(pid, Signal::CONT));
        // It stops and goes on with its child.
        send(self.running.as_ref().unwrap().id(), Signal::CONT);
    }

    /// Sets the server's clock to ours plus `seconds`.
    pub(crate) fn step_clock(&self, seconds: i64) {
        // In place: every process of PostgreSQL has the file mapped.
        let file = File::options().create(true).truncate(false).write(true).open(self.file("clock")).unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    /// Takes every free byte of the disk, and writes until the server fails for it.
    pub(crate) async fn run_out_of_disk(&self) {
        // Before: with a full disk a first session of a database may not even begin.
        let mut writer = self.connect().await;
        self.fill_disk();
        let write = "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 16000000))";
        eventually(START, "the server has no room for its log", async || {
            sqlx::query(write).execute(&mut writer).await.is_err()
        })
        .await;
    }

    fn fill_disk(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        for size in [1 << 20, 1 << 12] {
            let block = vec![0; size];
            while filler.write_all(&block).is_ok() {}
        }
    }

    /// Gives back what was taken.
    pub(crate) fn free_disk(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.host.path(&self.file("data").join("filler"))
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(100)..].join("\n")
    }

    fn compile_clock(&self) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/clock.c");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(self.file("clock.so")).arg(source).arg("-ldl");
        let output = cc.output().unwrap_or_else(|error| panic!("cannot run cc: {error}; install build-essential"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn first_process(&self) -> u32 {
        only_child(self.running.as_ref().unwrap()).unwrap_or_else(|| panic!("PostgreSQL has ended: {}", self.log()))
    }

    /// A command inside, not as root; a program of PostgreSQL or one with its path.
    fn unprivileged(&self, program: &str) -> Command {
        let mut command = self.host.command("setpriv");
        command
            .args([format!("--reuid={UNPRIVILEGED}"), format!("--regid={UNPRIVILEGED}")])
            .args(["--clear-groups", "env", "--ignore-environment", "LC_ALL=C"])
            .arg(format!("LD_PRELOAD={}", self.file("clock.so").display()))
            .arg(format!("STEPPED_CLOCK={}", self.file("clock").display()))
            .arg(self.binaries.join(program))
            .current_dir("/")
            .stdout(Stdio::null());
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of PostgreSQL\n{}", self.log());
        }
    }
}

/// The process that `nsenter` waits for.
fn only_child(nsenter: &Child) -> Option<u32> {
    let pid = nsenter.id();
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}

/// The path of PgBouncer. Debian's package puts it where an ordinary search path does not look.
fn pgbouncer() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let file = directories.map(|directory| directory.join("pgbouncer")).find(|file| file.is_file());
    text(&file.expect("no pgbouncer: install the package of that name"))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn send(pid: u32, signal: Signal) {
    // A process that has ended meanwhile needs no signal.
    let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal);
}

/// The directory of PostgreSQL's programs, which the first call installs.
async fn binaries() -> PathBuf {
    static BINARIES: OnceCell<PathBuf> = OnceCell::const_new();
    let install = async || {
        let version = std::env::var("RETSU_TEST_POSTGRESQL_VERSION").unwrap_or_else(|_| NEWEST_POSTGRESQL.to_owned());
        let options = ServerOptions::new(version);
        let (server, ready) = EmbeddedServer::start(Path::new(EXECUTABLE), &options).await.unwrap();
        server.end().await.unwrap();
        options.install_dir.join(ready.version).join("bin")
    };
    BINARIES.get_or_init(install).await.clone()
}

#[tokio::test]
async fn a_server_can_be_killed_paused_filled_and_stepped() {
    let mut server = Server::start().await;
    let clock = async |server: &Server| {
        let mut connection = server.connect().await;
        let query = "SELECT extract(epoch FROM clock_timestamp())::float8";
        sqlx::query_scalar::<_, f64>(query).fetch_one(&mut connection).await.unwrap()
    };
    let real = clock(&server).await;
    server.step_clock(-3600);
    assert!((real - 3600.0 - clock(&server).await).abs() < 60.0);
    server.step_clock(0);
    assert!((real - clock(&server).await).abs() < 60.0);

    server.pause();
    let answer = tokio::time::timeout(Duration::from_millis(300), server.connect_to("postgres")).await;
    assert!(answer.is_err(), "a paused server answers nothing");
    server.go_on();
    server.wait_until_ready().await;

    for how in [Shutdown::Kill, Shutdown::Immediate, Shutdown::Fast] {
        server.end(how).await;
        assert!(server.connect_to("postgres").await.is_err());
        server.resume_after_end().await;
    }
    server.run_out_of_disk().await;
    server.free_disk();
    server.recover().await;
    clock(&server).await;

    let directory = server.directory.path().to_owned();
    let mark = text(&directory);
    drop(server);
    assert!(!directory.exists());
    assert_eq!(crate::process::processes_with(&mark), []);
}
