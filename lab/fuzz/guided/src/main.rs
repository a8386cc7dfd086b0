//! The same targets, steered by coverage: for compilers that can (nightly), and outside the
//! workspace for that reason. `lab/fuzz/guided/run TARGET [options of libFuzzer]` builds and runs
//! it; the target is named by the variable `ROPEWALK_FUZZ_TARGET`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ropewalk_fuzz::{Target, targets};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("ROPEWALK_FUZZ_TARGET").unwrap_or_default();
    targets::by_name(&name).unwrap_or_else(|| panic!("there is no target '{name}'"))
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
