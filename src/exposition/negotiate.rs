//! Which format and which content encoding an answer takes.

/// An exposition format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The exact `Content-Type`: Prometheus 3 fails a scrape without one it knows.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    const fn media_type(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Text => ("text", "plain", "0.0.4"),
            Self::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
        }
    }
}

/// What an answer looks like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The format.
    pub format: Format,
    /// Whether the body is compressed.
    pub gzip: bool,
}

/// Decides from the values of `Accept` and `Accept-Encoding` (several headers joined by commas).
///
/// OpenMetrics is for clients that name it and want it at least as much as text; everybody else, those who
/// accept nothing we have included, gets text. An element that cannot be read counts as not there.
/// Parameters other than `version` and `q` (`charset`, Prometheus 3's `escaping`) change nothing: every
/// name we export is valid under every escaping scheme.
#[must_use]
pub fn negotiate(accept: Option<&str>, accept_encoding: Option<&str>) -> Answer {
    Answer { format: format(accept.unwrap_or("*/*")), gzip: gzip(accept_encoding.unwrap_or("")) }
}

fn format(accept: &str) -> Format {
    let text = preference(accept, Format::Text).map_or(0, |text| text.q);
    match preference(accept, Format::OpenMetrics) {
        Some(openmetrics) if openmetrics.q > 0 => {
            let named = openmetrics.specificity >= Specificity::Type;
            if text == 0 || (named && openmetrics.q >= text) { Format::OpenMetrics } else { Format::Text }
        }
        _ => Format::Text,
    }
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Specificity {
    Any,
    Family,
    Type,
    Version,
}

/// Ordered by specificity first: the most specific range decides, and of equal ones the greater weight.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Preference {
    specificity: Specificity,
    q: u16,
}

fn preference(accept: &str, format: Format) -> Option<Preference> {
    let (family, subtype, version) = format.media_type();
    split(accept, ',')
        .filter_map(|range| {
            let mut parts = split(range, ';');
            let (range_family, range_subtype) = parts.next()?.split_once('/')?;
            let (range_family, range_subtype) = (range_family.trim(), range_subtype.trim());
            let mut specificity = if range_family == "*" && range_subtype == "*" {
                Specificity::Any
            } else if !range_family.eq_ignore_ascii_case(family) {
                return None;
            } else if range_subtype == "*" {
                Specificity::Family
            } else if range_subtype.eq_ignore_ascii_case(subtype) {
                Specificity::Type
            } else {
                return None;
            };
            let mut q = 1000;
            for (name, value) in parts.map(parameter) {
                if name.eq_ignore_ascii_case("q") {
                    q = weight(value)?;
                } else if name.eq_ignore_ascii_case("version") {
                    if value != version {
                        return None;
                    }
                    specificity = Specificity::Version;
                }
            }
            Some(Preference { specificity, q })
        })
        .max()
}

fn gzip(accept_encoding: &str) -> bool {
    let weight_of = |names: &[&str]| {
        split(accept_encoding, ',')
            .filter_map(|coding| {
                let mut parts = split(coding, ';');
                let name = parts.next()?;
                if !names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted)) {
                    return None;
                }
                let q = parts.map(parameter).find(|(name, _)| name.eq_ignore_ascii_case("q"));
                q.map_or(Some(1000), |(_, value)| weight(value))
            })
            .max()
    };
    let any = weight_of(&["*"]);
    let gzip = weight_of(&["gzip", "x-gzip"]).or(any).unwrap_or(0);
    // What names neither `identity` nor `*` accepts an uncompressed answer, but does not ask for one.
    let identity = weight_of(&["identity"]).unwrap_or(0);
    gzip > 0 && gzip >= identity
}

/// A parameter's name and value, without the quotes of a quoted string.
fn parameter(text: &str) -> (&str, &str) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let value = value.trim();
    let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    (name.trim(), unquoted.unwrap_or(value))
}

