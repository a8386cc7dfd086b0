//! The command line: everything that a person does with a cluster.

mod background;
mod bench;
mod beside;
mod check;
mod cluster;
mod commands;
mod config;
mod copy;
mod demo;
mod identity;
mod mounted;
mod mx;
mod network;
mod node;
mod operate;
mod remote;
mod report;
mod status;
mod stop;

use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use report::complain;

/// A user-space network layer and parallel file system.
///
/// Starts a cluster in about a second, needs no kernel module and no special hardware, and keeps what
/// it acknowledged.
#[derive(Debug, Parser)]
#[command(name = "ropewalk", version, about, long_about, after_help = TOUR)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const TOUR: &str = "\
Begin with:
  ropewalk demo                              shows it at work on real data, and
                                             cleans up
  ropewalk up /var/tmp/rope --mount /mnt     a cluster of your own; --background
                                             leaves you the terminal, and
                                             'ropewalk down' ends it
  ropewalk cp -r /usr/share/doc :/           works without the mount, too: ':/'
                                             is the cluster
  ropewalk ls -l :/doc; ropewalk df; ropewalk status
  ropewalk COMMAND --help                    has examples of each";

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a cluster in this process, moves a real directory tree in and out, compares all of
    /// it, and prints what happened.
    Demo(demo::DemoArguments),
    /// Runs a whole cluster in this process until Ctrl-C; clients of other processes can use it.
    Up(commands::up::Up),
    /// Ends what `up` serves, wherever it runs, and waits for the end.
    Down(commands::down::Down),
    /// Gives a directory the identity of a new cluster and prints it.
    Format(commands::format::Format),
    /// Runs one server, or all of a config file, until Ctrl-C.
    #[command(subcommand, after_help = "Example: ropewalk serve all --config ropewalk.toml")]
    Serve(commands::serve::Serve),
    /// Says which data servers may join a cluster.
    #[command(subcommand, after_help = "Example: ropewalk server add 4")]
    Server(commands::server::ServerCommand),
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
    /// Makes directories in a cluster.
    Mkdir(remote::mkdir::Mkdir),
    /// Removes files, and directories with all that they hold.
    Rm(remote::rm::Rm),
    /// Shows what this host has for messages over Ethernet.
    #[command(subcommand, after_help = "Example: ropewalk mx info")]
    Mx(mx::Mx),
    /// Prints a completion script for a shell.
    #[command(after_help = "Examples:
  . <(ropewalk completions bash)                    in ~/.bashrc
  ropewalk completions zsh > ~/.zfunc/_ropewalk
  ropewalk completions fish > ~/.config/fish/completions/ropewalk.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> std::process::ExitCode {
    survive_long_files();
    ropewalk_bench::serve_if_child(&bench::InThisProcess);
    mounted::unmount_if_child();
    demo::work_if_child();
    if let Some(words) = commands::mount_helper::called() {
        return ended(commands::mount_helper::run(words));
    }
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Up(arguments) => commands::up::up(&arguments),
        Command::Down(arguments) => commands::down::down(&arguments),
        Command::Format(arguments) => commands::format::format(&arguments),
        Command::Serve(what) => commands::serve::serve(&what),
        Command::Server(command) => commands::server::run(&command),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Umount(arguments) => commands::mount::unmount(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Check(arguments) => return check::check(&arguments),
        Command::Cp(arguments) => copy::run(&arguments),
        Command::Ls(arguments) => remote::ls::run(&arguments),
        Command::Stat(arguments) => remote::stat::run(&arguments),
        Command::Df(arguments) => remote::df::run(&arguments),
        Command::Mkdir(arguments) => remote::mkdir::run(&arguments),
        Command::Rm(arguments) => remote::rm::run(&arguments),
        Command::Mx(what) => mx::run(&what),
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "ropewalk", &mut script);
            report::print(&script)
        }
    };
    ended(outcome)
}

/// A write beyond the limit on the size of files (`ulimit -f`) is an error of that write, and kills nobody.
fn survive_long_files() {
    // Any handler will do. If none can be set, the signal does what it did.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

fn ended(outcome: anyhow::Result<()>) -> std::process::ExitCode {
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) if error.is::<report::Closed>() => std::process::ExitCode::SUCCESS,
        Err(error) => {
            complain!("ropewalk: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    /// Every command with its full name, those within others included.
    fn commands(command: &clap::Command, name: &str) -> Vec<(String, clap::Command)> {
        let mut found = vec![(name.to_string(), command.clone())];
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            found.extend(commands(command, &format!("{name} {}", command.get_name())));
        }
        found
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        Arguments::command().debug_assert();
        let all = commands(&Arguments::command(), "ropewalk");
        assert!(all.len() >= 19, "{}", all.len());
        for (name, mut command) in all.into_iter().skip(1) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{name} --help has no example");
            let plain = name.trim_end_matches(" meta").trim_end_matches(" data");
            assert!(help.contains(plain), "{name} --help does not show how {plain} is called");
        }
    }

    #[test]
    fn the_help_of_every_command_is_readable_on_a_terminal_of_80_columns() {
        for (name, command) in commands(&Arguments::command(), "ropewalk") {
            let after = [command.get_after_help(), command.get_after_long_help()];
            for text in after.into_iter().flatten().map(ToString::to_string) {
                let mut flows = false;
                for line in text.lines() {
                    // Text that is laid out by hand must fit; text that flows is wrapped where it is shown.
                    let laid_out = line.starts_with("  ");
                    assert!(!laid_out || line.chars().count() <= 80, "{name}: '{line}'");
                    assert!(!(flows && !laid_out && !line.is_empty()), "{name} breaks '{line}'");
                    flows = !laid_out && !line.is_empty();
                }
            }
        }
    }

    #[test]
    fn every_shell_gets_a_completion_with_all_commands() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "ropewalk", &mut script);
            let script = String::from_utf8(script).expect("scripts are text");
            for command in ["demo", "umount", "completions", "stat", "endpoints"] {
                assert!(script.contains(command), "{shell} does not complete {command}");
            }
        }
    }
}
