//! A client of the Kubernetes API.
//!
//! It is kube's client on a stack of our own. kube's default one logs every failure as an error and repeats
//! requests behind the caller's back; here a request is sent once, and who sent it decides what follows.
//!
//! The token of a service account and a kubeconfig's `tokenFile` are read again when they are 50 s old, the
//! certificates that the server is verified with at the first connection after 60 s. When a file is gone, what
//! was read last stays in use. Everything else is read once, at the start.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Client;
use kube::client::{AuthError, ConfigExt};
use kube::config::{AuthInfo, Cluster, Config, InClusterError, Kubeconfig, KubeconfigError};
use secrecy::ExposeSecret;
use thiserror::Error;
use tower::{BoxError, ServiceBuilder};

use super::retry_after;

/// How long a connection without a request is kept.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may take, without TLS: when the API is back, nobody is to wait for the kernel to try again.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A connection that is idle for so long is probed; an idle watch is what needs it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;

/// The most that hyper reads ahead of what is taken.
const READ_BUFFER: usize = 16 * 1024;

/// Where the address of the API and the credentials come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Access {
    /// The service account of the Pod: `KUBERNETES_SERVICE_HOST`, `KUBERNETES_SERVICE_PORT` and the files under
    /// `/var/run/secrets/kubernetes.io/serviceaccount`.
    ServiceAccount,
    /// Kubeconfig files, as the environment variable `KUBECONFIG` lists them.
    Kubeconfig(OsString),
}

/// Why there is no client. The text names files and addresses, never a credential.
#[derive(Debug, Error)]
pub enum ClientError {
    /// What a Pod is given is not there or unusable.
    #[error("the service account is unusable: {0}")]
    ServiceAccount(#[from] InClusterError),
    /// The kubeconfig cannot be read or names something that it does not have.
    #[error("the kubeconfig is unusable: {0}")]
    Kubeconfig(#[source] KubeconfigError),
    /// The kubeconfig is not YAML of its form. The parser would quote the place, which may be a credential.
    #[error("the kubeconfig is unusable: it is not YAML of the form of a kubeconfig")]
    Syntax,
    /// The kubeconfig turns the verification of the server off.
    #[error("the kubeconfig has `insecure-skip-tls-verify: true`: the server is always verified; name its CA instead")]
    Unverified,
    /// The address is neither https nor of this machine.
    #[error("the API server at {0} is not reached through https, which only a loopback address may do without")]
    Plain(String),
    /// The kubeconfig wants something that this program does not do.
    #[error("the kubeconfig has `{0}`, which is not supported")]
    Unsupported(&'static str),
    /// The token has characters that a header cannot carry.
    #[error("the kubeconfig's token has characters that a token cannot have")]
    Token,
    /// The credentials are unusable.
    #[error("the credentials are unusable: {0}")]
    Credentials(#[from] AuthError),
    /// The client could not be set up with all that.
    #[error("the client cannot be set up: {0}")]
    Setup(#[from] kube::Error),
}

/// A client with the credentials of `access`. Connecting, with the TLS handshake, takes `limit` at most. Nothing is
/// sent yet.
///
/// To be called in a tokio runtime, which gets the client's task.
///
/// # Errors
///
/// Any [`ClientError`].
pub(super) fn connect(access: &Access, limit: Duration) -> Result<Client, ClientError> {
    let config = match access {
        Access::ServiceAccount => Config::incluster()?,
        Access::Kubeconfig(paths) => from_kubeconfig(paths)?,
    };
    build(config, limit)
}

fn build(mut config: Config, limit: Duration) -> Result<Client, ClientError> {
    if config.accept_invalid_certs {
        return Err(ClientError::Unverified);
    }
    if !is_protected(&config.cluster_url) {
        return Err(ClientError::Plain(address(&config.cluster_url)));
    }
    let agent = HeaderValue::from_static(concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));

    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(limit.min(CONNECT_LIMIT)));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(limit));
    // Without this a handshake that hangs would outlive the request that asked for the connection.
    let connector = ServiceBuilder::new()
        .map_future(Box::pin)
        .timeout(limit)
        .service(config.rustls_https_connector_with_connector(tcp)?);
    let transport = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(READ_BUFFER)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .and_then(retry_after::in_details)
        .map_err(BoxError::from)
        .service(transport);
    Ok(Client::new(service, config.default_namespace))
}

/// What the files of `KUBECONFIG` say, the first one that says it.
fn from_kubeconfig(paths: &OsStr) -> Result<Config, ClientError> {
    let kubeconfig = std::env::split_paths(paths)
        .filter(|path| !path.as_os_str().is_empty())
        .try_fold(Kubeconfig::default(), |merged, path| merged.merge(Kubeconfig::read_from(path)?))
        .map_err(without_quotation)?;
    let cluster = current_cluster(&kubeconfig).cloned().unwrap_or_default();
    if cluster.proxy_url.is_some() {
        return Err(ClientError::Unsupported("proxy-url"));
    }
    let mut config = Config::try_from(kubeconfig).map_err(without_quotation)?;
    check_credentials(&config.auth_info)?;
    if cluster.certificate_authority_data.is_none() {
        config.root_cert_file = cluster.certificate_authority.map(PathBuf::from);
    }
    Ok(config)
}

/// The cluster of the current context.
fn current_cluster(kubeconfig: &Kubeconfig) -> Option<&Cluster> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *current)?.context.as_ref()?;
    kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()
}

