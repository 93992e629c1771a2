//! One look at an installation: the EndpointSlices of its Services, and what each replica and the leader Service
//! answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::ACCEPT;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use thiserror::Error;
use tokio::time::timeout;

use super::Options;
use super::endpoints::{Address, Count, Endpoint, of_service};
use super::exposition::{Exposition, ExpositionError, Reader};
use crate::kubernetes::{ClientError, RequestError, Slices, chain};

/// Why there is no exposition.
#[derive(Clone, Debug, Error)]
pub(super) enum ScrapeError {
    /// No answer, or half of one.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// No connection, or one that broke.
    #[error("{0}")]
    Http(String),
    /// Another status than 200.
    #[error("the answer has status {0}")]
    Status(StatusCode),
    /// The answer is no exposition of a collector.
    #[error("the answer is not what a collector writes: {0}")]
    Exposition(#[from] ExpositionError),
    /// The slice does not say where.
    #[error("its EndpointSlice has no address with a port")]
    Nowhere,
}

/// What one look has found.
#[derive(Debug)]
pub(super) struct Observation {
    /// Who is behind the Services.
    pub(super) endpoints: Result<Endpoints, RequestError>,
    /// What the leader Service answers.
    pub(super) service: Result<Exposition, ScrapeError>,
}

/// Who is behind the Services.
#[derive(Debug)]
pub(super) struct Endpoints {
    /// Those that the leader Service leads to.
    pub(super) leader: Vec<Endpoint>,
    /// All behind the metrics Service.
    pub(super) replicas: Vec<Replica>,
}

/// One endpoint of the metrics Service.
#[derive(Debug)]
pub(super) struct Replica {
    /// Who it is.
    pub(super) endpoint: Endpoint,
    /// What it answers itself.
    pub(super) answer: Result<Exposition, ScrapeError>,
}

/// Looks at an installation.
#[derive(Debug)]
pub(super) struct Observer {
    slices: Slices,
    http: Client<HttpConnector, Empty<Bytes>>,
    limit: Duration,
}

impl Observer {
    /// Each request may take `limit`, so that a look takes twice that at most.
    ///
    /// # Errors
    ///
    /// The address of the API or the credentials are unusable.
    pub(super) fn new(options: &Options, limit: Duration) -> Result<Self, ClientError> {
        let slices = Slices::new(options.kubeconfig.clone(), &options.namespace, limit)?;
        // A connection that is kept stays with its Pod, wherever the Service leads by then.
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Ok(Self { slices, http, limit })
    }

    /// Looks once.
    pub(super) async fn observe(&self, options: &Options) -> Observation {
        let (leader, metrics) = (options.leader_service.as_str(), options.metrics_service.as_str());
        let service = self.scrape(options.leader_url.clone(), self.limit);
        let endpoints = async {
            let slices = self.slices.of([leader, metrics]).await?;
            let replicas = of_service(&slices, metrics, Count::All).into_iter().map(async |endpoint| {
                let answer = self.ask(&endpoint).await;
                Replica { endpoint, answer }
            });
            Ok(Endpoints { leader: of_service(&slices, leader, Count::Ready), replicas: join_all(replicas).await })
        };
        let (endpoints, service) = tokio::join!(endpoints, service);
        Observation { endpoints, service }
    }

    /// What an endpoint answers at the first of its addresses that is reached.
    async fn ask(&self, endpoint: &Endpoint) -> Result<Exposition, ScrapeError> {
        let mut outcome = Err(ScrapeError::Nowhere);
        let urls: Vec<_> = endpoint.addresses.iter().filter_map(metrics_url).collect();
        let limit = self.limit / u32::try_from(urls.len()).unwrap_or(u32::MAX).max(1);
        for url in urls {
            outcome = self.scrape(url, limit).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    async fn scrape(&self, url: Uri, limit: Duration) -> Result<Exposition, ScrapeError> {
        timeout(limit, self.read(url)).await.unwrap_or(Err(ScrapeError::Timeout(limit)))
    }

    async fn read(&self, url: Uri) -> Result<Exposition, ScrapeError> {
        let request = Request::get(url).header(ACCEPT, "text/plain;version=0.0.4").body(Empty::new());
        let request = request.map_err(|error| ScrapeError::Http(chain(&error)))?;
        let answer = self.http.request(request).await.map_err(|error| ScrapeError::Http(chain(&error)))?;
        if answer.status() != StatusCode::OK {
            return Err(ScrapeError::Status(answer.status()));
        }
        let (mut body, mut reader) = (answer.into_body(), Reader::default());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ScrapeError::Http(chain(&error)))?;
            if let Some(bytes) = frame.data_ref() {
                reader.push(bytes)?;
            }
        }
        Ok(reader.finish()?)
    }
}

/// Where the metrics of an endpoint are.
fn metrics_url(Address { host, port }: &Address) -> Option<Uri> {
    let port = (*port)?;
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    Uri::builder().scheme("http").authority(authority).path_and_query("/metrics").build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        for (host, url) in [
            ("10.0.0.1", Some("http://10.0.0.1:24247/metrics")),
            ("fd00::1", Some("http://[fd00::1]:24247/metrics")),
            ("a.example", Some("http://a.example:24247/metrics")),
            ("not a host", None),
        ] {
            let address = Address { host: host.to_owned(), port: Some(24247) };
            assert_eq!(metrics_url(&address).map(|url| url.to_string()).as_deref(), url);
        }
        assert_eq!(metrics_url(&Address { host: "10.0.0.1".to_owned(), port: None }), None);
    }
}
