//! A mutating admission webhook, as a cluster of other people has them.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::Cluster;
use super::cluster::{SETTLED, create};
use crate::support::eventually;

/// A webhook that sets labels and annotations on every Pod of a namespace whenever one is updated; `{count}` in a value
/// is another number each time. Updates fail once it was dropped and not [removed](Self::remove).
#[derive(Debug)]
pub(crate) struct Webhook {
    configuration: String,
    asked: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Webhook {
    /// Starts one that sets these labels and annotations, and waits until the API server asks it.
    pub(crate) async fn start(cluster: &Cluster, labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let acceptor = Arc::new(cluster.server().authority().server()).into();
        let (asked, sets) = (Arc::default(), Arc::new([object(labels), object(annotations)]));
        let serving = tokio::spawn(serve(listener, acceptor, sets, Arc::clone(&asked)));
        let configuration = format!("sets-{}", cluster.namespace());
        let webhook = json!({
            "name": "sets.retsu.test",
            "clientConfig": {"url": url, "caBundle": cluster.server().authority().bundle()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace()}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        });
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(cluster.admin().await);
        create(&configurations, json!({"metadata": {"name": configuration}, "webhooks": [webhook]})).await;
        let webhook = Self { configuration, asked, serving };
        webhook.wait_until_asked(cluster).await;
        webhook
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Takes it out of the API server, which may still ask it for an instant.
    pub(crate) async fn remove(&self, cluster: &Cluster) {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(cluster.admin().await);
        configurations.delete(&self.configuration, &DeleteParams::default()).await.unwrap();
    }

    async fn wait_until_asked(&self, cluster: &Cluster) {
        let probe = cluster.probe().await;
        let (pods, dry) = (cluster.pods().await, PatchParams { dry_run: true, ..PatchParams::default() });
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"probe": "webhook"}}}));
        eventually(SETTLED, "the webhook is asked", async || {
            pods.patch(&probe, &dry, &patch).await.unwrap();
            self.asked() > 0
        })
        .await;
        cluster.delete(&probe, true).await;
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, sets: Arc<[Value; 2]>, asked: Arc<AtomicUsize>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        tokio::spawn(answer(client, acceptor.clone(), Arc::clone(&sets), Arc::clone(&asked)));
    }
}

async fn answer(client: TcpStream, acceptor: TlsAcceptor, sets: Arc<[Value; 2]>, asked: Arc<AtomicUsize>) {
    let Ok(client) = acceptor.accept(client).await else { return };
    let service = service_fn(|request: Request<Incoming>| {
        let count = asked.fetch_add(1, Ordering::Relaxed);
        let sets = Arc::clone(&sets);
        async move {
            let body = request.collect().await.unwrap().to_bytes();
            let review = review(&serde_json::from_slice(&body).unwrap(), &sets, count);
            let mut answer = Response::new(Full::<Bytes>::from(review.to_string()));
            let json = http::HeaderValue::from_static("application/json");
            answer.headers_mut().insert(http::header::CONTENT_TYPE, json);
            Ok::<_, Infallible>(answer)
        }
    });
    _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service).await;
}

/// The answer to a review: the whole of the labels and annotations of its Pod with those that are set.
fn review(review: &Value, [labels, annotations]: &[Value; 2], count: usize) -> Value {
    let metadata = &review["request"]["object"]["metadata"];
    let operation =
        |field: &str, set: &Value| {
            let mut all = metadata[field].as_object().cloned().unwrap_or_default();
            let set = set.as_object().unwrap().iter();
            all.extend(set.map(|(key, value)| {
                (key.clone(), value.as_str().unwrap().replace("{count}", &count.to_string()).into())
            }));
            json!({"op": "add", "path": format!("/metadata/{field}"), "value": all})
        };
    let patch = json!([operation("labels", labels), operation("annotations", annotations)]);
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": {
            "uid": review["request"]["uid"],
            "allowed": true,
            "patchType": "JSONPatch",
            "patch": ByteString(patch.to_string().into_bytes()),
        },
    })
}

fn object(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|&(key, value)| (key.to_owned(), Value::from(value))).collect::<serde_json::Map<_, _>>().into()
}
