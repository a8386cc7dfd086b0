//! The world in which nodes live and die, and the loop that runs it.
//!
//! One step polls one ready task or one node's endpoints, of a node that the seed picks. If
//! nothing is ready, time jumps to the next timer, network event or end of blocking work.
//!
//! Invariant: between two steps nothing is half done, so a kill between any two steps is a kill at
//! any point at which a real process could die, as far as others can tell.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, World};
use ropewalk_rail_sim::{Kill, SimNetwork, Trace};

use crate::disk::VirtualDisk;
use crate::node::Node;
use crate::offload::{SimClock, SimOffload};

/// Steps within one instant after which the run counts as livelocked.
const STEPS_PER_INSTANT_MAX: u64 = 2_000_000;
/// A poll that was due and did nothing is asked again after this long.
const POLL_AGAIN: Duration = Duration::from_micros(1);

type Boot = Rc<dyn Fn(&Node)>;
type DiskEnd = Box<dyn Fn(Kill, &mut Random)>;

/// A name in the cluster: its boot code, and its life if it has one.
struct Slot {
    number: u64,
    disk: Arc<dyn Disk>,
    /// The effect of a death on the disk. It runs before anything of the node is dropped, so that no destructor
    /// writes after the end.
    disk_end: DiskEnd,
    boot: Boot,
    lives: u64,
    paused: bool,
    /// Nanoseconds by which its calendar is ahead of the true one.
    ahead: Rc<Cell<i64>>,
    life: Option<Life>,
}

struct Life {
    node: Node,
    offload: Rc<SimOffload>,
}

/// A cluster under virtual time. See the module.
pub struct Simulation {
    seed: u64,
    clock: SimClock,
    /// Scheduling decisions only.
    random: Random,
    network: SimNetwork,
    slots: BTreeMap<String, Slot>,
    offload_delay: (Duration, Duration),
    trace: Trace,
    steps_in_instant: u64,
    check: Option<Box<dyn Fn()>>,
}

