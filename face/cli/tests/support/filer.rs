//! Programs on mounts that do what they are told (`filer.c`): maps, locks of every kind, copies within
//! the kernel, a line for each.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Compiles the program into a directory; none where there is no compiler.
pub fn compile(directory: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/filer.c");
    let program = directory.join("filer");
    let compiled = Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source).status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "filer.c does not compile");
            Some(program)
        }
        Err(error) => {
            println!("SKIP: there is no C compiler: {error}");
            None
        }
    }
}

/// One such program. Killed when dropped.
pub struct Filer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Filer {
    pub fn start(program: &Path) -> Filer {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it was compiled");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.expect("it was asked for"));
        Filer { child, input: input.expect("it was asked for"), output }
    }

    /// Gives an order without waiting for what comes of it.
    pub fn order(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
        self.input.flush().expect("it reads");
    }

    /// The answer to the earliest order that was not answered.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim_end().to_string()
    }

    /// An order and its answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.order(line);
        self.answer()
    }

    /// An order that has to succeed; its answer.
    #[track_caller]
    pub fn well(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        let failed = ["errno", "bus", "no map", "what?", "too long"];
        assert!(!failed.iter().any(|word| answer.starts_with(word)), "{line}: {answer}");
        answer
    }
}

impl Drop for Filer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
