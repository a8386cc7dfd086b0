//! `ropewalk stat`: the properties of an inode, and the server of each of its stripes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
use ropewalk_client::{
    Attributes, Client, DataServerInfo, Growth, InodeKind, Layout, Placement, StripePlace, Striped,
};
use serde_json::{Value, json};

use super::text::{Names, add_name, exact_time, kind, mode};
use super::{Reach, Session, of, shown, within, written};
use crate::report::{bytes, columns, complain, print, print_json, table, with_addresses};

/// Stripes that are listed one by one unless all are asked for.
const STRIPES_SHOWN: usize = 16;

/// Arguments of `ropewalk stat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk stat :/data/big          attributes, striping, servers of the stripes
  ropewalk stat --all :/data/big    lists every stripe of a large file
  ropewalk stat --json :/data/big   as JSON, with all stripes

The metadata server keeps the contents of small files in their inodes. The stripes of a larger \
file appear on data servers when they are first written, and never move.")]
pub struct Stat {
    /// Paths in the cluster; the colon may be left out.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Show the target of a symbolic link instead of the link.
    #[arg(short = 'L', long)]
    follow: bool,
    /// List every stripe of a file with many stripes.
    #[arg(long)]
    all: bool,
    /// Print a JSON object for each path.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// The information about one path.
struct Found {
    path: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
    placement: Option<Placement>,
    servers: BTreeMap<u32, DataServerInfo>,
}

/// Shows what paths name.
pub fn run(arguments: &Stat) -> anyhow::Result<()> {
    arguments.reach.run("stat", async |session| {
        let mut failures = 0;
        for path in &arguments.paths {
            match look(session, within(path), arguments.follow).await {
                Ok(found) if arguments.json => print_json(&object(&found))?,
                Ok(found) => print(text(&found, arguments.all).as_bytes())?,
                Err(error) if arguments.paths.len() == 1 => return Err(error),
                Err(error) => {
                    complain!("ropewalk: {error:#}");
                    failures += 1;
                }
            }
        }
        if failures > 0 {
            bail!("{failures} of {} paths could not be shown", arguments.paths.len());
        }
        Ok(())
    })
}

async fn look(session: &Rc<Session>, path: &[u8], follow: bool) -> anyhow::Result<Found> {
    let client = &session.client;
    let mut attributes = session.find(path, follow).await?;
    let (mut target, mut placement, mut servers) = (None, None, BTreeMap::new());
    match attributes.kind {
        InodeKind::Symlink => {
            target = Some(client.read_link(attributes.inode).await.map_err(of(path))?);
        }
        InodeKind::File => {
            let placed = client.placement(attributes.inode).await.map_err(of(path))?;
            attributes = placed.attributes;
            servers = match &placed.striped {
                Some(striped) => servers_of(client, striped).await.map_err(of(path))?,
                None => BTreeMap::new(),
            };
            placement = Some(placed);
        }
        _ => {}
    }
    Ok(Found { path: path.to_vec(), attributes, target, placement, servers })
}

/// The servers of a file's pool, by number.
async fn servers_of(
    client: &Client,
    striped: &Striped,
) -> Result<BTreeMap<u32, DataServerInfo>, ropewalk_client::Errno> {
    let pool = client.data_servers(striped.layout.pool_version).await?;
    Ok(pool.servers.into_iter().map(|server| (server.server, server)).collect())
}

/// A data server's share of a file.
#[derive(Default)]
struct Share {
    stripes: u64,
    bytes: u64,
}

/// The servers that have a stripe, the one to which calls go first.
fn holders(stripe: &StripePlace) -> impl Iterator<Item = u32> + '_ {
    std::iter::once(stripe.server).chain(stripe.copies.iter().copied())
}

fn shares(striped: &Striped, size: u64) -> BTreeMap<u32, Share> {
    let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
    for stripe in striped.stripes(size).filter(|stripe| stripe.written) {
        for server in holders(&stripe) {
            let share = shares.entry(server).or_default();
            share.stripes += 1;
            share.bytes += stripe.bytes;
        }
    }
    shares
}

fn growth(layout: &Layout) -> String {
    match layout.growth {
        Growth::Stepped { narrow, wide } => {
            let from = match narrow {
                1 => "stripe 0 on 1 server".to_string(),
                narrow => format!("stripes below {narrow} on 1 server"),
            };
            format!("{from}, stripes below {wide} on 4, later ones on all servers")
        }
        Growth::Fixed(0) => "on all servers".into(),
        Growth::Fixed(width) => format!("on {width} servers"),
    }
}

