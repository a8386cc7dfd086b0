//! `ropewalk export`: the clients of a cluster, the part of the file system that each may use, and the rights there.

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use ropewalk_client::Errno;
use ropewalk_client::operator::exports::KnownExport;
use ropewalk_client::operator::{Operator, OperatorError};
use ropewalk_wire::fs::exports::{ClientRule, ExportTerms, IdRange, Rights, Squash};
use serde_json::{Value, json};

use super::Asking;
use crate::report::{print_json, say, table};

/// The anonymous user and group, as Linux has them.
const NOBODY: u32 = 65534;

/// Work on exports.
#[derive(Debug, clap::Subcommand)]
pub enum ExportCommand {
    /// Shows the exports, their clients and their terms.
    #[command(after_help = "Example: ropewalk export list")]
    List {
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        asking: Asking,
    },
    /// Makes an export, or changes the terms of one.
    #[command(after_help = "Examples:
  ropewalk export set all --clients '*' --access ro
      everybody may read
  ropewalk export set gpu --clients node:gpu*,10.1.0.0/16 --root /jobs
      these nodes have /jobs for their root directory
  ropewalk export set lab --clients node:lab7 --users 1000:70000:100
      users 1000 to 1099 of lab7 are 70000 to 70099 here
  ropewalk export set ops --clients node:ops1 --access admin --squash none

As long as there is no export, every client has the whole file system. From then on a client needs \
an export: the closest rule counts (a node's whole name, the longest beginning of one, 'local', the \
longest prefix of a network, '*'), and a client that no rule is for is refused. Members of the \
cluster, root and the server's user on the metadata server's host need none.

Names of nodes are proven by keys ('ropewalk key'). An address is proven by nothing but the \
network, and counts for every user of its host; give '*' the narrowest export, since a client may \
come from another network, too.

A change of rights, squash or ids ends the sessions of the export: clients begin others at once, \
and lose their locks and the bytes that they have not synchronized. So do clients that get another \
export by a change of rules.")]
    Set(Set),
    /// Takes an export away: its sessions end.
    #[command(after_help = "Example: ropewalk export remove gpu")]
    Remove {
        /// The name of the export.
        name: String,
        /// Remove the last export, too: every client has everything then.
        #[arg(long)]
        open_to_all: bool,
        #[command(flatten)]
        asking: Asking,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Access {
    /// Read only.
    Ro,
    /// Read and write.
    Rw,
    /// Read and write, and orders to the cluster.
    Admin,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SquashWord {
    /// Users and groups are who their host says.
    None,
    /// User 0 and group 0 get the anonymous ids.
    Root,
    /// Everybody gets the anonymous ids.
    All,
}

/// The terms of an export; those that are not said stay as they are.
#[derive(Debug, clap::Args)]
pub struct Set {
    /// The name of the export.
    name: String,
    /// The clients that get it: '*', 'local', networks, 'node:NAME'.
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    clients: Option<Vec<ClientRule>>,
    /// Their rights. A new export has rw.
    #[arg(long, value_name = "RIGHTS")]
    access: Option<Access>,
    /// The users that are nobody in particular. A new export has root.
    #[arg(long, value_name = "WHOSE")]
    squash: Option<SquashWord>,
    /// The anonymous user and group. A new export has 65534:65534.
    #[arg(long, value_name = "USER:GROUP", value_parser = pair)]
    anonymous: Option<(u32, u32)>,
    /// The directory that clients have for their root. A new export has /.
    #[arg(long, value_name = "PATH")]
    root: Option<String>,
    /// Ranges of users: THEIRS:OURS:COUNT, several with commas; '' for none.
    #[arg(long, value_name = "RANGES", value_parser = ranges)]
    users: Option<Ranges>,
    /// The same for groups.
    #[arg(long, value_name = "RANGES", value_parser = ranges)]
    groups: Option<Ranges>,
    #[command(flatten)]
    asking: Asking,
}

/// Ranges of ids, as one argument says them.
#[derive(Debug, Clone)]
struct Ranges(Vec<IdRange>);

fn pair(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').map(|(user, group)| (user.parse(), group.parse()));
    match numbers {
        Some((Ok(user), Ok(group))) => Ok((user, group)),
        _ => Err("give two numbers, such as 65534:65534".to_owned()),
    }
}

fn ranges(text: &str) -> Result<Ranges, String> {
    let range = |text: &str| {
        let numbers: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([outer, inner, count]) => {
                Ok(IdRange { outer: *outer, inner: *inner, count: *count })
            }
            _ => Err(format!("'{text}' is no range: give three numbers, such as 1000:70000:100")),
        }
    };
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(range).collect::<Result<_, _>>().map(Ranges)
}

/// Does it.
pub fn run(command: &ExportCommand) -> anyhow::Result<()> {
    match command {
        ExportCommand::List { json, asking } => {
            asking.run(async |_, operator| list(operator, *json).await)
        }
        ExportCommand::Set(set) => {
            set.asking.run(async |_, operator| change(operator, set).await)?;
            say!("export {} is as said: 'ropewalk export list' shows it", set.name)
        }
        ExportCommand::Remove { name, open_to_all, asking } => {
            asking.run(async |_, operator| {
                let removed = operator.remove_export(name, *open_to_all).await;
                removed.map_err(|error| match error {
                    OperatorError::Refused { errno: Errno::EBUSY, .. } => anyhow!(
                        "{name} is the last export, and without one every client has the whole file \
                         system: give --open-to-all if that is meant"
                    ),
                    error => refusal(error, name),
                })
            })?;
            say!("there is no export {name} any more")
        }
    }
}

async fn change(operator: &Operator, set: &Set) -> anyhow::Result<()> {
    let known = operator.exports().await?;
    let known = known.into_iter().find(|export| export.terms.name == set.name);
    let mut terms = known.map_or_else(|| new_terms(&set.name), |export| export.terms);
    terms.clients = set.clients.clone().unwrap_or(terms.clients);
    terms.rights = set.access.map_or(terms.rights, |access| match access {
        Access::Ro => Rights::ReadOnly,
        Access::Rw => Rights::ReadWrite,
        Access::Admin => Rights::Admin,
    });
    terms.squash = set.squash.map_or(terms.squash, |squash| match squash {
        SquashWord::None => Squash::None,
        SquashWord::Root => Squash::Root,
        SquashWord::All => Squash::All,
    });
    terms.anonymous = set.anonymous.unwrap_or(terms.anonymous);
    terms.users = set.users.clone().map_or(terms.users, |ranges| ranges.0);
    terms.groups = set.groups.clone().map_or(terms.groups, |ranges| ranges.0);
    if let Err(why) = terms.check() {
        bail!("{why}");
    }
    let root = set.root.as_deref().unwrap_or("").as_bytes();
    operator.set_export(&terms, root).await.map_err(|error| refusal(error, &set.name))
}

/// A new export, before anything is said of it.
fn new_terms(name: &str) -> ExportTerms {
    ExportTerms {
        name: name.to_owned(),
        clients: Vec::new(),
        rights: Rights::ReadWrite,
        squash: Squash::Root,
        anonymous: (NOBODY, NOBODY),
        users: Vec::new(),
        groups: Vec::new(),
    }
}

/// A refusal in words.
fn refusal(error: OperatorError, name: &str) -> anyhow::Error {
    let (errno, server) = match error {
        OperatorError::Refused { errno, server } => (errno, server),
        other => return other.into(),
    };
    match errno {
        Errno::EEXIST => anyhow!(
            "another export has one of these clients already: 'ropewalk export list' shows it"
        ),
        Errno::ENOENT => {
            anyhow!("there is no export {name}, or no directory at the path of its root")
        }
        Errno::ENOTDIR => anyhow!("the root of an export has to be a directory"),
        Errno::EBUSY => {
            anyhow!("the root of export {name} stays while clients use it: end them first")
        }
        Errno::ENOSPC => anyhow!("the cluster has the maximum number of exports (64)"),
        Errno::EOPNOTSUPP => anyhow!(
            "this cluster has metadata of the first format, without exports: 'ropewalk upgrade' \
             brings it forward"
        ),
        errno => OperatorError::Refused { errno, server }.into(),
    }
}

fn words(rights: Rights, squash: Squash) -> (&'static str, &'static str) {
    let rights = match rights {
        Rights::ReadOnly => "ro",
        Rights::ReadWrite => "rw",
        Rights::Admin => "admin",
    };
    let squash = match squash {
        Squash::None => "none",
        Squash::Root => "root",
        Squash::All => "all",
    };
    (rights, squash)
}

fn lines(all: Vec<String>) -> String {
    if all.is_empty() { "-".to_owned() } else { all.join("\n") }
}

/// The ids of an export that are not as everywhere.
fn id_words(terms: &ExportTerms) -> String {
    let mut words: Vec<String> = Vec::new();
    if terms.anonymous != (NOBODY, NOBODY) {
        words.push(format!("nobody is {}:{}", terms.anonymous.0, terms.anonymous.1));
    }
    words.extend(range_words(&terms.users).into_iter().map(|range| format!("users {range}")));
    words.extend(range_words(&terms.groups).into_iter().map(|range| format!("groups {range}")));
    lines(words)
}

fn range_words(ranges: &[IdRange]) -> Vec<String> {
    ranges.iter().map(|it| format!("{}:{}:{}", it.outer, it.inner, it.count)).collect()
}

fn as_json(export: &KnownExport) -> Value {
    let terms = &export.terms;
    let (rights, squash) = words(terms.rights, terms.squash);
    let rules: Vec<String> = terms.clients.iter().map(ClientRule::to_string).collect();
    json!({
        "name": terms.name, "number": export.number,
        "root": String::from_utf8_lossy(&export.root), "inode": export.inode,
        "clients": rules, "access": rights, "squash": squash,
        "anonymous": { "user": terms.anonymous.0, "group": terms.anonymous.1 },
        "users": range_words(&terms.users), "groups": range_words(&terms.groups),
        "sessions": export.sessions,
    })
}

async fn list(operator: &Operator, json: bool) -> anyhow::Result<()> {
    let exports = operator.exports().await?;
    if json {
        let exports: Vec<Value> = exports.iter().map(as_json).collect();
        return print_json(&json!({ "exports": exports }));
    }
    if exports.is_empty() {
        return say!("there is no export: every client has the whole file system, read and write");
    }
    let rows = exports.iter().map(|export| {
        let terms = &export.terms;
        let (rights, squash) = words(terms.rights, terms.squash);
        let root = match export.root.is_empty() {
            true => "(removed)".to_owned(),
            false => export.root.escape_ascii().to_string(),
        };
        vec![
            terms.name.clone(),
            root,
            lines(terms.clients.iter().map(ClientRule::to_string).collect()),
            rights.to_owned(),
            squash.to_owned(),
            id_words(terms),
            export.sessions.to_string(),
        ]
    });
    let heads = ["export", "root", "clients", "access", "squash", "ids", "sessions"];
    say!("{}", table(&heads, rows.collect()))
}
