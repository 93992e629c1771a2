use proptest::prelude::*;
use secrecy::ExposeSecret;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::super::connection_url::parse;
use super::*;

/// The options of a URL, as the driver has them.
fn options(url: &str) -> PgConnectOptions {
    let database = load(&Sources { flags: vec![flag("database.url", url)], ..Sources::default() }).unwrap();
    database.settings.database.connect_options().unwrap()
}

#[test]
fn every_part_of_a_url_reaches_the_driver() {
    let options = options("postgresql://us%65r:p%40ss@db.example:6432/na%2Fme?sslmode=verify-full&options[geqo]=off");
    assert_eq!((options.get_host(), options.get_port()), ("db.example", 6432));
    assert_eq!((options.get_username(), options.get_database()), ("user", Some("na/me")));
    assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
    assert_eq!(options.get_options(), Some("-c geqo=off"));
    assert_eq!(options.get_application_name(), Some("retsu-collector"));
    assert!(options.to_url_lossy().as_str().contains(":p%40ss@"));
}

#[test]
fn the_application_name_of_a_url_wins() {
    assert_eq!(options("postgres://h/d?application_name=mine").get_application_name(), Some("mine"));
}

#[test]
fn the_brackets_of_an_ipv6_address_do_not_reach_the_resolver() {
    assert_eq!(options("postgres://[::1]:5433/d").get_host(), "::1");
    assert_eq!(options("postgres:///d?host=[fe80::1]").get_host(), "fe80::1");
}

#[test]
fn a_percent_encoded_host_that_begins_with_a_slash_is_a_socket() {
    for url in ["postgres://%2Frun%2Fpg/d", "postgres:///d?host=/run/pg"] {
        assert_eq!(options(url).get_socket().unwrap(), std::path::Path::new("/run/pg"));
    }
}

/// Every URL has `tops3cret` where a password is, or where it lands when it is not encoded.
#[test]
fn a_url_that_breaks_a_rule_is_refused_without_repeating_it() {
    let table = [
        ("tops3cret", "a connection URL"),
        ("http://u:tops3cret@h/d", "a connection URL"),
        ("postgres:u:tops3cret@h/d", "a connection URL"),
        ("postgres://u:tops3cret@h:99999/d", "a connection URL"),
        ("postgres://u:tops3cret@[::1/d", "a connection URL"),
        ("postgres://u:tops3cret@h:0/d", "a port from 1"),
        ("postgres://u:tops3cret@h,g/d", "one host"),
        ("postgres://u:tops3cret@h/d#x", "`#`"),
        ("postgres://u:12#tops3cret@h/d", "`#`"),
        ("postgres://u:12/tops3cret@h/d", "after the database name"),
        ("postgres://u:12?tops3cret@h/d", "no other parameters"),
        ("postgres://u:12?tops3cret=@h/d", "no other parameters"),
        ("postgres://u:tops3cret%@h/d", "two hexadecimal digits"),
        ("postgres://u:tops3cret%zz@h/d", "two hexadecimal digits"),
        ("postgres://u:tops3cret%ff@h/d", "UTF-8"),
        ("postgres://u:tops3cret%00@h/d", "`%00`"),
        ("postgres://u:tops3cret%07@h/d", "SASLprep"),
        ("postgres://u:tops3cret😀@h/d", "SASLprep"),
        ("postgres://u@h/d?password=tops3cret%0A", "SASLprep"),
        ("postgres://u:tops3cret\t@h/d", "control characters"),
        ("postgres://u:tops3cret@h/d\n", "control characters"),
        (" postgres://u:tops3cret@h/d", "white space"),
        ("postgres://u:tops3cret@h/d?connect_timeout=3", "database.acquire_timeout_seconds"),
        ("postgres://u:tops3cret@h/d?target_session_attrs=any", "`target_session_attrs`"),
        ("postgres://u:tops3cret@h/d?sslmode=tops3cret", "verify-full in the parameter"),
        ("postgres://u:tops3cret@h/d?password=tops3cret", "twice"),
        ("postgres://u:tops3cret@h/d?host=g", "twice"),
        ("postgres://u:tops3cret@h/d?hostaddr=tops3cret", "an IP address"),
        ("postgres://u:tops3cret@h/d?port=tops3cret", "a port from 1"),
        ("postgres://u:tops3cret@h:1/d?port=1", "twice"),
        ("postgres://u:tops3cret@h/d?statement-cache-capacity=tops3cret", "statement-cache-capacity"),
        ("postgres://u:tops3cret@h/d?sslrootcert=ca.pem&sslmode=require", "verify-ca or verify-full"),
        ("postgres://u:tops3cret@h/d?sslcert=c.pem", "sslkey"),
        ("postgres://u:tops3cret@h/d?options=-c%20jit=tops3cret", "the session option `jit`, which contradicts"),
        ("postgres://u:tops3cret@h/d?options=--tcp-user-timeout%3D0", "`tcp_user_timeout`"),
        ("postgres://u:tops3cret@h/d?options=-c&options=jit=on", "`jit`"),
        ("postgres://u:tops3cret@h/d?options[Idle_Session_Timeout]=0", "`idle_session_timeout`"),
    ];
    for (url, rule) in table {
        let error = load(&Sources { flags: vec![flag("database.url", url)], ..Sources::default() }).unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(text.contains(rule), "{url:?}: {text}");
            assert!(!text.contains("tops3cret"), "{text}");
        }
        assert!(error.to_string().starts_with("database.url = [redacted] (flag --set): must "), "{error}");
    }
}

/// What SASLprep allows; the driver refuses the rest.
const PASSWORD: &str = "[ -~äßéλжあ漢€]{1,40}";

/// Encodes the bytes that a URL needs encoded, and no others.
fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

proptest! {
    #[test]
    fn an_encoded_password_is_parsed_to_the_byte(password in PASSWORD, user in "[^\0]{1,20}", name in "[^\0]{1,20}") {
        let url = format!("postgres://{}:{}@[::1]:5433/{}", encoded(&user), encoded(&password), encoded(&name));
        let parts = parse(&url).unwrap().parts;
        let parsed = parts.password.unwrap();
        prop_assert_eq!(parsed.expose_secret(), &password);
        prop_assert_eq!(parts.user.as_deref(), Some(user.as_str()));
        prop_assert_eq!(parts.dbname.as_deref(), Some(name.as_str()));
        let query = format!("postgres://[::1]/d?password={}&user={}", encoded(&password), encoded(&user));
        let parts = parse(&query).unwrap().parts;
        let parsed = parts.password.unwrap();
        prop_assert_eq!(parsed.expose_secret(), &password);
    }

    /// The driver's URL says what ours says, whatever is in it.
    #[test]
    fn the_driver_gets_every_byte(password in PASSWORD, name in "[^\0]{1,20}") {
        let parts = DatabaseParts {
            host: Some("::1".into()), port: Some(1), user: Some("u".into()), dbname: Some(name.clone()),
            password: Some(password.as_str().into()), ..DatabaseParts::default()
        };
        let source = DatabaseSource::Parts(Box::new(parts));
        let settings = DatabaseSettings { source, max_connections: 2, acquire_timeout: std::time::Duration::from_secs(1) };
        let options = settings.connect_options().unwrap();
        prop_assert_eq!(options.get_database(), Some(name.as_str()));
        let debug = format!("{options:?}");
        let expected = format!("password: Some({password:?})");
        prop_assert!(debug.contains(&expected));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".{0,60}", tail in "[ -~]{0,40}") {
        let _ = parse(&text);
        let _ = parse(&format!("postgres://{tail}"));
    }
}
