//! Kernels of parallel programs of class B in network namespaces, while rails fail. All published steps are computed: five
//! minutes on two processors without other work, ten beside it.

use std::path::{Path, PathBuf};

mod kernels_support;
mod support;

use kernels_support::{bench, check, makes_namespaces};
use support::PROGRAM;

#[test]
#[ignore = "for --deep: minutes of computing"]
fn process_kernels_of_class_b_are_verified_while_rails_fail() {
    if !makes_namespaces() {
        return;
    }
    // A release build computes faster, if there is one.
    let release = Path::new(PROGRAM).parent().map(|at| at.join("../release/ropewalk"));
    let program = release.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let rows = ["kernels.is.b.tcp.64", "kernels.ft.b.tcp.8", "kernels.lu.b.tcp.1"];
    check(&bench(&program, &rows, &[]), &rows, 16);
}
