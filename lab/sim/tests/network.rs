//! Toy endpoints on simulated nodes: a client that counts through a server which dies and returns.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{FrameOrder, Header, LinkId, Placement, RemoteKey, Token, Urgency};
use ropewalk_rail::{Rail, Report};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cut, Kill, Node, Pollable, SimConfig, SimRail, Simulation, run_seeds};

const LIMIT: Duration = Duration::from_secs(60);

/// The reports of a poll of the rail.
struct Heard {
    buffers: BufferTable,
    up: Option<LinkId>,
    down: bool,
    numbers: Vec<(LinkId, u64)>,
}

impl Report for Heard {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _: bool) {
        self.up = Some(link);
    }
    fn link_down(&mut self, _: LinkId, _: Fault) {
        self.down = true;
    }
    fn place(&mut self, link: LinkId, header: &[u8], _: u32) -> Placement {
        self.numbers.push((link, u64::from_le_bytes(header[8..16].try_into().unwrap())));
        Placement::Drop
    }
    fn received(&mut self, _: LinkId, _: Token) {}
    fn done(&mut self, _: Token) {}
    fn failed(&mut self, _: Token, _: Fault) {}
    fn revoked(&mut self, _: LinkId, _: RemoteKey) {}
}

/// An endpoint with one rail: a server answers each number, a client sends the next one.
struct Toy {
    rail: SimRail,
    heard: Heard,
    server: Option<&'static str>,
    connecting: bool,
    count: Rc<Cell<u64>>,
}

impl Toy {
    fn new(node: &Node, server: Option<&'static str>, count: Rc<Cell<u64>>) -> Toy {
        let mut rail = node.rail(SimConfig::stream());
        rail.attach(0);
        let buffers = BufferTable::with_limit(1);
        let heard = Heard { buffers, up: None, down: false, numbers: Vec::new() };
        Toy { rail, heard, server, connecting: false, count }
    }

    fn send(&mut self, link: LinkId, number: u64) {
        let mut bytes = [0; 16];
        bytes[1] = 16;
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        let (header, payload) = (Header::new(&bytes), Slice::NONE);
        let (urgency, token) = (Urgency::Urgent, Token::NONE);
        self.rail.send(&FrameOrder { link, header, payload, urgency, token }, &self.heard.buffers);
    }
}

impl Pollable for Toy {
    fn poll(&mut self, now: Time) -> bool {
        let mut any = self.rail.poll(now, &mut self.heard);
        if std::mem::take(&mut self.heard.down) {
            self.connecting = false;
        }
        if let (Some(server), false) = (self.server, self.connecting) {
            self.connecting = self.rail.connect(server, now).is_ok();
            any = true;
        }
        for (link, number) in std::mem::take(&mut self.heard.numbers) {
            if self.server.is_some() {
                self.count.set(self.count.get().max(number));
            }
            self.send(link, number + u64::from(self.server.is_some()));
        }
        if let (Some(link), true) = (self.heard.up.take(), self.server.is_some()) {
            self.send(link, self.count.get() + 1);
        }
        any
    }

    fn deadline(&self) -> Option<Time> {
        self.rail.deadline()
    }
}

fn add_pair(simulation: &mut Simulation) -> Rc<Cell<u64>> {
    let count = Rc::new(Cell::new(0));
    let disk = Arc::new(VirtualDisk::new(0));
    simulation.add_node("server", disk.clone(), |node| {
        node.register(Toy::new(node, None, Rc::default()));
    });
    let counter = count.clone();
    simulation.add_node("client", disk, move |node| {
        node.register(Toy::new(node, Some("server"), counter.clone()));
    });
    count
}

/// One of the things that happen to servers, for up to a second.
fn misfortune(simulation: &mut Simulation, count: &Cell<u64>, kind: u64, pause: Duration) {
    match kind {
        0 | 1 => {
            let kill = if kind == 0 { Kill::Power } else { Kill::Process(pause / 100) };
            simulation.kill("server", kill);
            simulation.run_for(pause);
            simulation.restart("server");
        }
        2 => {
            simulation.network().partition("client", "server");
            let before = count.get();
            simulation.run_for(pause);
            assert!(count.get() <= before + 1, "a partition let something through");
            simulation.network().heal("client", "server");
        }
        _ => {
            let cut = Cut::FirstThenOther(pause);
            assert!(simulation.network().cut("server", "client", cut) >= 1);
        }
    }
}

#[test]
fn a_conversation_goes_on_over_deaths_cuts_and_partitions_of_the_server() {
    let hashes = RefCell::new(Vec::new());
    run_seeds(0..20, |simulation| {
        let count = add_pair(simulation);
        let mut random = simulation.fork_random();
        for round in 1..10 {
            let goal = count.get() + 20;
            assert!(simulation.run_until(LIMIT, |_| count.get() >= goal), "stuck in round {round}");
            let pause = Duration::from_micros(random.below(1_000_000));
            misfortune(simulation, &count, random.below(4), pause);
        }
        hashes.borrow_mut().push(simulation.trace_hash());
    });
    let mut hashes = hashes.into_inner();
    assert_eq!(hashes.len() % 2, 0, "each seed ran twice");
    let seeds = hashes.len() / 2;
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), seeds, "each seed is a run of its own");
}

#[test]
fn a_node_polls_its_endpoint_no_more_once_it_is_killed() {
    let mut simulation = Simulation::new(1);
    let count = add_pair(&mut simulation);
    assert!(simulation.run_until(LIMIT, |_| count.get() > 5));
    simulation.kill("client", Kill::Power);
    let before = count.get();
    simulation.run_for(LIMIT);
    assert_eq!(count.get(), before);
    assert!(!simulation.network().is_alive("client"));
    simulation.restart("client");
    assert!(simulation.run_until(LIMIT, |_| count.get() > before + 5));
}
