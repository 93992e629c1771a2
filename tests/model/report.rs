//! Runs a check and says what it covered.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use super::cluster::Cluster;
use super::step::Action;
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

/// Looks for the shortest path to a state in which `property` is violated.
pub fn counterexample<const N: usize>(
    name: &str,
    cluster: Cluster<N>,
    property: &'static str,
) -> Path<System<N>, Action<N>> {
    let began = Instant::now();
    assert_ne!(cluster.property(property).expectation, Expectation::Sometimes, "{property} can be violated");
    let until = HasDiscoveries::AllOf(BTreeSet::from([property]));
    // One thread: only then is the first path found also a shortest one.
    let checker = cluster.checker().finish_when(until).spawn_bfs().join();
    let unique = checker.unique_state_count();
    let Some(path) = checker.discovery(property) else { panic!("{name}: `{property}` holds in all {unique} states") };
    let actions = path.clone().into_actions();
    println!("{name}: `{property}` is violated in {} steps, {unique} states, {:.1?}", actions.len(), began.elapsed());
    for action in actions {
        println!("    {action:?}");
    }
    path
}
