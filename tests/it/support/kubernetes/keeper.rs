//! A server program that never outlives this process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Runs a program until a line comes or the input ends; in the latter case its directory goes as well.
const SCRIPT: &str = r#"
directory=$1
shift
"$@" </dev/null >>"$directory/log" 2>&1 &
program=$!
echo $program
read -r _
told=$?
kill -KILL $program
wait $program
[ $told = 0 ] || rm -rf "$directory"
"#;

/// A shell that ends its program, and removes the program's directory, when it is dropped or when this process ends
/// in whatever way: it waits on a pipe, which closes then.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    /// `Some` until it is dropped.
    orders: Option<ChildStdin>,
    program: u32,
    directory: PathBuf,
}

impl Keeper {
    /// Starts `program` with `arguments`; it writes its output to the file `log` in `directory`.
    pub(crate) fn start(directory: &Path, program: &Path, arguments: &[String]) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "keeper"])
            .args([directory, program])
            .args(arguments)
            // A signal from the terminal is for this process; the shell has work to do after that.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let orders = shell.stdin.take();
        Self { shell, orders, program: pid.trim().parse().unwrap(), directory: directory.to_owned() }
    }

    /// Where it keeps everything.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the program has not ended by itself.
    pub(crate) fn is_running(&self) -> bool {
        // A program that has ended and was not waited for has no executable any more.
        fs::read_link(format!("/proc/{}/exe", self.program)).is_ok()
    }

    /// Kills the program and waits for its end; the directory stays.
    pub(crate) fn stop(mut self) {
        self.orders.take().unwrap().write_all(b"stop\n").unwrap();
    }

    /// The last lines of what the program has written.
    pub(crate) fn log(&self, lines: usize) -> String {
        let log = fs::read(self.directory.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<_> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        _ = self.shell.wait();
    }
}
