//! `ropewalk ls`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::rc::Rc;

use ropewalk_client::{Attributes, Errno, InodeKind};
use serde_json::json;

use super::text::{Names, add_name, kind, mode, printable, time};
use super::{Reach, Session, cause, join, of, shown, within, written};
use crate::report::{bytes, complain, print, print_json};

/// Arguments of `ropewalk ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk ls                         the root of the cluster on this host
  ropewalk ls -la :/data              with modes, owners, sizes and times
  ropewalk ls --json :/ | jq .size    as JSON, for programs
  ropewalk ls -A tcp://node1:7700 :/  another cluster (or set ROPEWALK_ADDRESS)

Times are in UTC. In the output of --json, 'user' and 'group' are numbers; 'user_name' and \
'group_name' are their names on this host, or null. If a name is not valid UTF-8, 'path', 'name' \
and 'target' contain replacement characters, and 'path_bytes', 'name_bytes' and 'target_bytes' \
list the exact bytes: in Python, bytes(entry['path_bytes']) is an argument for the other \
commands.")]
pub struct Ls {
    /// Paths in the cluster; the colon may be left out.
    #[arg(value_name = "PATH", default_value = ":/")]
    paths: Vec<PathBuf>,
    /// Show mode, number of links, owner, group, size and time of each entry.
    #[arg(short, long)]
    long: bool,
    /// Also list entries that begin with a dot.
    #[arg(short, long)]
    all: bool,
    /// List a directory itself instead of its entries.
    #[arg(short, long)]
    directory: bool,
    /// Print sizes with units, such as 1.5 MiB.
    #[arg(short = 'H', long)]
    human: bool,
    /// Print a JSON object for each entry.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// An entry as it is shown.
struct Row {
    path: Vec<u8>,
    name: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

/// Lists.
pub fn run(arguments: &Ls) -> anyhow::Result<()> {
    arguments.reach.run("ls", async |session| {
        let mut failed = None;
        for (number, path) in arguments.paths.iter().enumerate() {
            let path = within(path);
            match rows(arguments, session, path).await {
                Ok((rows, whole)) => {
                    if !whole {
                        failed = Some(anyhow::anyhow!("some entries could not be listed"));
                    }
                    if arguments.paths.len() > 1 && !arguments.json {
                        let gap = if number > 0 { "\n" } else { "" };
                        print(format!("{gap}{}\n", shown(path)).as_bytes())?;
                    }
                    show(arguments, &rows)?;
                }
                Err(error) if arguments.paths.len() == 1 => return Err(error),
                // The others are still listed.
                Err(error) => {
                    complain!("ropewalk: {error:#}");
                    failed = Some(anyhow::anyhow!("some entries could not be listed"));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

/// The rows of a path, and whether none is missing. An entry that cannot be told is named, and the others are
/// listed.
async fn rows(
    arguments: &Ls,
    session: &Rc<Session>,
    path: &[u8],
) -> anyhow::Result<(Vec<Row>, bool)> {
    let found = session.find(path, !arguments.long && !arguments.directory).await?;
    if arguments.directory || found.kind != InodeKind::Directory {
        return Ok((vec![row(session, path.to_vec(), path.to_vec(), found).await?], true));
    }
    let (mut rows, mut whole) = (Vec::new(), true);
    let mut cookie = 0;
    loop {
        let (client, caller) = (&session.client, &session.caller);
        let read = client.read_directory(caller, found.inode, cookie, true).await;
        let (entries, end) = read.map_err(of(path))?;
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        for entry in entries {
            if entry.name.starts_with(b".") && !arguments.all {
                continue;
            }
            let attributes = match entry.attributes {
                Some(attributes) => attributes,
                None => match client.attributes(entry.inode).await {
                    Ok(attributes) => attributes,
                    // Removed since.
                    Err(Errno::ENOENT | Errno::ESTALE) => continue,
                    Err(errno) => {
                        complain!("ropewalk: {:#}", of(&join(path, &entry.name))(errno));
                        whole = false;
                        continue;
                    }
                },
            };
            rows.push(row(session, join(path, &entry.name), entry.name, attributes).await?);
        }
        if end {
            break;
        }
    }
    if arguments.all {
        rows.push(row(session, path.to_vec(), b".".to_vec(), found).await?);
        let above = join(path, b"..");
        let parent = session.find(&above, true).await?;
        rows.push(row(session, above, b"..".to_vec(), parent).await?);
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((rows, whole))
}

async fn row(
    session: &Rc<Session>,
    path: Vec<u8>,
    name: Vec<u8>,
    attributes: Attributes,
) -> anyhow::Result<Row> {
    let target = match attributes.kind {
        InodeKind::Symlink => {
            let target = session.client.read_link(attributes.inode).await;
            Some(target.unwrap_or_else(|errno| cause(errno).into_bytes()))
        }
        _ => None,
    };
    Ok(Row { path, name, attributes, target })
}

fn show(arguments: &Ls, rows: &[Row]) -> anyhow::Result<()> {
    let (users, groups) = (Names::of_users(), Names::of_groups());
    if arguments.json {
        for row in rows {
            print_json(&object(row, &users, &groups))?;
        }
        return Ok(());
    }
    let terminal = std::io::stdout().is_terminal();
    let name = |name: &[u8]| match terminal {
        true => printable(name).into_bytes(),
        // A pipe gets what is there.
        false => name.to_vec(),
    };
    let mut out = Vec::new();
    if !arguments.long {
        for row in rows {
            out.extend_from_slice(&name(&row.name));
            out.push(b'\n');
        }
        return print(&out);
    }
    let fields: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let a = &row.attributes;
            let size = if arguments.human { bytes(a.size) } else { a.size.to_string() };
            let links = a.link_count.to_string();
            let (user, group) = (users.get(a.user), groups.get(a.group));
            [mode(a.kind, a.mode), links, user, group, size, time(a.modified)]
        })
        .collect();
    let width = |at: usize| fields.iter().map(|f| f[at].chars().count()).max().unwrap_or(0);
    let (links, user, group, size) = (width(1), width(2), width(3), width(4));
    for (row, f) in rows.iter().zip(&fields) {
        let line = format!(
            "{} {:>links$} {:user$} {:group$} {:>size$} {} ",
            f[0], f[1], f[2], f[3], f[4], f[5]
        );
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&name(&row.name));
        if let Some(target) = &row.target {
            out.extend_from_slice(b" -> ");
            out.extend_from_slice(&name(target));
        }
        out.push(b'\n');
    }
    print(&out)
}

/// An entry for programs.
fn object(row: &Row, users: &Names, groups: &Names) -> serde_json::Value {
    let a = &row.attributes;
    let mut object = json!({
        "kind": kind(a.kind),
        "mode": format!("{:04o}", a.mode),
        "links": a.link_count,
        "user": a.user,
        "group": a.group,
        "user_name": users.known(a.user),
        "group_name": groups.known(a.group),
        "size": a.size,
        "modified": super::text::exact_time(a.modified),
        "inode": a.inode,
        "target": null,
    });
    add_name(&mut object, "path", &written(&row.path));
    add_name(&mut object, "name", &row.name);
    if let Some(target) = &row.target {
        add_name(&mut object, "target", target);
    }
    object
}
