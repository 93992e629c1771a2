//! One scrape, and what its answer says of queue state.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::checker::{Answer, Exported, Sample};

/// The request of one scrape.
pub(crate) const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: collector\r\n\r\n";

/// One GET over the connection that is kept, or over a new one, on which every step may take `limit`.
pub(crate) fn scrape(connection: &mut Option<TcpStream>, address: SocketAddr, limit: Duration) -> io::Result<Vec<u8>> {
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect_timeout(&address, limit)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
            connection.insert(stream)
        }
    };
    stream.write_all(REQUEST)?;
    receive(stream)
}

/// The same as a sample of `target`, with its times since `began`.
pub(crate) fn sample(
    target: usize,
    began: Instant,
    connection: &mut Option<TcpStream>,
    (address, limit): (SocketAddr, Duration),
) -> Sample {
    let sent = began.elapsed();
    let body = scrape(connection, address, limit);
    let received = began.elapsed();
    let answer = body.map_or_else(
        |_| {
            // The rest of an answer may still come: the next one needs another connection.
            *connection = None;
            Answer::Unreachable
        },
        |body| read(&body),
    );
    Sample { target, sent, received, answer }
}

/// Reads one answer.
pub(crate) fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut answer = Vec::with_capacity(32 * 1024);
    let mut buffer = [0; 32 * 1024];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..read]);
        if let Some(body) = body(&answer)? {
            return Ok(body.to_vec());
        }
    }
}

/// The body of an answer, once it is complete.
fn body(answer: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&answer[..end]).map_err(io::Error::other)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length =
        length.filter(|_| head.starts_with("HTTP/1.1 200")).ok_or_else(|| io::Error::other(head.to_owned()))?;
    Ok(answer.get(end + 4..end + 4 + length))
}

/// What an exposition says of queue state.
pub(crate) fn read(exposition: &[u8]) -> Answer {
    let mut snapshot = None;
    let mut age = None;
    let mut term = (None, None);
    let mut exports = false;
    for line in exposition.split(|&byte| byte == b'\n') {
        let value = |name: &[u8]| {
            let value = line.strip_prefix(name)?.strip_prefix(b" ")?;
            std::str::from_utf8(value).ok()?.parse::<f64>().ok()
        };
        // Any of the families is an export, also one without a sample.
        exports |= line.starts_with(b"# TYPE queue_messages_ready ");
        snapshot = snapshot.or_else(|| value(b"queue_state_snapshot_timestamp_seconds"));
        age = age.or_else(|| value(b"queue_state_snapshot_age_seconds"));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and positive")]
        let number = |name: &[u8]| value(name).map(|value| value as u64);
        term.0 = term.0.or_else(|| number(b"retsu_collector_term_timeline"));
        term.1 = term.1.or_else(|| number(b"retsu_collector_term"));
    }
    if !exports && snapshot.is_none() {
        return Answer::Silent;
    }
    Answer::Exporting(Exported {
        term: term.0.zip(term.1),
        // Gauges without an age are older than any limit.
        snapshot: snapshot.unwrap_or_default(),
        age: age.map_or(Duration::MAX, Duration::from_secs_f64),
    })
}

#[test]
fn an_answer_is_read_when_it_is_complete_and_by_its_families() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde";
    assert_eq!(body(&answer[..answer.len() - 1]).unwrap(), None);
    assert_eq!(body(answer).unwrap(), Some(&b"abcde"[..]));
    assert!(body(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n").is_err());
    assert_eq!(
        read(b"# TYPE process_open_fds gauge\nprocess_open_fds 3\nqueue_state_collection_success 0\n"),
        Answer::Silent
    );
    let exposition = b"retsu_collector_term_timeline 2\nretsu_collector_term 731\n# TYPE queue_messages_ready gauge\n\
        queue_state_snapshot_age_seconds 0.5\nqueue_state_snapshot_timestamp_seconds 12.25\n";
    let exported = Exported { term: Some((2, 731)), snapshot: 12.25, age: Duration::from_millis(500) };
    assert_eq!(read(exposition), Answer::Exporting(exported));
}
