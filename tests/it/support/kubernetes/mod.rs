//! A Kubernetes of a real API server, in which the tests are kubelet and controllers.

mod authority;
mod cluster;
mod identity;
mod keeper;
mod labels;
mod pods;
mod policy;
mod proxy;
mod server;
mod webhook;

pub(crate) use cluster::{Cluster, GRANTED, strict_dry_run};
pub(crate) use labels::{COST, Carried, Change, Labels, ROLE, TERM, led};
pub(crate) use pods::{CONTAINER, INSTANCE_SELECTOR};
pub(crate) use proxy::{ApiProxy, Call, Fault};
pub(crate) use server::{ApiServer, program};
pub(crate) use webhook::Webhook;
