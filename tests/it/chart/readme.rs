//! The README that `helm-docs` makes of the values.

use std::process::Command;

use super::helm::{chart, run};
use crate::support::kubernetes::program;

#[test]
fn every_value_is_described_and_in_a_section() {
    let mut command = Command::new(program("helm-docs"));
    let readme = run(command.arg("--dry-run").arg("--chart-search-root").arg(chart())).unwrap();
    let rows: Vec<_> = readme.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Key ")).collect();
    assert!(rows.len() > 100, "{readme}");
    let undescribed: Vec<_> = rows.into_iter().filter(|row| row.ends_with("|  |")).collect();
    assert_eq!(undescribed, Vec::<&str>::new());
    assert!(!readme.contains("### Other Values"), "{readme}");
}
