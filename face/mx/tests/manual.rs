//! The manual page says everything: it names each function of the headers and each variable of the environment,
//! and its example compiles.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{build, here, is_there, succeed};

fn page() -> String {
    let text = std::fs::read_to_string(here().join("man/mx.7")).expect("the page");
    text.replace("\\-", "-")
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect()
}

/// Functions of MX that a header declares: words before a parenthesis, on lines that are no type.
fn functions(header: &str, prefix: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(here().join("include").join(header)).expect("a header");
    let declarations = text.lines().filter(|line| !line.starts_with([' ', '#', '/', 't']));
    let names = declarations.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let names = names.filter_map(|name| name.strip_prefix(prefix));
    // It is called by the name of its macro.
    names.map(|name| name.replace("_init_api", "init")).collect()
}

#[test]
fn every_function_and_every_variable_is_named() {
    let page = page();
    let named = words(&page);
    let [usual, raw] = ["myriexpress.h", "mx_raw.h"].map(|header| functions(header, "mx_"));
    assert!(usual.len() > 35 && raw.len() > 15, "{usual:?} {raw:?}");
    let functions = &usual | &raw;
    let missing: Vec<_> =
        functions.iter().filter(|name| !named.contains(format!("mx_{name}").as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let variable = |word: &&str| ["ROPEWALK_", "OMX_", "MX_"].iter().any(|it| word.starts_with(it));
    let source = include_str!("../src/environment.rs");
    let read: Vec<&str> = words(source).into_iter().filter(variable).collect();
    assert!(read.len() > 12, "{read:?}");
    let missing: Vec<_> = read.into_iter().filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn variables_that_all_faces_have_are_described_here() {
    use ropewalk_host_mx::nics;
    use ropewalk_net::{capture, modules};
    let page = page();
    for variable in [
        nics::NICS_VARIABLE,
        nics::PEERS_VARIABLE,
        modules::SOCKETS_VARIABLE,
        capture::VARIABLE,
        ropewalk_net::INTERFACES_VARIABLE,
        ropewalk_net::PATHS_VARIABLE,
        ropewalk_net::WAIT_VARIABLE,
        ropewalk_host_paths::SHOW_VARIABLE,
    ] {
        assert!(page.contains(&format!(".TP\n.B {variable}\n")), "{variable} has no entry");
    }
}

#[test]
fn the_page_is_well_formed_and_its_example_compiles() {
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning", "man/mx.7"]).output();
    match lint {
        Ok(output) => {
            assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout))
        }
        // It has no option that only says that it is there.
        Err(_) => println!("SKIP: there is no mandoc"),
    }
    if !is_there("cc") {
        println!("SKIP: there is no cc");
        return;
    }
    let page = page();
    let example = page.split_once(".EX\n").and_then(|it| it.1.split_once(".EE\n"));
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("echo.c");
    std::fs::write(&source, example.expect("an example").0).expect("the source");
    let mut command = build("cc", &folder.path().join("echo"));
    succeed(command.arg(&source).arg("-lmyriexpress"));
}
