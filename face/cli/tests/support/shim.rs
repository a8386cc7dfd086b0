//! Deaths at chosen system calls: a small library in C that is loaded into the victim.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};

/// The point at which a process is to die.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KillAt {
    /// `sync`, `write` or `send`.
    pub kind: &'static str,
    /// The first such call is 1.
    pub number: u64,
    /// Calls count from when the process serves, not from its beginning.
    pub serving: bool,
    /// `before` the call, `after` it, or with half of it done: `torn`.
    pub how: &'static str,
    /// All processes of the victim's group die with it.
    pub group: bool,
    /// Messages go through sockets also between processes of one host.
    pub sockets: bool,
}

impl KillAt {
    /// Has the process that is to be started die so.
    pub fn apply(&self, command: &mut Command) {
        let library = library().expect("asked before");
        command.env("LD_PRELOAD", library);
        command.env("ROPEWALK_KILL_AT", format!("{}:{}:{}", self.kind, self.number, self.how));
        if self.serving {
            command.env("ROPEWALK_KILL_ARMED", "1");
        }
        if self.group {
            command.env("ROPEWALK_KILL_GROUP", "1");
        }
        if self.sockets {
            command.env("ROPEWALK_NO_ATTACH", "1");
        }
    }
}

/// Each of the first calls of each kind, and in turn the ways to die at it: for `cargo verify --deep`.
pub fn first_calls(most: u64) -> Vec<(&'static str, u64, &'static str)> {
    let kinds: [(&str, &[&str]); 3] = [
        ("write", &["before", "torn", "after"]),
        ("sync", &["before", "after"]),
        ("send", &["after", "before"]),
    ];
    let calls = (1..=most).flat_map(|number| kinds.map(|(kind, hows)| (kind, number, hows)));
    calls.map(|(kind, number, hows)| (kind, number, hows[number as usize % hows.len()])).collect()
}

/// Counting begins in a process that was started to die.
pub fn arm(process: Pid) {
    // One that is dead already needs no telling.
    let _ = kill_process(process, Signal::USR2);
}

fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/kill_at.c");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Tests that run at a time do not see each other's unfinished ones.
    let library = target.join(format!("kill_at-{}.so", std::process::id()));
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .output();
    match built {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "cc: {text}");
            let last = target.join("kill_at.so");
            std::fs::rename(&library, &last).expect("the directory for tests is ours");
            Some(last)
        }
        Err(error) => {
            println!("SKIP: there is no C compiler for kills at chosen calls: {error}");
            None
        }
    }
}

/// Whether processes can be killed at chosen calls here.
pub fn kills_usable() -> bool {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIP: kills at chosen calls are made for x86-64 only");
        return false;
    }
    library().is_some()
}
