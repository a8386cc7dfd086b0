//! A simulated node, as its boot code and the scenario see it.

use std::cell::RefCell;
use std::rc::Rc;

use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_rail_sim::{SimConfig, SimNetwork, SimRail};

/// Something of a node that makes progress when polled: an endpoint.
pub trait Pollable {
    /// Makes progress; true if anything happened.
    fn poll(&mut self, now: Time) -> bool;
    /// When it wants to be polled even if nothing else happens.
    fn deadline(&self) -> Option<Time>;
}

/// The objects that a node polls. Shared with the simulation, which empties the list when the node dies.
pub(crate) type Pollables = Rc<RefCell<Vec<Box<dyn Pollable>>>>;

/// One life of a node. Cloning gives another handle; after a kill all handles are powerless.
#[derive(Clone)]
pub struct Node {
    name: Rc<str>,
    life: u64,
    world: World,
    network: SimNetwork,
    pub(crate) rails: Rc<RefCell<Vec<String>>>,
    pub(crate) pollables: Pollables,
}

impl Node {
    pub(crate) fn new(name: &str, life: u64, world: World, network: SimNetwork) -> Node {
        let rails = Rc::new(RefCell::new(Vec::new()));
        let pollables = Rc::new(RefCell::new(Vec::new()));
        Node { name: name.into(), life, world, network, rails, pollables }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of this life: 1 at first, one more with each restart.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Its clock, disk, randomness and tasks.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// A rail that peers reach as `sim://NAME`. It dies with the node.
    pub fn rail(&self, config: SimConfig) -> SimRail {
        self.rail_named(&self.name.clone(), config)
    }

    /// One more rail of this node, as `sim://NAME.suffix`.
    pub fn second_rail(&self, suffix: &str, config: SimConfig) -> SimRail {
        self.rail_named(&format!("{}.{suffix}", self.name), config)
    }

    fn rail_named(&self, name: &str, config: SimConfig) -> SimRail {
        self.rails.borrow_mut().push(name.to_string());
        self.network.rail(name, config)
    }

    /// Has `pollable` polled as long as the node lives. Not to be called from within a poll.
    pub fn register(&self, pollable: impl Pollable + 'static) {
        self.pollables.borrow_mut().push(Box::new(pollable));
    }
}
