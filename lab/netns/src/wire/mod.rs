//! A cable in user space: it carries frames between two interfaces, and can delay, lose, double, reorder and corrupt
//! them. It stands for the kernel's `netem`, which many machines lack.
//!
//! Invariants:
//! * frames that nothing impairs keep their order;
//! * what it holds is bounded; frames beyond that are dropped, and counted.

mod impairment;
mod relay;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use impairment::Impairment;
use impairment::{Active, Harm};
use relay::Running;

use crate::direction::Direction;
use crate::error::Result;
use crate::namespace::Namespace;

/// A cable in user space between two interfaces of a namespace, until it is dropped. Both interfaces are up, and have
/// no address and no bridge.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    ends: [String; 2],
    running: Mutex<Running>,
}

/// What an impairment of a wire is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImpairmentId(u64);

/// Frames of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WireCounters {
    /// All that came in.
    pub frames: u64,
    pub lost: u64,
    pub duplicated: u64,
    /// Those that were held back so that others could overtake them.
    pub reordered: u64,
    pub corrupted: u64,
    /// The interface at the other end refused them: it is down, or its MTU is smaller, or its queue is full; or the wire
    /// held as many as it may.
    pub dropped: u64,
}

/// What the wire and its thread both have.
#[derive(Debug, Default)]
struct Shared {
    active: Mutex<Vec<Active>>,
    number: AtomicU64,
    counters: [Counters; 2],
}

#[derive(Debug, Default)]
struct Counters {
    frames: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    dropped: AtomicU64,
}

impl Wire {
    /// Joins two interfaces of a namespace. [`Direction::From`] is from the first to the second one.
    pub fn between(namespace: &Namespace, ends: [&str; 2]) -> Result<Wire> {
        namespace.within(|| Wire::here(ends))
    }

    /// Joins two interfaces of the namespace that this thread is in.
    pub fn here(ends: [&str; 2]) -> Result<Wire> {
        let shared = Arc::<Shared>::default();
        let ends = ends.map(String::from);
        let running = Mutex::new(Running::start(&ends, &shared)?);
        Ok(Wire { shared, ends, running })
    }

    /// Impairs the frames of a direction from now on, beside the impairments that there are.
    pub fn impair(&self, direction: Direction, impairment: Impairment, seed: u64) -> ImpairmentId {
        let number = self.shared.number.fetch_add(1, Ordering::Relaxed);
        let active = Active::new(number, impairment, direction, seed);
        self.shared.active().push(active);
        ImpairmentId(number)
    }

    /// Changes an impairment while frames pass. It draws on from where it was. Returns whether there is such a one.
    pub fn change(&self, id: ImpairmentId, impairment: Impairment) -> bool {
        let mut active = self.shared.active();
        let found = active.iter_mut().find(|active| active.number == id.0);
        found.map(|active| active.impairment = impairment).is_some()
    }

    /// Ends an impairment. Frames that wait come at their time.
    pub fn relieve(&self, id: ImpairmentId) {
        self.shared.active().retain(|active| active.number != id.0);
    }

    /// The frames so far, from the first to the second interface, and back.
    pub fn counters(&self) -> [WireCounters; 2] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.shared.counters.each_ref().map(|counters| WireCounters {
            frames: read(&counters.frames),
            lost: read(&counters.lost),
            duplicated: read(&counters.duplicated),
            reordered: read(&counters.reordered),
            corrupted: read(&counters.corrupted),
            dropped: read(&counters.dropped),
        })
    }

    /// Joins the interfaces again after one of them was made anew. Frames that wait are lost.
    pub(crate) fn rejoin(&self, namespace: &Namespace) -> Result<()> {
        let next = namespace.within(|| Running::start(&self.ends, &self.shared))?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

impl Shared {
    fn active(&self) -> std::sync::MutexGuard<'_, Vec<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    fn count(&self, harm: &Harm) {
        let add = |counter: &AtomicU64, happened: bool| {
            counter.fetch_add(u64::from(happened), Ordering::Relaxed);
        };
        add(&self.frames, true);
        add(&self.lost, harm.lost);
        add(&self.duplicated, harm.duplicated);
        add(&self.reordered, harm.reordered);
        add(&self.corrupted, harm.corrupted);
    }
}
