//! Every scenario: what is done to an installation, and what has to hold.

mod nodes;
mod processes;
mod takeovers;

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use crate::stage::Stage;

/// What a scenario shares the cluster with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// With everything: it mostly waits.
    Patient,
    /// With others that leave nodes and API server alone.
    Together,
    /// With nothing: it disturbs the cluster, or measures.
    Alone,
}

/// One scenario.
pub(crate) struct Scenario {
    /// Its name, by which the command line selects it.
    pub(crate) name: &'static str,
    /// When it runs.
    pub(crate) phase: Phase,
    /// What it does; it fails by panicking.
    pub(crate) play: fn(Arc<Stage>) -> LocalBoxFuture<'static, ()>,
}

macro_rules! scenarios {
    ($($phase:ident: $module:ident::$name:ident,)*) => {
        &[$(Scenario {
            name: concat!(stringify!($module), "::", stringify!($name)),
            phase: Phase::$phase,
            play: |stage| Box::pin($module::$name(stage)),
        }),*]
    };
}

/// Every scenario.
pub(crate) static SCENARIOS: &[Scenario] = scenarios![
    Alone: takeovers::the_leaders_pod_is_deleted,
    Alone: takeovers::the_leaders_process_is_killed,
    Alone: nodes::the_leaders_node_is_cordoned_and_drained,
    Alone: nodes::the_leaders_node_is_lost,
    Together: processes::the_leaders_process_is_stopped_and_continued,
    Together: processes::the_leaders_container_ends_and_starts_again,
];
