//! Network namespaces with cards in them, for tests of raw Ethernet frames.
#![allow(dead_code)]

use std::ops::Deref;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether `ip` does so.
pub fn ip(line: &str) -> bool {
    let words = line.split_whitespace();
    let status = Command::new("ip").args(words).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A namespace of its own, in which this thread is, with a bridge.
pub struct Namespace(ropewalk_netns::Namespace);

impl Namespace {
    /// `None`, with the reason on the standard output, where this machine does not allow it.
    pub fn enter() -> Option<Namespace> {
        let namespace = ropewalk_netns::Namespace::new("ether").map_err(|error| {
            println!("SKIP: {error}");
        });
        let namespace = namespace.ok()?;
        namespace.enter().expect("this thread may go there");
        assert!(ip("link add bridge type bridge mcast_snooping 0") && ip("link set bridge up"));
        Some(Namespace(namespace))
    }
}

impl Deref for Namespace {
    type Target = ropewalk_netns::Namespace;

    fn deref(&self) -> &ropewalk_netns::Namespace {
        &self.0
    }
}

/// A card behind the bridge, which reaches all others there.
pub fn card(mtu: u32) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let (card, plug) = (format!("card{number}"), format!("plug{number}"));
    assert!(ip(&format!("link add {card} mtu {mtu} type veth peer name {plug} mtu {mtu}")));
    assert!(ip(&format!("link set {plug} master bridge up")));
    assert!(ip(&format!("link set {card} up")));
    card
}

/// Packet sockets of this namespace.
pub fn sockets() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/packet").expect("the kernel tells");
    table.lines().count() - 1
}
