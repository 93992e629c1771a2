//! Connections to a real PostgreSQL with TLS, SCRAM and IPv6.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection, PgConnection, Row};

use super::*;

/// PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;
const START_LIMIT: Duration = Duration::from_secs(60);

struct Server {
    process: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        // SIGQUIT is the immediate shutdown; the data is thrown away.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let _ = self.process.wait();
    }
}

/// The directory of the newest PostgreSQL's programs.
fn binaries() -> PathBuf {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut packaged: Vec<_> = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().collect();
    packaged.sort_by_key(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    let packaged = packaged.into_iter().rev().map(|entry| entry.path().join("bin"));
    packaged
        .chain(on_path)
        .find(|directory| directory.join("initdb").is_file() && directory.join("postgres").is_file())
        .expect("PostgreSQL's initdb and postgres, on PATH or as packages of the distribution")
}

fn unprivileged(command: &mut Command) -> &mut Command {
    if rustix::process::geteuid().is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn give(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Makes a key and a certificate, signed by `issuer` or by itself.
fn certificate(directory: &Path, name: &str, issuer: Option<&str>, extensions: &[&str]) {
    let file = |name: &str| directory.join(name);
    fs::write(file("openssl.cnf"), "[req]\ndistinguished_name = dn\n[dn]\n").unwrap();
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-days", "2", "-subj", &format!("/CN={name}"), "-config"]).arg(file("openssl.cnf"));
    command.arg("-keyout").arg(file(&format!("{name}.key"))).arg("-out").arg(file(&format!("{name}.pem")));
    if let Some(issuer) = issuer {
        command.arg("-CA").arg(file(&format!("{issuer}.pem"))).arg("-CAkey").arg(file(&format!("{issuer}.key")));
    }
    for extension in extensions {
        command.args(["-addext", extension]);
    }
    run(&mut command);
}

impl Server {
    async fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("retsu").tempdir().unwrap();
        let root = directory.path();
        give(root, 0o755);
        let authority = ["basicConstraints=critical,CA:TRUE"];
        certificate(root, "authority", None, &authority);
        certificate(root, "stranger", None, &authority);
        let names = "subjectAltName=DNS:localhost,IP:::1";
        certificate(root, "server", Some("authority"), &["basicConstraints=critical,CA:FALSE", names]);
        certificate(root, "certified", Some("authority"), &["basicConstraints=critical,CA:FALSE"]);
        give(&root.join("server.key"), 0o600);

        let (bin, data) = (binaries(), root.join("data"));
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]).arg(&data);
        run(unprivileged(&mut initdb).current_dir(root));
        let rules = "local all all trust\n\
                     hostssl all certified all cert\n\
                     hostnossl all encrypted all reject\n\
                     host all all all scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();

        let port = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port();
        let mut postgres = Command::new(bin.join("postgres"));
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-k"]).arg(root);
        let settings = [
            "listen_addresses=::1,127.0.0.1".to_owned(),
            "fsync=off".to_owned(),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", root.join("server.pem").display()),
            format!("ssl_key_file={}", root.join("server.key").display()),
            format!("ssl_ca_file={}", root.join("authority.pem").display()),
        ];
        for setting in &settings {
            postgres.args(["-c", setting]);
        }
        let log = fs::File::create(root.join("log")).unwrap();
        postgres.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = unprivileged(&mut postgres).current_dir(root).spawn().unwrap();
        let server = Self { process, directory, port };
        let begin = Instant::now();
        while let Err(error) = server.connect(&server.administrator()).await {
            let log = fs::read_to_string(server.file("log")).unwrap();
            assert!(begin.elapsed() < START_LIMIT, "PostgreSQL does not start: {error}\n{log}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn administrator(&self) -> String {
        format!("{{host: {}, port: {}, user: postgres, dbname: postgres}}", self.directory.path().display(), self.port)
    }

    /// Connects with the section `database` of a configuration file.
    async fn connect(&self, database: &str) -> sqlx::Result<PgConnection> {
        let settings = load(&file(&format!("database: {database}"))).unwrap_or_else(|error| panic!("{error}")).settings;
        settings.database.connect_options().unwrap_or_else(|error| panic!("{error}")).connect().await
    }

    async fn execute(&self, statement: &str) {
        let mut administrator = self.connect(&self.administrator()).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut administrator).await.unwrap();
        administrator.close().await.unwrap();
    }
}

/// Role, whether the session is encrypted, and its application name.
async fn session(mut connection: PgConnection) -> (String, bool, String) {
    let row = sqlx::query(
        "SELECT current_user::text, (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
                current_setting('application_name')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let session = (row.get(0), row.get(1), row.get(2));
    connection.close().await.unwrap();
    session
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[tokio::test]
async fn passwords_with_awkward_characters_are_accepted_in_every_form_and_rotated_without_a_restart() {
    let server = Server::start().await;
    server.execute("CREATE ROLE collector LOGIN").await;
    let passwords = [
        " :/?#[]@!$&'()*+,;=%25\"\\<>^`{|}~ ",
        "pässwörd €漢字",
        "null",
        "0123",
        "postgres://u:p@h/d",
        "${PGPASSWORD} $(id)",
        "\u{a0}x\u{ad}y\u{fb01}",
    ];
    let (secret, url_file) = (server.file("secret"), server.file("url"));
    let parts = format!("host: '::1', port: {}, user: collector, dbname: postgres", server.port);
    let rotated = load(&file(&format!("database: {{url_file: {}}}", url_file.display()))).unwrap().settings.database;
    for password in passwords {
        server.execute(&format!("ALTER ROLE collector PASSWORD '{}'", password.replace('\'', "''"))).await;
        let encoded = percent_encoding::utf8_percent_encode(password, percent_encoding::NON_ALPHANUMERIC);
        let url = format!("postgres://collector:{encoded}@[::1]:{}/postgres", server.port);
        fs::write(&secret, format!("{password}\n")).unwrap();
        fs::write(&url_file, format!("{url}\r\n")).unwrap();
        for form in [
            format!("{{url: '{url}'}}"),
            format!("{{{parts}, password: {}}}", quoted(password)),
            format!("{{{parts}, password_file: {}}}", secret.display()),
        ] {
            let connection = server.connect(&form).await.unwrap_or_else(|error| panic!("{password:?} {form}: {error}"));
            assert_eq!(session(connection).await, ("collector".into(), true, "retsu-collector".into()));
        }
        let connection = rotated.connect_options().unwrap().connect().await.unwrap();
        assert_eq!(session(connection).await.0, "collector", "{password:?} from a rotated file");
    }
    let log = Log::default();
    let guard = log.capture();
    let error = server.connect(&format!("{{{parts}, password: tops3cret}}")).await.unwrap_err();
    server.execute("SELECT pg_sleep(1.1)").await;
    drop(guard);
    assert!(!format!("{error} {error:?}").contains("tops3cret"), "{error}");
    let log = log.text();
    assert!(log.contains("pg_sleep") && !log.contains("tops3cret"), "{log}");
    assert!(!log.lines().any(|line| line.contains(" WARN ") || line.contains(" INFO ")), "{log}");
}

#[tokio::test]
async fn tls_is_preferred_required_and_verified_as_documented() {
    let server = Server::start().await;
    server.execute("CREATE ROLE encrypted LOGIN PASSWORD 'p'; CREATE ROLE plain LOGIN PASSWORD 'p'").await;
    server.execute("CREATE ROLE certified LOGIN").await;
    let (port, authority) = (server.port, server.file("authority.pem"));
    let parts = |role: &str, host: &str, tls: &str| {
        format!("{{host: '{host}', port: {port}, user: {role}, password: p, dbname: postgres{tls}}}")
    };
    let verify = |mode: &str, authority: &str| {
        format!(", sslmode: {mode}, sslrootcert: {}", server.file(&format!("{authority}.pem")).display())
    };

    for (tls, encrypted) in
        [("", true), (", sslmode: prefer", true), (", sslmode: require", true), (", sslmode: allow", false)]
    {
        let connection = server.connect(&parts("plain", "::1", tls)).await.unwrap();
        assert_eq!(session(connection).await.1, encrypted, "{tls}");
    }
    server.connect(&parts("encrypted", "::1", ", sslmode: disable")).await.unwrap_err();

    for (mode, host) in [("verify-full", "::1"), ("verify-full", "localhost"), ("verify-ca", "127.0.0.1")] {
        let connection = server.connect(&parts("encrypted", host, &verify(mode, "authority"))).await;
        assert!(session(connection.unwrap_or_else(|error| panic!("{mode} {host}: {error}"))).await.1);
    }
    let url =
        format!("postgres://encrypted:p@[::1]:{port}/postgres?sslmode=verify-full&sslrootcert={}", authority.display());
    assert!(session(server.connect(&format!("{{url: '{url}'}}")).await.unwrap()).await.1);

    for (mode, host, authority) in [
        ("verify-full", "::1", "stranger"),
        ("verify-ca", "::1", "stranger"),
        // The certificate does not name this address.
        ("verify-full", "127.0.0.1", "authority"),
    ] {
        let error = server.connect(&parts("encrypted", host, &verify(mode, authority))).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{mode} {host} {authority}: {error}");
    }
    let error = server.connect(&parts("encrypted", "::1", ", sslmode: verify-full")).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "the system's authorities alone: {error}");

    let client = |name: &str| {
        let files = format!("sslcert: {0}.pem, sslkey: {0}.key", server.file(name).display());
        format!(
            "{{host: '::1', port: {port}, user: certified, dbname: postgres{}, {files}}}",
            verify("verify-full", "authority")
        )
    };
    assert_eq!(session(server.connect(&client("certified")).await.unwrap()).await.0, "certified");
    server.connect(&client("stranger")).await.unwrap_err();
}
