//! A Kubernetes of a real API server, in which the tests are kubelet and controllers.

mod authority;
mod keeper;
mod server;

pub(crate) use server::ApiServer;
