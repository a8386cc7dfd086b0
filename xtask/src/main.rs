//! The developers' own tool: `cargo xtask SUB`, and `cargo verify` for everything that must hold.
//!
//! * `tidy` ([`tidy`]): the rules of the house that the compiler does not know,
//! * `verify` ([`verify`]): all steps that a change has to pass, on any machine, from one command,
//! * `install` ([`install`]): libraries, headers, manual pages and the command into a prefix.
//! * `package` ([`package`]): the same files and the units of servers as a Debian package and a tarball.
//!
//! Invariant: continuous integration runs `cargo verify` and nothing else, so whatever it says is
//! said on a laptop, too. The tool knows no room of the workspace by its code, only by its name.
#![forbid(unsafe_code)]

mod install;
mod metadata;
mod package;
mod tidy;
mod verify;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask tidy
       cargo xtask verify [--quick | --changed [BASE] | --deep [--from STEP]]
       cargo xtask install --prefix DIR [--destdir DIR] [--built DIR]
       cargo xtask package [--out DIR] [--built DIR]

tidy     Checks rules of this repository: dependencies between crates, places
         of unsafe code, file sizes, module headers, leftovers, and documents
         that name missing things.

verify   Runs formatting, lints, tidy, documentation, all tests and model
         checks. 'cargo verify' is the same.
  --quick      Runs formatting, lints, tidy and unit tests only.
  --changed    Does the same for the crates that a change can affect: the
               difference to BASE (default: to where this branch left main).
               It prints the crates that it leaves out.
  --deep       Adds 10,000 simulator seeds, long fuzzing, foreign test suites,
               comparisons with other systems, and sanitizers. It takes four
               hours; --from STEP continues at a step, for example 'suites'.

install  Builds a release and installs it below DIR: libbmi (shared library,
         archive, headers, pkg-config file, manual pages), libropewalk-rma (the
         same), libmyriexpress and libopen-mx for MX, and the command ropewalk.
  --destdir    Writes the files below this directory, for packages.
  --built      Builds nothing, and takes the files of an earlier build, for
               example from target/release.

package  Builds a release and makes a Debian package and a tarball of the same
         files, of manual pages, completions, systemd units and an example
         configuration. The tarball is for /usr/local.
  --out        Writes the packages into this directory (target/package).
  --built      Builds nothing, as for 'install'.

Examples: cargo xtask install --prefix ~/.local
          cargo xtask package && sudo apt install ./target/package/*.deb";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["tidy"] => tidy::command(),
        ["verify"] => verify::command(verify::Depth::Normal, None),
        ["verify", "--quick"] => verify::command(verify::Depth::Quick, None),
        ["verify", "--changed"] => verify::changed(None),
        ["verify", "--changed", base] => verify::changed(Some(base)),
        ["verify", "--deep"] => verify::command(verify::Depth::Deep, None),
        ["verify", "--deep", "--from", step] => verify::command(verify::Depth::Deep, Some(step)),
        ["install", rest @ ..] => install::command(rest),
        ["package", rest @ ..] => package::command(rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            if !words.is_empty() {
                eprintln!("xtask: unknown arguments '{}'\n", words.join(" "));
            }
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
