//! The endpoints of Services, as the cluster keeps them.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;

use super::calls::Calls;
use super::client::{self, Access, ClientError};
use super::denials::Denials;
use super::request_error::RequestError;

/// The label of an EndpointSlice that names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

const ENDPOINT_SLICES: &str = "endpointslices.discovery.k8s.io";

/// Requests about the EndpointSlices of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Slices {
    api: Api<EndpointSlice>,
    calls: Calls,
}

impl Slices {
    /// Those of `namespace`, through the kubeconfig files or else the service account of this Pod. Each request may
    /// take `limit`. Nothing is sent yet. To be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// The address of the API or the credentials are unusable.
    pub(crate) fn new(kubeconfig: Option<OsString>, namespace: &str, limit: Duration) -> Result<Self, ClientError> {
        let client = client::connect(&kubeconfig.map_or(Access::ServiceAccount, Access::Kubeconfig), limit)?;
        let calls = Calls::new(limit, Arc::new(|_, _, _| {}), Denials::new());
        Ok(Self { api: Api::namespaced(client, namespace), calls })
    }

    /// The slices of these Services, in one answer.
    ///
    /// # Errors
    ///
    /// Any [`RequestError`].
    pub(crate) async fn of(&self, services: [&str; 2]) -> Result<Vec<EndpointSlice>, RequestError> {
        let parameters = ListParams::default().labels(&format!("{SERVICE_NAME} in ({})", services.join(",")));
        Ok(self.calls.run("list", ENDPOINT_SLICES, self.api.list(&parameters)).await?.items)
    }
}
