//! Two paths over one pair of interfaces that differ in their source ports, so that switches with several equal ways may
//! choose another one for each.

mod common;

use std::net::{TcpListener, UdpSocket};

use common::{Medium, World, check};
use ropewalk_net::migration::{By, EndsError, Outcome, PathEnds, Policy, Role, Rule, Wanted};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, Level, Oversize};
use ropewalk_rail::Rail;

const COUNT: u64 = 40;
const BYTES: usize = 5_000;

fn open(scheme: &str, address: &str) -> Box<dyn Rail> {
    let listen = Listen::At { address, exactly: true };
    modules::open(scheme, &listen).expect("the loopback interface has it")
}

/// A port that nobody has at this moment.
fn free_port(scheme: &str) -> u16 {
    let place = ("127.0.0.1", 0);
    let address = match scheme {
        "tcp" => TcpListener::bind(place).and_then(|it| it.local_addr()),
        _ => UdpSocket::bind(place).and_then(|it| it.local_addr()),
    };
    address.expect("there is one").port()
}

/// Whether a connection of this host has this port at its near end.
fn is_connected_from(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel tells");
    let own = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[1].ends_with(&own) && words[3] == "01"
    })
}

/// Two endpoints. The first has a rail, and one with a source port; the second has one rail.
fn pair(scheme: &str, entropy: u16) -> World {
    let mut world = World::new(Medium::Tcp);
    let first = open(scheme, "127.0.0.1:0?source=127.0.0.1");
    let labelled = open(scheme, &format!("127.0.0.1:0?source=127.0.0.1&entropy={entropy}"));
    let theirs = open(scheme, "127.0.0.1:0?source=127.0.0.1");
    for rails in [vec![first, labelled], vec![theirs]] {
        world.add_over_all(rails, |config| {
            config.core.paths_max = 2;
            config.core.path_policy = Policy::Nothing;
            config.host = 0;
        });
    }
    world
}

/// Messages from the first to the second.
fn pass(world: &mut World, from: u64) {
    let to = world.peer(0, 1);
    for bits in from..from + COUNT {
        let (memory, level) = (world.memory(BYTES, bits as u8), Level::Delivered);
        let node = &world.nodes[0];
        let (tagged, context) = (Channel::Tagged, &node.context);
        let posted = node.endpoint.post_send(context, to, tagged, bits, memory, level, bits);
        world.posted(0, posted);
    }
    for bits in from..from + COUNT {
        let (memory, cut) = (world.memory(BYTES, 0), Oversize::Truncate);
        let node = &world.nodes[1];
        let (tagged, context, mask) = (Channel::Tagged, &node.context, u64::MAX);
        let posted =
            node.endpoint.post_receive(context, tagged, None, bits, mask, memory, cut, bits);
        world.posted(1, posted);
        let got = world.take(1, bits);
        assert_eq!(got.outcome, Ok(()), "{bits}");
        check(got.memory, BYTES, bits as u8);
        assert_eq!(world.take(0, bits).outcome, Ok(()), "{bits}");
    }
}

#[test]
fn two_paths_over_one_pair_of_interfaces_differ_in_their_source_ports() {
    for scheme in ["tcp", "udp"] {
        let entropy = free_port(scheme);
        let mut world = pair(scheme, entropy);
        let peer = world.peer(0, 1);
        pass(&mut world, 0);
        let endpoint = world.nodes[0].endpoint.clone();
        world.until("a second path", |_| endpoint.path_entries(peer).len() == 2);
        let entries = endpoint.path_entries(peer);
        let known: Vec<u32> = entries.iter().map(|(entry, _)| entry.record.entropy).collect();
        assert_eq!(known, [0, entropy.into()], "{scheme}");
        assert!(scheme == "udp" || is_connected_from(entropy));
        // They share their interfaces at both ends.
        let strict = Wanted { strict: true, ..Wanted::default() };
        assert_eq!(endpoint.specify_path(peer, strict), Err(Rule::SameFailureDomain));
        let here = || Some("127.0.0.1".to_string());
        let ends = PathEnds {
            rail: here(),
            remote: here(),
            entropy: Some(entropy),
            strict: false,
            path: None,
        };
        let refused = |ends: PathEnds| endpoint.specify_path_by(peer, &ends).expect_err("no such");
        assert_eq!(
            refused(PathEnds { entropy: Some(entropy ^ 1), ..ends.clone() }),
            EndsError::UnknownEntropy(entropy ^ 1)
        );
        assert_eq!(
            refused(PathEnds { remote: Some("10.9.9.9".to_string()), ..ends.clone() }),
            EndsError::NoRemote("10.9.9.9".to_string())
        );
        assert_eq!(
            refused(PathEnds { rail: Some("eth7".to_string()), ..ends.clone() }),
            EndsError::NoRail("eth7".to_string())
        );
        assert_eq!(
            refused(PathEnds { entropy: Some(0), ..ends.clone() }),
            EndsError::Refused(Rule::IsPrimary)
        );
        let path = endpoint.specify_path_by(peer, &ends).expect("there is one");
        let mut loads = endpoint.load_paths(&[peer], By::Poll);
        world.until("the load", |_| endpoint.poll_loads(&mut loads) == 0);
        let end = loads.ends().next().and_then(|(_, end)| end);
        assert_eq!(end, Some(Outcome::Armed { path }), "{scheme}");
        assert_eq!(endpoint.migrate_path(peer), Ok(path), "{scheme}");
        let before = endpoint.counters().1;
        pass(&mut world, COUNT);
        let after = endpoint.counters().1;
        let sent = |rail: usize| after[rail].1.bytes_sent - before[rail].1.bytes_sent;
        let all = COUNT * BYTES as u64;
        assert!(sent(1) >= all && sent(0) < all / 4, "{scheme}: {} and {}", sent(0), sent(1));
        let theirs = world.nodes[1].endpoint.path_entries(world.peer(1, 0));
        let primary = |entries: Vec<_>| {
            let mut entries = entries.into_iter();
            entries.find(|(_, role): &(ropewalk_net::migration::PathEntry, Role)| {
                *role == Role::Primary
            })
        };
        let near = primary(endpoint.path_entries(peer)).expect("there is one").0.record;
        assert_eq!(near.entropy, u32::from(entropy), "{scheme}");
        // The other side was told.
        if let Some((far, _)) = primary(theirs) {
            assert_eq!(far.record.entropy, u32::from(entropy), "{scheme}");
        }
    }
}

#[test]
fn rails_without_source_ports_refuse_one() {
    for (scheme, address) in [("ether", "lo?entropy=7"), ("shm", "name?entropy=7")] {
        let listen = Listen::At { address, exactly: true };
        let error = modules::open(scheme, &listen).err().expect("it is refused").to_string();
        assert!(error.starts_with(&format!("{scheme} has no entropy")), "{error}");
    }
    let error = modules::open_to_call_by("ether", "interface=lo&entropy=7");
    let error = error.err().expect("it is refused").to_string();
    assert!(error.starts_with("ether has no entropy"), "{error}");
    let listen = Listen::At { address: "127.0.0.1:7?entropy=8", exactly: true };
    let error = modules::open("udp", &listen).err().expect("it is refused").to_string();
    assert!(error.contains("port 7 and entropy=8 differ"), "{error}");
}
