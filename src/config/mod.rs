//! Configuration in three stages: fragments (file, environment, flags), merged, validated [`Settings`].

mod settings;

pub use settings::{
    CollectorSettings, DatabaseParts, DatabaseSettings, DatabaseSource, LockKey, LogFormat, LoggingSettings,
    ManagementSettings, OnRefreshFailure, Settings, TracesSettings,
};
