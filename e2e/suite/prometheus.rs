//! What the real Prometheus of the cluster has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;

use crate::wait::eventually;

/// The longest that a query may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How often the Prometheus of the suite scrapes and evaluates.
pub(crate) const EVALUATION: Duration = Duration::from_secs(5);

/// The Prometheus that the Operator runs.
#[derive(Clone, Debug)]
pub(crate) struct Prometheus {
    address: SocketAddr,
    client: reqwest::Client,
}

/// One series of an answer: its labels, and its values with their times in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// The labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Time and value of each sample.
    pub(crate) samples: Vec<(f64, f64)>,
}

impl Prometheus {
    /// Finds it by the label that the Operator gives its Pods.
    pub(crate) async fn find(client: &Client) -> Self {
        let of_prometheus = ListParams::default().labels("app.kubernetes.io/name=prometheus");
        let pods = Api::<Pod>::all(client.clone()).list(&of_prometheus).await.unwrap();
        let address = pods.items.into_iter().find_map(|pod| pod.status?.pod_ip);
        let address = address.expect("no Prometheus of the Operator runs: run `make e2e-up`");
        let address = SocketAddr::new(address.parse().unwrap(), 9090);
        let client = reqwest::Client::builder().timeout(LIMIT).build().unwrap();
        let prometheus = Self { address, client };
        prometheus.query("vector(1)").await;
        prometheus
    }

    /// Where its Pod listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The instant vector that an expression is now.
    pub(crate) async fn query(&self, expression: &str) -> Vec<Series> {
        self.get("query", &[("query", expression)]).await
    }

    /// What an expression was every second from `from` to now.
    pub(crate) async fn history(&self, expression: &str, from: SystemTime) -> Vec<Series> {
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().to_string();
        let [start, end] = [from, SystemTime::now()].map(seconds);
        let parameters = [("query", expression), ("start", &start), ("end", &end), ("step", "1s")];
        self.get("query_range", &parameters).await
    }

    /// The alerts of one job that fire now.
    pub(crate) async fn firing_of(&self, namespace: &str, job: &str) -> BTreeSet<String> {
        let alerts = self.query(&firing(namespace, job)).await;
        alerts.into_iter().filter_map(|mut series| series.labels.remove("alertname")).collect()
    }

    /// The alerts of one job that fired at any time since `from`.
    pub(crate) async fn fired(&self, namespace: &str, job: &str, from: SystemTime) -> BTreeSet<String> {
        let alerts = self.history(&firing(namespace, job), from).await;
        alerts.into_iter().filter_map(|mut series| series.labels.remove("alertname")).collect()
    }

    async fn get(&self, what: &str, parameters: &[(&str, &str)]) -> Vec<Series> {
        let mut url = url::Url::parse(&format!("http://{}/api/v1/{what}", self.address)).unwrap();
        url.query_pairs_mut().extend_pairs(parameters);
        let answer = self.client.get(url).send().await.unwrap_or_else(|error| panic!("Prometheus: {error}"));
        let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"]["result"].as_array().unwrap().iter().map(series).collect()
    }
}

/// Waits until `condition` holds, and looks no oftener than Prometheus evaluates.
pub(crate) async fn eventually_seen(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(EVALUATION);
    eventually(limit, what, async || {
        looks.tick().await;
        condition().await
    })
    .await;
}

fn firing(namespace: &str, job: &str) -> String {
    format!("ALERTS{{namespace=\"{namespace}\", job=\"{job}\", alertstate=\"firing\"}}")
}

fn series(result: &Value) -> Series {
    let labels = result["metric"].as_object().unwrap().iter();
    let labels = labels.map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned())).collect();
    let samples = match &result["values"] {
        Value::Array(values) => values.iter().map(sample).collect(),
        _ => vec![sample(&result["value"])],
    };
    Series { labels, samples }
}

fn sample(pair: &Value) -> (f64, f64) {
    (pair[0].as_f64().unwrap(), pair[1].as_str().unwrap().parse().unwrap())
}
