//! The command line: everything that a person does with a cluster.

mod bench;
mod check;
mod cluster;
mod commands;
mod config;
mod copy;
mod demo;
mod files;
mod mounted;
mod node;
mod operate;
mod remote;
mod report;
mod status;
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
    /// Shows servers, capacity, rates and sessions.
    ///
    /// Example: ropewalk status --watch
    Status(status::Status),
    /// Compares inodes with objects: finds what is lost, rotten, or garbage.
    ///
    /// Example: ropewalk check --read
    Check(check::Check),
    /// Copies files and trees into a cluster, out of it, or within it.
    Cp(copy::Cp),
    /// Lists files and directories of a cluster.
    Ls(remote::ls::Ls),
    /// Shows what a path is, its layout, and on which data server each stripe lies.
    Stat(remote::stat::Stat),
    /// Shows the room on each data server.
    Df(remote::df::Df),
    /// Removes files, and directories with all that they hold.
    Rm(remote::rm::Rm),
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
        Command::Status(arguments) => status::status(&arguments),
        Command::Check(arguments) => return check::check(&arguments),
        Command::Cp(arguments) => copy::run(&arguments),
        Command::Ls(arguments) => remote::ls::run(&arguments),
        Command::Stat(arguments) => remote::stat::run(&arguments),
        Command::Df(arguments) => remote::df::run(&arguments),
        Command::Rm(arguments) => remote::rm::run(&arguments),
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
