//! What the collector does in Kubernetes, on a real API server.

mod agreement;
mod answers;
mod answers_to_patches;
mod cluster;
mod collector;
mod drift;
mod elect_only;
mod events;
mod giving_way;
mod labels;
mod lifecycle;
mod manifests;
mod minutes;
mod outage;
mod panics;
mod policy;
mod proxy;
mod random_faults;
mod refresh_failures;
mod refusals;
mod replaced;
mod replicas;
mod server;
mod stage;
mod start;
mod sweep;
mod takeover;
mod undone;
mod verify;
mod watches;

/// Status of an answer of the API server.
fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("no answer: {error}"),
    }
}
