//! Traces over OTLP/HTTP.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::TelemetryError;
use crate::config::TracesSettings;

/// Limit of one delivery.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The queue of finished spans. A thread of its own delivers them with a blocking client, so nothing of
/// it runs on, or is dropped by, an async worker.
pub(super) struct Traces(SdkTracerProvider);

impl Traces {
    pub(super) fn shutdown(self, limit: Duration) -> Result<(), TelemetryError> {
        self.0.shutdown_with_timeout(limit).map_err(|error| TelemetryError::Flush(error.to_string()))
    }
}

/// The layer that turns this program's own spans into traces, `None` when traces are off.
pub(super) fn layer<S>(settings: &TracesSettings) -> Result<Option<(impl Layer<S> + use<S>, Traces)>, TelemetryError>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    if !settings.enabled {
        return Ok(None);
    }
    // The client's TLS is compiled in when another dependency asks for it, and then it panics without a
    // provider, even for plain HTTP. One that is installed already serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", settings.endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| TelemetryError::Traces(error.to_string()))?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample_ratio))))
        .with_resource(Resource::builder().with_service_name(settings.service_name.clone()).build())
        .build();
    let tracer = provider.tracer(env!("CARGO_PKG_NAME"));
    // Independent of the log filter, and without the spans of the client that delivers spans.
    let own = Targets::new().with_target(env!("CARGO_CRATE_NAME"), LevelFilter::INFO);
    let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_filter(own);
    Ok(Some((layer, Traces(provider))))
}
