//! Random sequences of faults. Whatever happened, the labels are right soon after it has stopped.
//!
//! `RETSU_TEST_KUBERNETES_SEQUENCES=N` tries so many sequences, `RETSU_TEST_KUBERNETES_SEED=N` repeats one.

mod happenings;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::iter;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::happenings::{Happening, Scene};
/// After the last fault has stopped, within this time one Pod has the label: that of the process which exports.
const RIGHT: Duration = Duration::from_secs(5);

/// While the API answers, nobody who has withdrawn has the label for longer.
const STALE: Duration = Duration::from_secs(1);

/// Faults of one sequence.
const FAULTS: usize = 8;

/// Sequences that are tried unless it is said how many.
const SEQUENCES: usize = 4;

/// Sequences at a time.
const AT_ONCE: usize = 2;

async fn sequence(seed: u64) {
    println!("seed {seed}: begins");
    let mut random = StdRng::seed_from_u64(seed);
    let mut scene = Scene::new(seed).await;
    for _ in 0..FAULTS {
        scene.pass(Duration::from_millis(random.random_range(0..1500))).await;
        let happening = Happening::random(&mut random);
        println!("seed {seed}: {:?} {happening:?}", scene.elapsed());
        scene.happen(happening).await;
    }
    scene.heal_all().await;
    let (leader, after) = scene.wait_until_right(RIGHT).await;
    println!("seed {seed}: {leader} alone is labelled and exports {after:?} after the faults");
    let judged = scene.assert_no_stale_label(STALE);
    println!("seed {seed}: {judged} withdrawals were judged");
    scene.assert_no_overlap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_any_faults_one_pod_is_labelled_and_it_is_the_one_that_exports() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seeds = match (variable("RETSU_TEST_KUBERNETES_SEED"), variable("RETSU_TEST_KUBERNETES_SEQUENCES")) {
        (Some(seed), _) => vec![seed],
        (None, sequences) => {
            let sequences = sequences.map_or(SEQUENCES, |sequences| sequences.try_into().unwrap());
            (0..sequences).map(|_| rand::random_range(0..1_000_000)).collect()
        }
    };
    iter(seeds).map(sequence).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
}