fn text(found: &Found, all: bool) -> String {
    let a = &found.attributes;
    let (users, groups) = (Names::of_users(), Names::of_groups());
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string succeeds.
        let _ = writeln!(out, "{name:>10}  {value}");
    };
    let target = found.target.as_deref().map(super::text::printable);
    let leads = target.map_or(String::new(), |target| format!(" -> {target}"));
    line("path", format!("{}{leads}", shown(&found.path)));
    line("kind", kind(a.kind).into());
    let entries = if a.kind == InodeKind::Directory { "entries" } else { "bytes" };
    line("size", format!("{} {entries}, {} blocks of 512 bytes", a.size, a.blocks));
    line("mode", format!("{:04o} {}", a.mode, mode(a.kind, a.mode)));
    let (user, group) = (users.get(a.user), groups.get(a.group));
    line("owner", format!("{user} ({}), group {group} ({})", a.user, a.group));
    line("inode", format!("{}, {} link(s)", a.inode, a.link_count));
    if matches!(a.kind, InodeKind::BlockDevice | InodeKind::CharacterDevice) {
        line("device", format!("{:#x}", a.device));
    }
    let times = [("accessed", a.accessed), ("modified", a.modified)];
    for (name, time) in times.into_iter().chain([("changed", a.changed), ("created", a.created)]) {
        line(name, exact_time(time));
    }
    let Some(placement) = &found.placement else { return out };
    line("write epoch", placement.epoch.to_string());
    let Some(striped) = &placement.striped else {
        line("layout", "in the inode, on the metadata server".into());
        return out;
    };
    let layout = &striped.layout;
    let size = bytes(u64::from(layout.stripe_bytes));
    let copies = match striped.wanted_copies() {
        1 => String::new(),
        copies => format!(", {copies} copies of each"),
    };
    line("layout", format!("stripes of {size}{copies}"));
    line("width", growth(layout));
    let numbers: Vec<String> = striped.servers().iter().map(u32::to_string).collect();
    let pool = format!("version {}: data servers {}", layout.pool_version, numbers.join(", "));
    line("pool", pool);
    line("objects", format!("generation {}, seed {:#018x}", a.object_generation, layout.seed));
    out + &tables(found, striped, all)
}

fn tables(found: &Found, striped: &Striped, all: bool) -> String {
    let size = found.attributes.size;
    let server = |number: u32| found.servers.get(&number);
    let rows = shares(striped, size).into_iter().map(|(number, share)| {
        let alive = server(number).is_some_and(|server| server.alive);
        vec![
            format!("data server {number}"),
            if alive { "alive" } else { "silent" }.into(),
            share.stripes.to_string(),
            bytes(share.bytes),
            server(number).map_or(String::new(), |server| server.address.clone()),
        ]
    });
    let spread =
        with_addresses(&["", "state", "stripes", "bytes", "address"], rows.collect(), columns());
    let shown = if all { usize::MAX } else { STRIPES_SHOWN };
    let stripes = striped.stripes(size).take(shown).map(|stripe| {
        let place = match stripe.written {
            true if stripe.copies.is_empty() => format!("data server {}", stripe.server),
            true => {
                let numbers: Vec<String> = holders(&stripe).map(|it| it.to_string()).collect();
                format!("data servers {}", numbers.join(", "))
            }
            false => "a hole".into(),
        };
        let from = u64::from(stripe.stripe) * u64::from(striped.layout.stripe_bytes);
        vec![stripe.stripe.to_string(), from.to_string(), stripe.bytes.to_string(), place]
    });
    let list = table(&["stripe", "from", "bytes", "on"], stripes.collect());
    let more = striped.stripes(size).count().saturating_sub(shown);
    let more = match more {
        0 => String::new(),
        more => format!("and {more} more; --all lists them\n"),
    };
    format!("{spread}\n{list}\n{more}")
}

/// A path for programs.
fn object(found: &Found) -> Value {
    let a = &found.attributes;
    let stripe = |stripe: StripePlace| {
        json!({
            "stripe": stripe.stripe,
            "bytes": stripe.bytes,
            "server": stripe.server,
            "servers": holders(&stripe).collect::<Vec<_>>(),
            "written": stripe.written,
        })
    };
    let striped = |striped: &Striped| {
        let servers = striped.servers();
        let servers = servers.iter().map(|number| match found.servers.get(number) {
            Some(server) => json!({
                "server": number, "alive": server.alive, "address": server.address,
            }),
            None => json!({ "server": number }),
        });
        json!({
            "stripe_bytes": striped.layout.stripe_bytes,
            "copies": striped.wanted_copies(),
            "growth": growth(&striped.layout),
            // As text: readers of JSON round numbers of 64 bits.
            "seed": format!("{:#018x}", striped.layout.seed),
            "pool": striped.layout.pool_version,
            "servers": servers.collect::<Vec<_>>(),
            "stripes": striped.stripes(a.size).map(stripe).collect::<Vec<_>>(),
        })
    };
    let placement = found.placement.as_ref();
    let mut object = json!({
        "kind": kind(a.kind),
        "target": null,
        "size": a.size,
        "blocks": a.blocks,
        "mode": format!("{:04o}", a.mode),
        "user": a.user,
        "group": a.group,
        "user_name": Names::of_users().known(a.user),
        "group_name": Names::of_groups().known(a.group),
        "inode": a.inode,
        "links": a.link_count,
        "device": a.device,
        "accessed": exact_time(a.accessed),
        "modified": exact_time(a.modified),
        "changed": exact_time(a.changed),
        "created": exact_time(a.created),
        "epoch": placement.map(|placement| placement.epoch),
        "object_generation": a.object_generation,
        "layout": placement.map(|placement| match &placement.striped {
            Some(all) => striped(all),
            None => json!("inline"),
        }),
    });
    add_name(&mut object, "path", &written(&found.path));
    if let Some(target) = &found.target {
        add_name(&mut object, "target", target);
    }
    object
}
