//! What the benches share.

#[allow(dead_code, reason = "not every bench looks at memory")]
pub(crate) mod resident;

use std::process::ExitCode;

/// The figures that have a bound, printed as one table at the end.
#[derive(Default)]
pub(crate) struct Bounds(Vec<(String, f64, f64, &'static str)>);

impl Bounds {
    /// A figure that must not exceed `limit`, both in `unit`.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, measured: f64, limit: f64, unit: &'static str) {
        self.0.push((what.into(), measured, limit, unit));
    }

    /// Prints the table; fails when a bound is missed.
    pub(crate) fn report(&self) -> ExitCode {
        println!("\n{:<58} {:>9} {:>9}", "bound", "measured", "limit");
        let mut missed = false;
        for (what, measured, limit, unit) in &self.0 {
            // A figure that is no number has missed its bound too.
            let met = measured <= limit;
            missed |= !met;
            let verdict = if met { "met" } else { "MISSED" };
            println!("{what:<58} {measured:>9.2} {limit:>9.2} {unit:<4} {verdict}");
        }
        if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
