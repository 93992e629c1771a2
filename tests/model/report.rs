//! Runs a check and says what it covered.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

use super::action::Action;
use super::cluster::Cluster;
use super::system::System;

/// Checks every property in every reachable state of `cluster`. There have to be at least `least` states, so that
/// the model cannot shrink to nothing unnoticed.
pub fn holds<const N: usize>(name: &str, cluster: Cluster<N>, least: usize) {
    holds_except("", name, cluster, least);
}

/// The same without the property `except`.
pub fn holds_except<const N: usize>(except: &str, name: &str, cluster: Cluster<N>, least: usize) {
    let began = Instant::now();
    let checker = cluster.checker().threads(2).spawn_bfs().join();
    let (unique, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {unique} states, {depth} steps deep, {:.1?}", began.elapsed());
    for property in checker.model().properties().iter().filter(|property| property.name != except) {
        match property.expectation {
            Expectation::Sometimes => _ = checker.assert_any_discovery(property.name),
            Expectation::Always | Expectation::Eventually => checker.assert_no_discovery(property.name),
        }
    }
    assert!(unique >= least, "{name}: only {unique} states were checked");
}

/// Whether the larger clusters are to be checked, which takes minutes: `RETSU_MODEL_LONG` is set.
pub fn long() -> bool {
    std::env::var_os("RETSU_MODEL_LONG").is_some()
}

/// Looks for a short path to a state in which `property` is violated. Returns that state.
pub fn counterexample<const N: usize>(name: &str, cluster: Cluster<N>, property: &'static str) -> System<N> {
    let began = Instant::now();
    let Property { expectation, condition, .. } = cluster.property(property);
    assert_eq!(expectation, Expectation::Always, "{property}");
    let until = HasDiscoveries::AllOf(BTreeSet::from([property]));
    // One thread: paths are then found in the order of their length, or nearly.
    let checker = cluster.checker().finish_when(until).spawn_bfs().join();
    let unique = checker.unique_state_count();
    let Some(path) = checker.discovery(property) else { panic!("{name}: `{property}` holds in all {unique} states") };
    let mut actions = Vec::new();
    for (state, action) in path.into_vec() {
        if !condition(checker.model(), &state) {
            let steps = actions.len();
            println!("{name}: `{property}` is violated after {steps} steps, {unique} states, {:.1?}", began.elapsed());
            actions.into_iter().for_each(|action: Action<N>| println!("    {action:?}"));
            return state;
        }
        actions.extend(action);
    }
    unreachable!("a discovery of `{property}` ends where it is violated")
}
