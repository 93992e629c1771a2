//! Connections to a PostgreSQL that asks for SCRAM passwords and client certificates, over TLS and IPv6.

use std::fs;
use std::time::{Duration, Instant};

use retsu_collector::config::{DatabaseSettings, DatabaseSource, Sources, load};
use retsu_collector::database::Database;
use retsu_collector::election::Path::Direct;
use retsu_collector::election::{PoolerError, probe};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, Row};

use crate::support::{Log, Secure, database};

const RULES: &str = "local all all trust
hostssl all certified all cert
hostnossl all encrypted all reject
host all all all scram-sha-256
";

/// A server for the tests of this file.
async fn secure() -> Secure {
    Secure::start(&["localhost", "::1"], RULES, "").await
}

/// Connects with the section `database` of a configuration file.
async fn connect(database: &str) -> sqlx::Result<PgConnection> {
    database_settings(database).connect_options().unwrap_or_else(|error| panic!("{error}")).connect().await
}

fn database_settings(database: &str) -> DatabaseSettings {
    let file = Some(("test.yaml".into(), format!("database: {database}").into()));
    load(&Sources { file, ..Sources::default() }).unwrap_or_else(|error| panic!("{error}")).settings.database
}

/// Keeps what this thread logs as long as the guard lives.
fn capture(log: &Log) -> tracing::subscriber::DefaultGuard {
    // While a thread has no subscriber at all, a callsite that it reaches first may be switched off for all.
    _ = tracing::subscriber::set_global_default(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    log.capture()
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
    let server = secure().await;
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
    let parts = format!("host: '::1', port: {}, user: collector, dbname: postgres", server.port());
    let rotated = database_settings(&format!("{{url_file: {}}}", url_file.display()));
    for password in passwords {
        server.execute(&format!("ALTER ROLE collector PASSWORD '{}'", password.replace('\'', "''"))).await;
        let encoded = percent_encoding::utf8_percent_encode(password, percent_encoding::NON_ALPHANUMERIC);
        let url = format!("postgres://collector:{encoded}@[::1]:{}/postgres", server.port());
        fs::write(&secret, format!("{password}\n")).unwrap();
        fs::write(&url_file, format!("{url}\r\n")).unwrap();
        for form in [
            format!("{{url: '{url}'}}"),
            format!("{{{parts}, password: {}}}", quoted(password)),
            format!("{{{parts}, password_file: {}}}", secret.display()),
        ] {
            let connection = connect(&form).await.unwrap_or_else(|error| panic!("{password:?} {form}: {error}"));
            assert_eq!(session(connection).await, ("collector".into(), true, "retsu-collector".into()));
        }
        let connection = rotated.connect_options().unwrap().connect().await.unwrap();
        assert_eq!(session(connection).await.0, "collector", "{password:?} from a rotated file");
    }
    let log = Log::default();
    let guard = capture(&log);
    let error = connect(&format!("{{{parts}, password: tops3cret}}")).await.unwrap_err();
    let socket = server.server().socket_dir().display();
    let slow = format!("{{host: {socket}, port: {}, user: postgres, dbname: postgres}}", server.port());
    sqlx::query("SELECT pg_sleep(1.1)").execute(&mut connect(&slow).await.unwrap()).await.unwrap();
    drop(guard);
    assert!(!format!("{error} {error:?}").contains("tops3cret"), "{error}");
    let log = log.text();
    assert!(log.contains("pg_sleep") && !log.contains("tops3cret"), "{log}");
    assert!(!log.lines().any(|line| line.contains(" WARN ") || line.contains(" INFO ")), "{log}");
}

#[tokio::test]
async fn tls_is_preferred_required_and_verified_as_documented() {
    let server = secure().await;
    server.execute("CREATE ROLE encrypted LOGIN PASSWORD 'p'; CREATE ROLE plain LOGIN PASSWORD 'p'").await;
    server.execute("CREATE ROLE certified LOGIN").await;
    let (port, authority) = (server.port(), server.file("authority.pem"));
    let parts = |role: &str, host: &str, tls: &str| {
        format!("{{host: '{host}', port: {port}, user: {role}, password: p, dbname: postgres{tls}}}")
    };
    let verify = |mode: &str, authority: &str| {
        format!(", sslmode: {mode}, sslrootcert: {}", server.file(&format!("{authority}.pem")).display())
    };

    for (tls, encrypted) in
        [("", true), (", sslmode: prefer", true), (", sslmode: require", true), (", sslmode: allow", false)]
    {
        let connection = connect(&parts("plain", "::1", tls)).await.unwrap();
        assert_eq!(session(connection).await.1, encrypted, "{tls}");
    }
    connect(&parts("encrypted", "::1", ", sslmode: disable")).await.unwrap_err();

    for (mode, host) in [("verify-full", "::1"), ("verify-full", "localhost"), ("verify-ca", "127.0.0.1")] {
        let connection = connect(&parts("encrypted", host, &verify(mode, "authority"))).await;
        assert!(session(connection.unwrap_or_else(|error| panic!("{mode} {host}: {error}"))).await.1);
    }
    let url =
        format!("postgres://encrypted:p@[::1]:{port}/postgres?sslmode=verify-full&sslrootcert={}", authority.display());
    assert!(session(connect(&format!("{{url: '{url}'}}")).await.unwrap()).await.1);

    for (mode, host, authority) in [
        ("verify-full", "::1", "stranger"),
        ("verify-ca", "::1", "stranger"),
        // The certificate does not name this address.
        ("verify-full", "127.0.0.1", "authority"),
    ] {
        let error = connect(&parts("encrypted", host, &verify(mode, authority))).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{mode} {host} {authority}: {error}");
    }
    let error = connect(&parts("encrypted", "::1", ", sslmode: verify-full")).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "the system's authorities alone: {error}");

    let client = |name: &str| {
        let files = format!("sslcert: {0}.pem, sslkey: {0}.key", server.file(name).display());
        format!(
            "{{host: '::1', port: {port}, user: certified, dbname: postgres{}, {files}}}",
            verify("verify-full", "authority")
        )
    };
    assert_eq!(session(connect(&client("certified")).await.unwrap()).await.0, "certified");
    connect(&client("stranger")).await.unwrap_err();
}

