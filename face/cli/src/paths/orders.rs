//! `ropewalk paths drain`, `up`, `weight`, `specify` and `migrate`.

use std::collections::BTreeSet;

use anyhow::bail;
use ropewalk_host_paths::ask;
use serde_json::{Value, json};

use super::found::{Told, Which, peer_name, text};
use crate::report::say;

/// Which peer is meant.
#[derive(Debug, clap::Args)]
struct Peer {
    /// The peer: an address of it, or the beginning of its id.
    peer: String,
    /// The process with this number.
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    process: Option<u32>,
}

/// Arguments of `ropewalk paths drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ropewalk paths drain 10.0.0.2:7700 2    before work on the network of path 2

What is under way over the path arrives. The last path that carries is not drained.")]
pub struct Drain {
    #[command(flatten)]
    to: Peer,
    /// The number of the path, as 'ropewalk paths status' shows it.
    path: u32,
}

/// Arguments of `ropewalk paths up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: ropewalk paths up 10.0.0.2:7700 2")]
pub struct Up {
    #[command(flatten)]
    to: Peer,
    /// The number of the path.
    path: u32,
}

/// Arguments of `ropewalk paths weight`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ropewalk paths weight 10.0.0.2:7700 2 100    path 2 takes over last

A path weighs 1000 if nobody says otherwise.")]
pub struct Weight {
    #[command(flatten)]
    to: Peer,
    /// The number of the path.
    path: u32,
    /// Its weight, 0 to 1000.
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(0..=1000))]
    weight: u16,
}

/// Arguments of `ropewalk paths specify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths specify 10.0.0.2:7700 --rail eth1      by that interface
  ropewalk paths specify 10.0.0.2:7700 --entropy 40001  with that source port
  ropewalk paths specify 10.0.0.2:7700 --strict         apart from the primary

What is left out is chosen: the path shares the least with the one that carries. It is proven, \
and takes over when that one fails, or by 'ropewalk paths migrate'.")]
pub struct Specify {
    #[command(flatten)]
    to: Peer,
    /// The interface, the source address or the scheme of the rail on this side.
    #[arg(long)]
    rail: Option<String>,
    /// The host at the other end, without a port.
    #[arg(long, value_name = "HOST")]
    remote: Option<String>,
    /// The source port of a rail that was opened with entropy=PORT; 0: of one without.
    #[arg(long, value_name = "PORT")]
    entropy: Option<u16>,
    /// It shares no interface with the path that carries.
    #[arg(long)]
    strict: bool,
}

/// Arguments of `ropewalk paths migrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths migrate 10.0.0.2:7700      to the spare path that is armed
  ropewalk paths migrate 10.0.0.2:7700 2    to path 2, which is proven before

The peer follows. Messages go on without a loss and in order.")]
pub struct Migrate {
    #[command(flatten)]
    to: Peer,
    /// The number of the path.
    path: Option<u32>,
}

/// Keeps a path out of use.
pub fn drain(arguments: &Drain) -> anyhow::Result<()> {
    let session = arguments.to.session()?;
    let path = session.order(json!({ "do": "drain", "path": arguments.path }))?;
    say!("path {path} to {} is drained: 'ropewalk paths up' lets it be used again", session.peer)
}

/// Lets it be used.
pub fn up(arguments: &Up) -> anyhow::Result<()> {
    let session = arguments.to.session()?;
    let path = session.order(json!({ "do": "up", "path": arguments.path }))?;
    say!("path {path} to {} may be used", session.peer)
}

/// Weighs a path.
pub fn weight(arguments: &Weight) -> anyhow::Result<()> {
    let (session, weight) = (arguments.to.session()?, arguments.weight);
    let path =
        session.order(json!({ "do": "weight", "path": arguments.path, "weight": weight }))?;
    say!("path {path} to {} weighs {weight}", session.peer)
}

/// Chooses the path that takes over next.
pub fn specify(arguments: &Specify) -> anyhow::Result<()> {
    let Specify { to, rail, remote, entropy, strict } = arguments;
    let session = to.session()?;
    let path = session.order(json!({
        "do": "specify", "rail": rail, "to": remote, "entropy": entropy, "strict": strict,
    }))?;
    say!("path {path} to {} takes over next", session.peer)
}

/// Moves traffic.
pub fn migrate(arguments: &Migrate) -> anyhow::Result<()> {
    let session = arguments.to.session()?;
    let path = session.order(json!({ "do": "migrate", "path": arguments.path }))?;
    say!("traffic to {} goes over path {path}", session.peer)
}

/// A session of a process.
struct Session {
    process: u32,
    endpoint: String,
    id: String,
    /// The peer, as people see it.
    peer: String,
}

impl Peer {
    /// The only session that is meant.
    fn session(&self) -> anyhow::Result<Session> {
        let which = Which { peer: Some(self.peer.clone()), process: self.process };
        let told = which.ask(&json!({ "do": "status" }), "paths", &mut BTreeSet::new())?;
        which.check(&told)?;
        let mut sessions = told.iter().flat_map(sessions).collect::<Vec<Session>>();
        match (sessions.pop(), sessions.len()) {
            (Some(session), 0) => Ok(session),
            (_, more) => bail!(
                "{} sessions of processes here are with a peer '{}': name the process by \
                 --process, or the peer by its id; `ropewalk paths status` lists them",
                more + 1,
                self.peer
            ),
        }
    }
}

fn sessions(told: &Told) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for path in &told.objects {
        let id = text(&path["peer"]["endpoint"]);
        if sessions.iter().all(|session| session.id != id) {
            let (process, endpoint) = (told.process, told.endpoint.clone());
            sessions.push(Session { process, endpoint, id, peer: peer_name(&path["peer"]) });
        }
    }
    sessions
}

impl Session {
    /// Has the process do something; the path that it is about.
    fn order(&self, mut order: Value) -> anyhow::Result<u64> {
        order["endpoint"] = self.endpoint.clone().into();
        order["peer"] = self.id.clone().into();
        let answer = ask(self.process, &order)?;
        Ok(answer.object["path"].as_u64().unwrap_or(0))
    }
}
