//! The manual pages and the example configuration, from the definitions that the program works by.
//!
//! * `ropewalk(1)` is made of the definitions of `--help` ([`commands`]);
//! * `ropewalk.toml(5)` of the table of keys ([`crate::config::keys`]);
//! * `mount.ropewalk(8)` of the tables of the mount helper ([`files`]).
//!
//! Invariant: the day on a page is that of `SOURCE_DATE_EPOCH` where it is set, so that packages can be built again.

mod commands;
mod files;
mod roff;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::keys;
use crate::remote::text;
use crate::report;

/// A text that the program prints about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Text {
    #[value(name = "ropewalk.1")]
    Command,
    #[value(name = "ropewalk.toml.5")]
    Config,
    #[value(name = "mount.ropewalk.8")]
    Helper,
    /// The example configuration.
    #[value(name = "ropewalk.toml")]
    Example,
}

/// Prints it.
pub fn print(what: Text, command: clap::Command) -> anyhow::Result<()> {
    report::print(text(what, command, &today()).as_bytes())
}

fn text(what: Text, command: clap::Command, date: &str) -> String {
    match what {
        Text::Command => commands::page(command, date),
        Text::Config => files::config(date),
        Text::Helper => files::helper(date),
        Text::Example => keys::example(),
    }
}

/// The day on the pages.
fn today() -> String {
    let told = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|told| told.parse::<i64>().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs() as i64);
    let (year, month, day) = text::date(told.unwrap_or_else(now).div_euclid(86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use std::process::Command;

    use super::*;
    use crate::command_for_tests as command;

    /// A page as a reader sees its signs.
    fn read(what: Text) -> String {
        let text = text(what, command(), "2026-01-02");
        text.replace("\\-", "-").replace("\\(aq", "'").replace("\\(dq", "\"")
    }

    #[test]
    fn the_pages_are_well_formed() {
        let folder = tempfile::tempdir().expect("a folder");
        for what in [Text::Command, Text::Config, Text::Helper] {
            let value = what.to_possible_value().expect("a name");
            let path = folder.path().join(value.get_name());
            std::fs::write(&path, text(what, command(), "2026-01-02")).expect("a page");
            let mut lint = Command::new("mandoc");
            let Ok(output) = lint.args(["-T", "lint", "-W", "warning"]).arg(&path).output() else {
                println!("SKIP: there is no mandoc");
                return;
            };
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.is_empty(), "{said}");
        }
    }

    fn check(command: &clap::Command, page: &str) {
        for command in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = command.get_name();
            assert!(page.contains(&format!(" {name}\n")), "{name} is missing");
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            for long in shown.filter_map(clap::Arg::get_long) {
                assert!(page.contains(&format!("\\fB--{long}\\fR")), "{name} --{long} is missing");
            }
            check(command, page);
        }
    }

    #[test]
    fn every_command_and_every_option_is_in_the_manual() {
        check(&command(), &read(Text::Command));
    }

    #[test]
    fn every_key_and_every_mount_option_is_in_the_manual() {
        let (config, helper) = (read(Text::Config), read(Text::Helper));
        for section in keys::SECTIONS {
            assert!(config.contains(section.header));
            for key in section.keys {
                assert!(config.contains(&format!("\\fB{}\\fR", key.name)), "{}", key.name);
            }
        }
        for option in crate::commands::mount_options::OPTIONS {
            assert!(helper.contains(&format!("\\fB{}", option.name)), "{}", option.name);
        }
    }
}