#[tokio::test]
async fn the_probe_for_a_pooler_connects_in_every_way_that_the_driver_does_and_in_no_other() {
    let server = secure().await;
    for (role, method) in [("by_md5", "md5"), ("by_password", "scram-sha-256"), ("by_scram", "scram-sha-256")] {
        server.execute(&format!("SET password_encryption = '{method}'; CREATE ROLE {role} LOGIN PASSWORD 'p%ß'")).await;
    }
    server.execute("CREATE ROLE encrypted LOGIN PASSWORD 'p%ß'; CREATE ROLE certified LOGIN").await;
    let rules = "local all all trust\nhost all by_md5 all md5\nhost all by_password all password\n";
    let rules = format!("{rules}{}", RULES.strip_prefix("local all all trust\n").unwrap());
    fs::write(server.server().data_dir().join("pg_hba.conf"), rules).unwrap();
    server.execute("SELECT pg_reload_conf()").await;

    let (port, socket) = (server.port(), server.server().socket_dir().display().to_string());
    let verify = |authority: &str| {
        format!(", sslmode: verify-full, sslrootcert: {}", server.file(&format!("{authority}.pem")).display())
    };
    let certificate =
        |name: &str| format!("{}, sslcert: {1}.pem, sslkey: {1}.key", verify("authority"), server.file(name).display());
    let mut accepted = vec![("certified", "::1", certificate("certified")), ("postgres", &*socket, String::new())];
    for role in ["by_md5", "by_password", "by_scram", "encrypted"] {
        for host in ["::1", "127.0.0.1", "localhost"] {
            accepted.push((role, host, ", sslmode: require".to_owned()));
            accepted.push((role, host, String::new()));
        }
        accepted.push((role, "::1", verify("authority")));
    }
    for mode in ["disable", "allow", "prefer"] {
        accepted.push(("by_scram", "::1", format!(", sslmode: {mode}")));
    }
    let settings = |role: &str, host: &str, tls: &str| {
        database_settings(&format!(
            "{{host: '{host}', port: {port}, user: {role}, password: 'p%ß', dbname: postgres{tls}}}"
        ))
    };
    let log = Log::default();
    let guard = capture(&log);
    for (role, host, tls) in &accepted {
        let database = Database::open(settings(role, host, tls)).unwrap();
        let mut candidate = database.acquire().await.unwrap_or_else(|error| panic!("{role} {host} {tls}: {error}"));
        let path = probe(&database, &mut candidate, LIMIT).await;
        assert!(matches!(path, Ok(Direct)), "{role} {host} {tls}: {path:?}");
    }

    // The pool has its connection already when a probe with other parameters is refused.
    for (role, host, tls) in [
        ("encrypted", "::1", ", sslmode: disable".to_owned()),
        ("by_scram", "::1", verify("stranger")),
        ("by_scram", "127.0.0.1", verify("authority")),
        ("certified", "::1", certificate("stranger")),
    ] {
        let database = Database::open(settings("by_scram", "::1", "")).unwrap();
        let mut candidate = database.acquire().await.unwrap();
        database.pool().set_connect_options(settings(role, host, &tls).connect_options().unwrap());
        let error = probe(&database, &mut candidate, LIMIT).await.unwrap_err();
        assert!(matches!(error, PoolerError::Failed { .. }), "{role} {host} {tls}: {error}");
        assert!(!format!("{error} {error:?}").contains("p%"), "{error}");
    }
    drop(guard);
    assert!(!log.text().contains("p%"), "{}", log.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_hangs_holds_up_one_borrower_and_no_more() {
    let server = database().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    fs::write(&file, server.url()).unwrap();
    let acquire_timeout = Duration::from_secs(2);
    let source = DatabaseSource::UrlFile(file.clone());
    let database = Database::open(DatabaseSettings { source, max_connections: 10, acquire_timeout }).unwrap();
    drop(database.acquire().await.unwrap());
    // Whoever opens it waits for a writer, as on a mount whose server is gone.
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let began = Instant::now();
    for _ in 0..10 {
        drop(database.acquire().await.unwrap());
    }
    let took = began.elapsed();
    assert!(took >= acquire_timeout && took < 5 * acquire_timeout, "{took:?}");
    // The reader gets its end, and the file is read again.
    fs::write(&file, server.url()).unwrap();
}

#[tokio::test]
async fn every_spelling_by_which_the_server_takes_a_limit_is_refused() {
    let database = database().await;
    let spellings = [
        ("-c statement_timeout=7777", true),
        ("-cstatement_timeout=7777", true),
        ("--statement_timeout=7777", true),
        ("--Statement-Timeout=7777", true),
        ("-c\t STATEMENT_TIMEOUT=7777", true),
        ("\u{b}-c\u{c}statement_timeout=7777\n", true),
        (r"-c state\ment_timeout=7777", true),
        (r"-c my.name=a\ b --statement_timeout=7777", true),
        ("-ec statement_timeout=7777", true),
        ("-ecstatement_timeout=7777", true),
        ("-e-statement_timeout=7777", true),
        ("-S 64 -cstatement_timeout=7777", true),
        ("-c geqo=off -c statement_timeout=1 -c statement_timeout=7777", true),
        ("-c my.name=statement_timeout=7777", false),
        (r"-c my.name=a\ --statement_timeout=7777", false),
        (r"-c my.name=a\\\ -c\ statement_timeout=7777", false),
        ("-c my.statement_timeout=7777", false),
        ("-c statement_timeout 7777", false),
        ("-S --statement_timeout=7777", false),
    ];
    for (options, taken) in spellings {
        let mut url = url::Url::parse(&database.url()).unwrap();
        url.query_pairs_mut().append_pair("options", options);
        let effect = async {
            let mut connection = PgConnectOptions::from_url(&url)?.connect().await?;
            sqlx::query_scalar::<_, String>("SHOW statement_timeout").fetch_one(&mut connection).await
        };
        assert_eq!(effect.await.is_ok_and(|value| value == "7777ms"), taken, "{options:?}");
        let file = Some(("test.yaml".into(), format!("database: {{url: {}}}", quoted(url.as_str())).into()));
        let refused = load(&Sources { file, ..Sources::default() }).err().map(|error| error.to_string());
        let named = refused.as_ref().is_some_and(|error| error.contains("`statement_timeout`"));
        // What the server would not start with may be refused or left to it.
        assert!(if taken { named } else { refused.is_none() || named }, "{options:?}: {refused:?}");
    }
}

const LIMIT: Duration = Duration::from_secs(20);
