//! Processes whose calendar is wrong: a small library in C that is loaded into them (`clock.c`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// A calendar that is wrong by so many seconds.
pub struct WrongClock {
    library: PathBuf,
    pub seconds: i64,
}

impl WrongClock {
    /// Compiles the library into a directory, and makes sure that programs believe it; none where there
    /// is no compiler.
    pub fn new(directory: &Path, seconds: i64) -> Option<WrongClock> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock.c");
        let library = directory.join("clock.so");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        match cc.status() {
            Ok(status) => assert!(status.success(), "clock.c does not compile"),
            Err(error) => {
                println!("SKIP: there is no C compiler: {error}");
                return None;
            }
        }
        let clock = WrongClock { library, seconds };
        let mut date = Command::new("date");
        clock.apply(&mut date);
        let told = String::from_utf8(date.arg("+%s").output().unwrap().stdout).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let wrong = told.trim().parse::<i64>().unwrap() - now;
        assert!((wrong - seconds).abs() < 20, "a program's calendar is wrong by {wrong} s");
        Some(clock)
    }

    /// Has the process that is to be started go by it.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("ROPEWALK_CLOCK_OFFSET", self.seconds.to_string());
    }
}
