use std::path::Path;
use std::time::Duration;

use super::*;

fn settings(source: DatabaseSource) -> DatabaseSettings {
    DatabaseSettings { source, max_connections: 2, acquire_timeout: Duration::from_secs(5) }
}

fn password_file(path: &Path) -> DatabaseSettings {
    let parts = DatabaseParts { host: Some("h".into()), password_file: Some(path.into()), ..DatabaseParts::default() };
    settings(DatabaseSource::Parts(Box::new(parts)))
}

/// The password that the driver would send.
fn password(database: &DatabaseSettings) -> String {
    let debug = format!("{:?}", database.connect_options().unwrap());
    let (_, rest) = debug.split_once("password: Some(\"").unwrap();
    rest.split_once("\"), database").unwrap().0.to_owned()
}

#[test]
fn a_secret_file_is_read_again_every_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, "one").unwrap();
    let (parts, url) = (password_file(&path), settings(DatabaseSource::UrlFile(directory.path().join("url"))));
    std::fs::write(directory.path().join("url"), "postgres://u:one@h/d\n").unwrap();
    assert_eq!((password(&parts), password(&url)), ("one".into(), "one".into()));
    std::fs::write(&path, "two").unwrap();
    std::fs::write(directory.path().join("url"), "postgres://u:two@h/d\r\n").unwrap();
    assert_eq!((password(&parts), password(&url)), ("two".into(), "two".into()));
}

#[test]
fn exactly_one_trailing_newline_is_not_part_of_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    for (content, expected) in [("p", "p"), ("p\n", "p"), ("p\r\n", "p"), (" p \n", " p ")] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(password(&password_file(&path)), expected, "{content:?}");
    }
    for content in ["p\n\n", "p\r", "\np"] {
        std::fs::write(&path, content).unwrap();
        let error = password_file(&path).connect_options().unwrap_err();
        assert!(error.to_string().contains("SASLprep"), "{content:?}: {error}");
    }
}

#[test]
fn the_content_of_a_secret_file_is_checked_and_never_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    let table: [(&[u8], &str); 6] = [
        (b"", "must not be empty"),
        (b"\n", "must not be empty"),
        (b"\r\n", "must not be empty"),
        (b"tops3cret\xff", "must be UTF-8"),
        (b"tops3cret\0", "must not contain a NUL"),
        (&[b'x'; 70_000], "must not be longer than 64 KiB"),
    ];
    for (content, rule) in table {
        std::fs::write(&path, content).unwrap();
        let error = password_file(&path).connect_options().unwrap_err();
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(text.contains(rule) && text.contains("database.password_file"), "{text}");
            assert!(!text.contains("tops3cret") && !text.contains("116, 111, 112"), "{text}");
        }
        assert!(matches!(error, ConnectOptionsError::Content { .. }));
    }
    let error = password_file(&directory.path().join("missing")).connect_options().unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(matches!(error, ConnectOptionsError::Unreadable { .. }));
}

#[test]
fn a_url_in_a_file_obeys_the_same_rules_as_one_in_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("url");
    std::fs::write(&path, "postgres://u:tops3cret@h/d?connect_timeout=1").unwrap();
    let error = settings(DatabaseSource::UrlFile(path)).connect_options().unwrap_err();
    assert!(matches!(error, ConnectOptionsError::Invalid { .. }));
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.contains("connect_timeout") && !text.contains("tops3cret"), "{text}");
    }
}

#[test]
fn a_path_that_is_not_utf_8_is_refused_and_not_left_out() {
    use std::os::unix::ffi::OsStringExt;
    let path = std::ffi::OsString::from_vec(vec![0xff]).into();
    let parts =
        DatabaseParts { sslrootcert: Some(path), sslmode: Some("verify-full".into()), ..DatabaseParts::default() };
    let error = settings(DatabaseSource::Parts(Box::new(parts))).connect_options().unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
}
