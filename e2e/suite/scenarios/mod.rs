//! Every scenario: what is done to an installation, and what has to hold.

mod alerts;
mod authority;
mod cuts;
mod database;
mod install;
mod monitoring;
mod neighbours;
mod network_policy;
mod nodes;
mod outages;
mod processes;
mod rollout;
mod scaling;
mod sidecar;
mod takeovers;

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use crate::stage::Stage;

/// What a scenario shares the cluster with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// With everything: it mostly waits.
    Patient,
    /// With those that wait: it leaves nodes and API server alone.
    Together,
    /// The same, after those: it measures.
    Measured,
    /// With nothing: it disturbs nodes or the control plane.
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
    Together: cuts::the_leader_is_cut_from_postgresql,
    Patient: cuts::the_leader_is_cut_from_the_api_server_and_then_from_both,
    Together: database::the_server_restarts_or_ends_the_lock_session,
    Together: database::a_pooler_is_refused_in_transaction_mode_and_led_through_in_session_mode,
    Patient: alerts::fire_when_their_fault_is_made_and_resolve_when_it_is_mended,
    Together: authority::without_its_permissions_it_leads_and_exports_unlabelled,
    Together: authority::labels_edited_by_hand_are_set_right,
    Together: authority::a_stolen_token_gives_no_role_to_another_pod,
    Together: monitoring::every_replica_is_a_target_and_every_queue_has_one_series,
    Together: monitoring::every_query_of_the_dashboard_has_data,
    Together: install::the_chart_is_installed_with_its_defaults,
    Together: install::the_manifests_are_applied_with_an_overlay,
    Together: neighbours::two_releases_with_different_keys_lead_each_on_its_own,
    Together: neighbours::two_releases_with_one_key_have_one_leader,
    Patient: outages::a_minute_without_the_database_under_step_down,
    Patient: outages::a_minute_without_the_database_under_exit,
    Patient: outages::ten_minutes_without_the_database_under_step_down,
    Patient: outages::ten_minutes_without_the_database_under_exit,
    Alone: outages::three_minutes_without_the_api_server_across_a_hand_over,
    Together: rollout::an_upgrade_a_change_of_values_and_a_rollback_hand_over_once_and_an_uninstall_leaves_nothing,
    Together: scaling::the_leader_stays_when_replicas_come_and_go,
    Together: sidecar::a_worker_is_elected_and_its_service_follows,
    Alone: network_policy::the_network_policy_lets_through_what_is_listed_and_nothing_else,
    Measured: takeovers::the_leaders_pod_is_deleted,
    Measured: takeovers::the_leaders_process_is_killed,
    Alone: nodes::the_leaders_node_is_cordoned_and_drained,
    Alone: nodes::the_leaders_node_is_lost,
    Together: processes::the_leaders_process_is_stopped_and_continued,
    Together: processes::the_leaders_container_ends_and_starts_again,
];
