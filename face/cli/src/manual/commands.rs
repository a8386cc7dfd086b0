//! `ropewalk(1)`: all commands on one page, as clap has them.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::roff::Page;

/// Variables of the environment that users of the command may set.
pub const VARIABLES: &[(&str, &str)] = &[
    ("ROPEWALK_ADDRESS", "The metadata server's address, for commands without --address."),
    (
        "ROPEWALK_INTERFACES",
        "The interfaces by which a process calls, with commas between them. \
        Raw Ethernet needs it on a host with several interfaces.",
    ),
    ("ROPEWALK_PATHS", "The number of paths of a session; 1 keeps it to one path."),
    ("ROPEWALK_PATH_WAIT", "The seconds for which a session waits for a path after it lost all."),
    ("ROPEWALK_SHOW_PATHS", "With 0, the process does not answer 'ropewalk paths'."),
    (
        "ROPEWALK_KEEP_AWAKE",
        "With never, busy servers and mounts of root let the processors sleep.",
    ),
    ("ROPEWALK_REMOTE_SHELL", "The command by which 'ropewalk run' starts agents on other hosts."),
];

/// The page.
pub fn page(mut command: Command, date: &str) -> String {
    command.build();
    let mut page = Page::new("ropewalk", 1, date, "a parallel file system and a message layer");
    page.section("SYNOPSIS");
    page.text("  ropewalk COMMAND [ARGUMENTS]\n  ropewalk COMMAND --help");
    page.section("DESCRIPTION");
    page.text(&long(&command));
    page.section("COMMANDS");
    explain_all(&mut page, &command, "ropewalk");
    page.section("EXAMPLES");
    page.text(&after(&command));
    page.section("ENVIRONMENT");
    for (name, about) in VARIABLES {
        page.term(name, about);
    }
    page.section("FILES");
    page.term("/etc/ropewalk/ropewalk.toml", "The configuration that the systemd units use.");
    page.term("/var/lib/ropewalk", "The cluster's directory in that configuration.");
    page.section("EXIT STATUS");
    page.text(
        "0 after success, 1 after a failure, 2 where the arguments are wrong. 'ropewalk check' exits \
         with 1 if it found problems, and with 2 if it could not check everything. 'ropewalk run' \
         exits as its program does.",
    );
    page.see_also(&["ropewalk.toml(5)", "mount.ropewalk(8)", "bmi(7)", "mx(7)", "ropewalk-rma(7)"]);
    page.finish()
}

/// Each command, then those within it.
fn explain_all(page: &mut Page, command: &Command, name: &str) {
    let all = command.get_subcommands();
    for command in all.filter(|it| it.get_name() != "help" && !it.is_hide_set()) {
        let name = format!("{name} {}", command.get_name());
        explain(page, command, &name);
        explain_all(page, command, &name);
    }
}

fn explain(page: &mut Page, command: &Command, name: &str) {
    page.part(name);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:");
    let usage: Vec<String> = usage.lines().map(|line| format!("  {}", line.trim())).collect();
    page.text(&usage.join("\n"));
    page.text(&long(command));
    let shown = |arg: &&Arg| !arg.is_hide_set() && arg.get_id() != "help";
    let (places, options): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(shown).partition(|arg| arg.is_positional());
    for arg in places.into_iter().chain(options) {
        page.term(&term(arg), &about(arg));
    }
    page.text(&after(command));
}

fn long(command: &Command) -> String {
    let text = command.get_long_about().or(command.get_about());
    text.map(ToString::to_string).unwrap_or_default()
}

fn after(command: &Command) -> String {
    let text = command.get_after_long_help().or(command.get_after_help());
    text.map(ToString::to_string).unwrap_or_default()
}

/// An argument as it is written.
fn term(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default();
    let value: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let value = if takes { value.join(" ") } else { String::new() };
    let mut forms = Vec::new();
    forms.extend(arg.get_short().map(|short| format!("-{short}")));
    forms.extend(arg.get_long().map(|long| format!("--{long}")));
    if forms.is_empty() {
        return format!("<{}>", if value.is_empty() { arg.get_id().as_str() } else { &value });
    }
    let mut term = forms.join(", ");
    if !value.is_empty() {
        let _ = write!(term, " {value}");
    }
    term
}

/// The help of an argument, with what clap adds to it.
fn about(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    if !arg.get_action().takes_values() {
        return text;
    }
    let usual = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let usual: Vec<_> = usual.collect();
    if !usual.is_empty() && !arg.is_hide_default_value_set() {
        let _ = write!(text, " [default: {}]", usual.join(" "));
    }
    let values = arg.get_possible_values();
    let names: Vec<&str> =
        values.iter().filter(|it| !it.is_hide_set()).map(|it| it.get_name()).collect();
    if !names.is_empty() && !arg.is_hide_possible_values_set() {
        let _ = write!(text, " [possible values: {}]", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_are_those_that_the_program_reads() {
        let source = [
            include_str!("../operate.rs"),
            include_str!("../../../../net/src/paths.rs"),
            include_str!("../../../../host/paths/src/lib.rs"),
        ];
        let source = source.concat();
        let signs = |letter: char| !letter.is_ascii_uppercase() && letter != '_';
        for word in source.split(signs).filter(|word| word.starts_with("ROPEWALK_")) {
            assert!(VARIABLES.iter().any(|(name, _)| *name == word), "{word} is not described");
        }
    }
}
