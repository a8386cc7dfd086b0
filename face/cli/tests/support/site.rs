//! A cluster of root's, and a plain user with a shell on its host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use super::Process;
use super::command::{Said, ropewalk};

/// Tells a copy of this program that it is the stranger: the message to the stranger about the cluster.
const STRANGER: &str = "ROPEWALK_TEST_STRANGER";

/// A cluster of root's in a directory, with a file that only root may read and one for everybody, and
/// somebody who has a session.
pub struct Site {
    pub up: Process,
    pub address: String,
    pub place: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let up = place.path().join("up").to_str().unwrap().to_string();
        let words = ["up", &up, "--listen", "127.0.0.1:0", "--data-servers", "2"];
        let serving = Process::start(&words, "serves at");
        let address = serving.line.split("serves at ").nth(1).unwrap().trim().to_string();
        let site = Site { up: serving, address, place };
        for (name, bytes, mode) in
            [("secret", 3_000_000, 0o600), ("small", 100, 0o600), ("open", 3_000_000, 0o644)]
        {
            let path = site.place.path().join(name);
            fs::write(&path, vec![7; bytes]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            site.run(&["cp", "-a", name, ":/"]).well();
        }
        site
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.place.path(), &self.address, arguments)
    }

    pub fn status(&self) -> Value {
        let text = self.run(&["status", "--json", "--interval", "0"]).well();
        serde_json::from_str(&text).unwrap()
    }

    pub fn inode(&self, path: &str) -> u64 {
        let text = self.run(&["stat", "--json", path]).well();
        let told: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        told["inode"].as_u64().unwrap()
    }

    /// Runs a part of this program as a plain user, with this message.
    pub fn as_a_stranger(&self, part: &str, told: &Value) {
        let program = self.place.path().join("stranger");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        for path in [self.place.path(), &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["--exact", part, "--nocapture", "--test-threads=1"]);
        command.env(STRANGER, told.to_string()).current_dir("/");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{error}");
        assert!(said.contains("1 passed"), "it has no such part: {said}");
    }
}

/// The message to the stranger; none if this process is not the stranger.
pub fn told() -> Option<Value> {
    serde_json::from_str(&std::env::var(STRANGER).ok()?).ok()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