/// A weight of RFC 9110 in thousandths: `0` to `1` with up to three decimals.
fn weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let thousandths = format!("{decimals:0<3}").parse().ok()?;
    match (whole, thousandths) {
        ("0", thousandths) => Some(thousandths),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

/// The elements of a list, trimmed, without the empty ones; a separator in a quoted string separates nothing.
fn split(list: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |c| {
        let inside = quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        c == separator && !inside
    })
    .map(str::trim)
    .filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    const PROMETHEUS_2: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;\
                                version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                                application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;\
                                escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    const PROMETHEUS_3_TEXT_FIRST: &str = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;\
                                           version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1";
    const PROMETHEUS_PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                                       encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;\
                                       escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";

    #[test]
    fn formats() {
        use Format::{OpenMetrics, Text};
        for (accept, expected) in [
            (None, Text),
            (Some(""), Text),
            (Some("*/*"), Text),
            (Some(PROMETHEUS_2), OpenMetrics),
            (Some(PROMETHEUS_3), OpenMetrics),
            (Some(PROMETHEUS_3_TEXT_FIRST), Text),
            (Some(PROMETHEUS_PROTOBUF), OpenMetrics),
            (Some(BROWSER), Text),
            (Some("text/plain"), Text),
            (Some("text/*"), Text),
            (Some("application/*"), OpenMetrics),
            (Some("application/openmetrics-text"), OpenMetrics),
            (Some("Application/OpenMetrics-Text; Version=1.0.0"), OpenMetrics),
            (Some("application/openmetrics-text; version=\"1.0.0\""), OpenMetrics),
            (Some("application/openmetrics-text; version=0.0.1"), Text),
            (Some("application/openmetrics-text; version=2.0.0"), Text),
            (Some("application/openmetrics-text, text/plain"), OpenMetrics),
            (Some("application/openmetrics-text;q=0.2, text/plain;q=0.3"), Text),
            (Some("application/openmetrics-text;q=0"), Text),
            (Some("application/openmetrics-text;q=0, */*"), Text),
            (Some("application/openmetrics-text;q=0, text/plain;q=0"), Text),
            (Some("text/plain;q=0, */*"), OpenMetrics),
            (Some("application/openmetrics-text;q=0.3, */*;q=0.5"), Text),
            (Some("application/openmetrics-text;q=1.1"), Text),
            (Some("application/openmetrics-text;q=nan"), Text),
            (Some("application/openmetrics-text;q=-1"), Text),
            (Some("text/plain;note=\"a,application/openmetrics-text\""), Text),
            (Some("image/png"), Text),
            (Some(",;/=\",,"), Text),
        ] {
            assert_eq!(negotiate(accept, None).format, expected, "Accept: {accept:?}");
        }
    }

    #[test]
    fn encodings() {
        for (accept_encoding, expected) in [
            (None, false),
            (Some(""), false),
            (Some("gzip"), true),
            (Some("x-gzip"), true),
            (Some("GZip"), true),
            (Some("deflate, gzip;q=1.0, *;q=0.5"), true),
            (Some("gzip;q=0"), false),
            (Some("gzip;q=0.000"), false),
            (Some("gzip;q=0, *"), false),
            (Some("*"), true),
            (Some("*;q=0"), false),
            (Some("identity"), false),
            (Some("identity;q=0"), false),
            (Some("identity;q=0, gzip;q=0.1"), true),
            (Some("identity;q=1, gzip;q=0.5"), false),
            (Some("identity;q=0.5, gzip;q=0.5"), true),
            (Some("br, deflate, zstd"), false),
            (Some("gzip;q=high"), false),
            (Some("gzipped"), false),
            (Some(";;q=1,,=,\""), false),
        ] {
            assert_eq!(negotiate(None, accept_encoding).gzip, expected, "Accept-Encoding: {accept_encoding:?}");
        }
    }

    fn range() -> impl Strategy<Value = String> {
        let media = prop::sample::select(vec![
            "*/*",
            "text/*",
            "text/plain",
            "text/plain;version=0.0.4",
            "text/html",
            "application/*",
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0",
            "application/openmetrics-text;version=0.0.1",
        ]);
        (media, 0..=1000u16).prop_map(|(media, q)| format!("{media};q={}.{:03}", q / 1000, q % 1000))
    }

    proptest! {
        #[test]
        fn any_header_has_an_answer(accept in ".{0,80}", encoding in ".{0,80}") {
            let answer = negotiate(Some(&accept), Some(&encoding));
            prop_assert!(!answer.gzip || encoding.to_ascii_lowercase().contains("gzip") || encoding.contains('*'));
            let wide = accept.contains('*') || accept.to_ascii_lowercase().contains("openmetrics");
            prop_assert!(answer.format == Format::Text || wide);
        }

        #[test]
        fn the_order_of_a_header_means_nothing(
            (ordered, shuffled) in prop::collection::vec(range(), 0..6)
                .prop_flat_map(|ranges| (Just(ranges.clone()), Just(ranges).prop_shuffle()))
        ) {
            prop_assert_eq!(negotiate(Some(&ordered.join(",")), None), negotiate(Some(&shuffled.join(" , ")), None));
        }

        #[test]
        fn a_refused_format_is_not_sent_while_the_other_is_accepted(q in 1..=1000u16) {
            let q = format!("{}.{:03}", q / 1000, q % 1000);
            let text = format!("application/openmetrics-text;q=0,text/plain;q={q}");
            prop_assert_eq!(negotiate(Some(&text), None).format, Format::Text);
            let openmetrics = format!("text/plain;q=0,application/openmetrics-text;q={q}");
            prop_assert_eq!(negotiate(Some(&openmetrics), None).format, Format::OpenMetrics);
        }

        #[test]
        fn a_weight_reads_back(q in 0..=1000u16) {
            prop_assert_eq!(weight(&format!("{}.{:03}", q / 1000, q % 1000)), Some(q));
        }
    }
}