/// Refuses credentials that come from another program, and a token that would panic when it is put into a header.
fn check_credentials(credentials: &AuthInfo) -> Result<(), ClientError> {
    if credentials.exec.is_some() {
        return Err(ClientError::Unsupported("exec"));
    }
    if credentials.auth_provider.is_some() {
        return Err(ClientError::Unsupported("auth-provider"));
    }
    match &credentials.token {
        Some(token) if HeaderValue::from_str(token.expose_secret()).is_err() => Err(ClientError::Token),
        _ => Ok(()),
    }
}

fn without_quotation(error: KubeconfigError) -> ClientError {
    match error {
        KubeconfigError::Parse(_) => ClientError::Syntax,
        other => ClientError::Kubeconfig(other),
    }
}

/// Whether nobody else can read or answer what is sent to `url`.
fn is_protected(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    match url.scheme_str() {
        Some("https") => true,
        Some("http") => host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
        _ => false,
    }
}

/// The host and port of `url`, without a user and a password.
fn address(url: &Uri) -> String {
    let host = url.host().unwrap_or_default();
    url.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const SECRET: &str = "t0ps3cret";

    /// What becomes of a kubeconfig with this cluster and this user.
    fn with(cluster: &str, user: &str) -> Result<Client, ClientError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
        );
        std::fs::write(file.path(), text).unwrap();
        connect(&Access::Kubeconfig(file.path().into()), Duration::from_secs(1))
    }

    /// Why it is refused, which must not tell the secret.
    fn refused(cluster: &str, user: &str) -> String {
        let error = with(cluster, user).err().unwrap();
        let (text, debug) = (error.to_string(), format!("{error:?}"));
        assert!(!text.contains(SECRET) && !debug.contains(SECRET), "{text} {debug}");
        text
    }

    #[tokio::test]
    async fn a_server_is_verified_and_reached_through_tls_or_not_at_all() {
        let user = format!("{{token: {SECRET}}}");
        for address in ["http://localhost:8001", "http://127.0.0.1:1", "http://[::1]:1", "https://10.0.0.1"] {
            assert!(with(&format!("{{server: '{address}'}}"), &user).is_ok(), "{address}");
        }
        for (cluster, why) in [
            ("{server: 'https://10.0.0.1', insecure-skip-tls-verify: true}", "insecure-skip-tls-verify"),
            ("{server: 'http://10.0.0.1:8080'}", "10.0.0.1:8080 is not reached through https"),
            ("{server: 'http://u:t0ps3cret@localhost.example'}", "localhost.example is not reached"),
            ("{server: 'https://10.0.0.1', proxy-url: 'http://u:t0ps3cret@proxy'}", "proxy-url"),
        ] {
            let text = refused(cluster, &user);
            assert!(text.contains(why), "{text}");
        }
    }

    #[tokio::test]
    async fn credentials_that_are_unusable_are_refused_without_being_told() {
        let cluster = "{server: 'https://10.0.0.1'}";
        for (user, why) in [
            ("{exec: {apiVersion: v1, command: 'echo', args: ['t0ps3cret']}}", "`exec`"),
            ("{auth-provider: {name: gcp, config: {access-token: 't0ps3cret'}}}", "`auth-provider`"),
            ("{token: \"t0ps3cret\\n\"}", "characters that a token cannot have"),
            ("{tokenFile: '/nonexistent/token'}", "/nonexistent/token"),
            ("{token: [t0ps3cret]}", "not YAML"),
            ("{token: 't0ps3cret", "not YAML"),
            (
                "{client-certificate-data: 't0ps3cret!', client-key-data: 't0ps3cret!'}",
                "failed to load client certificate",
            ),
        ] {
            let text = refused(cluster, user);
            assert!(text.contains(why), "{user}: {text}");
        }
    }

    #[test]
    fn files_that_are_not_there_are_named() {
        let error = connect(&Access::Kubeconfig("/nonexistent/a:/nonexistent/b".into()), Duration::from_secs(1));
        assert!(error.err().unwrap().to_string().contains("/nonexistent/a"));
    }
}
