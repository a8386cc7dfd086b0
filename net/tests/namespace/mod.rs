//! Network namespaces with cards in them, for tests of raw Ethernet frames.
#![allow(dead_code)]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Whether `ip` does so.
pub fn ip(line: &str) -> bool {
    let words = line.split_whitespace();
    let status = Command::new("ip").args(words).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A namespace of its own, in which this thread is, with a bridge.
pub struct Namespace(String);

impl Namespace {
    /// `None`, with the reason on the standard output, where this machine does not allow it.
    pub fn enter() -> Option<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ropewalk-ether-{}-{number}", std::process::id());
        if !ip(&format!("netns add {name}")) {
            println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
            return None;
        }
        let namespace = Namespace(name);
        namespace.go();
        assert!(ip("link add bridge type bridge mcast_snooping 0") && ip("link set bridge up"));
        Some(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Runs `what` in the namespace, while this thread stays elsewhere.
    pub fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let there = || {
            self.go();
            what()
        };
        std::thread::scope(|scope| scope.spawn(there).join().expect("it is told above"))
    }

    fn go(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0)).expect("its name");
        let place = std::os::fd::AsFd::as_fd(&file);
        move_into_link_name_space(place, Some(LinkNameSpaceType::Network))
            .expect("this thread may go there");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
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
