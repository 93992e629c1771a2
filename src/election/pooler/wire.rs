//! A socket that is connected and encrypted by the same code as every connection of the pool.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use secrecy::SecretString;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx_core::net::tls::{CertificateInput, TlsConfig, handshake};
use sqlx_core::net::{Socket, SocketIntoBox, WithSocket, connect_tcp, connect_uds};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The message that asks for TLS: its length, then a protocol version that does not exist.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// How the driver's certificates begin that are files, when it prints them.
const FILE: &str = "file: ";

/// What the driver keeps to itself of its options. It says it only as a URL.
pub(super) struct Secrets {
    /// Empty when there is none.
    pub(super) password: SecretString,
    root: Option<CertificateInput>,
    certificate: Option<CertificateInput>,
    key: Option<CertificateInput>,
}

impl Secrets {
    pub(super) fn of(options: &PgConnectOptions) -> Self {
        // Its URL holds a host, a role and a database unescaped, and cannot be made from an IPv6 address: these
        // three are not secret, so that others can stand in for them.
        let url = options.clone().host("host").username("role").database("database").to_url_lossy();
        let file = |name| {
            let (_, value) = url.query_pairs().find(|(key, _)| key == name)?;
            Some(match value.strip_prefix(FILE) {
                Some(path) => CertificateInput::File(path.into()),
                None => CertificateInput::Inline(value.into_owned().into_bytes()),
            })
        };
        let password = percent_encoding::percent_decode_str(url.password().unwrap_or_default());
        Self {
            password: password.decode_utf8_lossy().as_ref().into(),
            root: file("sslrootcert"),
            certificate: file("sslcert"),
            key: file("sslkey"),
        }
    }
}

/// A connected socket, encrypted as the options want it.
pub(super) struct Wire(Box<dyn Socket>);

impl Wire {
    pub(super) async fn connect(options: &PgConnectOptions, secrets: &Secrets) -> Result<Self, sqlx::Error> {
        let upgrade = Upgrade { options, secrets };
        let socket = match socket_path(options) {
            Some(path) => connect_uds(path.as_ref(), upgrade).await?,
            None => connect_tcp(options.get_host(), options.get_port(), upgrade).await?,
        };
        Ok(Self(socket?))
    }
}

/// The Unix socket that the driver would connect to.
fn socket_path(options: &PgConnectOptions) -> Option<Cow<'_, str>> {
    let directory = match options.get_socket() {
        Some(directory) => directory.to_string_lossy(),
        None => options.get_host().starts_with('/').then(|| options.get_host().into())?,
    };
    Some(format!("{directory}/.s.PGSQL.{}", options.get_port()).into())
}

struct Upgrade<'a> {
    options: &'a PgConnectOptions,
    secrets: &'a Secrets,
}

impl WithSocket for Upgrade<'_> {
    type Output = Result<Box<dyn Socket>, sqlx::Error>;

    async fn with_socket<S: Socket>(self, mut socket: S) -> Self::Output {
        let mode = self.options.get_ssl_mode();
        // The driver takes `allow` for `disable`.
        if matches!(mode, PgSslMode::Disable | PgSslMode::Allow) {
            return Ok(Box::new(socket));
        }
        socket.write(&SSL_REQUEST).await?;
        let mut answer = [0];
        socket.read(&mut answer.as_mut_slice()).await?;
        match answer {
            [b'S'] => {}
            [b'N'] if matches!(mode, PgSslMode::Prefer) => return Ok(Box::new(socket)),
            [b'N'] => return Err(sqlx::Error::Tls("server does not support TLS".into())),
            _ => return Err(sqlx::Error::Protocol("unexpected answer to the request for TLS".into())),
        }
        let config = TlsConfig {
            accept_invalid_certs: !matches!(mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull),
            accept_invalid_hostnames: !matches!(mode, PgSslMode::VerifyFull),
            hostname: self.options.get_host(),
            root_cert_path: self.secrets.root.as_ref(),
            client_cert_path: self.secrets.certificate.as_ref(),
            client_key_path: self.secrets.key.as_ref(),
        };
        handshake(socket, config, SocketIntoBox).await
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut free = into.initialize_unfilled();
            match self.0.try_read(&mut free) {
                Ok(read) => {
                    into.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.0.poll_read_ready(context))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.0.poll_write_ready(context))?,
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use std::str::FromStr;

    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn what_the_driver_keeps_to_itself_is_read_back_whatever_its_characters() {
        let options = PgConnectOptions::from_str("postgres://")
            .unwrap()
            .host("2001:db8::1")
            .username("a role@with:much/in it")
            .database("100% ?#")
            .password("p@ss:w/o?r#d%25 ü\u{1f510}")
            .ssl_root_cert("/with space/100%&ü.pem")
            .ssl_client_key_from_pem("-----BEGIN PRIVATE KEY-----\n+/=\n-----END PRIVATE KEY-----\n");
        let secrets = Secrets::of(&options);
        assert_eq!(secrets.password.expose_secret(), "p@ss:w/o?r#d%25 ü\u{1f510}");
        let Some(CertificateInput::File(root)) = secrets.root else { panic!("a file") };
        assert_eq!(root.to_str(), Some("/with space/100%&ü.pem"));
        let Some(CertificateInput::Inline(key)) = secrets.key else { panic!("the key itself") };
        assert_eq!(key, b"-----BEGIN PRIVATE KEY-----\n+/=\n-----END PRIVATE KEY-----\n");
        let without = PgConnectOptions::new_without_pgpass().socket("/a directory/ü");
        assert_eq!(Secrets::of(&without).password.expose_secret(), std::env::var("PGPASSWORD").unwrap_or_default());
        assert_eq!(socket_path(&without.port(6432)).as_deref(), Some("/a directory/ü/.s.PGSQL.6432"));
        assert_eq!(socket_path(&options), None);
    }
}
