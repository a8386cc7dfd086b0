//! `ropewalk paths drain`, `up`, `weight`, `specify` and `migrate`.

use std::collections::BTreeSet;

use anyhow::bail;
use ropewalk_host_paths::ask;
use serde_json::{Value, json};

use super::found::{Asked, Told, Which, peer_name, rail_name, short, text};
use crate::report::{complain, say};

/// Which peer is meant.
#[derive(Debug, clap::Args)]
struct Peer {
    /// The peer: its host or an address of it, or the beginning of its id.
    peer: String,
    #[command(flatten)]
    asked: Asked,
}

/// Which path is meant: one of a peer, or those over a rail.
#[derive(Debug, clap::Args)]
struct Meant {
    /// The peer: its host or an address of it, or the beginning of its id.
    #[arg(required_unless_present = "rail")]
    peer: Option<String>,
    /// The number of the path, as 'ropewalk paths status' shows it.
    #[arg(required_unless_present = "rail", conflicts_with = "rail")]
    path: Option<u32>,
    /// The paths over the rail with this interface, source address or scheme: of all sessions of
    /// the processes here, or of those with the peer.
    #[arg(long)]
    rail: Option<String>,
    #[command(flatten)]
    asked: Asked,
}

/// Arguments of `ropewalk paths drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths drain 10.0.0.2:7700 2    before work on the network of path 2
  ropewalk paths drain --rail eth1        the paths over eth1 of all sessions of
                                          the processes here

What is under way over the path arrives. The last path that carries is not drained.")]
pub struct Drain {
    #[command(flatten)]
    to: Meant,
}

/// Arguments of `ropewalk paths up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths up 10.0.0.2:7700 2
  ropewalk paths up --rail eth1        all paths over eth1 that are drained")]
pub struct Up {
    #[command(flatten)]
    to: Meant,
}

/// Arguments of `ropewalk paths weight`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ropewalk paths weight 10.0.0.2:7700 2 100    path 2 is chosen last

A path weighs 1000 if nobody says otherwise. An armed alternate stays.")]
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
  ropewalk paths migrate --rail eth0        all sessions of the processes here,
                                            to a path over eth0

The peer follows. Messages go on without a loss and in order.")]
pub struct Migrate {
    /// The peer: its host or an address of it, or the beginning of its id.
    #[arg(required_unless_present = "rail")]
    peer: Option<String>,
    /// The number of the path.
    #[arg(conflicts_with = "rail")]
    path: Option<u32>,
    /// To a path over the rail with this interface, source address or scheme: all sessions of the
    /// processes here, or those with the peer.
    #[arg(long)]
    rail: Option<String>,
    #[command(flatten)]
    asked: Asked,
}

/// Keeps a path out of use.
pub fn drain(arguments: &Drain) -> anyhow::Result<()> {
    each(&arguments.to.which(), arguments.to.path, arguments.to.rail.as_deref(), Verb::Drain)
}

/// Lets it be used.
pub fn up(arguments: &Up) -> anyhow::Result<()> {
    each(&arguments.to.which(), arguments.to.path, arguments.to.rail.as_deref(), Verb::Up)
}

/// Moves traffic.
pub fn migrate(arguments: &Migrate) -> anyhow::Result<()> {
    let Migrate { peer, path, rail, asked } = arguments;
    let which = Which { peer: peer.clone(), asked: asked.clone() };
    each(&which, *path, rail.as_deref(), Verb::Migrate)
}

impl Meant {
    fn which(&self) -> Which {
        Which { peer: self.peer.clone(), asked: self.asked.clone() }
    }
}

/// What is done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Drain,
    Up,
    Migrate,
}

impl Verb {
    /// The order for one session, in the words of its process; then what was done is said.
    fn carry_out(self, session: &Session, path: Option<u64>) -> anyhow::Result<()> {
        let word = match self {
            Verb::Drain => "drain",
            Verb::Up => "up",
            Verb::Migrate => "migrate",
        };
        let done = session.order(json!({ "do": word, "path": path }))?;
        let (path, peer) = (&done["path"], &session.peer);
        match self {
            Verb::Drain => {
                say!("path {path} to {peer} is drained: 'ropewalk paths up' lets it be used again")
            }
            Verb::Up => say!("path {path} to {peer} may be used"),
            Verb::Migrate if done["already"] == true => {
                say!("path {path} to {peer} carries already")
            }
            Verb::Migrate => say!("traffic to {peer} goes over path {path}"),
        }
    }

