//! What the tests that compile programs share: the shared objects, linked from the archive as an
//! installation links them, and compiler commands.

// Each test takes what it needs.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where Cargo puts the archive for its tests.
fn archive() -> PathBuf {
    let own = std::env::current_exe().expect("a running program");
    own.parent().expect("it lies in a folder").join("libmyriexpress.a")
}

/// The objects by the names under which programs find them, and the links for compilers.
pub const OBJECTS: [(&str, &str); 2] =
    [("libmyriexpress.so", "libmyriexpress.so"), ("libopen-mx.so.0", "libopen-mx.so")];

/// A folder with the shared objects.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, link) in OBJECTS {
            let script = here().join("abi/link.sh");
            succeed(Command::new("sh").arg(script).arg(archive()).arg(folder.path()).arg(name));
            if name != link {
                std::os::unix::fs::symlink(name, folder.path().join(link)).expect("a link");
            }
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
