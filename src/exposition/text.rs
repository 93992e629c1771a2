//! The pieces of a line that the text format 0.0.4 and OpenMetrics 1.0 write alike.

use std::fmt::Write;

/// Type of a family, as `# TYPE` names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// `# HELP` and `# TYPE`. No text of ours contains `"`, the one character whose escape differs between
/// the two formats.
pub(super) fn header(out: &mut String, name: &str, kind: Kind, help: &str) {
    out.push_str("# HELP ");
    out.push_str(name);
    out.push(' ');
    for c in help.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push_str("\n# TYPE ");
    out.push_str(name);
    out.push(' ');
    out.push_str(kind.as_str());
    out.push('\n');
}

/// A label value, escaped, without its quotes.
pub(super) fn label_value(out: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (clean, special) = rest.split_at(at);
        out.push_str(clean);
        out.push_str(match special.as_bytes().first() {
            Some(b'\\') => "\\\\",
            Some(b'"') => "\\\"",
            _ => "\\n",
        });
        rest = special.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
}

/// How many bytes [`label_value`] writes.
pub(super) fn label_value_len(value: &str) -> usize {
    value.len() + value.bytes().filter(|b| matches!(b, b'\\' | b'"' | b'\n')).count()
}

/// An integer, every digit of it: beyond 2^53 a float would not be exact.
pub(super) fn integer(out: &mut String, value: u64) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{value}");
}

/// The shortest decimal that reads back as `value`.
pub(super) fn float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        let _ = write!(out, "{value}");
    }
}

/// A family of one gauge without labels.
pub(super) fn gauge(out: &mut String, name: &str, help: &str, value: f64) {
    header(out, name, Kind::Gauge, help);
    out.push_str(name);
    out.push(' ');
    float(out, value);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    /// The inverse of [`label_value`] as the format's grammar defines it.
    fn unescape(escaped: &str) -> String {
        let mut plain = String::new();
        let mut chars = escaped.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => plain.push(match chars.next().unwrap() {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c} is no escape"),
                }),
                '"' | '\n' => panic!("{c:?} ends a value"),
                c => plain.push(c),
            }
        }
        plain
    }

    proptest! {
        #[test]
        fn a_label_value_reads_back(value in "[\\\\\"\na-c\u{e9}]{0,12}|.{0,64}") {
            let mut out = String::new();
            label_value(&mut out, &value);
            prop_assert_eq!(out.len(), label_value_len(&value));
            prop_assert_eq!(unescape(&out), value);
        }

        #[test]
        fn a_float_reads_back(value in any::<f64>()) {
            let mut out = String::new();
            float(&mut out, value);
            let read: f64 = out.parse().unwrap();
            prop_assert!(read.to_bits() == value.to_bits() || (read.is_nan() && value.is_nan()));
        }

        #[test]
        fn an_integer_keeps_every_digit(value in any::<u64>()) {
            let mut out = String::new();
            integer(&mut out, value);
            prop_assert_eq!(out.parse::<u64>().unwrap(), value);
        }
    }

    #[test]
    fn infinities_are_spelled_as_openmetrics_does() {
        let mut out = String::new();
        float(&mut out, f64::INFINITY);
        float(&mut out, f64::NEG_INFINITY);
        float(&mut out, f64::NAN);
        assert_eq!(out, "+Inf-InfNaN");
    }
}