    /// The paths over a rail that are to be changed.
    fn over(self, session: &Session, rail: &str) -> Vec<u64> {
        let number = |path: &Value| path["path"].as_u64().unwrap_or(0);
        let came_up = session.paths.iter().filter(|path| path["path"].is_u64());
        let over = came_up.filter(|path| is_over(&path["rail"], rail));
        let is_drained = |path: &&Value| path["path_role"] == "drained";
        match self {
            Verb::Drain => over.filter(|it| !is_drained(it)).map(number).collect(),
            Verb::Up => over.filter(is_drained).map(number).collect(),
            // One that carries already, or takes over next, before others.
            Verb::Migrate => {
                let rank = |path: &&Value| match path["path_role"].as_str() {
                    Some("primary") => 0,
                    Some("alternate") => 1,
                    _ if path["state"] == "up" => 2,
                    _ => 3,
                };
                over.filter(|it| !is_drained(it)).min_by_key(rank).map(number).into_iter().collect()
            }
        }
    }
}

/// Whether a path leaves by this rail.
fn is_over(rail: &Value, named: &str) -> bool {
    ["interface", "source", "scheme"].into_iter().any(|name| rail[name] == *named)
}

/// Carries an order out for one path of a session, or for those over a rail of all sessions.
fn each(which: &Which, path: Option<u32>, rail: Option<&str>, verb: Verb) -> anyhow::Result<()> {
    let Some(rail) = rail else {
        return verb.carry_out(&only(which)?, path.map(u64::from));
    };
    let heard = which.ask(&json!({ "do": "status" }), "paths", &mut BTreeSet::new())?;
    which.check(&heard)?;
    let mut sessions: Vec<Session> = heard.told.iter().flat_map(sessions).collect();
    sessions.retain(|it| it.paths.iter().any(|path| path["several"] == true));
    let over = |it: &Session| it.paths.iter().any(|path| is_over(&path["rail"], rail));
    if !sessions.iter().any(over) {
        let rails = sessions.iter().flat_map(|it| it.paths.iter().map(|it| rail_name(&it["rail"])));
        let rails: Vec<String> = rails.collect::<BTreeSet<_>>().into_iter().collect();
        bail!(
            "no session here has several paths and one over a rail '{rail}'{}",
            if rails.is_empty() {
                String::new()
            } else {
                format!(": there are {}", rails.join(", "))
            }
        );
    }
    let (mut done, mut refused) = (0, 0);
    for session in &sessions {
        for path in verb.over(session, rail) {
            match verb.carry_out(session, Some(path)) {
                Ok(()) => done += 1,
                Err(error) => {
                    complain!("ropewalk: path {path} to {}: {error:#}", session.peer);
                    refused += 1;
                }
            }
        }
    }
    if refused > 0 {
        bail!("{refused} of {} paths over '{rail}' were refused", done + refused);
    }
    if done == 0 {
        say!(
            "nothing was to be done: no path over '{rail}' is {}",
            match verb {
                Verb::Drain => "in use",
                Verb::Up => "drained",
                Verb::Migrate => "free to carry",
            }
        )?;
    }
    heard.complete()
}

/// Weighs a path.
pub fn weight(arguments: &Weight) -> anyhow::Result<()> {
    let (session, weight) = (arguments.to.session()?, arguments.weight);
    let done =
        session.order(json!({ "do": "weight", "path": arguments.path, "weight": weight }))?;
    say!("path {} to {} weighs {weight}", done["path"], session.peer)
}

/// Chooses the path that takes over next.
pub fn specify(arguments: &Specify) -> anyhow::Result<()> {
    let Specify { to, rail, remote, entropy, strict } = arguments;
    let session = to.session()?;
    let done = session.order(json!({
        "do": "specify", "rail": rail, "to": remote, "entropy": entropy, "strict": strict,
    }))?;
    say!("path {} to {} takes over next", done["path"], session.peer)
}

