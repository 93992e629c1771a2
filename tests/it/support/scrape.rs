//! Who exports when, and whether what they export is well formed.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use retsu_collector::demo::history;
use retsu_collector::demo::watch::Watch;

use super::Collector;

/// The history of several collectors, from scrapes of each every 20 ms.
#[derive(Debug)]
pub(crate) struct History {
    watch: Watch,
}

impl History {
    /// Starts to scrape. A collector that is started later on the same port is the same target.
    pub(crate) fn watch(collectors: &[&Collector]) -> Self {
        let addresses: Vec<_> = collectors.iter().map(|collector| collector.address()).collect();
        Self { watch: Watch::start(&addresses) }
    }

    /// Whoever exported at its last scrape, by place in the list.
    pub(crate) fn exporting(&self) -> Vec<usize> {
        self.watch.exporting()
    }

    /// The history up to now.
    pub(crate) fn so_far(&self) -> history::History {
        self.watch.history()
    }

    /// The present instant on the clock of its scrapes.
    pub(crate) fn elapsed(&self) -> Duration {
        self.watch.elapsed()
    }

    /// The last exposition of a collector, by place in the list; `None` when it did not answer.
    pub(crate) fn exposition(&self, target: usize) -> Option<String> {
        self.watch.exposition(target)
    }

    /// Ends the scrapes, prints every gap and overlap under `title`, and returns the history.
    pub(crate) fn finish(self, title: &str) -> history::History {
        let history = self.watch.history();
        for run in history.runs() {
            println!("{title}: {} exported from {:?} to {:?}", run.target, run.first.0, run.last.1);
        }
        for gap in history.gaps() {
            let (from, to) = (gap.from, gap.to);
            println!("{title}: gap of {:?} to {:?} between {from} and {to}", gap.at_least, gap.at_most);
        }
        for overlap in history.overlaps() {
            println!("{title}: OVERLAP of at least {:?} of {:?}", overlap.at_least, overlap.targets);
        }
        println!("{title}: {} scrapes, {} overlaps", history.scrapes(), history.overlaps().len());
        history
    }
}

/// `promtool check metrics` of the real Prometheus; any remark fails the test.
pub(crate) fn promtool_check(exposition: &str) {
    let mut promtool = Command::new(promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(exposition.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{exposition}");
}

/// A command of `promtool` in a directory; it has to succeed.
pub(crate) fn promtool_run(directory: &Path, arguments: &[String]) {
    let output = Command::new(promtool()).args(arguments).current_dir(directory).output().unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}

/// The families that docs/metrics.md has, which is generated from the code.
pub(crate) fn documented_metrics() -> HashSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
}

/// `promtool` from `PROMTOOL`, from `target/tools` or from the search path.
pub(crate) fn promtool() -> PathBuf {
    let named = std::env::var_os("PROMTOOL").map(PathBuf::from);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/promtool");
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let searched: Vec<_> = std::env::split_paths(&searched).map(|directory| directory.join("promtool")).collect();
    named
        .into_iter()
        .chain([built])
        .chain(searched)
        .find(|file| file.is_file())
        .expect("no promtool: run `make tools`, or set PROMTOOL")
}
