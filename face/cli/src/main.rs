//! The command line: everything that a person does with a cluster.

mod bench;
mod cluster;
mod commands;
mod config;
mod demo;
mod files;
mod mounted;
mod node;
mod report;
mod stop;
mod tree;

use clap::{CommandFactory, Parser, Subcommand};

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
    /// Runs a whole cluster in this process until Ctrl-C; clients of other processes can use it.
    ///
    /// Example: ropewalk up /var/tmp/cluster --mount /mnt/ropewalk
    Up(commands::up::Up),
    /// Gives a directory the identity of a new cluster and prints it.
    Format(commands::format::Format),
    /// Runs one server until Ctrl-C.
    #[command(subcommand)]
    Serve(commands::serve::Serve),
    /// Mounts a cluster and serves the mount until it is unmounted.
    Mount(commands::mount::MountArguments),
    /// Unmounts, also what a killed process left behind.
    Umount(commands::mount::UnmountArguments),
    /// Measures messages, data or names, beside peers and bare references in the same run.
    ///
    /// Example: ropewalk bench io --quick --only mount.write
    Bench(bench::BenchArguments),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> std::process::ExitCode {
    ropewalk_bench::serve_if_child(&bench::InThisProcess);
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Up(arguments) => commands::up::up(&arguments),
        Command::Format(arguments) => commands::format::format(&arguments),
        Command::Serve(what) => commands::serve::serve(&what),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Umount(arguments) => commands::mount::unmount(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            clap_complete::generate(shell, &mut command, "ropewalk", &mut std::io::stdout());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropewalk: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
