//! `retsu-collector demo`: what it shows, and that nothing outlives it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{EXECUTABLE, eventually, free_port, postgresql_version, processes_with};

const LIMIT: Duration = Duration::from_secs(90);

/// A demo whose temporary directory is its own; everything it starts has the path in its environment or on
/// its command line.
struct Demo {
    process: Child,
    directory: TempDir,
    output: Arc<Mutex<String>>,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Under root the server belongs to another user.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let ports = format!("{},{}", free_port(), free_port());
        let mut process = Command::new(EXECUTABLE)
            .args(["demo", "--postgresql-version", &postgresql_version(), "--ports", &ports])
            .args(arguments)
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output: Arc<Mutex<String>> = Arc::default();
        let (reader, written) = (process.stdout.take().unwrap(), Arc::clone(&output));
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                written.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { process, directory, output }
    }

    fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    fn processes(&self) -> Vec<(u32, String)> {
        processes_with(self.directory.path().to_str().unwrap())
    }

    async fn until_it_says(&self, text: &str) {
        eventually(LIMIT, &format!("the demo says {text:?}"), async || self.output().contains(text)).await;
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    async fn exit(&mut self) -> std::process::ExitStatus {
        let process = &mut self.process;
        eventually(LIMIT, "the demo has ended", async || process.try_wait().unwrap().is_some()).await;
        self.process.wait().unwrap()
    }

    fn left_behind(&self) -> Vec<String> {
        let files =
            std::fs::read_dir(self.directory.path()).unwrap().map(|entry| format!("{:?}", entry.unwrap().path()));
        files.chain(self.processes().into_iter().map(|process| format!("{process:?}"))).collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- output of the demo\n{}", self.output());
        }
    }
}

#[tokio::test]
async fn a_demo_shows_a_failover_without_two_exporters_and_ends_by_itself() {
    let mut demo = Demo::start(&["--kill-after", "2", "--duration", "15"]);
    let status = demo.exit().await;
    assert!(status.success(), "{status}");
    assert_eq!(demo.left_behind(), [""; 0]);
    eventually(LIMIT, "the last line is read", async || demo.output().contains("at no time did two")).await;
    let output = demo.output();
    println!("{output}");
    for shown in [
        "PostgreSQL ",
        "leads",
        "(SIGKILL)",
        "took over: nobody exported for ",
        "; never did two",
        "again",
        "12 queues, ",
        " in flight; snapshot ",
    ] {
        assert!(output.contains(shown), "{shown}");
    }
}

#[tokio::test]
async fn ctrl_c_leaves_nothing_behind() {
    let mut demo = Demo::start(&[]);
    demo.until_it_says("leads").await;
    assert!(demo.processes().len() > 4, "demo, server process, postmaster, collectors: {:?}", demo.processes());
    demo.signal(Signal::INT);
    let status = demo.exit().await;
    assert!(status.success(), "{status}");
    assert_eq!(demo.left_behind(), [""; 0]);
}

#[tokio::test]
async fn ctrl_c_while_the_server_starts_leaves_nothing_behind() {
    let mut demo = Demo::start(&[]);
    eventually(LIMIT, "the server has begun", async || {
        std::fs::read_dir(demo.directory.path()).unwrap().next().is_some()
    })
    .await;
    demo.signal(Signal::INT);
    let status = demo.exit().await;
    assert!(status.success(), "{status}");
    assert_eq!(demo.left_behind(), [""; 0]);
}

#[tokio::test]
async fn nothing_outlives_a_demo_that_is_killed() {
    let mut demo = Demo::start(&[]);
    demo.until_it_says("leads").await;
    demo.signal(Signal::KILL);
    demo.exit().await;
    eventually(LIMIT, "every process and file is gone", async || demo.left_behind().is_empty()).await;
}
