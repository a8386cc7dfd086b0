//! A network in memory, and the rail that reaches it: scheme `sim`, address = the rail's name.
//!
//! Time is virtual. The driver of the simulation hands it in ([`SimNetwork::set_now`], or any poll); everything that
//! happens is an event in one queue. Between any two rails, per direction, a [`Path`] sets the speed of frames and
//! the faults; links are cut, processes killed and restarted by calls.
//!
//! Invariants:
//! * one seed, one run: with the same calls in the same order everything happens again, which
//!   [`SimNetwork::trace_hash`] proves;
//! * a promise in a rail's capabilities is kept, whatever the faults: a reliable link loses nothing
//!   but by going down;
//! * the bytes of a frame are copied when it is ordered; memory of an endpoint is touched only while
//!   that endpoint polls its rail.
//!
//! It knows no protocol: of a frame it reads the two lengths that every rail reads.

mod access;
mod config;
mod connection;
mod frames;
mod health;
mod network;
mod rail;
mod trace;
mod traffic;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ropewalk_base::time::Time;

pub use config::{Cut, Kill, Path, Release, SimConfig};
pub use rail::SimRail;
pub use trace::Trace;

use network::Network;

/// A simulated network; cloning gives another handle on the same one.
#[derive(Debug, Clone)]
pub struct SimNetwork {
    shared: Arc<Mutex<Network>>,
}

/// A panic under the lock is a failed assertion of the simulator; rails that are dropped while it
/// unwinds must not turn it into an abort.
fn lock(shared: &Mutex<Network>) -> MutexGuard<'_, Network> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimNetwork {
    /// An empty network whose chances all follow from `seed`.
    pub fn new(seed: u64) -> SimNetwork {
        SimNetwork { shared: Arc::new(Mutex::new(Network::new(seed))) }
    }

    /// A new process under `name`. After a kill the name may be used again, by a new life that
    /// knows nothing of the old one. Panics where a live rail has the name.
    pub fn rail(&self, name: &str, config: SimConfig) -> SimRail {
        SimRail::new(self.clone(), name, config)
    }

    /// Moves virtual time forward and runs the due events; an earlier time changes nothing.
    pub fn set_now(&self, now: Time) {
        lock(&self.shared).advance(now);
    }

    /// The network's time.
    pub fn now(&self) -> Time {
        lock(&self.shared).now
    }

    /// When the next event is due; `None` where nothing will ever happen by itself.
    pub fn next_event(&self) -> Option<Time> {
        lock(&self.shared).next_event()
    }

    /// A hash over everything that happened so far.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.shared).trace.value()
    }

    /// Whether a process lives under `name`.
    pub fn is_alive(&self, name: &str) -> bool {
        let mut network = lock(&self.shared);
        let rail = network.rail_index(name);
        network.rails[rail].alive
    }

    /// Speed and faults of all directions that were not changed one by one. It cannot block them.
    pub fn set_default_path(&self, path: Path) {
        assert!(!path.blocked, "partitions are made between named rails");
        lock(&self.shared).default_path = path;
    }

    /// Speed and faults from one rail to another.
    pub fn path(&self, from: &str, to: &str) -> Path {
        let mut network = lock(&self.shared);
        let (from, to) = (network.rail_index(from), network.rail_index(to));
        network.path(from, to)
    }

    /// What these rails send, over all their links, leaves over one cable in the order of its sending. So a link has as
    /// much of the cable as it has frames on their way, and urgent frames overtake none there. Otherwise each link has a
    /// cable of its own.
    pub fn share_cable(&self, names: &[&str]) {
        let mut network = lock(&self.shared);
        let rails: Vec<usize> = names.iter().map(|name| network.rail_index(name)).collect();
        network.share_cable(rails.into_iter());
    }

    /// Changes one direction. The names need not be in use yet.
    pub fn change_path(&self, from: &str, to: &str, change: impl FnOnce(&mut Path)) {
        let mut network = lock(&self.shared);
        let (from, to) = (network.rail_index(from), network.rail_index(to));
        network.change_path(from, to, change);
    }

    /// Changes both directions alike.
    pub fn change_paths(&self, a: &str, b: &str, change: impl Fn(&mut Path)) {
        self.change_path(a, b, &change);
        self.change_path(b, a, &change);
    }

    /// Nothing gets from `from` to `to` any more; the other way stays open.
    pub fn partition_one_way(&self, from: &str, to: &str) {
        self.change_path(from, to, |path| path.blocked = true);
    }

    /// Nothing gets through between two rails.
    pub fn partition(&self, a: &str, b: &str) {
        self.change_paths(a, b, |path| path.blocked = true);
    }

    /// Ends a partition, both ways.
    pub fn heal(&self, a: &str, b: &str) {
        self.change_paths(a, b, |path| path.blocked = false);
    }

    /// Cuts all links between two rails, also those being set up. New ones can be made at once.
    /// Returns how many were cut.
    pub fn cut(&self, first: &str, other: &str, cut: Cut) -> usize {
        let mut network = lock(&self.shared);
        let (first, other) = (network.rail_index(first), network.rail_index(other));
        network.cut(first, other, cut)
    }

    /// Ends the process behind `name`. Its `SimRail` is powerless from now on.
    pub fn kill(&self, name: &str, kill: Kill) {
        let mut network = lock(&self.shared);
        let rail = network.rail_index(name);
        network.kill(rail, kill);
    }
}
