#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;

use super::*;

/// A writer that keeps what is written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn traces_off() -> TracesSettings {
    TracesSettings { enabled: false, endpoint: String::new(), sample_ratio: 1.0, service_name: String::new() }
}

fn logging(filter: &str, format: LogFormat) -> LoggingSettings {
    LoggingSettings { filter: filter.into(), format }
}

#[test]
fn the_filter_is_changeable_at_run_time_and_a_bad_one_changes_nothing() {
    let lines = Lines::default();
    let writer = lines.clone();
    let settings = logging("warn", LogFormat::Pretty);
    let (subscriber, telemetry) = build(&settings, &traces_off(), move || writer.clone(), false).unwrap();
    let handle = telemetry.filter();
    tracing::subscriber::with_default(subscriber, || {
        let written = || {
            tracing::info!("an information");
            lines.take().contains("an information")
        };
        assert!(!written());
        handle.set("info").unwrap();
        assert!(written());
        for bad in ["", " , ", "inof", "retsu_collector=loud", "a b=info", "postgres://u:tops3cret@h"] {
            let error = handle.clone().set(bad).unwrap_err();
            assert!(matches!(error, TelemetryError::Filter(_)), "{error}");
            assert!(!error.to_string().contains("tops3cret"), "{error}");
            assert_eq!(handle.get(), "info");
            assert!(written(), "{bad:?}");
        }
        handle.set("off").unwrap();
        assert_eq!(telemetry.filter().get(), "off");
        assert!(!written());
    });
}

#[test]
fn a_json_line_is_one_object_with_the_fields_at_its_top() {
    let lines = Lines::default();
    let writer = lines.clone();
    let settings = logging("info", LogFormat::Json);
    let (subscriber, _telemetry) = build(&settings, &traces_off(), move || writer.clone(), true).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(term = "1/7", "queue state metrics collector leadership acquired");
        tracing::debug!("below the filter");
    });
    let written = lines.take();
    assert_eq!(written.lines().count(), 1, "{written}");
    let line: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(line["message"], "queue state metrics collector leadership acquired");
    assert_eq!((&line["term"], &line["level"]), (&"1/7".into(), &"INFO".into()));
}

#[test]
fn a_json_line_of_the_log_crate_does_not_name_a_file_of_the_machine_that_built_the_program() {
    let lines = Lines::default();
    let writer = lines.clone();
    let settings = logging("info", LogFormat::Json);
    let (subscriber, _telemetry) = build(&settings, &traces_off(), move || writer.clone(), false).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(target: "log", { log.file = "connect.rs", log.line = 7 }, "connecting");
    });
    let written = lines.take();
    let line: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!((&line["message"], &line["level"]), (&"connecting".into(), &"INFO".into()));
    assert!(written.lines().count() == 1 && !written.contains("log."), "{written}");
}

#[test]
fn a_line_for_people_is_one_line_without_control_characters() {
    let lines = Lines::default();
    let writer = lines.clone();
    let settings = logging("info", LogFormat::Pretty);
    let (subscriber, _telemetry) = build(&settings, &traces_off(), move || writer.clone(), false).unwrap();
    tracing::subscriber::with_default(subscriber, || tracing::info!(queue = "a\u{1b}[31m\nb", "collected"));
    let written = lines.take();
    assert!(written.lines().count() == 1 && !written.contains('\u{1b}'), "{written:?}");
}

#[test]
fn the_kubernetes_client_is_heard_only_when_the_filter_names_it() {
    for (filter, heard) in [
        ("info", false),
        ("trace", false),
        ("info,kube_client=debug", true),
        ("kube_client::client=warn,info", true),
        ("kube_client", true),
    ] {
        let lines = Lines::default();
        let writer = lines.clone();
        let settings = logging(filter, LogFormat::Pretty);
        let (subscriber, _telemetry) = build(&settings, &traces_off(), move || writer.clone(), false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "kube_client::client", "eof in poll");
            tracing::error!(target: "retsu_collector::kubernetes", "our own");
        });
        let written = lines.take();
        assert_eq!(written.contains("eof in poll"), heard, "{filter}: {written}");
        assert_eq!(written.contains("our own"), filter != "kube_client", "{filter}: {written}");
    }
}

#[cfg(feature = "otlp")]
mod traces {
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Answers one HTTP request with 200; its request line and body.
    fn receive(stream: TcpStream) -> (String, Vec<u8>) {
        let mut reader = BufReader::new(stream);
        let mut request = String::new();
        reader.read_line(&mut request).unwrap();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        (request, body)
    }

    fn settings(listener: &TcpListener) -> TracesSettings {
        TracesSettings {
            enabled: true,
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            sample_ratio: 1.0,
            service_name: "collector-under-test".into(),
        }
    }

    fn contains(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// In an async runtime, where a blocking client must be neither made nor dropped.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn spans_are_delivered_whatever_the_log_filter_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (settings, logging) = (settings(&listener), logging("off", LogFormat::Pretty));
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || sender.send(receive(listener.accept().unwrap().0)).unwrap());
        let (subscriber, telemetry) = build(&logging, &settings, io::sink, false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("refresh of the queue state").in_scope(|| ());
            tracing::debug_span!("too detailed").in_scope(|| ());
            tracing::info_span!(target: "hyper", "not ours").in_scope(|| ());
        });
        tokio::task::spawn_blocking(move || telemetry.shutdown(Duration::from_secs(10))).await.unwrap().unwrap();
        let (request, body) = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        server.join().unwrap();
        assert!(request.starts_with("POST /v1/traces HTTP/1.1"), "{request}");
        assert!(contains(&body, "refresh of the queue state") && contains(&body, "collector-under-test"));
        assert!(!contains(&body, "too detailed") && !contains(&body, "not ours"));
    }

    #[tokio::test]
    async fn a_receiver_that_does_not_answer_holds_the_shutdown_up_to_its_limit_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (subscriber, telemetry) =
            build(&logging("off", LogFormat::Pretty), &settings(&listener), io::sink, false).unwrap();
        tracing::subscriber::with_default(subscriber, || tracing::info_span!("refresh").in_scope(|| ()));
        let begin = Instant::now();
        let error = telemetry.shutdown(Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, TelemetryError::Flush(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn traces_can_be_dropped_without_a_shutdown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        drop(build(&logging("off", LogFormat::Pretty), &settings(&listener), io::sink, false).unwrap());
    }
}
