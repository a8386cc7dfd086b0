//! Programs in C and C++ against the library, each a job of one rank. `face/cli/tests/process_windows.rs` has those of
//! several ranks.
//!
//! They are in `c/`; each says what is wrong and ends with 1, or says `ok`.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{Language, alone, compile, folder, here, sanitizer, succeed};

fn run(source: &str, language: Language) {
    let Some(program) = compile(&format!("tests/c/{source}"), language) else { return };
    let mut command = alone(&program);
    let output = succeed(&mut command);
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
}

#[test]
fn a_rank_that_is_alone_reaches_itself_by_all_operations_and_epochs() {
    run("alone.c", Language::C);
    run("alone.c", Language::Cpp);
}

#[test]
fn the_archive_does_what_the_shared_object_does() {
    run("alone.c", Language::Archive);
}

#[test]
fn wrong_arguments_are_errors_with_words_and_change_nothing() {
    run("arguments.c", Language::C);
    run("arguments.c", Language::Cpp);
}

#[test]
fn types_have_the_sizes_and_extents_of_mpi_and_select_the_bytes_that_they_say() {
    run("types.c", Language::C);
    run("types.c", Language::Cpp);
}

#[test]
fn accumulates_of_long_doubles_are_those_of_c_to_the_last_bit() {
    run("long_double.c", Language::C);
    run("long_double.c", Language::Cpp);
}

#[test]
fn a_process_is_a_rank_once_and_its_children_are_none() {
    run("lives.c", Language::C);
}

#[test]
fn threads_share_a_window() {
    run("threads.c", Language::C);
}

/// Ends by itself, with a status and these words.
fn ends(mut command: Command, status: i32, words: &str) {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {said}");
    assert!(said.contains(words) && output.stdout.is_empty(), "{command:?}: {said}");
}

#[test]
fn a_process_that_is_no_rank_aborts_itself() {
    let Some(program) = compile("tests/c/aborts.c", Language::C) else { return };
    for when in ["early", "late"] {
        let command = |more: &[&str]| {
            let mut command = alone(&program);
            command.arg(when).args(more);
            command
        };
        ends(command(&[]), 9, when);
        // A status that no process can have.
        ends(command(&["far"]), 1, when);
    }
}

#[test]
fn the_examples_end_where_the_library_cannot_begin() {
    for example in ["histogram", "jacobi", "table"] {
        let Some(program) = compile(&format!("examples/{example}.c"), Language::C) else { return };
        let mut command = alone(&program);
        command.env("ROPEWALK_RMA_LISTEN", "127.0.0.1:0");
        ends(command, 1, "ROPEWALK_RMA_LISTEN has '127.0.0.1:0', which is no address");
    }
}

/// Built with a sanitizer, the library shows what a program does wrong: else these programs would prove nothing there.
#[test]
fn the_sanitizer_sees_memory_that_is_freed_or_too_short() {
    if sanitizer().is_none() {
        return;
    }
    let Some(program) = compile("tests/c/wrong.c", Language::C) else { return };
    for (how, words) in [("freed", "heap-use-after-free"), ("short", "heap-buffer-overflow")] {
        let output = alone(&program).arg(how).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_found = said.contains(words) && said.contains("base/src/memory/");
        assert!(!output.status.success() && is_found, "{how}: {said}");
    }
}

/// The names that the shared object exports.
fn exported() -> BTreeSet<String> {
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only"]).arg(folder().join("libropewalk-rma.so"));
    let text = String::from_utf8(succeed(&mut command).stdout).expect("names are text");
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(String::from).collect()
}

/// Functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = here().join("include/ropewalk_rma.h");
    let text = std::fs::read_to_string(header).expect("a header");
    let lines = text.lines().filter(|line| line.starts_with("int ") || line.starts_with("const "));
    let name = |line: &str| Some(line.split('(').next()?.rsplit([' ', '*']).next()?.to_string());
    lines.filter_map(name).collect()
}

#[test]
fn what_the_header_declares_is_there_and_nothing_else() {
    let (exported, declared) = (exported(), declared());
    assert!(declared.len() > 55, "{declared:?}");
    assert_eq!(exported, declared);
    let mut command = Command::new("readelf");
    let output = succeed(command.arg("-dW").arg(folder().join("libropewalk-rma.so")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Library soname: [libropewalk-rma.so.0]"), "{text}");
}
