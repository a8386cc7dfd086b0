//! Kernels of parallel programs of classes W and A in network namespaces, while rails fail.

use std::path::Path;

mod kernels_support;
mod support;

use kernels_support::{bench, check, makes_namespaces};
use support::PROGRAM;

/// Two faults in each run.
fn verify(rows: &[&str]) {
    if makes_namespaces() {
        check(&bench(Path::new(PROGRAM), rows, &["--scale", "0.13"]), rows, 2);
    }
}

#[test]
fn process_kernels_of_small_size_are_verified_while_rails_fail() {
    verify(&["kernels.is.w.tcp.8", "kernels.ft.w.tcp.1", "kernels.lu.w.tcp.64"]);
}

#[test]
#[ignore = "for --deep: minutes of computing"]
fn process_kernels_of_usual_size_are_verified_while_rails_fail() {
    verify(&["kernels.is.a.tcp.64", "kernels.ft.a.tcp.8", "kernels.lu.a.tcp.1"]);
}
