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
mod etcd;
mod handover;
mod identity;
mod log;
mod manual;
mod metrics;
mod mounted;
mod mx;
mod network;
mod node;
mod notify;
mod operate;
mod paths;
mod remote;
mod report;
mod security;
mod status;
mod stop;
mod told;
mod top;
mod witness;

use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use ropewalk_base::level::Level;

/// A parallel file system and a message layer that run in user space.
///
/// A cluster has one metadata server and one or more data servers. Clients mount it over FUSE, or
/// use 'ropewalk cp', 'ropewalk ls' and the other commands, which need no mount. Ropewalk needs no
/// kernel module of its own and no special hardware.
#[derive(Debug, Parser)]
#[command(name = "ropewalk", version, about, long_about, after_help = TOUR, max_term_width = 80)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Prove by the keys in this file that this process belongs to the cluster, and talk to nobody
    /// who does not prove it; 'ropewalk key' makes such files [default: $ROPEWALK_KEY_FILE].
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
    /// Protect payloads on the network: 'crc' only finds accidents, with 'auth' nobody on the way
    /// changes them, with 'secure' nobody reads them, either. Networks can differ, like
    /// secure,udp=crc. The stronger mode of both sides counts [default: secure with keys, else crc].
    #[arg(long, global = true, value_name = "MODE")]
    payload: Option<ropewalk_net::PayloadModes>,
}

const TOUR: &str = "\
Begin with:
  ropewalk demo                              copies a directory tree into a
                                             temporary cluster, compares it,
                                             and removes the cluster
  ropewalk up /var/tmp/rope --mount /mnt     starts a cluster and mounts it on
                                             /mnt; --background gives you the
                                             terminal back
  ropewalk down /var/tmp/rope                stops that cluster
  ropewalk cp -r /usr/share/doc :/           copies files into the cluster, also
                                             without a mount: ':/' is its root
  ropewalk ls -l :/doc                       lists them
  ropewalk status                            shows the servers and their load
  ropewalk COMMAND --help                    explains a command with examples

