//! `ropewalk upgrade`: brings the file system to the newest format, once all programs are new.

use std::time::Duration;

use anyhow::{anyhow, bail};
use indicatif::ProgressBar;
use ropewalk_base::text::printable;
use ropewalk_base::world::World;
use ropewalk_client::Errno;
use ropewalk_client::operator::upgrade::{Client, Format};
use ropewalk_client::operator::{Operator, OperatorError};
use ropewalk_wire::fs::upgrade::{NEEDED_VERSION, ServerFormat};
use serde_json::json;

use super::Asking;
use crate::report::{print_json, say};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A data server that has objects to bring forward may be silent for so many looks.
const LOOKS_MAX: u32 = 15;
/// Most bytes of a client's name.
const NAME_BYTES: usize = 64;

/// Brings the file system to the newest format, once all its programs are new.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk upgrade --check      shows who stands in the way, and changes nothing
  ropewalk upgrade

First exchange the programs, one after the other: metadata servers, data servers, mounts \
('ropewalk mount --take-over DIR'). Programs of two neighbouring versions work together in the \
format that the file system has, and may be exchanged back. The upgrade changes the format while \
everybody works on. After it, former programs are refused; a dump ('ropewalk meta dump') from \
before is the way back, as long as nothing has moved.

The command ends when all data servers have brought their objects forward. Ctrl-C ends the \
waiting, and the servers go on; the command can be given again at any time.")]
pub struct Upgrade {
    /// Change nothing: show the format, the versions, and who stands in the way.
    #[arg(long)]
    check: bool,
    /// Do not wait until all objects are brought forward.
    #[arg(long)]
    no_wait: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asking: Asking,
}

/// Does it.
pub fn run(arguments: &Upgrade) -> anyhow::Result<()> {
    arguments.asking.run(async |world, operator| {
        let before = operator.format().await.map_err(words)?;
        let mut now = before.clone();
        if !arguments.check {
            now = operator.upgrade().await.map_err(words)?;
            if now.is_newest() && !arguments.no_wait {
                now = wait(world, operator, now, arguments.json).await?;
            }
        }
        if arguments.json {
            show_json(&before, &now)?;
        } else {
            show(&before, &now)?;
        }
        match arguments.check || now.is_newest() {
            true => Ok(()),
            false => bail!("the format stays {}: {}", now.format, obstacles(&now).join("; ")),
        }
    })
}

/// A refusal in words.
fn words(error: OperatorError) -> anyhow::Error {
    match error {
        OperatorError::Refused { errno: Errno::ENOSPC, .. } => anyhow!(
            "the metadata server's disk is full: free some room there first; nothing has changed"
        ),
        OperatorError::Refused { errno: Errno::E2BIG, .. } => anyhow!(
            "the file system has so many versions of its pools that they do not fit into one change: \
             copy the files into a new cluster; nothing has changed"
        ),
        other => other.into(),
    }
}

/// Shows the objects that have yet to be brought forward, until none is left.
async fn wait(
    world: &World,
    operator: &Operator,
    mut now: Format,
    quiet: bool,
) -> anyhow::Result<Format> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    let mut silent = 0;
    while now.servers.iter().any(|it| !it.done) {
        let missing = now.servers.iter().find(|it| !it.done && !it.is_able());
        silent = missing.map_or(0, |_| silent + 1);
        if let Some(server) = missing.filter(|_| silent > LOOKS_MAX) {
            bail!(
                "the file system has format {}, but not all objects are brought forward: {}; then give this \
                 command again",
                now.format,
                obstacle(server)
            );
        }
        let left = now.servers.iter().filter(|it| !it.done).count();
        let told: u64 = now.servers.iter().map(|it| it.told).sum();
        bar.set_message(format!("{told} objects are brought forward; {left} data servers go on"));
        bar.tick();
        world.sleep(PAUSE).await;
        now = operator.format().await.map_err(words)?;
    }
    bar.finish_and_clear();
    Ok(now)
}

/// The obstacles to the next format, each with its remedy.
fn obstacles(now: &Format) -> Vec<String> {
    let servers = now.servers.iter().filter(|it| !it.is_able()).map(obstacle);
    let clients = now.clients.iter().map(|client| {
        let name = name(client);
        match client.version {
            0 => format!("client {name} was not heard since the metadata server started: wait"),
            _ => format!(
                "client {name} runs a former version: exchange its program ('ropewalk mount --take-over'), \
                 or unmount it"
            ),
        }
    });
    let mut all: Vec<String> = servers.chain(clients).collect();
    if now.more_clients > 0 {
        all.push(format!("{} more clients", now.more_clients));
    }
    all
}

fn obstacle(it: &ServerFormat) -> String {
    match it.version {
        0 => format!(
            "data server {} is not heard: start it, or remove it ('ropewalk server remove')",
            it.server
        ),
        _ => format!("data server {} runs a former version: exchange its program", it.server),
    }
}

fn name(client: &Client) -> String {
    match printable(&client.name, NAME_BYTES) {
        name if name.is_empty() => format!("{:016x}", client.session),
        name => name,
    }
}

fn show(before: &Format, now: &Format) -> anyhow::Result<()> {
    if before.format < now.format {
        say!("the file system had format {} and has format {} now", before.format, now.format)?;
    } else if now.is_newest() {
        say!("the file system has format {}, the newest one", now.format)?;
    } else {
        say!("the file system has format {}; the newest one is {}", now.format, now.newest)?;
        if now.free {
            say!("nobody stands in the way: 'ropewalk upgrade' brings it forward")?;
        }
        for obstacle in obstacles(now) {
            say!("in the way: {obstacle}")?;
        }
        return Ok(());
    }
    let left: Vec<String> =
        now.servers.iter().filter(|it| !it.done).map(|it| it.server.to_string()).collect();
    match left.as_slice() {
        [] => say!("all objects are brought forward"),
        left => say!("data servers that have yet to bring objects forward: {}", left.join(", ")),
    }
}

fn show_json(before: &Format, now: &Format) -> anyhow::Result<()> {
    let server = |it: &ServerFormat| {
        json!({
            "server": it.server, "version": it.version, "able": it.is_able(), "told": it.told,
            "done": it.done,
        })
    };
    let client = |it: &Client| json!({ "name": name(it), "version": it.version });
    print_json(&json!({
        "before": before.format, "format": now.format, "newest": now.newest,
        "needed_version": NEEDED_VERSION, "free": now.free,
        "servers": now.servers.iter().map(server).collect::<Vec<_>>(),
        "clients": now.clients.iter().map(client).collect::<Vec<_>>(),
        "more_clients": now.more_clients,
    }))
}
