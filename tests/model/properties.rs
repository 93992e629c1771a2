//! What has to hold always, and what has to happen at least once for that to mean anything.

use retsu_collector::election::State;
use stateright::Property;

use super::cluster::Cluster;
use super::system::{Phase, Process, System};

pub const SAFETY: &str = "never two exporters";
pub const LIVENESS: &str = "somebody exports within the bound";
/// Overlaps only where one was not told of a fence as long as the other's since it started.
pub const SEEN_FENCES: &str = "never two exporters that know of each other's fence";

/// Every property. Liveness is a counter in the state: the checker's own `eventually` misses cycles.
pub fn of<const N: usize>(cluster: &Cluster<N>) -> Vec<Property<Cluster<N>>> {
    let mut properties = vec![
        Property::always(SAFETY, |cluster: &Cluster<N>, system: &System<N>| exporters(cluster, system) <= 1),
        Property::always(SEEN_FENCES, |cluster, system| {
            exporters(cluster, system) <= 1 || all_strangers(cluster, system)
        }),
        Property::sometimes("somebody exports", |cluster, system| exporters(cluster, system) == 1),
        Property::sometimes("two believe in a lease and one exports", |cluster, system| {
            believers(system) == 2 && exporters(cluster, system) == 1
        }),
        Property::sometimes("a leader that has lost the lock runs while its successor exports", |cluster, system| {
            beside_an_exporter(cluster, system, |process| led(process) && !process.paused)
        }),
        Property::sometimes("the old leader exports while its successor waits", |cluster, system: &System<N>| {
            system.lock.is_some_and(|lock| matches!(system.processes[lock.owner].state, State::Preparing { .. }))
                && exporters(cluster, system) == 1
        }),
        Property::sometimes("the lock is held by a session that nobody uses", |_, system: &System<N>| {
            system.lock.is_some_and(|lock| !lock.attached)
        }),
    ];
    if cluster.pauses {
        properties.push(Property::sometimes("a leader is paused while its successor exports", |cluster, system| {
            beside_an_exporter(cluster, system, |process| led(process) && process.paused)
        }));
    }
    if cluster.skips {
        properties.push(Property::sometimes(
            "a leader that skipped its wait exports",
            |cluster, system: &System<N>| {
                system.processes.iter().any(|process| process.skipped && cluster.exports(process))
            },
        ));
    }
    if cluster.bound.is_some() {
        properties.push(Property::always(LIVENESS, |cluster: &Cluster<N>, system: &System<N>| {
            cluster.bound.is_none_or(|bound| !is_quiet_after(cluster, system, bound) || exporters(cluster, system) == 1)
        }));
        properties.push(Property::sometimes("nobody exports until the bound", |cluster, system| {
            cluster.bound.is_some_and(|bound| is_quiet_after(cluster, system, bound - 1))
                && exporters(cluster, system) == 0
        }));
    }
    properties
}

/// Whether so many ticks have passed since the last fault and everything that is due at this instant is done.
fn is_quiet_after<const N: usize>(cluster: &Cluster<N>, system: &System<N>, ticks: u8) -> bool {
    system.phase == Phase::Calm { ticks } && !cluster.is_due(system)
}

pub fn exporters<const N: usize>(cluster: &Cluster<N>, system: &System<N>) -> usize {
    system.processes.iter().filter(|process| cluster.exports(process)).count()
}

fn believers<const N: usize>(system: &System<N>) -> usize {
    system.processes.iter().filter(|process| process.believes()).count()
}

fn led(process: &Process) -> bool {
    matches!(process.state, State::Leading(_))
}

fn beside_an_exporter<const N: usize>(
    cluster: &Cluster<N>,
    system: &System<N>,
    other: impl Fn(&Process) -> bool,
) -> bool {
    exporters(cluster, system) == 1
        && system.processes.iter().any(|process| !cluster.exports(process) && other(process))
}

/// Whether of any two exporters one was never told of a fence as long as that of the other.
fn all_strangers<const N: usize>(cluster: &Cluster<N>, system: &System<N>) -> bool {
    let exporters = || system.processes.iter().zip(cluster.fences).filter(|(process, _)| cluster.exports(process));
    let expects = |(process, own): (&Process, u8), fence: u8| own.max(process.told) >= fence;
    exporters()
        .enumerate()
        .all(|(index, one)| exporters().skip(index + 1).all(|other| !expects(one, other.1) || !expects(other, one.1)))
}
