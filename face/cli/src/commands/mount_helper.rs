//! The entry for mount(8) and /etc/fstab: this program by the name of `mount.ropewalk` or
//! `mount.fuse.ropewalk`, or as mount.fuse calls it, with a source in the place of a command.
//!
//! mount(8) calls `mount.TYPE SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::mount::{DEFAULTS, FSTAB, MountArguments, mount};
use super::mount_options::{MountOption, OPTIONS};
use crate::report::{self, wrapped};

/// The arguments after the program's name, if the program was called as a helper.
pub fn called() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let name = words.next()?;
    let name = Path::new(&name).file_name().unwrap_or_default().to_owned();
    let rest: Vec<OsString> = words.collect();
    is_helper(&name, rest.first().map(OsString::as_os_str)).then_some(rest)
}

fn is_helper(name: &OsStr, first: Option<&OsStr>) -> bool {
    let names_source = || first.and_then(OsStr::to_str).is_some_and(|word| word.contains("://"));
    name.as_encoded_bytes().starts_with(b"mount.") || names_source()
}

/// How the helper is called.
pub const SYNOPSIS: &[&str] = &[
    "mount -t ropewalk [-o OPTIONS] ADDRESS DIRECTORY",
    "mount.ropewalk ADDRESS DIRECTORY [-sfnv] [-o OPTIONS]",
];

/// The flags of the helper, for its help and its manual page.
pub const FLAGS: &[(&str, &str)] = &[
    ("-o OPTIONS", "Use these mount options, separated by commas."),
    ("-s", "Pass over mount options that are not known."),
    ("-f", "Check the arguments, and mount nothing."),
    ("-n", "Has no effect: no program writes /etc/mtab any more."),
    ("-v", "Has no effect."),
    ("-t TYPE", "Has no effect."),
    ("-h, --help", "Print this help."),
];

/// The text of `mount.ropewalk --help`.
fn help() -> String {
    let mut text = String::from("Mounts a Ropewalk cluster; mount(8) calls this program.\n\n");
    for (number, line) in SYNOPSIS.iter().enumerate() {
        text += &format!("{} {line}\n", if number == 0 { "Usage:" } else { "      " });
    }
    let mut list = |title: &str, entries: Vec<(String, &str)>| {
        text += &format!("\n{title}\n");
        for (name, about) in entries {
            let about = wrapped(about, 58, "");
            let about = about.replace('\n', &format!("\n{:22}", ""));
            text += &format!("  {name:18}  {about}\n");
        }
    };
    list("Flags:", FLAGS.iter().map(|(flag, about)| ((*flag).to_string(), *about)).collect());
    let option = |it: &MountOption| {
        let value = if it.value.is_empty() { "" } else { "=" };
        (format!("{}{value}{}", it.name, it.value), it.about)
    };
    list("Mount options:", OPTIONS.iter().map(option).collect());
    text + &format!(
        "\n{}\n\nExample of a line in /etc/fstab:\n  {FSTAB}\n",
        wrapped(DEFAULTS, 80, "")
    )
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Order {
    source: Option<String>,
    directory: Option<PathBuf>,
    options: Vec<String>,
    /// Words of others among the options are passed over.
    sloppy: bool,
    /// Everything but the mount.
    fake: bool,
    /// Only the help.
    help: bool,
}

fn parse(words: Vec<OsString>) -> anyhow::Result<Order> {
    let mut order = Order::default();
    let mut words = words.into_iter();
    let text = |word: OsString| {
        word.into_string()
            .map_err(|word| anyhow::anyhow!("the argument '{}' is not valid UTF-8", word.display()))
    };
    while let Some(word) = words.next() {
        let bytes = word.as_encoded_bytes();
        if !bytes.starts_with(b"-") {
            match (&order.source, &order.directory) {
                (None, _) => order.source = Some(text(word)?),
                (_, None) => order.directory = Some(word.into()),
                _ => bail!(
                    "unexpected argument '{}': give one address and one directory",
                    word.display()
                ),
            }
            continue;
        }
        let flags = text(word)?;
        if flags == "--help" {
            order.help = true;
            continue;
        }
        for (at, letter) in flags[1..].char_indices() {
            match letter {
                's' => order.sloppy = true,
                'f' => order.fake = true,
                'h' => order.help = true,
                'n' | 'v' | 'i' => {}
                'o' | 't' | 'N' => {
                    let behind = &flags[at + 2..];
                    let value = match behind.is_empty() {
                        true => text(
                            words
                                .next()
                                .with_context(|| format!("the option -{letter} needs a value"))?,
                        )?,
                        false => behind.to_string(),
                    };
                    match letter {
                        'o' => order.options.push(value),
                        't' => {}
                        _ => bail!(
                            "the option -N is not supported: enter the mount namespace by \
                             nsenter(1), and mount there"
                        ),
                    }
                    break;
                }
                _ => {
                    bail!("unknown option -{letter}: 'mount.ropewalk --help' lists the known ones")
                }
            }
        }
    }
    Ok(order)
}

/// Mounts as mount(8) asks for it, and goes on in the background.
pub fn run(words: Vec<OsString>) -> anyhow::Result<()> {
    let order = parse(words)?;
    if order.help {
        return report::print(help().as_bytes());
    }
    let usage = "call it as 'mount -t ropewalk tcp://HOST:PORT DIRECTORY [-o OPTIONS]'";
    let source = order.source.context(usage)?;
    let directory = order.directory.context(usage)?;
    if order.fake {
        return Ok(());
    }
    mount(&MountArguments::of_helper(source, directory, order.options, order.sloppy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> anyhow::Result<Order> {
        parse(text.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn the_arguments_of_mount_are_understood() {
        let full = order("tcp://h:1 /m -sn -v -o rw,suid -t fuse.ropewalk -onodev").unwrap();
        assert_eq!(full.source.as_deref(), Some("tcp://h:1"));
        assert_eq!(full.directory.as_deref(), Some(Path::new("/m")));
        assert_eq!(full.options, ["rw,suid", "nodev"]);
        assert!(full.sloppy && !full.fake);
        assert!(order("-f tcp://h:1 /m").unwrap().fake);
        for bad in ["tcp://h:1 /m more", "tcp://h:1 /m -o", "tcp://h:1 /m -x", "-N 7 tcp://h:1 /m"]
        {
            assert!(order(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_help_names_every_flag_and_fits_on_a_terminal() {
        let help = help();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert!(help.contains("Example") && order("--help").unwrap().help);
        for (flag, _) in FLAGS {
            let words = flag.replace(", ", " ").replace("OPTIONS", "ro");
            assert!(order(&words).is_ok() && help.contains(flag), "{flag}");
        }
    }

    #[test]
    fn helpers_are_known_by_name_or_by_their_source() {
        let helper = |name: &str, first: &str| is_helper(OsStr::new(name), Some(OsStr::new(first)));
        assert!(helper("mount.ropewalk", "x") && helper("mount.fuse.ropewalk", "x"));
        assert!(helper("ropewalk", "tcp://h:1"));
        assert!(!helper("ropewalk", "mount") && !is_helper(OsStr::new("ropewalk"), None));
    }
}
