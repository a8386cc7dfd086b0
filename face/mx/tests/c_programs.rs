//! Programs in C and C++ against the library, as its users write them: over shared memory, over UDP, and
//! to themselves.
//!
//! They are in `c/`; each says what is wrong and ends with 1, or says `ok`.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use common::{folder, here, is_there, succeed};

/// Compiles a source, once; `None` where there is no such compiler.
fn compile(source: &str, compiler: &str, library: &str) -> Option<PathBuf> {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if !is_there(compiler) {
        println!("SKIP: there is no {compiler}");
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = folder().join(format!("{}-{compiler}-{library}", source.trim_end_matches(".c")));
    if made.contains(&program) {
        return Some(program);
    }
    let mut command = common::build(compiler, &program);
    if compiler == "g++" {
        command.args(["-x", "c++"]);
    }
    command.arg(here().join("tests/c").join(source));
    if compiler == "g++" {
        command.args(["-x", "none"]);
    }
    command.arg(format!("-l{library}"));
    succeed(&mut command);
    made.insert(program.clone());
    Some(program)
}

/// A program that is told nothing by the environment of who runs the tests.
fn clean(program: PathBuf, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told {
        let text = name.to_string_lossy().into_owned();
        if ["OMX_", "MX_", "ROPEWALK_MX_"].iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(name);
        }
    }
    command.args(arguments).env("LD_LIBRARY_PATH", folder()).env("TMPDIR", folder());
    command
}

fn run_with(source: &str, compiler: &str, library: &str, arguments: &[&str]) {
    let Some(program) = compile(source, compiler, library) else { return };
    let mut command = clean(program, arguments);
    let output = succeed(&mut command);
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
}

fn run(source: &str, compiler: &str, arguments: &[&str]) {
    run_with(source, compiler, "myriexpress", arguments);
}

#[test]
fn calls_keep_their_promises_in_c() {
    run("semantics.c", "gcc", &["shm"]);
    run("semantics.c", "gcc", &["udp"]);
}

#[test]
fn calls_keep_their_promises_in_cpp() {
    run("semantics.c", "g++", &["shm"]);
    run("semantics.c", "g++", &["udp"]);
}
