//! What the collector does in Kubernetes, on a real API server.

mod server;
