//! `ropewalk mx peers`.

use ropewalk_host_mx::agent::{AgentClient, KnownPeer};
use ropewalk_rail_ether::{Interface, interfaces};
use serde_json::json;

use super::info::order_name;
use crate::remote::text::printable;
use crate::report::{complain, print, print_json, table};

/// Arguments of `ropewalk mx peers`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mx peers                    lists the hosts on all interfaces
  ropewalk mx peers --interface eth0   lists the hosts on one interface
  ropewalk mx peers --json             as JSON, an object on a line

One of the processes with an mxoe:// endpoint on an interface runs the interface's agent, which \
finds the other hosts as the kernel driver of MX did. Without such a process the list is empty. A \
new agent knows all hosts within seconds.")]
pub struct Peers {
    /// Show only this interface.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Print a JSON object for each peer.
    #[arg(long)]
    json: bool,
}

/// Shows the tables of all agents of this host.
pub fn run(arguments: &Peers) -> anyhow::Result<()> {
    let mut all = interfaces();
    if let Some(name) = &arguments.interface {
        all.retain(|interface| interface.name == *name);
        anyhow::ensure!(
            !all.is_empty(),
            "there is no interface '{name}': `ip link` lists the \
             interfaces"
        );
    }
    let (mut rows, mut agents) = (Vec::new(), 0);
    for interface in &all {
        let Some(agent) = AgentClient::reach(interface.index).transpose() else { continue };
        agents += 1;
        let peers = match agent.and_then(|mut agent| agent.peers()) {
            Ok(peers) => peers,
            Err(error) => {
                complain!("ropewalk: {}: {error}", interface.name);
                continue;
            }
        };
        for peer in &peers {
            let shared = has_namesake(peer, &peers);
            let kind = kind(peer, &peers);
            if arguments.json {
                print_object(interface, peer, kind, shared)?;
            } else {
                rows.push(row(interface, peer, kind, shared));
            }
        }
    }
    if agents == 0 {
        complain!(
            "ropewalk: the peers are unknown: only a process with an mxoe:// endpoint looks for \
             them, and none has one on {}",
            arguments.interface.as_deref().unwrap_or("an interface of this host")
        );
    }
    // A message has said why.
    if arguments.json || rows.is_empty() {
        return Ok(());
    }
    print(format!("{}\n", table(&HEADER, rows)).as_bytes())
}

const HEADER: [&str; 7] = ["interface", "index", "name", "nic id", "kind", "index there", "heard"];

/// Whether another one has the same name, so that the name says nothing.
fn has_namesake(peer: &KnownPeer, all: &[KnownPeer]) -> bool {
    peer.name.is_some()
        && all.iter().any(|other| other.index != peer.index && other.name == peer.name)
}

/// The kind of a peer, as beacons tell it: nobody knows it before the first one.
fn kind(peer: &KnownPeer, all: &[KnownPeer]) -> Option<&'static str> {
    let own = all.iter().find(|it| it.is_own);
    match (peer.is_own, &peer.ours, peer.serial) {
        (true, ..) => Some("own"),
        _ if peer.order.is_some() && own.is_some_and(|own| own.order != peer.order) => {
            Some("other byte order")
        }
        (false, Some(_), _) => Some("ropewalk"),
        (false, None, Some(_)) => Some("foreign"),
        (false, None, None) => None,
    }
}

fn row(interface: &Interface, peer: &KnownPeer, kind: Option<&str>, shared: bool) -> Vec<String> {
    let unknown = || "-".to_string();
    let name = peer.name.as_ref().map_or_else(unknown, |name| printable(name.as_bytes()));
    vec![
        interface.name.clone(),
        peer.index.to_string(),
        if shared { format!("{name} (ambiguous)") } else { name },
        format!("{} ({:#014x})", peer.station, peer.station.nic_id()),
        kind.map_or_else(unknown, str::to_string),
        peer.reverse.map_or_else(unknown, |index| index.to_string()),
        if peer.is_own { unknown() } else { format!("{} s ago", peer.age.as_secs()) },
    ]
}

fn print_object(
    interface: &Interface,
    peer: &KnownPeer,
    kind: Option<&str>,
    shared: bool,
) -> anyhow::Result<()> {
    print_json(&json!({
        "interface": interface.name,
        "index": peer.index,
        "name": peer.name,
        "name_is_shared": shared,
        "address": peer.station.to_string(),
        "nic_id": peer.station.nic_id(),
        "kind": kind,
        "order": peer.order.map(order_name),
        "index_there": peer.reverse,
        "serial": peer.serial,
        "version": peer.ours.map(|ours| ours.version),
        "heard_ms_ago": if peer.is_own { None } else { Some(peer.age.as_millis() as u64) },
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_wire::mxoe::Order;

    use super::super::info::tests::nic;
    use super::*;

    #[test]
    fn a_row_says_what_is_known_and_a_name_that_two_have_is_marked() {
        let peer = KnownPeer {
            index: 3,
            station: "02:00:00:00:00:02".parse().unwrap(),
            reverse: None,
            serial: None,
            ours: None,
            order: None,
            name: None,
            is_own: false,
            age: Duration::from_millis(7900),
        };
        let interface = nic("eth0", 1500).interface.expect("one");
        let id = "02:00:00:00:00:02 (0x020000000002)";
        let row = |peer, shared| row(&interface, peer, kind(peer, &[]), shared);
        assert_eq!(row(&peer, false), ["eth0", "3", "-", id, "-", "-", "7 s ago"]);
        let met = KnownPeer { serial: Some(1), ..peer.clone() };
        assert_eq!(row(&met, false)[4], "foreign");
        let strange = KnownPeer { order: Some(Order::Little), ..met.clone() };
        let own = KnownPeer { is_own: true, order: Some(Order::Big), ..peer.clone() };
        assert_eq!(kind(&strange, &[own.clone(), strange.clone()]), Some("other byte order"));
        // Of one that has only sent beacons it is not known.
        assert_eq!(kind(&met, &[own, met.clone()]), Some("foreign"));
        let named = KnownPeer { name: Some("a\x1b:0".into()), reverse: Some(1), ..peer.clone() };
        let twin = KnownPeer { index: 4, is_own: true, ..named.clone() };
        let all = [peer.clone(), named.clone(), twin.clone()];
        assert!(!has_namesake(&peer, &all));
        // A peer is its index.
        let named = KnownPeer { index: 5, ..named };
        assert!(has_namesake(&named, &all) && has_namesake(&twin, &all));
        assert_eq!(row(&named, true)[2..3], ["a?:0 (ambiguous)"]);
        assert_eq!(row(&twin, false)[4..], ["own", "1", "-"]);
    }
}
