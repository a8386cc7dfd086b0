//! Every target over its corpus and a bounded number of made inputs, the same ones each time.

use ropewalk_fuzz::corpus;
use ropewalk_fuzz::drive::{self, Until};
use ropewalk_fuzz::targets::TARGETS;

/// Made inputs over all targets, unless `ROPEWALK_FUZZ_ITERATIONS` says otherwise.
const ITERATIONS: u64 = 1_000_000;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")),
        Err(_) => default,
    }
}

#[test]
fn no_target_breaks_on_its_corpus_or_on_made_inputs() {
    let each = number("ROPEWALK_FUZZ_ITERATIONS", ITERATIONS) / TARGETS.len() as u64;
    let seed = number("ROPEWALK_FUZZ_SEED", 1);
    for (name, target) in TARGETS {
        let inputs = drive::run(name, *target, seed, Until::Iterations(each)).unwrap();
        assert!(inputs >= each, "{name}");
    }
}

#[test]
fn each_target_has_a_corpus_and_each_corpus_a_target() {
    for (name, _) in TARGETS {
        assert!(!corpus::read(name).unwrap().is_empty(), "{name} has no corpus");
    }
    for entry in std::fs::read_dir(corpus::folder("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "corpus {name} has no target");
    }
}
