//! The effective configuration as `check` prints it, and the table of keys as the documentation has it.

use std::fmt::{self, Write};

use super::keys::{KEYS, Key, find, variable};
use super::session_options;
use super::source::Source;

/// One key of the effective configuration.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) key: &'static Key,
    /// The value as YAML, already redacted; `None` when unset.
    pub(crate) value: Option<String>,
    pub(crate) source: Source,
}

/// The effective configuration: every key, its value and where it came from. It holds no secret.
///
/// Its `Display` is a YAML file with the source of each value as a comment.
#[derive(Clone, Debug)]
pub struct Report {
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn new(lines: Vec<Line>) -> Self {
        Self { lines }
    }

    /// Where the effective value of a key came from; `None` for a name that is no key.
    #[must_use]
    pub fn source(&self, path: &str) -> Option<&Source> {
        self.lines.iter().find(|line| line.key.path == path).map(|line| &line.source)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut open: Vec<&str> = Vec::new();
        for Line { key, value, source } in &self.lines {
            let mut levels: Vec<&str> = key.path.split('.').collect();
            let Some(name) = levels.pop() else { continue };
            let shared = open.iter().zip(&levels).take_while(|(open, level)| open == level).count();
            for (depth, level) in levels.iter().enumerate().skip(shared) {
                writeln!(f, "{:indent$}{level}:", "", indent = depth * 2)?;
            }
            let indent = levels.len() * 2;
            match value {
                Some(value) => writeln!(f, "{:indent$}{name}: {value} # {source}", "")?,
                None => writeln!(f, "{:indent$}{name}: null # unset", "")?,
            }
            open = levels;
        }
        Ok(())
    }
}

/// The table of every key, in Markdown.
#[must_use]
pub fn markdown_table() -> String {
    let mut table = String::from("| key | must be | default | meaning |\n| --- | --- | --- | --- |\n");
    for Key { path, kind, default, help } in KEYS {
        let default = default.map_or_else(|| "unset".into(), |default| format!("`{default}`"));
        let rule = kind.rule().replace('|', "\\|");
        // Writing to a string does not fail.
        let _ = writeln!(table, "| `{path}` | {rule} | {default} | {help} |");
    }
    table
}

/// The documentation of the configuration, `docs/configuration.md`.
#[must_use]
pub fn documentation() -> String {
    let example = find("worker.management.port").map_or_else(String::new, |key| variable(key.path));
    let refused = session_options::refused().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let details = DETAILS.replace("REFUSED", &refused);
    format!("{}{}\n{details}", INTRODUCTION.replace("EXAMPLE", &example), markdown_table())
}

const INTRODUCTION: &str = "# Configuration

<!-- Generated from the table of keys: `UPDATE_DOCS=1 cargo test --lib config` writes this file. -->

Values come from four sources; a later one wins, key by key:

1. the defaults below;
2. a YAML file, named by `--config` or by the variable `RETSU_CONFIG`;
3. environment variables: `RETSU_`, then the levels of the key in capitals with `__` between them, such as
   `EXAMPLE`;
4. flags: `--port`, `--log-filter`, `--log-format`, `--database-url-file`, and `--set key=value` for every key.

`retsu-collector check` prints the effective configuration with the source of each value, secrets redacted, and the
declared bound of each fault (docs/failover.md) and what was decided for Kubernetes, or everything that is wrong with it.
It exits with 0 or 2.

## Keys

";

const DETAILS: &str = "## Rules

- A key is nested, one mapping for each level. An unknown key is an error that names the nearest known one, or the
  sections when none is near, in the file, in a variable that begins with `RETSU_` and in `--set`.
- A Retsu configuration works as it is: the sections `environment`, `http` and `cache`, the sections of other
  workers in `worker`, and everything beside `state_metrics_collector` in `worker.queue`, are accepted and unused.
  A section whose name resembles a known one is taken for a misspelling and refused.
- A variable that Kubernetes makes for a Service whose name begins with `retsu` is ignored.
- `true` and `false` stand for `on` and `off` where those can be chosen: YAML 1.1, which Helm reads, takes an unquoted
  `on` or `off` for a boolean.
- `null` in the file leaves a key unset there. An empty text is refused in every source, and so are a key given
  twice in one source, a list or a mapping where one value is expected, and anything that is not UTF-8.
- The keys of `lease` have to hold together; one that does not is refused with the rule and the nearest value that
  passes. The server gets its limits in whole milliseconds, rounded up.
- Only a value that takes effect is validated, names are everywhere. All problems are reported at once,
  except for the inequalities of the lease, which are looked at when the keys of the collector hold by themselves, and for
  files, which are read when the configuration holds.

## Kubernetes

The Pod is named by variables of the downward API: `POD_NAME`, `POD_NAMESPACE` and `POD_UID`, from `metadata.name`,
`metadata.namespace` and `metadata.uid`. `kubernetes.mode` is decided once, at the start:

- `auto` is on when these three, `kubernetes.instance_selector`, the variable `KUBERNETES_SERVICE_HOST` and the token of
  a service account are all there. Otherwise it is off, and the log and `check` say what is missing.
- `on` refuses the configuration when something of it is missing. The file that `KUBECONFIG` names serves as well as the
  service account and is preferred to it. `~/.kube/config` is never read.
- `off` sends no request to Kubernetes.

A value that `auto` finds in one of the variables and that cannot be what it should be counts as missing. The label
selector may not look at the role label, or else the Pods that a replica sees would depend on who leads.

## The database

Exactly one form is given, in whichever sources:

- `database.url`;
- `database.url_file`;
- the parts, `database.host` and its companions. For each absent part, and for all of them when no form is given,
  libpq's variable is used: `PGHOSTADDR`, `PGHOST`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`,
  `PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY`.

Without any password, the password file of libpq (`PGPASSFILE`, `~/.pgpass`) is consulted. These variables and the
password file also complete a URL that leaves something open.

In a URL every reserved character of the user name, the password and the database name is percent-encoded; a Unix
socket is written `postgres://%2Fvar%2Frun%2Fpostgresql/dbname` and an IPv6 address `postgres://[::1]/dbname`. The
parameters `host`, `hostaddr`, `port`, `dbname`, `user`, `password`, `sslmode`, `sslrootcert`, `sslcert`, `sslkey`,
`application_name`, `options`, `options[name]` and `statement-cache-capacity` are understood, every other one is
refused. `application_name` is `retsu-collector` unless the URL gives another.

Neither `options`, `options[name]` nor libpq's variable `PGOPTIONS` may set what the lease's limits consist of, in any
spelling, because the program sets that itself: REFUSED.

Encryption differs from libpq's in three ways. `allow` never encrypts. `require` never verifies, therefore
`sslrootcert` is refused unless `sslmode` is `verify-ca` or `verify-full`, and so is a URL with any other mode beside
`PGSSLROOTCERT`. The authorities of `sslrootcert` are trusted besides the system's, not instead of them.

A password may not contain what SASLprep prohibits (control characters, characters newer than Unicode 3.2 such as
emoji, left-to-right and right-to-left letters together): the driver cannot send it by SCRAM-SHA-256.

A secret on a command line is visible to every user of the machine: prefer `database.url_file` or
`database.password_file`, both of which are read again at every reconnect, so that a rotated secret needs no restart.
";
