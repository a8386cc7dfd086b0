//! Shared code of the tests that compile programs: the shared objects, linked from the archive as an
//! installation links them, and compiler commands.

// Each test takes what it needs.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The archive that Cargo makes for its tests.
fn archive() -> PathBuf {
    let own = std::env::current_exe().expect("a running program");
    own.parent().expect("it lies in a folder").join("libropewalk_mx.a")
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

/// Compiles a source, once; `None` where there is no such compiler.
pub fn compile(source: &str, compiler: &str, library: &str) -> Option<PathBuf> {
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
    let mut command = build(compiler, &program);
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
pub fn clean(program: &Path, arguments: &[&str]) -> Command {
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

pub fn run_with(source: &str, compiler: &str, library: &str, arguments: &[&str]) {
    let Some(program) = compile(source, compiler, library) else { return };
    let mut command = clean(&program, arguments);
    let output = succeed(&mut command);
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
}
