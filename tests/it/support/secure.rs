//! A PostgreSQL with TLS, and an authority of its own.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use super::{Server, server};

/// Relative paths are below the data directory.
const CONFIGURATION: &str = "ssl = on
ssl_cert_file = 'server.pem'
ssl_key_file = 'server.key'
ssl_ca_file = 'authority.pem'
";

/// A server with TLS, and the files of its clients.
pub(crate) struct Secure {
    server: Server,
    directory: tempfile::TempDir,
}

impl Secure {
    /// One whose certificate is for `names`. `rules` are its `pg_hba.conf`, which has to trust the Unix socket;
    /// `configuration` is lines of `postgresql.conf`.
    pub(crate) async fn start(names: &[&str], rules: &str, configuration: &str) -> Self {
        let mut server = server().await;
        let directory = tempfile::tempdir().unwrap();
        certificates(directory.path(), names);

        let data = server.data_dir();
        let owner = data.metadata().unwrap();
        for name in ["server.pem", "server.key", "authority.pem"] {
            let file = data.join(name);
            fs::copy(directory.path().join(name), &file).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            // PostgreSQL reads no key that belongs to others; under root the server has a user of its own.
            chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
        let mut file = fs::File::options().append(true).open(data.join("postgresql.auto.conf")).unwrap();
        file.write_all(format!("{CONFIGURATION}{configuration}").as_bytes()).unwrap();
        server.restart_fast().await;
        Self { server, directory }
    }

    /// The server itself.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Its TCP port.
    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// A file of its clients: `NAME.pem` and `NAME.key`, where the name is `authority`, that has signed the server's
    /// certificate, `certified`, a client's that it has signed, or `stranger`, another authority.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A session of the superuser, over the Unix socket.
    pub(crate) async fn superuser(&self) -> PgConnection {
        let options = PgConnectOptions::new_without_pgpass().host(&self.server.socket_dir().to_string_lossy());
        options.port(self.port()).username("postgres").database("postgres").connect().await.unwrap()
    }

    /// Executes a statement as the superuser.
    pub(crate) async fn execute(&self, statement: &str) {
        let mut superuser = self.superuser().await;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut superuser).await.unwrap();
        superuser.close().await.unwrap();
    }
}

fn certificates(directory: &Path, names: &[&str]) {
    let authority = |name| {
        let (params, key) = request(name, IsCa::Ca(BasicConstraints::Unconstrained), &[]);
        write(directory, name, &params.self_signed(&key).unwrap(), &key);
        Issuer::new(params, key)
    };
    authority("stranger");
    let issuer = authority("authority");
    for (name, names) in [("server", names), ("certified", &[])] {
        let (params, key) = request(name, IsCa::ExplicitNoCa, names);
        write(directory, name, &params.signed_by(&key, &issuer).unwrap(), &key);
    }
}

fn request(name: &str, is_ca: IsCa, names: &[&str]) -> (CertificateParams, KeyPair) {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = is_ca;
    (params, KeyPair::generate().unwrap())
}

fn write(directory: &Path, name: &str, certificate: &rcgen::Certificate, key: &KeyPair) {
    fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
    fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}
