//! The manual page says everything: it names each function and each constant of the header, each key of an info and each
//! variable of the environment, and its example compiles and runs.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{alone, build, folder, here, is_there, succeed};

fn page() -> String {
    std::fs::read_to_string(here().join("man/ropewalk-rma.7")).expect("the page")
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

#[test]
fn every_function_and_every_constant_of_the_header_is_named() {
    let (page, header) = (page(), std::fs::read_to_string(here().join("include/ropewalk_rma.h")));
    let (named, header) = (words(&page), header.expect("the header"));
    let is_ours = |word: &&str| word.starts_with("rw_") || word.starts_with("RW_");
    let types = ["rw_win", "rw_type", "rw_request", "rw_op", "rw_aint", "rw_count", "rw_"];
    let is_inner = |word: &str| word.ends_with("_handle") || types.contains(&word);
    let inner = ["RW_PREDEFINED", "RW_WIN_NULL", "RW_TYPE_NULL"];
    let wanted = words(&header).into_iter().filter(is_ours);
    let wanted: Vec<_> = wanted.filter(|it| !is_inner(it) && !inner.contains(it)).collect();
    assert!(wanted.len() > 130, "{wanted:?}");
    let missing: Vec<_> = wanted.into_iter().filter(|word| !named.contains(word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_key_of_an_info_and_every_variable_is_described() {
    let page = page();
    let named = words(&page);
    let text = include_str!("../src/info.rs");
    let keys = text.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" =>"));
    let keys: Vec<&str> = keys.map(|(key, _)| key).collect();
    assert!(keys.len() >= 7 && keys.contains(&"no_locks"), "{keys:?}");
    let variables = words(include_str!("../src/process.rs")).into_iter();
    let variables = variables.filter(|word| word.starts_with("ROPEWALK_"));
    let job = ropewalk_host_job::RANK_VARIABLE;
    for word in keys.into_iter().chain(variables).chain([job]) {
        assert!(named.contains(word), "{word} is not described");
    }
}

#[test]
fn the_page_is_well_formed() {
    let mut lint = Command::new("mandoc");
    let lint = lint.args(["-T", "lint", "-W", "warning"]).arg(here().join("man/ropewalk-rma.7"));
    let Ok(output) = lint.output() else {
        println!("SKIP: there is no mandoc");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn the_example_compiles_and_runs() {
    if !is_there("gcc") {
        println!("SKIP: there is no gcc");
        return;
    }
    let page = page();
    let example = page.split_once(".EX\n").and_then(|it| it.1.split_once(".EE\n"));
    let example = example.expect("an example").0.replace("\\e", "\\");
    let (source, program) = (folder().join("told.c"), folder().join("told"));
    std::fs::write(&source, example).expect("the source");
    succeed(build("gcc", &program).arg("-std=c99").arg(&source).arg("-lropewalk-rma"));
    let output = succeed(&mut alone(&program));
    assert_eq!(output.stdout, b"0 was told 0\n");
}
