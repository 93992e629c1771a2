//! Programs, as people run them.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use tokio::process::Command;

/// The longest that one command may take: Helm and kubectl wait for what they started.
const LIMIT: Duration = Duration::from_secs(300);

/// Where a program is that `make tools` or `make e2e-up` has built.
pub(crate) fn built(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(program);
    assert!(path.is_file(), "{} is not there: run `make e2e-up`", path.display());
    path
}

/// Docker's client, the one of the Makefile.
pub(crate) fn docker() -> Command {
    Command::new(std::env::var_os("DOCKER").map_or_else(|| PathBuf::from("docker"), PathBuf::from))
}

/// What a command prints, or what it complains of.
pub(crate) async fn run(command: &mut Command) -> Result<String, String> {
    Ok(run_to_end(command).await?.0)
}

/// The same, with what it says on standard error.
pub(crate) async fn run_to_end(command: &mut Command) -> Result<(String, String), String> {
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(LIMIT, output).await;
    let output = output.map_err(|_| format!("not within {LIMIT:?}: {command:?}"))?;
    let Output { status, stdout, stderr } = output.map_err(|error| format!("{command:?}: {error}"))?;
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if status.success() { Ok((stdout, stderr)) } else { Err(format!("{command:?}: {status}\n{stdout}{stderr}")) }
}
