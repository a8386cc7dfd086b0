//! The developers' own tool: `cargo xtask SUB`, and `cargo verify` for everything that must hold.
//!
//! * `tidy` ([`tidy`]): the rules of the house that the compiler does not know,
//! * `verify` ([`verify`]): all steps that a change has to pass, on any machine, from one command,
//! * `install` ([`install`]): libraries, headers, manual pages and the command into a prefix.
//!
//! Invariant: continuous integration runs `cargo verify` and nothing else, so whatever it says is
//! said on a laptop, too. The tool knows no room of the workspace by its code, only by its name.
#![forbid(unsafe_code)]

mod install;
mod metadata;
mod tidy;
mod verify;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy
       cargo xtask verify [--quick | --changed [BASE] | --deep [--from STEP]]
                                                                (short: cargo verify)
       cargo xtask install --prefix DIR [--destdir DIR]

tidy    the rules of the house: dependencies between crates, places of unsafe code, file sizes,
        module headers, leftovers, documents that name what does not exist
verify  formatting, lints, tidy, documentation, all tests, model checks
        --quick  formatting, lints, tidy, unit tests
        --changed  the same for the crates that a change can reach: what differs from BASE (or from
                 where this branch left main); it says what it leaves out
        --deep   adds 10,000 simulator seeds, long fuzzing, suites of others, peers, sanitizers;
                 it takes two hours, and --from goes on at a step, for instance --from suites
install  a release build of libbmi (shared and archive, headers, pkg-config, manual pages), of MX's
        libmyriexpress and libopen-mx, and of the command ropewalk into DIR; --destdir is put before it while files are written, for packages";

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
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
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
