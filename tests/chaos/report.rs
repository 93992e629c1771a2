//! The distribution of gaps per fault, as a table and as a plot.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::checker::{Injected, Verdict};

/// What one kind of fault did, over all its injections.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// How often it was injected.
    injected: usize,
    /// Every gap, at its longest and without the time in which nobody could have led, from the shortest.
    gaps: Vec<Duration>,
    /// The declared bound.
    bound: Duration,
}

/// What every kind of fault did, by its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    rows: BTreeMap<String, Row>,
}

impl Report {
    /// Adds the faults of one cluster.
    pub(crate) fn add(&mut self, injected: &[Injected], verdict: &Verdict) {
        for fault in injected {
            let row = self.rows.entry(fault.fault.clone()).or_default();
            row.injected += 1;
            row.bound = row.bound.max(fault.bound);
        }
        for (place, gap) in &verdict.gaps {
            let Some(fault) = place.map(|place| &injected[place]) else { continue };
            let Some(row) = self.rows.get_mut(&fault.fault) else { continue };
            let gap = gap.at_most.saturating_sub(fault.outage);
            row.gaps.insert(row.gaps.partition_point(|&other| other < gap), gap);
        }
    }

    /// The rows as a Markdown table.
    pub(crate) fn table(&self) -> String {
        let mut table = "| fault | injected | gaps | shortest | median | 95 % | longest | declared bound |\n\
            | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        for (fault, row) in &self.rows {
            let seconds = |gap: Option<Duration>| {
                gap.map_or_else(|| "none".to_owned(), |gap| format!("{:.2} s", gap.as_secs_f64()))
            };
            let of = |share| seconds(quantile(&row.gaps, share));
            let (bound, gaps) = (seconds(Some(row.bound)), row.gaps.len());
            let _ = writeln!(
                table,
                "| {fault} | {} | {gaps} | {} | {} | {} | {} | {bound} |",
                row.injected,
                of(0.0),
                of(0.5),
                of(0.95),
                of(1.0)
            );
        }
        table
    }

    /// One row of points for each fault, and a mark at the bound.
    pub(crate) fn plot(&self) -> String {
        const LEFT: f64 = 330.0;
        const WIDTH: f64 = 560.0;
        const TOP: f64 = 30.0;
        const ROW: f64 = 20.0;
        let longest = self.rows.values().flat_map(|row| row.gaps.last().copied().into_iter().chain([row.bound]));
        let seconds = longest.max().unwrap_or_default().as_secs_f64().ceil().max(1.0);
        let x = |time: Duration| LEFT + time.as_secs_f64() / seconds * WIDTH;
        #[expect(clippy::cast_precision_loss, reason = "a few dozen rows")]
        let y = |row: usize| TOP + ROW * (row as f64 + 0.5);
        let (width, bottom) = (LEFT + WIDTH + 20.0, y(self.rows.len()));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{:.0}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<title>Gaps by fault: a point for each gap, a bar at the declared bound</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            bottom + 30.0
        );
        let step = (seconds / 12.0).ceil();
        let mut tick = 0.0;
        while tick <= seconds {
            let at = x(Duration::from_secs_f64(tick));
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick} s</text>",
                bottom + 16.0
            );
            tick += step;
        }
        for (place, (fault, row)) in self.rows.iter().enumerate() {
            let (y, bound) = (y(place), x(row.bound));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
                 <line x1=\"{bound:.1}\" y1=\"{:.1}\" x2=\"{bound:.1}\" y2=\"{:.1}\" stroke=\"#c00\" stroke-width=\"2\"/>",
                LEFT - 10.0,
                y + 4.0,
                escaped(fault),
                y - 8.0,
                y + 8.0
            );
            for &gap in &row.gaps {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#06c\" fill-opacity=\"0.4\"/>",
                    x(gap)
                );
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Writes the table between its marks in `docs/failover.md`, below `heading`, and the plot to
    /// `docs/failover.svg`.
    pub(crate) fn write(&self, heading: &str) {
        const BEGIN: &str = "<!-- begin: written by make chaos -->\n";
        const END: &str = "<!-- end: written by make chaos -->\n";
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let page = std::fs::read_to_string(docs.join("failover.md")).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the page has the mark of the beginning");
        let (_, after) = rest.split_once(END).expect("the page has the mark of the end");
        let page = format!("{before}{BEGIN}{heading}\n\n{}\n{END}{after}", self.table());
        std::fs::write(docs.join("failover.md"), page).unwrap();
        std::fs::write(docs.join("failover.svg"), self.plot()).unwrap();
    }
}

/// The value that `share` of the sorted values do not exceed.
fn quantile(sorted: &[Duration], share: f64) -> Option<Duration> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[test]
fn a_report_adds_up_clusters_and_takes_outages_off() {
    use retsu_collector::demo::history::Gap;

    let ms = Duration::from_millis;
    let gap = |at_most| Gap { from: 0, to: 1, began: ms(5), at_least: ms(1), at_most: ms(at_most) };
    let fault =
        |name: &str, outage| Injected { fault: name.to_owned(), began: ms(0), bound: ms(4000), outage: ms(outage) };
    let mut report = Report::default();
    let gaps = vec![(Some(0), gap(3000)), (Some(1), gap(2500)), (None, gap(9))];
    report.add(&[fault("killed", 0), fault("restarted", 1500)], &Verdict { gaps, ..Verdict::default() });
    report.add(
        &[fault("killed", 0), fault("<quiet", 0)],
        &Verdict { gaps: vec![(Some(0), gap(1000))], ..Verdict::default() },
    );
    let table = report.table();
    for row in [
        "| <quiet | 1 | 0 | none | none | none | none | 4.00 s |\n",
        "| killed | 2 | 2 | 1.00 s | 1.00 s | 3.00 s | 3.00 s | 4.00 s |\n",
        "| restarted | 1 | 1 | 1.00 s | 1.00 s | 1.00 s | 1.00 s | 4.00 s |\n",
    ] {
        assert!(table.contains(row), "{table}");
    }
    let plot = report.plot();
    assert_eq!((plot.matches("<circle").count(), plot.matches("#c00").count()), (3, 3));
    assert!(plot.contains("&lt;quiet"));
}
