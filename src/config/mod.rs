//! Configuration in three stages: fragments (file, environment, flags), merged, validated [`Settings`].
//!
//! [`Sources::read`] reads the outside world, [`load`] is a function of what was read. One table of keys
//! drives the parsing, the defaults, the errors, the output of `check` and the documentation.

mod connect;
mod connection_url;
mod error;
mod filter;
mod fragment;
mod keys;
mod kind;
mod kubernetes;
mod labels;
mod load;
mod report;
mod session_options;
mod settings;
mod source;
#[cfg(test)]
mod tests;

pub use connect::ConnectOptionsError;
pub use connection_url::UrlError;
pub use error::{ConfigError, Problem, ProblemKind};
pub use filter::{FilterError, parse_filter};
pub(crate) use kubernetes::DELETION_COST;
pub(crate) use labels::is_dns_label;
pub use load::{Loaded, load};
pub use report::{Report, documentation, markdown_table};
pub use settings::{
    CollectorSettings, DatabaseParts, DatabaseSettings, DatabaseSource, KubernetesMode, KubernetesSettings,
    LeaseSettings, LockKey, LogFormat, LoggingSettings, ManagementSettings, OnRefreshFailure, OwnPod, Settings,
    TracesSettings,
};
pub use source::{Assignment, Flag, Source, Sources};
