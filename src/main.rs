//! Parse, run, map the error to an exit code.

fn main() {}
