//! The engine: the core, its rails and the buffers between them, worked by one thread at a time.
//!
//! [`Engine`] owns the core, the rails and its parts, and says in which order a pass asks them. A part owns its state
//! and knows neither the engine nor another part; its file has its name. The other files here have the engine's
//! own steps:
//!
//! * `commands`: what users ask for beside posts;
//! * `posting`: the way of an operation, from its post to its completion;
//! * `outputs`: the core's orders are carried out;
//! * `connecting`: links are made to the addresses of peers;
//! * `rail_events`: the engine as a rail sees it during a poll.

mod addresses;
mod batch;
mod caller;
mod checksums;
mod commands;
mod connecting;
mod contexts;
mod exposures;
mod labels;
mod lateness;
mod operations;
mod outputs;
mod passes;
mod path_events;
mod path_views;
mod peer_events;
mod posting;
mod probes;
mod rail_events;
mod rails;
mod requests;
mod routes;
mod signals;

use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::memory::BufferTable;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_core::{Core, RailProtection};
use ropewalk_rail::{Rail, Report, Sight};

use crate::engine::addresses::AddressBook;
use crate::engine::batch::FrameBatch;
use crate::engine::caller::Caller;
use crate::engine::checksums::Checksums;
use crate::engine::contexts::Contexts;
use crate::engine::exposures::Exposures;
use crate::engine::lateness::Lateness;
use crate::engine::operations::OperationTable;
pub use crate::engine::passes::SharedClock;
use crate::engine::passes::{Pass, Passes};
use crate::engine::rail_events::RailEvents;
use crate::engine::rails::Rails;
use crate::engine::routes::Routes;

pub(crate) use commands::Command;
pub(crate) use contexts::News;
pub(crate) use path_events::PathEvents;
pub use peer_events::PeerEvent;
pub(crate) use peer_events::PeerEvents;
pub(crate) use probes::probe_bytes;
pub use requests::Request;
pub(crate) use requests::Requests;
pub(crate) use signals::Signals;

/// Polls of all rails, at most, before what is due is done: one poll does a bounded amount of work.
const DRAINING_POLLS_MAX: u32 = 8;

/// The parts from which an engine is made.
pub(crate) struct EngineSetup {
    pub core: Core,
    pub rails: Vec<Box<dyn Rail>>,
    pub buffers: BufferTable,
    /// For messages that arrive before their receives.
    pub pool: Pool,
    pub payload_checksum: bool,
    /// Also between processes of one host.
    pub same_host_checksum: bool,
    pub clock: SharedClock,
    /// Nothing but the clock says what time it is.
    pub virtual_time: bool,
    pub operations_max: usize,
}

pub(crate) struct Engine {
    pub core: Core,
    pub rails: Rails,
    pub buffers: BufferTable,
    pub contexts: Contexts,
    pub peer_events: PeerEvents,
    pub path_events: PathEvents,
    pub requests: Arc<Requests>,
    pub signals: Arc<Signals>,
    pub pool: Pool,
    clock: SharedClock,
    operations: OperationTable,
    caller: Caller,
    exposures: Exposures,
    pub addresses: AddressBook,
    routes: Routes,
    checksums: Checksums,
    passes: Passes,
    lateness: Lateness,
    batch: FrameBatch,
    /// Somebody may ask for the progress of fetched data.
    follows_fetches: bool,
    /// As [`Core::arrivals`] was when other threads were told last.
    arrivals_told: u64,
}

impl Engine {
    pub fn new(setup: EngineSetup) -> Engine {
        let mut checksums = Checksums::new(setup.payload_checksum, setup.same_host_checksum);
        let mut passes = Passes::new(setup.virtual_time.then(|| setup.clock.clone()));
        for rail in &setup.rails {
            checksums.add_rail(&**rail);
            passes.add_rail();
        }
        let mut core = setup.core;
        core.label_rails(labels::of(setup.rails.iter().map(|rail| &**rail)));
        Engine {
            core,
            rails: Rails::new(setup.rails),
            buffers: setup.buffers,
            contexts: Contexts::new(),
            peer_events: PeerEvents::default(),
            path_events: PathEvents::default(),
            requests: Arc::default(),
            signals: Arc::default(),
            pool: setup.pool,
            clock: setup.clock,
            operations: OperationTable::with_limit(setup.operations_max),
            caller: Caller::new(),
            exposures: Exposures::new(),
            addresses: AddressBook::new(),
            routes: Routes::default(),
            checksums,
            passes,
            lateness: Lateness::new(),
            batch: FrameBatch::new(),
            follows_fetches: false,
            arrivals_told: 0,
        }
    }

    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// One more rail. Its descriptor is watched by the caller.
    pub fn add_rail(&mut self, rail: Box<dyn Rail>, protection: RailProtection) {
        self.checksums.add_rail(&*rail);
        self.passes.add_rail();
        self.core.add_rail(rail.capabilities(), rail.scheme());
        self.core.protect_next_rail(protection);
        self.rails.add(rail);
        self.core.label_rails(labels::of(self.rails.iter()));
    }