/// A session of a process.
#[derive(Debug)]
struct Session {
    process: u32,
    endpoint: String,
    /// What the endpoint is in its process.
    role: String,
    id: String,
    /// The peer, as people see it.
    peer: String,
    /// The objects of its paths.
    paths: Vec<Value>,
}

impl Peer {
    /// The only session that is meant.
    fn session(&self) -> anyhow::Result<Session> {
        only(&Which { peer: Some(self.peer.clone()), asked: self.asked.clone() })
    }
}

/// The only session that is meant.
fn only(which: &Which) -> anyhow::Result<Session> {
    let heard = which.ask(&json!({ "do": "status" }), "paths", &mut BTreeSet::new())?;
    which.check(&heard)?;
    one_of(heard.told.iter().flat_map(sessions).collect(), which)
}

fn one_of(mut found: Vec<Session>, which: &Which) -> anyhow::Result<Session> {
    if found.len() == 1 {
        return Ok(found.remove(0));
    }
    let list = found.iter().map(|session| {
        let Session { process, role, id, peer, .. } = session;
        format!("\n  {} --process {process} --endpoint '{role}'    {peer}", short(id))
    });
    bail!(
        "{} sessions of processes here are with a peer '{}': say which one, by the peer's id, \
         --process and --endpoint:{}",
        found.len(),
        which.peer.as_deref().unwrap_or_default(),
        list.collect::<String>()
    )
}

fn sessions(told: &Told) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for path in &told.objects {
        let id = text(&path["peer"]["endpoint"]);
        match sessions.iter_mut().find(|session| session.id == id) {
            Some(session) => session.paths.push(path.clone()),
            None => sessions.push(Session {
                process: told.process,
                endpoint: told.endpoint.clone(),
                role: told.role.clone(),
                id,
                peer: peer_name(path),
                paths: vec![path.clone()],
            }),
        }
    }
    sessions
}

impl Session {
    /// Has the process do something; its answer, with the path that it is about.
    fn order(&self, mut order: Value) -> anyhow::Result<Value> {
        order["endpoint"] = self.endpoint.clone().into();
        order["peer"] = self.id.clone().into();
        Ok(ask(self.process, &order)?.object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(role: &str) -> Told {
        let path = |number: u64, interface: &str, role: &str| {
            json!({
                "peer": { "endpoint": "aabbccddee", "address": "tcp://10.0.0.2:7" },
                "path": number,
                "path_role": role,
                "state": "up",
                "several": true,
                "rail": { "scheme": "tcp", "interface": interface, "source": null },
            })
        };
        Told {
            process: 7,
            program: "ropewalk".to_string(),
            endpoint: "01".to_string(),
            role: role.to_string(),
            objects: vec![
                path(0, "eth0", "primary"),
                path(1, "eth1", "drained"),
                path(2, "eth1", "member"),
                path(3, "eth1", "alternate"),
            ],
        }
    }

    #[test]
    fn several_sessions_are_listed_as_they_can_be_chosen() {
        let told = [told("data server 1"), told("data server 2")];
        let which = Which { peer: Some("10.0.0.2".to_string()), ..Which::default() };
        let all = || told.iter().flat_map(sessions).collect::<Vec<_>>();
        let error = one_of(all(), &which).unwrap_err().to_string();
        assert!(error.starts_with("2 sessions"), "{error}");
        assert!(error.contains("\n  aabbccdd --process 7 --endpoint 'data server 2'"), "{error}");
        let one = one_of(all().into_iter().take(1).collect(), &which).unwrap();
        assert_eq!((&one.role[..], one.paths.len()), ("data server 1", 4));
    }

    #[test]
    fn an_order_for_a_rail_means_the_paths_over_it_that_it_changes() {
        let session = sessions(&told("mount")).remove(0);
        let of = |verb: Verb, rail| verb.over(&session, rail);
        assert_eq!(of(Verb::Drain, "eth1"), [2, 3]);
        assert_eq!(of(Verb::Up, "eth1"), [1]);
        assert_eq!(of(Verb::Migrate, "eth1"), [3], "the armed one");
        assert_eq!(of(Verb::Migrate, "tcp"), [0], "one that carries already stays");
        assert!(of(Verb::Drain, "eth9").is_empty() && of(Verb::Up, "eth0").is_empty());
    }
}
