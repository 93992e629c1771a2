//! The flags of `verify`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use http::Uri;
use http::uri::InvalidUri;

use super::seconds;
use crate::config::is_dns_label;
use crate::verify::Options;

/// The flags of `verify`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The Kubernetes API is reached through the service account of this Pod, or through KUBECONFIG where that is set. The \
account may need no more than `list` of `endpointslices` in `discovery.k8s.io`.

Exit codes:
  0  everything holds
  1  something does not hold when the time is over
  2  wrong usage, or no way to the Kubernetes API")]
pub struct VerifyArgs {
    /// Namespace of the installation
    #[arg(long, value_parser = dns_label)]
    namespace: String,
    /// Service that leads to the leader
    #[arg(long, value_name = "NAME", value_parser = dns_label)]
    leader_service: String,
    /// Headless Service of all replicas
    #[arg(long, value_name = "NAME", value_parser = dns_label)]
    metrics_service: String,
    /// Port of the leader Service
    #[arg(long, default_value_t = 24247, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Where the leader Service answers with metrics [default: its name in DNS, that port, and /metrics]
    #[arg(long, value_name = "URL", value_parser = plain_http, conflicts_with = "port")]
    leader_url: Option<Uri>,
    /// Greatest age of a snapshot: collection interval and fence
    #[arg(long, value_name = "SECONDS", default_value = "18", value_parser = seconds)]
    max_age: Duration,
    /// How long to look again when something does not hold
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
}

impl VerifyArgs {
    /// What to verify, through these kubeconfig files or the service account.
    ///
    /// # Errors
    ///
    /// The names make no URL.
    pub fn options(&self, kubeconfig: Option<OsString>) -> Result<Options, InvalidUri> {
        let Self { namespace, leader_service, port, .. } = self;
        let leader_url = match &self.leader_url {
            Some(url) => url.clone(),
            None => format!("http://{leader_service}.{namespace}.svc:{port}/metrics").parse()?,
        };
        Ok(Options {
            kubeconfig,
            namespace: namespace.clone(),
            leader_service: leader_service.clone(),
            metrics_service: self.metrics_service.clone(),
            leader_url,
            max_age: self.max_age,
            timeout: self.timeout,
        })
    }
}

fn dns_label(text: &str) -> Result<String, &'static str> {
    if is_dns_label(text) { Ok(text.to_owned()) } else { Err("must be a name such as retsu-collector") }
}

fn plain_http(text: &str) -> Result<Uri, &'static str> {
    text.parse()
        .ok()
        .filter(|url: &Uri| url.scheme_str() == Some("http") && url.host().is_some_and(|host| !host.is_empty()))
        .ok_or("must be a URL such as http://retsu-collector-leader.default.svc:24247/metrics")
}