impl Simulation {
    /// An empty cluster; everything that happens in it by chance follows from `seed`.
    pub fn new(seed: u64) -> Simulation {
        let mut random = Random::from_seed(seed);
        let network = SimNetwork::new(random.next_u64());
        Simulation {
            seed,
            clock: SimClock::default(),
            random,
            network,
            slots: BTreeMap::new(),
            offload_delay: (Duration::from_micros(20), Duration::from_millis(2)),
            trace: Trace::new(),
            steps_in_instant: 0,
            check: None,
        }
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The network, to make faults in it.
    pub fn network(&self) -> &SimNetwork {
        &self.network
    }

    /// Randomness for the scenario's own choices; does not disturb the scheduler's.
    pub fn fork_random(&mut self) -> Random {
        self.random.fork()
    }

    /// Sets the duration of blocking work in lives that begin later: `from`, and up to `more` on top.
    pub fn set_offload_delay(&mut self, from: Duration, more: Duration) {
        self.offload_delay = (from, more);
    }

    /// A hash over all scheduling decisions and all that the network did.
    pub fn trace_hash(&self) -> u64 {
        let mut trace = self.trace;
        trace.mix(self.network.trace_hash());
        trace.mix(self.now().0);
        trace.value()
    }

    /// Adds a node and boots it. `boot` runs again at each restart. The disk outlives the node as it is. If the disk
    /// has to notice a death, use [`Simulation::add_node_with_end`].
    pub fn add_node(&mut self, name: &str, disk: Arc<dyn Disk>, boot: impl Fn(&Node) + 'static) {
        self.add_node_with_end(name, disk, |_, _| (), boot);
    }

    /// Adds a node with a virtual disk: the end of the process closes its files, the end of its
    /// power loses and tears what was not synced.
    pub fn add_virtual_node(
        &mut self,
        name: &str,
        disk: VirtualDisk,
        boot: impl Fn(&Node) + 'static,
    ) {
        let dying = disk.clone();
        let end = move |kill: Kill, random: &mut Random| match kill {
            Kill::Process(_) => dying.survive_process_death(),
            Kill::Power => dying.crash(random),
        };
        self.add_node_with_end(name, Arc::new(disk), end, boot);
    }

    /// Adds a node and boots it; `disk_end` is run at each of its deaths before anything else.
    pub fn add_node_with_end(
        &mut self,
        name: &str,
        disk: Arc<dyn Disk>,
        disk_end: impl Fn(Kill, &mut Random) + 'static,
        boot: impl Fn(&Node) + 'static,
    ) {
        let (disk_end, boot) = (Box::new(disk_end), Rc::new(boot));
        let number = self.slots.len() as u64;
        let (lives, paused, ahead, life) = (0, false, Rc::default(), None);
        let slot = Slot { number, disk, disk_end, boot, lives, paused, ahead, life };
        let before = self.slots.insert(name.to_string(), slot);
        assert!(before.is_none(), "two nodes are called {name}");
        self.restart(name);
    }

    fn slot_mut(&mut self, name: &str) -> &mut Slot {
        self.slots.get_mut(name).unwrap_or_else(|| panic!("no node is called {name}"))
    }

    fn slot(&self, name: &str) -> &Slot {
        self.slots.get(name).unwrap_or_else(|| panic!("no node is called {name}"))
    }

    /// The node under a name; panics where it is dead.
    pub fn node(&self, name: &str) -> Node {
        let life = self.slot(name).life.as_ref();
        life.unwrap_or_else(|| panic!("node {name} is dead")).node.clone()
    }

    /// Whether a node lives.
    pub fn is_alive(&self, name: &str) -> bool {
        self.slot(name).life.is_some()
    }

    /// Ends a node between two steps: its memory, tasks, timers and blocking work are gone. A node
    /// that is dead stays so.
    pub fn kill(&mut self, name: &str, kill: Kill) {
        self.trace.mix(self.slot(name).number);
        let mut random = self.random.fork();
        let slot = self.slot_mut(name);
        slot.paused = false;
        let Some(life) = slot.life.take() else { return };
        (slot.disk_end)(kill, &mut random);
        // The rails first: objects that are dropped below shall not say farewell to anyone.
        for rail in life.node.rails.borrow().iter() {
            self.network.kill(rail, kill);
        }
        life.end();
    }

    /// Boots a dead node again, on the disk that it left behind.
    pub fn restart(&mut self, name: &str) {
        let mut random = self.random.fork();
        let (clock, delay) = (self.clock.clone(), self.offload_delay);
        let network = self.network.clone();
        let slot = self.slot_mut(name);
        let clock = clock.with(&slot.ahead);
        assert!(slot.life.is_none(), "node {name} lives: kill it before the restart");
        slot.lives += 1;
        let offload = Rc::new(SimOffload::new(clock.clone(), random.fork(), delay));
        let executor = Executor::shuffled(Box::new(|| ()), random.fork());
        let world =
            World::new(executor, Rc::new(clock), slot.disk.clone(), offload.clone(), random.fork());
        let node = Node::new(name, slot.lives, world, network);
        let boot = slot.boot.clone();
        slot.life = Some(Life { node: node.clone(), offload });
        boot(&node);
    }

    /// Stops a node without killing it, as a debugger or a busy machine does; its blocking work
    /// and the network go on.
    pub fn pause(&mut self, name: &str) {
        self.slot_mut(name).paused = true;
    }

    /// The node's calendar jumps, forwards or back. Its other clock goes on.
    pub fn jump_calendar(&mut self, name: &str, seconds: i64) {
        let ahead = &self.slot_mut(name).ahead;
        ahead.set(ahead.get().saturating_add(seconds * 1_000_000_000));
    }

    /// Has something checked after each step from now on.
    pub fn check_always(&mut self, check: impl Fn() + 'static) {
        self.check = Some(Box::new(check));
    }

    fn check(&self) {
        if let Some(check) = &self.check {
            check();
        }
    }

    /// Lets a paused node go on.
    pub fn resume(&mut self, name: &str) {
        self.slot_mut(name).paused = false;
    }

    /// Runs until `predicate` holds; false if it does not within `limit` of virtual time.
    pub fn run_until(
        &mut self,
        limit: Duration,
        mut predicate: impl FnMut(&Simulation) -> bool,
    ) -> bool {
        let end = self.now() + limit;
        loop {
            if predicate(self) {
                return true;
            }
            if self.step() {
                continue;
            }
            match self.next_moment().filter(|next| *next <= end) {
                Some(next) => self.advance(next),
                None => {
                    self.advance(end.max(self.now()));
                    return predicate(self);
                }
            }
        }
    }

    /// Runs for so much virtual time.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, |_| false);
    }