Commands look for the cluster at the address of --address, or at $ROPEWALK_ADDRESS, or at \
tcp://127.0.0.1:7700.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a temporary cluster, copies a directory tree into it, reads it back, compares every
    /// byte, and shows how long that took.
    Demo(demo::DemoArguments),
    /// Starts a whole cluster (metadata server and data servers) in one process, and serves it
    /// until Ctrl-C.
    Up(commands::up::Up),
    /// Stops a cluster that 'ropewalk up' serves, and waits until it has stopped.
    Down(commands::down::Down),
    /// Creates an empty cluster in a directory and prints its identity; 'ropewalk serve' needs that
    /// first.
    Format(commands::format::Format),
    /// Runs one server, or all servers of a config file, until Ctrl-C.
    #[command(subcommand, after_help = "Example: ropewalk serve all --config ropewalk.toml")]
    Serve(commands::serve::Serve),
    /// Decides which data servers belong to a cluster: 'ropewalk server add' admits a new one.
    #[command(subcommand, after_help = "Example: ropewalk server add 4")]
    Server(commands::server::ServerCommand),
    /// Looks after the metadata: 'dump' and 'restore' keep them in a file, 'switch' has the standby
    /// of several metadata servers serve.
    #[command(
        subcommand,
        after_help = "Example: ropewalk meta dump tcp://127.0.0.1:7700 meta.dump"
    )]
    Meta(commands::meta::MetaCommand),
    /// Makes the keys by which the nodes of a cluster prove to each other that they belong to it.
    #[command(subcommand, after_help = "Example: ropewalk key create /etc/ropewalk/key")]
    Key(commands::key::KeyCommand),
    /// Says which clients may use which part of the file system, and how.
    #[command(subcommand, after_help = "Example: ropewalk export list")]
    Export(commands::export::ExportCommand),
    /// Brings the file system to the newest format, once all its programs are new.
    Upgrade(commands::upgrade::Upgrade),
    /// Mounts a cluster on a directory, and serves the mount until it is unmounted.
    Mount(commands::mount::MountArguments),
    /// Unmounts a cluster, also after the mounting process was killed.
    Umount(commands::mount::UnmountArguments),
    /// Measures messages, file data or metadata, and compares Ropewalk with other systems in the
    /// same run.
    Bench(bench::BenchArguments),
    /// Shows the servers of a cluster with their state, capacity and load, and its clients.
    Status(status::Status),
    /// Shows the load of a cluster by servers and operations, again and again until Ctrl-C.
    Top(top::Top),
    /// Checks a cluster for lost, damaged and unused data, as fsck does.
    Check(check::Check),
    /// Copies files and directory trees into a cluster, out of it, or within it.
    Cp(copy::Cp),
    /// Lists files and directories of a cluster.
    Ls(remote::ls::Ls),
    /// Shows the attributes of a path, its striping, and the data server of each stripe.
    Stat(remote::stat::Stat),
    /// Shows used and free space on each server.
    Df(remote::df::Df),
    /// Makes directories in a cluster.
    Mkdir(remote::mkdir::Mkdir),
    /// Shows or sets how many copies of the files in a directory the data servers keep.
    Policy(remote::policy::PolicyArguments),
    /// Removes files and, with -r, directories with everything in them.
    Rm(remote::rm::Rm),
    /// Shows and measures this host's Ethernet and MX networks: interfaces, endpoints, peers,
    /// counters.
    #[command(subcommand, after_help = "Example: ropewalk mx info")]
    Mx(mx::Mx),
    /// Shows the network paths of running processes: their states, and what happened to them.
    #[command(subcommand, after_help = "Example: ropewalk paths status")]
    Paths(paths::Paths),
    /// Runs a program as several ranks that find each other, on this host or on several.
    Run(commands::run::Run),
    /// Prints a script with which a shell completes the commands and options of ropewalk.
    #[command(after_help = "Examples:
  . <(ropewalk completions bash)                    in ~/.bashrc
  ropewalk completions zsh > ~/.zfunc/_ropewalk
  ropewalk completions fish > ~/.config/fish/completions/ropewalk.fish")]
    Completions {
        /// Print the script for this shell.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page or the example configuration; packages are made with it.
    #[command(hide = true, after_help = "Example: ropewalk manual ropewalk.1 | man -l -")]
    Manual {
        /// Print this text.
        text: manual::Text,
    },
}

fn main() -> std::process::ExitCode {
    survive_long_files();
    ropewalk_bench::serve_if_child(&bench::InThisProcess);
    ropewalk_net::notice::give_to(|text| log::line(Level::Warning, &format!("ropewalk: {text}")));
    mounted::unmount_if_child();
    demo::work_if_child();
    if let Some(words) = commands::mount_helper::called() {
        return ended(commands::mount_helper::run(words));
    }
    let arguments = Arguments::try_parse().unwrap_or_else(|error| refused(error).exit());
    security::name_file(arguments.key_file);
    security::name_payload(arguments.payload);
    security::name_file_of_environment();
    let outcome = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Up(arguments) => commands::up::up(&arguments),
        Command::Down(arguments) => commands::down::down(&arguments),
        Command::Format(arguments) => commands::format::format(&arguments),
        Command::Serve(what) => commands::serve::serve(&what),
        Command::Server(command) => commands::server::run(&command),
        Command::Export(command) => commands::export::run(&command),
        Command::Upgrade(arguments) => commands::upgrade::run(&arguments),
        Command::Meta(command) => return commands::meta::run(&command),
        Command::Key(command) => commands::key::run(&command),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Umount(arguments) => commands::mount::unmount(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Check(arguments) => return check::check(&arguments),
        Command::Cp(arguments) => copy::run(&arguments),
        Command::Ls(arguments) => remote::ls::run(&arguments),
        Command::Stat(arguments) => remote::stat::run(&arguments),
        Command::Df(arguments) => remote::df::run(&arguments),
        Command::Mkdir(arguments) => remote::mkdir::run(&arguments),
        Command::Policy(arguments) => remote::policy::run(&arguments),
        Command::Rm(arguments) => remote::rm::run(&arguments),
        Command::Mx(what) => mx::run(&what),
        Command::Paths(what) => paths::run(&what),
        Command::Run(arguments) => {
            return commands::run::run(&arguments).unwrap_or_else(|error| ended(Err(error)));
        }
        Command::Completions { shell } => {
            let mut command = Arguments::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "ropewalk", &mut script);
            report::print(&script)
        }
        Command::Manual { text } => manual::print(text, Arguments::command()),
    };
    ended(outcome)
}

