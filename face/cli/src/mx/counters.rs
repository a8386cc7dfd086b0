//! `ropewalk mx counters`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ropewalk_host_mx::agent::AgentClient;
use ropewalk_host_mx::counts::counted;
use ropewalk_rail_ether::{Interface, interfaces};
use serde_json::json;

use super::host::Files;
use crate::remote::text::printable;
use crate::report::{complain, print, print_json, rate, say, table};
use crate::stop::Stop;

/// The interval at which a waiting command checks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `ropewalk mx counters`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mx counters                     all counters that are not zero
  ropewalk mx counters eth0 --watch 1      the increase in each second
  ropewalk mx counters eth0 --all --json   as JSON, an object for each source

The sources are the kernel's interface, the agent of an interface, each endpoint, and the sockets \
that the endpoints of a process share. Counters run since their source began.

Names of counters:
  dropped.*            packets that were dropped, by reason
  resent, asked_again  packets that were sent again, or requested again
  throttled.*          messages that had to wait, by reason
  suspected.*          signs of broken paths, by cause
  nacks.*              messages that a peer refused, by reason

Only root sees endpoints of other users. Stopped programs and file servers do not report the \
counters of their endpoints.")]
pub struct Counters {
    /// Show only this interface.
    interface: Option<String>,
    /// Print a JSON object for each source, with all its counters.
    #[arg(long)]
    json: bool,
    /// Also show counters that are zero.
    #[arg(long)]
    all: bool,
    /// Show the increase after every SECONDS, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    watch: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 86400".to_string()),
    }
}

/// The owner of counters; owners are shown in the order of this type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    interface: String,
    kind: Kind,
    scheme: String,
    endpoint: Option<u8>,
    process: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Interface,
    Agent,
    Socket,
    Endpoint,
}

/// Names and what they count; `None` where it is not told.
type Counts = Option<Vec<(String, u64)>>;
type Sources = BTreeMap<Source, Counts>;

/// Shows what was counted, once or until Ctrl-C.
pub fn run(arguments: &Counters) -> anyhow::Result<()> {
    let files = Files::default();
    let Some(pause) = arguments.watch.map(Duration::from_secs_f64) else {
        return show(&look(arguments, &files)?, None, arguments);
    };
    let stop = Stop::watch()?;
    let mut last = look(arguments, &files)?;
    let mut since = Instant::now();
    loop {
        while !stop.is_asked() && since.elapsed() < pause {
            std::thread::sleep(LOOK.min(pause - since.elapsed().min(pause)));
        }
        if stop.is_asked() {
            return Ok(());
        }
        let now = look(arguments, &files)?;
        let time = std::mem::replace(&mut since, Instant::now()).elapsed();
        show(&differences(&last, &now), Some(time), arguments)?;
        last = now;
    }
}

/// The present counts of all sources.
fn look(arguments: &Counters, files: &Files) -> anyhow::Result<Sources> {
    let mut all = interfaces();
    if let Some(name) = &arguments.interface {
        all.retain(|interface| interface.name == *name);
        anyhow::ensure!(
            !all.is_empty(),
            "there is no interface '{name}': `ip link` lists the \
             interfaces"
        );
    }
    let mut found = Sources::new();
    let traffic = files.traffic();
    for interface in &all {
        let named = arguments.interface.is_some();
        let source = |kind| Source {
            interface: interface.name.clone(),
            kind,
            scheme: String::new(),
            endpoint: None,
            process: None,
        };
        let usual = interface.is_up && interface.is_ethernet && !interface.is_loopback;
        if let Some(counts) = traffic.get(&interface.name).filter(|_| usual || named) {
            found.insert(source(Kind::Interface), Some(counts.clone()));
        }
        if let Some(mut agent) = AgentClient::of(interface.index) {
            // One whose process is stopped does not tell.
            found.insert(source(Kind::Agent), agent.counts().ok());
        }
    }
    let is_wanted =
        |index: Option<u32>| named(&all, index).is_some() || arguments.interface.is_none();
    // Before they are asked: an endpoint that comes meanwhile is told of next time.
    let claims = files.claims();
    let mut told = BTreeSet::new();
    for it in counted().into_iter().filter(|it| is_wanted(it.interface)) {
        told.extend(
            it.interface.zip(it.endpoint).map(|(at, number)| (at, it.scheme.clone(), number)),
        );
        let source = Source {
            interface: label(&all, it.interface),
            kind: if it.endpoint.is_some() { Kind::Endpoint } else { Kind::Socket },
            scheme: it.scheme,
            endpoint: it.endpoint,
            process: Some(it.process),
        };
        // Several endpoints tell of one socket, one after the other.
        found.insert(source, Some(it.counts));
    }
    for claim in claims.into_iter().filter(|claim| is_wanted(Some(claim.interface))) {
        if told.contains(&(claim.interface, claim.scheme.to_string(), claim.endpoint)) {
            continue;
        }
        let source = Source {
            interface: label(&all, Some(claim.interface)),
            kind: Kind::Endpoint,
            scheme: claim.scheme.to_string(),
            endpoint: Some(claim.endpoint),
            process: claim.process.map(|(number, _)| number),
        };
        found.insert(source, None);
    }
    Ok(found)
}

fn named(all: &[Interface], index: Option<u32>) -> Option<&Interface> {
    all.iter().find(|it| Some(it.index) == index)
}

