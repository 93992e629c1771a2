//! What a look at an installation means. Pure.

use std::fmt;
use std::time::Duration;

use http::Uri;
use thiserror::Error;

use super::Options;
use super::endpoints::Endpoint;
use super::exposition::Exposition;
use super::observe::{Endpoints, Observation};

/// An installation in which everything holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    leader_service: String,
    metrics_service: String,
    url: Uri,
    leader: String,
    age: Duration,
    max_age: Duration,
    term: String,
    replicas: usize,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leader_service, metrics_service, url, leader, age, max_age, term, replicas } = self;
        writeln!(f, "Service {leader_service}: one endpoint, {leader}")?;
        writeln!(f, "{url}: state gauges, {age:.3?} old, of {max_age:?} at most")?;
        writeln!(f, "Service {metrics_service}: the leader alone exports, of replicas: {replicas}")?;
        writeln!(f, "term: {term}")
    }
}

/// Something that does not hold.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Finding {
    /// The API refuses the one verb that is needed.
    #[error("the Kubernetes API refuses what a Role has to permit in namespace {namespace}: {error}")]
    Denied {
        /// The namespace.
        namespace: String,
        /// Verb, resource and the server's reason.
        error: String,
    },
    /// The API does not answer.
    #[error("the Kubernetes API does not say who is behind the Services: {0}")]
    NoAnswer(String),
    /// Nobody is behind the leader Service.
    #[error("Service {0} has no endpoint: no ready Pod has the label of the leader")]
    NoLeader(String),
    /// More than one is behind the leader Service.
    #[error("Service {service} has {} endpoints: {}", leaders.len(), leaders.join(", "))]
    SeveralLeaders {
        /// The Service.
        service: String,
        /// Who they are.
        leaders: Vec<String>,
    },
    /// The leader Service leads nowhere.
    #[error("{url} does not answer: {error}")]
    ServiceSilent {
        /// Where it was asked.
        url: String,
        /// Why not.
        error: String,
    },
    /// The leader Service answers without state gauges.
    #[error("{url} has no state gauges")]
    NoGauges {
        /// Where it was asked.
        url: String,
    },
    /// The leader Service says that collection has failed, or says nothing of it.
    #[error("{url} does not have queue_state_collection_success 1")]
    NoSuccess {
        /// Where it was asked.
        url: String,
    },
    /// The gauges are too old.
    #[error("{url} has state gauges that are {age:?} old, and {max_age:?} is allowed")]
    Stale {
        /// Where it was asked.
        url: String,
        /// Their age.
        age: Duration,
        /// The limit.
        max_age: Duration,
    },
    /// The answer lacks what belongs to state gauges.
    #[error("{url} has state gauges without {what}")]
    Incomplete {
        /// Where it was asked.
        url: String,
        /// What is missing.
        what: &'static str,
    },
    /// Nobody is behind the metrics Service.
    #[error("Service {0} has no endpoint: it selects no Pod")]
    NoReplica(String),
    /// A replica cannot be asked, so it is not known whether it exports.
    #[error("replica {replica} does not answer: {error}")]
    ReplicaSilent {
        /// Who it is.
        replica: String,
        /// Why not.
        error: String,
    },
    /// No replica exports.
    #[error("no replica has state gauges, of replicas: {0}")]
    NoExporter(usize),
    /// More than one replica exports.
    #[error("{} replicas have state gauges: {}", .0.len(), .0.join(", "))]
    SeveralExporters(Vec<String>),
    /// The Service leads to one replica, and another exports.
    #[error("Service {service} leads to {leader}, and {exporter} has the state gauges")]
    AnotherExports {
        /// The Service.
        service: String,
        /// Its endpoint.
        leader: String,
        /// Who exports.
        exporter: String,
    },
    /// The Service answers with the gauges of another term than the one replica that exports.
    #[error("{url} answers as the leader of term {service}, and {exporter} is that of term {term}")]
    AnotherTerm {
        /// Where it was asked.
        url: String,
        /// The term of that answer.
        service: String,
        /// Who exports.
        exporter: String,
        /// Its own term.
        term: String,
    },
}

