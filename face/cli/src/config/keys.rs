//! The table of the configuration file's keys: what each one does, once for the manual page, for the example
//! file and for `docs/ropewalk.toml`.
//!
//! Invariants
//! * the parser accepts the keys of this table and no others: a test compares them;
//! * the example file that the table makes can be used unchanged, and has every key.

use std::fmt::Write as _;

use crate::report::wrapped;

/// The columns of the example file.
const COLUMNS: usize = 80;

/// A part of the file.
pub struct Section {
    /// Empty for the keys before the first header.
    pub header: &'static str,
    pub about: &'static str,
    /// Whether the header stands in the example file as a setting, and not as a comment.
    pub is_set: bool,
    /// How often the example file has it.
    pub times: usize,
    pub keys: &'static [Key],
}

/// A key.
pub struct Key {
    pub name: &'static str,
    pub form: Form,
    /// The value without the key, in words; empty where the text says it.
    pub default: &'static str,
    /// A value for each section of the example file.
    pub examples: &'static [&'static str],
    /// Whether the example file sets it.
    pub is_set: bool,
    /// Lines that begin with two spaces are laid out by hand; all others flow.
    pub about: &'static str,
}

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Path,
    Whole,
    Seconds,
    Truth,
}

impl Form {
    /// The word for it in the manual page.
    pub fn word(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Path => "path",
            Form::Whole => "whole number",
            Form::Seconds => "seconds",
            Form::Truth => "true or false",
        }
    }
}

/// The lines before the keys of the example file.
pub const ABOUT: &str = "\
Servers and mounts read this file where --config names it:
  ropewalk format --config ropewalk.toml      creates the cluster, once
  ropewalk serve all --config ropewalk.toml   runs all servers of the file
  ropewalk serve meta --config ropewalk.toml  or each in its own process
  ropewalk serve data --config ropewalk.toml --server 1
  ropewalk mount --config ropewalk.toml
Options on the command line override this file. An unknown key is an error. Every key may be left out, \
except those without a default in [election] and 'server' in [[data]].";

/// How the example file is used.
const MARKS: &str =
    "Lines that begin with '#' and no space are settings: remove the '#' to use them.";

const fn key(name: &'static str, form: Form, about: &'static str) -> Key {
    Key { name, form, default: "", examples: &[], is_set: false, about }
}

impl Key {
    const fn usually(self, default: &'static str) -> Key {
        Key { default, ..self }
    }

    const fn like(self, examples: &'static [&'static str]) -> Key {
        Key { examples, ..self }
    }

    const fn set(self) -> Key {
        Key { is_set: true, ..self }
    }
}

/// All sections, in the order of the example file.
pub const SECTIONS: &[Section] = &[
    Section { header: "", about: "", is_set: true, times: 1, keys: CLUSTER },
    Section { header: "[meta]", about: "The metadata server.", is_set: true, times: 1, keys: META },
    Section {
        header: "[election]",
        about: ELECTION_ABOUT,
        is_set: false,
        times: 1,
        keys: ELECTION,
    },
    Section { header: "[[data]]", about: DATA_ABOUT, is_set: true, times: 2, keys: DATA },
    Section { header: "[metrics]", about: METRICS_ABOUT, is_set: true, times: 1, keys: METRICS },
    Section {
        header: "[mount]",
        about: "The settings of 'ropewalk mount'.",
        is_set: true,
        times: 1,
        keys: MOUNT,
    },
];

const CLUSTER: &[Key] = &[
    key("directory", Form::Path, "\
This directory has the file 'cluster', with the cluster's identity and secret. The servers keep \
their data in meta, data0, data1 and so on below it, unless they have a directory of their own.")
    .like(&["\"/var/lib/ropewalk\""])
    .set(),
    key("cluster_file", Form::Path, "\
A copy of the file 'cluster' that 'ropewalk format' wrote, for hosts that do not have the directory \
above. Servers of a cluster recognize each other by the secret in it, so nobody else may be able to \
read it (mode 600).")
    .usually("the file 'cluster' in the directory above")
    .like(&["\"/etc/ropewalk/cluster\""]),
    key("cluster", Form::Text, "\
The cluster's identity, as 'ropewalk format' printed it. Servers then refuse the file of another \
cluster.")
    .like(&["\"1f3a5c7e9b1d2f4a6c8e0a2c4e6f8091\""]),
    key("address", Form::Text, "\
The address at which data servers and mounts reach the metadata server.")
    .usually("the address at which [meta] listens")
    .like(&["\"tcp://127.0.0.1:7700\""]),
    key("insecure", Form::Truth, "\
Lets servers listen at addresses that other hosts can reach, though everybody who reaches them can read \
and change all files. Not needed with 'key_file', where 'payload' is secure or auth.")
    .usually("false")
    .like(&["false"]),
    key("key_file", Form::Path, "\
The keys by which this host proves that it belongs to the cluster ('ropewalk key create'). Nobody \
else may be able to read the file (mode 600). Servers with keys begin sessions only with those who \
prove one.")
    .like(&["\"/etc/ropewalk/key\""]),
    key("payload", Form::Text, "\
Protects payloads on the network: 'crc' only finds accidents, with 'auth' nobody on the way changes \
them, with 'secure' nobody reads them, either. Networks can differ, as in \"secure,udp=auth\". The \
stronger mode of both sides counts. Memory of one host needs no protection.")
    .usually("secure with 'key_file', else crc")
    .like(&["\"secure\""]),
];

