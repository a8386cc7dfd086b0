//! The command line: everything that a person does with a cluster.

mod cluster;
mod demo;
mod files;
mod mounted;
mod node;
mod report;
mod stop;
mod tree;

use clap::{Parser, Subcommand};

/// A user-space network layer and parallel file system.
///
/// Starts a cluster in about a second, needs no kernel module and no special hardware, and keeps what
/// it acknowledged.
#[derive(Debug, Parser)]
#[command(name = "ropewalk", version, about, long_about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a cluster in this process, moves a real directory tree in and out, verifies every
    /// byte, and prints what happened.
    Demo(demo::DemoArguments),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