/// The parser's error. 'ropewalk cp' with one path lacks its target, but the parser takes the path for
/// the target and names the source.
fn refused(error: clap::Error) -> clap::Error {
    let is_cp = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|it| it.contains("<SOURCE>")),
        _ => false,
    };
    if error.kind() != ErrorKind::MissingRequiredArgument || !is_cp {
        return error;
    }
    let mut command = Arguments::command();
    command.build();
    match command.find_subcommand_mut("cp") {
        Some(cp) => cp.error(error.kind(), "give a source and a target"),
        None => error,
    }
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
            log::answer(Level::Error, &format!("ropewalk: {error:#}"));
            std::process::ExitCode::FAILURE
        }
    }
}

/// The definitions of all commands.
#[cfg(test)]
fn command_for_tests() -> clap::Command {
    Arguments::command()
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
    fn no_line_of_a_help_has_more_than_80_columns_without_a_terminal() {
        let mut top = Arguments::command();
        top.build();
        for (name, mut command) in commands(&top, "ropewalk") {
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{name} --help: '{line}'");
                }
            }
        }
    }

    fn refusal(words: &[&str]) -> String {
        let words = [&["ropewalk"], words].concat();
        refused(Arguments::try_parse_from(words).expect_err("it is wrong")).to_string()
    }

    #[test]
    fn a_number_below_zero_is_refused_with_the_range_and_without_advice_to_write_it_otherwise() {
        for words in [
            &["ls", "--patience", "-1"][..],
            &["check", "--pause", "-1"],
            &["server", "add", "-1"],
            &["bench", "io", "--runs", "-1"],
            &["mx", "perf", "--to", "a", "--sizes", "-1"],
        ] {
            let text = refusal(words);
            assert!(text.contains("invalid value '-1'") && !text.contains("'-- -1'"), "{text}");
        }
    }

    #[test]
    fn a_copy_without_a_target_says_what_to_give() {
        for words in [&["cp", "a"][..], &["cp"], &["cp", "-r", "a"]] {
            let text = refusal(words);
            assert!(text.starts_with("error: give a source and a target\n"), "{text}");
            assert!(text.contains("Usage: ropewalk cp [OPTIONS] <SOURCE>... <TARGET>"), "{text}");
        }
    }

    #[test]
    fn the_help_of_a_server_speaks_of_its_own_role() {
        for (name, mut command) in commands(&Arguments::command(), "ropewalk") {
            let help = command.render_long_help().to_string();
            let words: Vec<&str> = help.split_whitespace().collect();
            let help = words.join(" ");
            match name.as_str() {
                "ropewalk serve meta" => {
                    assert!(help.contains("[default: tcp://127.0.0.1:7700]"), "{help}");
                    assert!(!help.contains("serve all") && !help.contains("127.0.0.1:0"), "{help}");
                }
                "ropewalk serve data" => {
                    assert!(help.contains("[default: tcp://127.0.0.1:0]"), "{help}");
                    assert!(!help.contains("serve all"), "{help}");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_shell_gets_a_completion_with_all_commands() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "ropewalk", &mut script);
            let script = String::from_utf8(script).expect("scripts are text");
            for command in ["demo", "umount", "completions", "stat", "endpoints", "paths"] {
                assert!(script.contains(command), "{shell} does not complete {command}");
            }
        }
    }
}