const META: &[Key] = &[
    key("listen", Form::Text, "\
The address at which the server listens: tcp://ADDRESS:PORT or ADDRESS:PORT, udp://ADDRESS:PORT, or \
ether://INTERFACE/ENDPOINT for raw Ethernet, which needs no IP address. Separate several by commas; \
peers try them in this order:
  \"ether://eth0/3, tcp://10.0.0.1:7700\"
If the server listens on raw Ethernet alone, set 'address' to the address that it prints, like \
ether://02:00:00:00:00:01/3. A host with several interfaces can bind the sockets of tcp:// and \
udp:// to one of them, and to a source address. Its calls leave by them, too:
  \"tcp://10.0.0.1:7700?interface=eth1&source=10.0.0.1\"")
    .usually("tcp://127.0.0.1:7700")
    .like(&["\"127.0.0.1:7700\""])
    .set(),
    key("directory", Form::Path, "\
The metadata server keeps its data here.")
    .usually("'meta' below the cluster's directory")
    .like(&["\"/ssd/ropewalk/meta\""]),
    key("term_seconds", Form::Seconds, "\
The server takes leases and locks from a client that is silent for this long. After a restart it \
waits this long for its former clients.")
    .usually("10")
    .like(&["10"]),
];

const ELECTION_ABOUT: &str = "\
A second metadata server follows the first one, and takes over when that one dies. 'address' above \
then names both, with a semicolon between them: \"tcp://node1:7700;tcp://node2:7700\". All hosts use \
the same section, and the same file 'cluster'. The servers are numbered in the order of 'address':
  ropewalk serve meta --config ropewalk.toml --number 0
  ropewalk serve meta --config ropewalk.toml --number 1 --join   once
  ropewalk serve meta --config ropewalk.toml --number 1          later";

const ELECTION: &[Key] = &[
    key("witness", Form::Whole, "\
The number of the data server that decides between the two, so that only one of them serves. Of the \
three one may be down.")
    .like(&["0"]),
    key("witness_address", Form::Text, "\
The address of that data server, as the metadata servers reach it.")
    .like(&["\"tcp://node3:7710\""]),
    key("etcd", Form::Text, "\
The members of an etcd (version 3.4 or newer) that decides instead of a data server: name this, or \
the two keys above. It is spoken to by HTTP without TLS and password. A stranger who can write \
there can have two metadata servers serve at once: let nobody else reach it. Change the witness only while \
both metadata servers are stopped.")
    .like(&["\"http://n1:2379,http://n2:2379,http://n3:2379\""]),
    key("lease_seconds", Form::Seconds, "\
A metadata server that was not heard of for this long is replaced.")
    .usually("1")
    .like(&["1"]),
    key("alone", Form::Truth, "\
Whether a metadata server goes on while the other one is down. Otherwise nothing changes meanwhile.")
    .usually("true")
    .like(&["true"]),
];

const DATA_ABOUT: &str = "A section for each data server.";

const DATA: &[Key] = &[
    key(
        "server",
        Form::Whole,
        "\
The number of the data server, from 0. A server stores its number with its data: do not change it \
later.",
    )
    .like(&["0", "1"])
    .set(),
    key(
        "listen",
        Form::Text,
        "\
The address at which this server listens; its forms are those of 'listen' in [meta].",
    )
    .usually("a free port or endpoint beside the address of [meta]")
    .like(&["\"127.0.0.1:7710\"", "\"127.0.0.1:7711\""]),
    key(
        "directory",
        Form::Path,
        "\
This data server keeps its data here.",
    )
    .usually("'data0', 'data1' and so on below the cluster's directory")
    .like(&["\"/disk0/ropewalk\"", "\"/disk1/ropewalk\""]),
    key(
        "domain",
        Form::Text,
        "\
The failure domain of this data server, such as its rack: copies of a file lie in different \
domains. With \"each\", the server is a domain of its own.",
    )
    .usually("the name of the host")
    .like(&["\"rack1\"", "\"rack2\""]),
    key(
        "scrub_mib_per_second",
        Form::Whole,
        "\
Once a day the server reads its data again at this rate, compares them with checksums and copies, \
and restores damaged blocks from copies. 0 turns that off.",
    )
    .usually("8")
    .like(&["8", "8"]),
];

const METRICS_ABOUT: &str = "\
Figures of the servers for Prometheus. Each process serves its own: with one process for each server \
on a host, give each of them another address by --metrics. In the source tree, docs/metrics.md \
explains the figures, and docs/alerts.yml has rules for alerts.";

