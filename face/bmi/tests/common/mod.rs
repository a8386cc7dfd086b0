//! What the tests that compile programs share: where the library is, and compiler commands.

// Each test takes what it needs.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where Cargo puts the library for its tests.
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