    /// Runs `count` steps, to stop at any point in the middle of things. False if the cluster
    /// came to rest before, with nothing that will ever happen by itself.
    pub fn run_steps(&mut self, count: u64) -> bool {
        for _ in 0..count {
            if self.step() {
                continue;
            }
            let Some(next) = self.next_moment() else { return false };
            self.advance(next);
        }
        true
    }

    /// Runs `future` as a task of a node until its result is there; `None` if that takes longer
    /// than `limit` or the node dies.
    pub fn block_on<T: 'static>(
        &mut self,
        name: &str,
        limit: Duration,
        future: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        self.node(name).world().spawn(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        self.run_until(limit, |_| result.borrow().is_some());
        result.borrow_mut().take()
    }

    /// One step of one node; false if nobody has anything to do at this instant.
    fn step(&mut self) -> bool {
        let now = self.now();
        let running: Vec<&Slot> =
            self.slots.values().filter(|slot| slot.life.is_some() && !slot.paused).collect();
        let start = self.random.below(running.len() as u64) as usize;
        let tasks_first = self.random.below(2) == 0;
        for turn in 0..running.len() {
            let slot = running[(start + turn) % running.len()];
            let Some(life) = &slot.life else { continue };
            let did = if tasks_first {
                life.run_task().or_else(|| life.poll(now))
            } else {
                life.poll(now).or_else(|| life.run_task())
            };
            if let Some(what) = did {
                self.trace.mix(slot.number << 8 | what);
                self.steps_in_instant += 1;
                assert!(
                    self.steps_in_instant < STEPS_PER_INSTANT_MAX,
                    "livelock at {now:?}: nodes keep each other busy and time stands still"
                );
                self.check();
                return true;
            }
        }
        false
    }

    /// The next moment at which anything happens by itself.
    fn next_moment(&self) -> Option<Time> {
        let later = self.now() + POLL_AGAIN;
        let lives = self.slots.values().filter_map(|slot| Some((slot, slot.life.as_ref()?)));
        let moments = lives.flat_map(|(slot, life)| {
            let timer = life.node.world().executor().next_deadline();
            let poll = life.node.pollables.borrow();
            let poll = poll.iter().filter_map(|pollable| pollable.deadline()).min();
            let poll = poll.map(|poll| poll.max(later));
            let awake = !slot.paused;
            [timer.filter(|_| awake), poll.filter(|_| awake), life.offload.next_due()]
        });
        moments.flatten().chain(self.network.next_event()).min().filter(|next| *next < Time::NEVER)
    }

    /// Advances time to `to`, and handles the events that are due then.
    fn advance(&mut self, to: Time) {
        // A moment that is already here (work without any delay) moves no clock.
        let now = to.max(self.now());
        if now > self.now() {
            self.steps_in_instant = 0;
        }
        self.clock.set(now);
        self.trace.mix(now.0);
        self.network.set_now(now);
        for slot in self.slots.values() {
            let Some(life) = &slot.life else { continue };
            while life.offload.run_one(now) {
                self.trace.mix(slot.number << 8 | 3);
            }
            if !slot.paused {
                life.node.world().executor().fire_timers(now);
            }
        }
        self.check();
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // Tasks hold the world that holds their executor: without this every run would leak.
        for slot in self.slots.values_mut() {
            if let Some(life) = slot.life.take() {
                life.end();
            }
        }
    }
}

impl Life {
    /// Drops all that a life consists of.
    fn end(&self) {
        self.node.world().executor().clear();
        let pollables = std::mem::take(&mut *self.node.pollables.borrow_mut());
        drop(pollables);
        // Destructors may have woken, spawned or offloaded; nothing of that may live on.
        self.node.world().executor().clear();
        self.offload.clear();
    }

    /// Polls one task; the event's value for the trace, if there was a task.
    fn run_task(&self) -> Option<u64> {
        self.node.world().executor().run_one().then_some(1)
    }

    /// Polls all endpoints.
    fn poll(&self, now: Time) -> Option<u64> {
        let mut any = false;
        for pollable in self.node.pollables.borrow_mut().iter_mut() {
            any |= pollable.poll(now);
        }
        any.then_some(2)
    }
}
