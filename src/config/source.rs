//! Where values come from, and the one place that reads the outside world.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::{ConfigError, Problem, ProblemKind};

/// The variable that names the configuration file.
pub(crate) const FILE_VARIABLE: &str = "RETSU_CONFIG";

/// The token of the service account of this Pod, mounted by the kubelet.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The largest configuration file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Where an effective value came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// Built in.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable, by its name.
    Environment(String),
    /// A flag, by its name.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are escaped: a line break in one would end the comment that `check` puts it in.
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.to_string_lossy().escape_debug()),
            Self::Environment(name) => write!(f, "environment {}", name.escape_debug()),
            Self::Flag(name) => write!(f, "flag {}", name.escape_debug()),
        }
    }
}

/// A value given by a flag. The text may be a secret and has no `Debug`.
#[derive(Clone)]
pub struct Flag {
    /// The flag's name, with its dashes.
    pub name: &'static str,
    /// What it sets.
    pub assignment: Assignment,
}

/// What a flag sets.
#[derive(Clone)]
pub enum Assignment {
    /// The flag stands for one key.
    Key {
        /// The key's path.
        path: &'static str,
        /// The value, as in an environment variable.
        value: String,
    },
    /// The flag takes `key=value`.
    Pair(String),
}

/// Everything that a configuration is made of, read and not yet understood.
#[derive(Clone, Default)]
pub struct Sources {
    /// The configuration file's path and content.
    pub file: Option<(PathBuf, Vec<u8>)>,
    /// Every environment variable.
    pub environment: Vec<(OsString, OsString)>,
    /// The flags, which win over everything else.
    pub flags: Vec<Flag>,
    /// Whether the token of a Kubernetes service account is mounted.
    pub service_account_token: bool,
}

impl Sources {
    /// Reads the environment of the process, and the configuration file named by `file` or, without it,
    /// by the variable `RETSU_CONFIG`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is larger than 1 MiB or is named by an empty variable.
    pub fn read(file: Option<&Path>, flags: Vec<Flag>) -> Result<Self, ConfigError> {
        let environment: Vec<_> = std::env::vars_os().collect();
        let variable =
            environment.iter().find(|(name, _)| name == FILE_VARIABLE).map(|(_, value)| PathBuf::from(value));
        let path = match (file, variable) {
            (Some(path), _) => Some((path.to_owned(), Source::Flag("--config".into()))),
            (None, Some(path)) => Some((path, Source::Environment(FILE_VARIABLE.into()))),
            (None, None) => None,
        };
        let file = path.map(|(path, source)| read_file(path, &source)).transpose()?;
        let service_account_token = Path::new(SERVICE_ACCOUNT_TOKEN).is_file();
        Ok(Self { file, environment, flags, service_account_token })
    }

    /// The environment variable of this name.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(variable, _)| variable == name).map(|(_, value)| value.as_os_str())
    }
}

fn read_file(path: PathBuf, source: &Source) -> Result<(PathBuf, Vec<u8>), ConfigError> {
    let problem = |rule: String| {
        let subject = format!("configuration file {}", path.to_string_lossy().escape_debug());
        ConfigError::new(vec![Problem::new(ProblemKind::Unreadable, subject, source.clone(), rule)])
    };
    if path.as_os_str().is_empty() {
        return Err(problem("must not be an empty path".into()));
    }
    let mut content = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut content))
        .map_err(|error| problem(format!("cannot be read: {error}")))?;
    if content.len() as u64 > MAX_FILE {
        return Err(problem("must not be larger than 1 MiB".into()));
    }
    Ok((path, content))
}