/// Everything that does not hold in `observation`, or else what it shows.
///
/// # Errors
///
/// Each [`Finding`], one at least.
pub(super) fn judge(observation: &Observation, options: &Options) -> Result<Verified, Vec<Finding>> {
    let mut findings = Vec::new();
    let leader = leader(observation, options).map_err(|found| findings.push(found)).ok();
    let exporter = exporter(observation, options).map_err(|found| findings.extend(found)).ok();
    let gauges = gauges(observation, options).map_err(|found| findings.push(found)).ok();

    if let (Some(leader), Some((exporter, _))) = (leader, exporter)
        && !leader.is(exporter)
    {
        findings.push(Finding::AnotherExports {
            service: options.leader_service.clone(),
            leader: leader.to_string(),
            exporter: exporter.to_string(),
        });
    }
    if let (Some(gauges), Some((exporter, answer))) = (&gauges, exporter)
        && answer.term().as_deref() != Some(&gauges.term)
    {
        findings.push(Finding::AnotherTerm {
            url: options.leader_url.to_string(),
            service: gauges.term.clone(),
            exporter: exporter.to_string(),
            term: answer.term().unwrap_or_else(|| "unknown".to_owned()),
        });
    }
    match (leader, gauges, &observation.endpoints) {
        (Some(leader), Some(Gauges { age, term }), Ok(endpoints)) if findings.is_empty() => Ok(Verified {
            leader_service: options.leader_service.clone(),
            metrics_service: options.metrics_service.clone(),
            url: options.leader_url.clone(),
            leader: leader.to_string(),
            age,
            max_age: options.max_age,
            term,
            replicas: endpoints.replicas.len(),
        }),
        _ => Err(findings),
    }
}

/// The one endpoint of the leader Service.
fn leader<'o>(observation: &'o Observation, options: &Options) -> Result<&'o Endpoint, Finding> {
    let service = || options.leader_service.clone();
    match &observation.endpoints {
        Err(error) if error.is_denied() => {
            Err(Finding::Denied { namespace: options.namespace.clone(), error: error.to_string() })
        }
        Err(error) => Err(Finding::NoAnswer(error.to_string())),
        Ok(Endpoints { leader, .. }) => match &leader[..] {
            [] => Err(Finding::NoLeader(service())),
            [leader] => Ok(leader),
            several => {
                let leaders = several.iter().map(ToString::to_string).collect();
                Err(Finding::SeveralLeaders { service: service(), leaders })
            }
        },
    }
}

/// The one replica that exports, and what it answers. Nothing is found where the API has not said who they are.
fn exporter<'o>(
    observation: &'o Observation,
    options: &Options,
) -> Result<(&'o Endpoint, &'o Exposition), Vec<Finding>> {
    let Ok(Endpoints { replicas, .. }) = &observation.endpoints else { return Err(Vec::new()) };
    let (mut exporters, mut findings) = (Vec::new(), Vec::new());
    for replica in replicas {
        match &replica.answer {
            Ok(answer) if answer.exports => exporters.push((&replica.endpoint, answer)),
            Ok(_) => {}
            Err(error) => findings
                .push(Finding::ReplicaSilent { replica: replica.endpoint.to_string(), error: error.to_string() }),
        }
    }
    match &exporters[..] {
        [] if replicas.is_empty() => findings.push(Finding::NoReplica(options.metrics_service.clone())),
        [] => findings.push(Finding::NoExporter(replicas.len())),
        [exporter] if findings.is_empty() => return Ok(*exporter),
        [_] => {}
        several => findings.push(Finding::SeveralExporters(several.iter().map(|(who, _)| who.to_string()).collect())),
    }
    Err(findings)
}

/// What the leader Service says of its gauges.
struct Gauges {
    age: Duration,
    term: String,
}

/// The fresh gauges that the leader Service answers with.
fn gauges(observation: &Observation, options: &Options) -> Result<Gauges, Finding> {
    let url = options.leader_url.to_string();
    let answer = match &observation.service {
        Ok(answer) => answer,
        Err(error) => return Err(Finding::ServiceSilent { url, error: error.to_string() }),
    };
    if answer.success.is_some_and(|success| success != 1.0) || (answer.exports && answer.success.is_none()) {
        return Err(Finding::NoSuccess { url });
    }
    if !answer.exports {
        return Err(Finding::NoGauges { url });
    }
    let lacks = |what| Finding::Incomplete { url: url.clone(), what };
    let age = answer.age.and_then(|age| Duration::try_from_secs_f64(age).ok());
    let age = age.ok_or_else(|| lacks("queue_state_snapshot_age_seconds"))?;
    let term = answer.term().ok_or_else(|| lacks("retsu_collector_term"))?;
    let max_age = options.max_age;
    if age > max_age { Err(Finding::Stale { url, age, max_age }) } else { Ok(Gauges { age, term }) }
}

#[cfg(test)]
mod tests;