/// The name of an interface; its number if the interface is gone.
fn label(all: &[Interface], index: Option<u32>) -> String {
    match (named(all, index), index) {
        (Some(interface), _) => interface.name.clone(),
        (None, Some(index)) => format!("number {index}"),
        (None, None) => "-".to_string(),
    }
}

/// The increases since the last look. A source that counts less began anew.
fn differences(last: &Sources, now: &Sources) -> Sources {
    let more = |(source, counts): (&Source, &Counts)| {
        let before: BTreeMap<&str, u64> = last
            .get(source)
            .into_iter()
            .flatten()
            .flatten()
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        let difference = |(name, count): &(String, u64)| {
            let before = before.get(name.as_str()).copied().unwrap_or(0);
            (name.clone(), count.checked_sub(before).unwrap_or(*count))
        };
        let counts = counts.as_ref().map(|counts| counts.iter().map(difference).collect());
        (source.clone(), counts)
    };
    now.iter().map(more).collect()
}

/// Shows counters, or what was more of them in this time.
fn show(sources: &Sources, time: Option<Duration>, arguments: &Counters) -> anyhow::Result<()> {
    if arguments.json {
        return sources.iter().try_for_each(|(source, counts)| print_object(source, counts, time));
    }
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for (source, counts) in sources {
        let Some(counts) = counts else {
            silent.push(format!("{} of {}", source.name(), source.interface));
            continue;
        };
        for (name, count) in counts.iter().filter(|it| arguments.all || it.1 > 0) {
            let (interface, whose) = (source.interface.clone(), source.name());
            let mut row = vec![interface, whose, printable(name.as_bytes())];
            row.push(count.to_string());
            row.extend(time.map(|time| rate(*count, time)));
            rows.push(row);
        }
    }
    if time.is_none() && !silent.is_empty() {
        complain!(
            "ropewalk: no counters of {}: its process is stopped, belongs to another user, or is a \
             file server",
            silent.join(", ")
        );
    }
    if rows.is_empty() {
        return say!(
            "no counter {}",
            if time.is_some() { "has increased" } else { "has counted anything" }
        );
    }
    let header = ["interface", "source", "counter", "count"];
    let watched = ["interface", "source", "counter", "increase", "per second"];
    let header = if time.is_some() { &watched[..] } else { &header[..] };
    print(format!("{}\n", table(header, rows)).as_bytes())
}

impl Source {
    /// As people say it.
    fn name(&self) -> String {
        let Source { scheme, process, .. } = self;
        let process = process.map_or(String::new(), |number| format!(" of {number}"));
        match (self.kind, self.endpoint) {
            (Kind::Interface, _) => "interface".to_string(),
            (Kind::Agent, _) => "agent".to_string(),
            (Kind::Endpoint, Some(number)) => format!("{scheme} {number}{process}"),
            (Kind::Endpoint | Kind::Socket, _) => format!("{scheme} socket{process}"),
        }
    }
}

fn print_object(source: &Source, counts: &Counts, time: Option<Duration>) -> anyhow::Result<()> {
    let kind = match source.kind {
        Kind::Interface => "interface",
        Kind::Agent => "agent",
        Kind::Socket => "socket",
        Kind::Endpoint => "endpoint",
    };
    let counts: Option<serde_json::Map<String, serde_json::Value>> = counts
        .as_ref()
        .map(|counts| counts.iter().map(|(name, count)| (name.clone(), json!(count))).collect());
    print_json(&json!({
        "kind": kind,
        "interface": source.interface,
        "scheme": if source.scheme.is_empty() { None } else { Some(&source.scheme) },
        "endpoint": source.endpoint,
        "process": source.process,
        "seconds": time.map(|time| time.as_secs_f64()),
        "counters": counts,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: Kind, endpoint: Option<u8>) -> Source {
        let (interface, scheme) = ("eth0".to_string(), "mxoe".to_string());
        Source { interface, kind, scheme, endpoint, process: Some(77) }
    }

    fn counts(counts: &[(&str, u64)]) -> Counts {
        Some(counts.iter().map(|(name, count)| (name.to_string(), *count)).collect())
    }

    #[test]
    fn differences_are_what_is_more_and_who_begins_anew_begins_at_nothing() {
        let (one, two) = (source(Kind::Endpoint, Some(1)), source(Kind::Endpoint, Some(2)));
        let other = source(Kind::Endpoint, Some(3));
        let last = Sources::from([
            (one.clone(), counts(&[("resent", 5), ("packets.sent", 7)])),
            (other.clone(), None),
        ]);
        let now = Sources::from([
            (one.clone(), counts(&[("resent", 9), ("packets.sent", 3)])),
            (two.clone(), counts(&[("resent", 4)])),
            (other.clone(), counts(&[("resent", 2)])),
        ]);
        let expected = Sources::from([
            (one, counts(&[("resent", 4), ("packets.sent", 3)])),
            (two, counts(&[("resent", 4)])),
            (other, counts(&[("resent", 2)])),
        ]);
        assert_eq!(differences(&last, &now), expected);
    }

    #[test]
    fn sources_have_names() {
        assert_eq!(source(Kind::Agent, None).name(), "agent");
        assert_eq!(source(Kind::Endpoint, Some(3)).name(), "mxoe 3 of 77");
        assert_eq!(source(Kind::Socket, None).name(), "mxoe socket of 77");
        assert_eq!(label(&[], Some(4)), "number 4");
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("0.5") == Ok(0.5));
    }
}
