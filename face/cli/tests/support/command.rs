//! Commands of the command line that end by themselves, and what they said.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::PROGRAM;

/// The output of a command, and its success.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub out: String,
    pub error: String,
}

impl Said {
    /// The output of a command.
    pub fn of(output: &Output) -> Said {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let success = output.status.success();
        Said { success, out: text(&output.stdout), error: text(&output.stderr) }
    }

    /// The output of a command that has to succeed.
    pub fn well(self) -> String {
        assert!(self.success, "it fails: {}", self.error);
        self.out
    }

    /// The error of a command that has to fail.
    #[track_caller]
    pub fn badly(self) -> String {
        assert!(!self.success, "it succeeds, and says: {}", self.out);
        self.error
    }

    /// The objects of a command with `--json`.
    pub fn objects(self) -> Vec<serde_json::Value> {
        let text = self.well();
        let lines = text.lines();
        lines.map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

/// Runs the program with these arguments, in a directory.
pub fn ropewalk(directory: &Path, address: &str, arguments: &[&str]) -> Said {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(directory).env("ROPEWALK_ADDRESS", address);
    Said::of(&command.output().expect("the program under test can be started"))
}

/// The program as a plain user runs it.
pub struct Plain {
    program: PathBuf,
}

/// Nobody, as most systems number him.
const NOBODY: &str = "65534";

impl Plain {
    /// Puts the program where every user can run it, below `place`, which is opened to all.
    pub fn new(place: &Path) -> Plain {
        let program = place.join("ropewalk");
        fs::copy(PROGRAM, &program).expect("the program can be copied");
        for path in [place, &program] {
            let open = fs::Permissions::from_mode(0o755);
            fs::set_permissions(path, open).expect("what is ours can be opened");
        }
        Plain { program }
    }

    /// The path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A command as a plain user: as ourselves, if we are a plain user.
    pub fn command(&self, arguments: &[&str]) -> Command {
        if !rustix::process::geteuid().is_root() {
            let mut command = Command::new(&self.program);
            command.args(arguments);
            return command;
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        command.arg(&self.program).args(arguments);
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, address: &str, arguments: &[&str]) -> Said {
        let mut command = self.command(arguments);
        command.env("ROPEWALK_ADDRESS", address).current_dir("/");
        Said::of(&command.output().expect("setpriv (util-linux) is there"))
    }
}
