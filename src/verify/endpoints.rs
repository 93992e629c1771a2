//! Who is behind a Service, from its EndpointSlices.

use std::fmt;

use k8s_openapi::api::discovery::v1::{self, EndpointSlice};

use crate::kubernetes::SERVICE_NAME;

/// One endpoint of a Service, with its addresses of every family.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Endpoint {
    /// The Pod's name and uid, where the cluster knows them.
    pub(super) pod: Option<(String, String)>,
    /// Where it is reached.
    pub(super) addresses: Vec<Address>,
}

/// An IPv4 or IPv6 address or a name, and the port of its slice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Address {
    /// As the slice writes it.
    pub(super) host: String,
    /// The first port of the slice.
    pub(super) port: Option<u16>,
}

impl Endpoint {
    /// Whether both are of one Pod, or have an address in common where one of the Pods is not known.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.pod, &other.pod) {
            (Some((_, uid)), Some((_, other))) => uid == other,
            _ => self.addresses.iter().any(|own| other.addresses.iter().any(|address| own.host == address.host)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.addresses.iter().map(|address| address.host.as_str()).collect::<Vec<_>>().join(", ");
        match &self.pod {
            Some((name, _)) => write!(f, "{name} ({hosts})"),
            None => f.write_str(&hosts),
        }
    }
}

/// Which endpoints count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Count {
    /// Those that the Service leads to: `ready`, or nothing said of that.
    Ready,
    /// Every one.
    All,
}

/// The endpoints of `service` in all its slices, each once: a dual-stack Service has a slice for each family, and a Pod
/// that moves between slices may be in two of them.
pub(super) fn of_service(slices: &[EndpointSlice], service: &str, count: Count) -> Vec<Endpoint> {
    let mut found: Vec<Endpoint> = Vec::new();
    for slice in slices.iter().filter(|slice| service_of(slice) == Some(service)) {
        let port = slice.ports.as_ref().and_then(|ports| ports.first()?.port?.try_into().ok());
        for listed in slice.endpoints.iter().filter(|listed| count == Count::All || is_ready(listed)) {
            let endpoint = Endpoint {
                pod: listed.target_ref.as_ref().and_then(|pod| Some((pod.name.clone()?, pod.uid.clone()?))),
                addresses: listed.addresses.iter().map(|host| Address { host: host.clone(), port }).collect(),
            };
            match found.iter_mut().find(|known| known.is(&endpoint)) {
                Some(known) => {
                    let new = endpoint.addresses.into_iter().filter(|address| !known.addresses.contains(address));
                    let new: Vec<_> = new.collect();
                    known.addresses.extend(new);
                }
                None => found.push(endpoint),
            }
        }
    }
    found
}

fn service_of(slice: &EndpointSlice) -> Option<&str> {
    slice.metadata.labels.as_ref()?.get(SERVICE_NAME).map(String::as_str)
}

fn is_ready(endpoint: &v1::Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;

    fn slice(service: &str, family: &str, endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"labels": {SERVICE_NAME: service}},
            "addressType": family,
            "ports": [{"name": "http", "port": 24247}],
            "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn pod(name: &str, address: &str) -> Value {
        json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": name, "uid": format!("uid-{name}")}})
    }

    fn with_ready(mut endpoint: Value, ready: Option<bool>) -> Value {
        endpoint["conditions"] = json!({ "ready": ready });
        endpoint
    }

    fn names(slices: &[EndpointSlice], count: Count) -> Vec<String> {
        of_service(slices, "leader", count).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_in_the_slices_of_both_families_counts_once() {
        let slices = [
            slice("leader", "IPv4", &json!([pod("a", "10.0.0.1")])),
            slice("leader", "IPv6", &json!([pod("a", "fd00::1")])),
            slice("metrics", "IPv4", &json!([pod("b", "10.0.0.2")])),
        ];
        assert_eq!(names(&slices, Count::Ready), ["a (10.0.0.1, fd00::1)"]);
        assert_eq!(of_service(&slices, "leader", Count::All)[0].addresses[1].port, Some(24247));
    }

    #[test]
    fn every_slice_counts_and_so_does_each_of_two_pods_that_had_one_address() {
        let slices = [
            slice("leader", "IPv4", &json!([pod("a", "10.0.0.1")])),
            slice("leader", "IPv4", &json!([pod("b", "10.0.0.1"), pod("c", "10.0.0.3")])),
        ];
        assert_eq!(names(&slices, Count::Ready), ["a (10.0.0.1)", "b (10.0.0.1)", "c (10.0.0.3)"]);
    }

    #[test]
    fn without_a_pod_the_address_tells_endpoints_apart() {
        let bare = |address: &str| json!({ "addresses": [address] });
        let slices = [
            slice("leader", "IPv4", &json!([bare("10.0.0.1"), bare("10.0.0.2")])),
            slice("leader", "IPv4", &json!([bare("10.0.0.1")])),
        ];
        assert_eq!(names(&slices, Count::Ready), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn what_is_said_not_to_be_ready_is_no_endpoint_and_what_is_not_said_is_one() {
        let endpoints = json!([
            with_ready(pod("a", "10.0.0.1"), Some(false)),
            with_ready(pod("b", "10.0.0.2"), Some(true)),
            with_ready(pod("c", "10.0.0.3"), None),
            pod("d", "10.0.0.4"),
        ]);
        let slices = [slice("leader", "IPv4", &endpoints), slice("leader", "IPv4", &Value::Null)];
        assert_eq!(names(&slices, Count::Ready), ["b (10.0.0.2)", "c (10.0.0.3)", "d (10.0.0.4)"]);
        assert_eq!(names(&slices, Count::All).len(), 4);
    }
}
