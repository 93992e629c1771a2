//! A real API server that knows the resources of the Prometheus Operator and of KEDA, and both families of addresses.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::helm::read;
use super::objects::{kind, name, namespace};
use crate::support::eventually;
use crate::support::kubernetes::{ApiServer, Cluster, strict_dry_run};

/// Until a new kind of resource is served.
const SERVED: Duration = Duration::from_secs(30);

/// A namespace on the API server that the tests of the chart share.
pub(super) async fn cluster() -> Cluster {
    static SHARED: OnceCell<Arc<ApiServer>> = OnceCell::const_new();
    let server = SHARED.get_or_init(|| async {
        let server = ApiServer::own(&["--service-cluster-ip-range=10.0.0.0/24,fd00::/112"]).await;
        install_definitions(&server.admin().await).await;
        server
    });
    Cluster::on(Arc::clone(server.await)).await
}

async fn install_definitions(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/crds");
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|_| panic!("no definitions: run `make tools`"));
    for entry in entries {
        let definition = read(&entry.unwrap().path());
        let parameters = PatchParams::apply("test");
        definitions.patch(name(&definition), &parameters, &Patch::Apply(&definition)).await.unwrap();
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
        let gvk = GroupVersionKind::gvk(&group, &text(&spec["versions"][0]["name"]), &kind);
        eventually(SERVED, &format!("{kind} is served"), async || pinned_kind(client, &gvk).await.is_ok()).await;
    }
}

/// Creates a namespace that does not exist yet.
pub(super) async fn ensure_namespace(client: &Client, namespace: &str) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces.patch(namespace, &PatchParams::apply("test"), &Patch::Apply(object)).await.unwrap();
}

/// The resource that an object is of, and its scope.
pub(super) async fn resource(client: &Client, object: &Value) -> (ApiResource, Scope) {
    let (group, version) = split(object);
    let gvk = GroupVersionKind::gvk(group, version, kind(object));
    let (resource, capabilities) = pinned_kind(client, &gvk).await.unwrap_or_else(|error| panic!("{gvk:?}: {error}"));
    (resource, capabilities.scope)
}

/// Group and version of an object.
pub(super) fn split(object: &Value) -> (&str, &str) {
    let version = object["apiVersion"].as_str().unwrap();
    version.split_once('/').unwrap_or(("", version))
}

/// The API for one object, by its own namespace.
pub(super) async fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (resource, scope) = resource(client, object).await;
    match scope {
        Scope::Cluster => {
            assert_eq!(namespace(object), "", "{} has no namespace", kind(object));
            Api::all_with(client.clone(), &resource)
        }
        Scope::Namespaced => {
            assert_ne!(namespace(object), "", "{} {} is in whatever namespace", kind(object), name(object));
            ensure_namespace(client, namespace(object)).await;
            Api::namespaced_with(client.clone(), namespace(object), &resource)
        }
    }
}

/// What the API server says of an object with all its fields, without keeping it.
pub(super) async fn dry_run(client: &Client, object: &Value) -> Result<DynamicObject, kube::Error> {
    let parameters = strict_dry_run();
    api_of(client, object).await.patch(name(object), &parameters, &Patch::Apply(object)).await
}
