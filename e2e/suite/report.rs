//! The table of take-over times.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::recorded::TakeOver;

/// What stands before and after the table in docs/e2e.md.
const BEGIN: &str = "<!-- take-over times: begin -->\n";
const END: &str = "<!-- take-over times: end -->\n";

/// Every take-over that was measured, by what was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    rows: BTreeMap<String, Vec<TakeOver>>,
}

impl Report {
    /// Adds the take-overs that followed one kind of fault.
    pub(crate) fn add(&mut self, fault: &str, takeovers: impl IntoIterator<Item = TakeOver>) {
        for takeover in takeovers {
            println!("{fault}: {takeover:?}");
            self.rows.entry(fault.to_owned()).or_default().push(takeover);
        }
    }

    /// Prints the table, and writes it into docs/e2e.md with `UPDATE_DOCS`.
    pub(crate) fn publish(&self) {
        let table = self.table();
        println!("\n{table}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/e2e.md");
            let text = std::fs::read_to_string(&path).unwrap();
            let (before, rest) = text.split_once(BEGIN).expect("docs/e2e.md has no beginning of the table");
            let (_, after) = rest.split_once(END).expect("docs/e2e.md has no end of the table");
            std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        }
    }

    fn table(&self) -> String {
        let mut table = "| what is done | times | without gauges: p50, p99, worst | to the first snapshot: p50, p99, worst \
            | EndpointSlice after the label: p50, p99, worst | ClusterIP after the EndpointSlice: p50, p99, worst | declared bound |\n\
            | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        for (fault, takeovers) in &self.rows {
            let column = |time: fn(&TakeOver) -> Option<Duration>| {
                let mut times: Vec<_> = takeovers.iter().filter_map(time).collect();
                times.sort();
                let of = |share| {
                    quantile(&times, share).map_or_else(|| "-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
                };
                format!("{}, {}, {} s", of(0.5), of(0.99), of(1.0))
            };
            let bound = takeovers.iter().map(|takeover| takeover.bound).max().unwrap_or_default();
            let _ = writeln!(
                table,
                "| {fault} | {} | {} | {} | {} | {} | {:.1} s |",
                takeovers.len(),
                column(|takeover| Some(takeover.gap)),
                column(|takeover| Some(takeover.first_snapshot)),
                column(|takeover| takeover.endpoints),
                column(|takeover| takeover.cluster_ip),
                bound.as_secs_f64(),
            );
        }
        table
    }
}

/// The smallest of the sorted `times` that a `share` of them does not exceed.
fn quantile(times: &[Duration], share: f64) -> Option<Duration> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
    let place = (times.len() as f64 * share).ceil() as usize;
    times.get(place.saturating_sub(1)).copied()
}
