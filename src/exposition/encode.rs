//! Families of a `prometheus` registry as text.

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::negotiate::Format;
use super::text::{self, Kind};

/// Appends `families` to `out`. Registries here hold counters, gauges and histograms only.
pub(super) fn encode(out: &mut String, families: &[MetricFamily], format: Format) {
    for family in families {
        let name = family.name();
        match family.get_field_type() {
            MetricType::COUNTER => counter(out, name, family, format),
            MetricType::HISTOGRAM => histogram(out, name, family, format),
            _ => {
                text::header(out, name, Kind::Gauge, family.help());
                for metric in family.get_metric() {
                    sample(out, name, "", metric, None, metric.get_gauge().get_value());
                }
            }
        }
    }
}

fn counter(out: &mut String, name: &str, family: &MetricFamily, format: Format) {
    // OpenMetrics names the family without the suffix of its samples.
    let base = name.strip_suffix("_total").unwrap_or(name);
    match format {
        Format::Text => text::header(out, name, Kind::Counter, family.help()),
        Format::OpenMetrics => text::header(out, base, Kind::Counter, family.help()),
    }
    for metric in family.get_metric() {
        sample(out, base, "_total", metric, None, metric.get_counter().get_value());
    }
}

fn histogram(out: &mut String, name: &str, family: &MetricFamily, format: Format) {
    text::header(out, name, Kind::Histogram, family.help());
    for metric in family.get_metric() {
        let histogram = metric.get_histogram();
        for bucket in histogram.get_bucket() {
            let bound = bound(bucket.upper_bound(), format);
            sample(out, name, "_bucket", metric, Some(&bound), count(bucket.cumulative_count()));
        }
        let total = count(histogram.get_sample_count());
        sample(out, name, "_bucket", metric, Some("+Inf"), total);
        sample(out, name, "_sum", metric, None, histogram.get_sample_sum());
        sample(out, name, "_count", metric, None, total);
    }
}

/// The label `le`. OpenMetrics wants a float to look like one.
fn bound(value: f64, format: Format) -> String {
    match format {
        Format::OpenMetrics if value.fract() == 0.0 => format!("{value:.1}"),
        _ => format!("{value}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of refreshes or requests stays far below 2^53")]
fn count(value: u64) -> f64 {
    value as f64
}

fn sample(out: &mut String, name: &str, suffix: &str, metric: &Metric, le: Option<&str>, value: f64) {
    out.push_str(name);
    out.push_str(suffix);
    let labels = metric.get_label().iter().map(|pair: &LabelPair| (pair.name(), pair.value()));
    let mut open = '{';
    for (label, value) in labels.chain(le.map(|le| ("le", le))) {
        out.push(open);
        out.push_str(label);
        out.push_str("=\"");
        text::label_value(out, value);
        out.push('"');
        open = ',';
    }
    if open == ',' {
        out.push('}');
    }
    out.push(' ');
    text::float(out, value);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

    use super::*;

    fn encoded(format: Format) -> String {
        let registry = Registry::new();
        let seen = IntCounterVec::new(Opts::new("seen_total", "Seen \\ all.\nReally."), &["what"]).unwrap();
        seen.with_label_values(&["a\"b\\c\nd"]).inc_by(3);
        let took = HistogramOpts::new("took_seconds", "Took.").buckets(vec![0.5, 1.0, 2.5]);
        let took = HistogramVec::new(took, &["how"]).unwrap();
        took.with_label_values(&["well"]).observe(0.75);
        registry.register(Box::new(seen)).unwrap();
        registry.register(Box::new(took)).unwrap();
        let mut out = String::new();
        encode(&mut out, &registry.gather(), format);
        out
    }

    #[test]
    fn text_keeps_the_whole_name_of_a_counter() {
        insta::assert_snapshot!(encoded(Format::Text));
    }

    #[test]
    fn openmetrics_names_a_counter_without_total_and_bounds_as_floats() {
        insta::assert_snapshot!(encoded(Format::OpenMetrics));
    }
}
