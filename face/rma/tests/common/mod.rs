//! Shared code of the tests that compile programs: the place of the library, and compiler commands. The tests of the
//! command, which run programs as several ranks, have it, too.

// Each test takes what it needs.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The folder in which Cargo puts the library for its tests.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("a running program");
    own.parent().expect("it lies in a folder").to_path_buf()
}

/// The folder of this face.
pub fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rma")
}

/// A folder with the library under the names that programs look for.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, of) in [
            ("libropewalk-rma.so.0", "libropewalk_rma_face.so"),
            ("libropewalk-rma.so", "libropewalk_rma_face.so"),
            ("libropewalk-rma.a", "libropewalk_rma_face.a"),
        ] {
            std::os::unix::fs::symlink(libraries().join(of), folder.path().join(name))
                .expect("a link");
        }
        folder
    });
    folder.path()
}

/// The sanitizer that the library is built with, as compilers call it. `cargo verify --deep` says it.
pub fn sanitizer() -> Option<String> {
    std::env::var("ROPEWALK_C_SANITIZER").ok()
}

pub fn is_there(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A compiler that is told where things are; sources and libraries are the caller's.
pub fn build(compiler: &str, program: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-o"]).arg(program);
    command.arg("-I").arg(here().join("include")).arg("-L").arg(folder());
    // The compiler's own runtime serves the library, too.
    command.args(sanitizer().map(|name| format!("-fsanitize={name}")));
    command
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    C,
    Cpp,
    /// C, with the archive in place of the shared object.
    Archive,
}

/// Compiles a source of a folder of this face, once; `None` where there is no compiler.
pub fn compile(source: &str, language: Language) -> Option<PathBuf> {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let compiler = if language == Language::Cpp { "g++" } else { "gcc" };
    if !is_there(compiler) {
        println!("SKIP: there is no {compiler}");
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = source.replace('/', "-");
    let program = folder().join(format!("{}-{language:?}", name.trim_end_matches(".c")));
    if made.contains(&program) {
        return Some(program);
    }
    let mut command = build(compiler, &program);
    match language {
        Language::Cpp => command.args(["-x", "c++"]).arg(here().join(source)).args(["-x", "none"]),
        _ => command.arg("-std=c99").arg(here().join(source)),
    };
    match language {
        Language::Archive => command.arg("-l:libropewalk-rma.a").args(["-lpthread", "-ldl", "-lm"]),
        _ => command.arg("-lropewalk-rma"),
    };
    succeed(&mut command);
    made.insert(program.clone());
    Some(program)
}

/// A program of this face that is alone, told nothing by the environment of who runs the tests.
pub fn alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ROPEWALK_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", folder());
    if sanitizer().is_some() {
        // Requests for more memory than there is are tests, too.
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=1");
    }
    command
}