const METRICS: &[Key] = &[key(
    "address",
    Form::Text,
    "\
The figures are served at http://ADDRESS/metrics. An address that other hosts can reach needs \
'insecure'.",
)
.usually("none: no figures are served")
.like(&["\"127.0.0.1:9277\""])];

const MOUNT: &[Key] = &[
    key(
        "directory",
        Form::Path,
        "\
The cluster is mounted on this directory.",
    )
    .like(&["\"/mnt/ropewalk\""])
    .set(),
    key(
        "patience_seconds",
        Form::Seconds,
        "\
An operation waits this long for a server that does not answer, then fails with EIO.",
    )
    .usually("60")
    .like(&["60"]),
    key(
        "read_only",
        Form::Truth,
        "\
Whether all changes are refused.",
    )
    .usually("false")
    .like(&["false"]),
];

/// The example file.
pub fn example() -> String {
    let mut text = comment(
        "A configuration file of Ropewalk, with all keys. ropewalk.toml(5) explains it, too.",
    );
    for about in [ABOUT, MARKS, KEEP_AWAKE] {
        let _ = write!(text, "#\n{}", comment(about));
    }
    for section in SECTIONS {
        for time in 0..section.times {
            text.push('\n');
            text += &part(section, time);
        }
    }
    text
}

const KEEP_AWAKE: &str = "\
Servers and mounts of root keep the processors from sleeping while they are busy: they open \
/dev/cpu_dma_latency. To switch that off, set ROPEWALK_KEEP_AWAKE=never in their environment.";

/// A section of the example file; only the first one of its kind is explained.
fn part(section: &Section, time: usize) -> String {
    let mut text = String::new();
    if !section.about.is_empty() && time == 0 {
        text += &comment(section.about);
    }
    if !section.header.is_empty() {
        let _ = writeln!(text, "{}{}", mark(section.is_set), section.header);
    }
    for (number, key) in section.keys.iter().enumerate() {
        if time == 0 {
            if number > 0 && section.header.is_empty() {
                text.push('\n');
            }
            text += &comment(&described(key));
        }
        let _ = writeln!(text, "{}{} = {}", mark(key.is_set), key.name, key.examples[time]);
    }
    text
}

fn mark(is_set: bool) -> &'static str {
    if is_set { "" } else { "#" }
}

/// The description of a key, with its default.
pub fn described(key: &Key) -> String {
    let is_laid_out = key.about.lines().last().is_some_and(|line| line.starts_with("  "));
    match key.default {
        "" => key.about.to_string(),
        default if is_laid_out => format!("{}\n[default: {default}]", key.about),
        default => format!("{} [default: {default}]", key.about),
    }
}

fn comment(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let kept = line.starts_with("  ");
        let line = if kept { line.to_string() } else { wrapped(line, COLUMNS - 2, "") };
        for line in line.lines() {
            let _ = writeln!(lines, "# {line}");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Cause, parse};
    use super::*;

    /// The keys that the parser takes in a section, as it says itself of one that it does not take.
    fn taken(header: &str) -> Vec<String> {
        let text = format!("{header}\nxyzzy = 1\n");
        let error = parse(Path::new("x"), &text).expect_err("there is no such key");
        let Cause::Unknown { known, .. } = error.cause else { panic!("{error}") };
        known
    }

    #[test]
    fn the_parser_takes_the_keys_of_the_table_and_no_others() {
        let of_table = |section: &Section| -> Vec<String> {
            section.keys.iter().map(|key| key.name.to_string()).collect()
        };
        let name = |header: &str| header.trim_matches(['[', ']']).to_string();
        for section in SECTIONS {
            let mut wanted = of_table(section);
            if section.header.is_empty() {
                wanted.extend(SECTIONS[1..].iter().map(|section| name(section.header)));
            }
            let mut known = taken(section.header);
            wanted.sort();
            known.sort();
            assert_eq!(known, wanted, "{}", section.header);
        }
    }

    #[test]
    fn every_key_is_described_and_has_its_examples() {
        for section in SECTIONS {
            for key in section.keys {
                assert!(key.about.ends_with(['.', '"']), "{}: '{}'", key.name, key.about);
                assert_eq!(key.examples.len(), section.times, "{}", key.name);
                let quoted = key.examples.iter().all(|it| it.starts_with('"'));
                assert_eq!(quoted, matches!(key.form, Form::Text | Form::Path), "{}", key.name);
            }
        }
    }

    #[test]
    fn no_line_of_the_example_has_more_than_80_columns() {
        for line in example().lines() {
            assert!(line.chars().count() <= 80, "'{line}'");
        }
    }

    #[test]
    fn the_example_in_the_documents_is_that_of_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ropewalk.toml");
        let text = std::fs::read_to_string(&path).expect("the example is there");
        assert!(
            text == example(),
            "write it anew: cargo run -p ropewalk-cli -- manual ropewalk.toml > docs/ropewalk.toml"
        );
    }
}
