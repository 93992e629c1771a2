//! Gzip members.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

/// `plain` as one complete gzip member at level 1: queue names and HELP texts repeat so much that higher
/// levels only cost time.
#[expect(clippy::expect_used, reason = "writing to a Vec cannot fail")]
pub(super) fn member(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8 + 64), Compression::fast());
    encoder.write_all(plain).expect("a Vec takes every byte");
    let mut member = encoder.finish().expect("a Vec takes every byte");
    member.shrink_to_fit();
    Bytes::from(member)
}
