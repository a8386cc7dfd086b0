//! The command line (not furnished yet).
fn main() {}
