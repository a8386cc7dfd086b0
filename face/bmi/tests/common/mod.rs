//! Shared code of the tests that compile programs: the place of the library, and compiler commands.

// Each test takes what it needs.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The folder in which Cargo puts the library for its tests.
pub fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("a running program");
    own.parent().expect("it lies in a folder").to_path_buf()
}

pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the library under the name that programs look for.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libbmi.so.0", "libbmi.so"] {
            std::os::unix::fs::symlink(libraries().join("libbmi.so"), folder.path().join(name))
                .expect("a link");
        }
        folder
    });
    folder.path()
}

pub fn is_there(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A compiler that is told where things are; sources and libraries are the caller's.
pub fn build(compiler: &str, program: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-o"]).arg(program);
    command.arg("-I").arg(here().join("include")).arg("-L").arg(folder());
    command
}

/// The build settings of a program.
#[derive(Clone, Copy)]
pub struct Build {
    pub compiler: &'static str,
    pub orangefs: bool,
    pub archive: bool,
    /// Hangs are believed late: something makes it slow.
    pub slow: bool,
}

pub const C: Build = Build { compiler: "gcc", orangefs: false, archive: false, slow: false };
pub const CPP: Build = Build { compiler: "g++", ..C };
pub const ORANGEFS: Build = Build { orangefs: true, ..C };
pub const ORANGEFS_CPP: Build = Build { compiler: "g++", ..ORANGEFS };
pub const ARCHIVE: Build = Build { archive: true, ..C };

/// Compiles the sources into one program, once; `None` where there is no such compiler.
pub fn compile(sources: &[&str], build: Build) -> Option<PathBuf> {
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if !is_there(build.compiler) {
        println!("SKIP: there is no {}", build.compiler);
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let flavour = if build.orangefs { "-orangefs" } else { "" };
    let kind = if build.archive { "-archive" } else { "" };
    let slow = if build.slow { "-slow" } else { "" };
    let stem = sources[0].trim_end_matches(".c");
    let program = folder().join(format!("{stem}-{}{flavour}{kind}{slow}", build.compiler));
    if made.contains(&program) {
        return Some(program);
    }
    let mut command = self::build(build.compiler, &program);
    if build.compiler == "g++" {
        command.args(["-x", "c++"]);
    }
    if build.orangefs {
        command.arg("-DBMI_API_ORANGEFS");
    }
    if build.slow {
        command.arg("-DHANG_SECONDS=900");
    }
    command.args(sources.iter().map(|source| here().join("tests/c").join(source)));
    if build.compiler == "g++" {
        command.args(["-x", "none"]);
    }
    if build.archive {
        command.arg(libraries().join("libbmi.a")).args(["-ldl", "-lm"]);
    } else {
        command.arg("-lbmi");
    }
    succeed(&mut command);
    made.insert(program.clone());
    Some(program)
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

/// The names in a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