    /// One pass: time, rails, and the consequences. True if anything happened.
    pub fn progress(&mut self) -> bool {
        let sight = self.rails.look();
        let Engine { core, passes, batch, .. } = self;
        let pass = passes.begin(|| {
            sight < Sight::Blind && batch.is_empty() && !core.has_outputs() && !core.is_throttled()
        });
        if pass.is_short && sight == Sight::Nothing {
            return false;
        }
        let now = if pass.is_short { self.core.now() } else { self.begin_pass() };
        if !self.batch.is_empty() {
            self.push_frames();
        }
        let any = self.drain();
        let any = self.poll_rails(pass, now) | any;
        if !pass.is_short && self.core.is_due() { self.run_due(now) | any } else { any }
    }

    /// The core hears the time.
    #[inline]
    fn begin_pass(&mut self) -> Time {
        let now = self.now();
        self.core.begin_pass(now);
        now
    }

    /// The core hears the time before a request that begins something: passes that find nothing do not ask for it.
    pub fn tell_time(&mut self) {
        self.begin_pass();
    }

    /// Lets the core do what is due, after every rail has told what it has: a pass that comes late must not make a
    /// peer look silent whose answer is here.
    #[cold]
    fn run_due(&mut self, now: Time) -> bool {
        let due = self.core.deadline();
        let mut any = false;
        for _ in 0..DRAINING_POLLS_MAX {
            let mut more = false;
            for index in 0..self.rails.len() {
                more |= self.poll_rail(index, |rail, report| rail.drain(now, report));
            }
            any |= more;
            if !more {
                break;
            }
        }
        self.core.run_due();
        if self.core.has_judged() {
            self.lateness.note(due.map_or(Duration::ZERO, |due| now.since(due)));
            if let Some(lateness) = self.lateness.p999() {
                self.core.set_lateness(lateness);
            }
        }
        self.drain() | any
    }

    /// Polls the rails that this pass does not pass over, each with its consequences. True if one had work.
    #[inline(always)]
    fn poll_rails(&mut self, pass: Pass, now: Time) -> bool {
        let mut any = false;
        for index in 0..self.rails.len() {
            let Engine { rails, passes, .. } = self;
            let rail = rails.at(index);
            if passes.polls(pass, index, now, || rail.look()) {
                any |= self.poll_rail(index, |rail, report| rail.poll(now, report));
            }
        }
        any
    }

    /// Polls a rail, with the consequences. True if it had work.
    #[inline(always)]
    fn poll_rail(
        &mut self,
        index: usize,
        poll: impl FnOnce(&mut dyn Rail, &mut dyn Report) -> bool,
    ) -> bool {
        let Engine { core, rails, buffers, pool, .. } = self;
        let any = poll(rails.at(index), &mut RailEvents { core, buffers, pool });
        if any {
            self.drain();
        }
        any
    }

    /// Passes over the rails so far.
    pub fn passes(&self) -> u64 {
        self.passes.count()
    }

    /// When a pass has to be made at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.rails.deadline().into_iter().chain(self.core.deadline()).min()
    }

    /// Prepares the rails for sleep; false where there is work. Rails that were armed are armed afresh:
    /// a peer rings once for each arming, and that bell may have been heard already.
    pub fn arm(&mut self) -> bool {
        if self.rails.are_armed() {
            self.disarm();
        }
        let armed = self.rails.arm();
        if !armed {
            self.disarm();
        }
        armed
    }

    /// The sleep is over. The time matters now, and every rail.
    pub fn disarm(&mut self) {
        self.passes.slept();
        self.rails.disarm(false);
    }

    /// Likewise after a sleep in which no rail's descriptor had anything to say: that counts as a pass
    /// that found nothing.
    pub fn disarm_quiet(&mut self) {
        let now = self.now();
        if self.deadline().is_some_and(|due| due <= now) {
            return self.disarm();
        }
        self.core.advance(now);
        self.passes.slept_quietly(now);
        self.rails.disarm(true);
    }
}
