//! What the collector does in Kubernetes, on a real API server.

mod cluster;
mod labels;
mod server;
