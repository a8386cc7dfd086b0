//! The dump that a running server gives: one at a time, in parts that are asked for.
//!
//! Invariants:
//! * the store is not stopped for it: a dump reads a snapshot of the index;
//! * a snapshot that nobody reads any more is let go: it keeps the index from using its free blocks again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_store::{JournaledStore, Snapshot};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::standby::{FEED_BYTES, StandbyReply, StandbyResult};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::dumper::Dumper;
use super::format::Head;
use crate::history::Terms;
use crate::store_rows::StoreRows;

/// A dump of which no part was asked for so long ends. Another one may begin in its place.
const IDLE: Duration = Duration::from_secs(30);
/// The time for which a dump waits until the index has all that is committed. Where a standby is waited for, that may take
/// longer: then the dump is a little older.
const CHECKPOINT: Duration = Duration::from_secs(5);

/// The server whose store is dumped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub cluster: u128,
    pub server: u32,
    pub history: u128,
}

/// The dumps of a server.
#[derive(Default)]
pub(crate) struct Dumps {
    running: RefCell<Option<Running>>,
    next: Cell<u64>,
    /// A dump waits for its snapshot.
    begins: Cell<bool>,
    /// Counts the stores that were closed.
    closed: Cell<u64>,
}

struct Running {
    number: u64,
    dumper: Dumper<Snapshot>,
    /// Bytes that were made and did not fit the last part.
    made: Vec<u8>,
    done: usize,
    part: u64,
    /// The answer with the last part: it may be asked for again.
    last: Vec<u8>,
    asked: Time,
}

impl Dumps {
    /// Begins a dump of a store. The answer has its number and its position.
    pub async fn begin(
        self: &Rc<Self>,
        world: &World,
        store: JournaledStore,
        origin: Origin,
    ) -> Vec<u8> {
        if self.is_busy(world) || self.begins.replace(true) {
            return encoded(&Err(Errno::EBUSY));
        }
        let begun = self.begin_one(world, store, origin).await;
        self.begins.set(false);
        encoded(&begun)
    }

    async fn begin_one(
        self: &Rc<Self>,
        world: &World,
        store: JournaledStore,
        origin: Origin,
    ) -> StandbyResult<'static> {
        self.running.borrow_mut().take();
        let closed = self.closed.get();
        // The index lags behind. Without a checkpoint the dump would have its last state.
        let _ = world.timeout(CHECKPOINT, store.checkpoint()).await;
        let (snapshot, _) = store.snapshot().await.map_err(|_| Errno::EIO)?;
        let terms = Terms::read(&StoreRows::new(store.clone()));
        drop(store);
        if self.closed.get() != closed {
            return Err(Errno::ESTALE);
        }
        let position = snapshot.position().0;
        let Origin { cluster, server, history } = origin;
        let head = Head {
            cluster,
            server,
            history,
            term: terms.map_or(0, |terms| terms.newest_id()),
            position,
            made: world.unix_nanos() / 1_000_000_000,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let number = self.next.get() + 1;
        self.next.set(number);
        let dumper = Dumper::new(snapshot, head);
        let (made, last, asked) = (Vec::new(), Vec::new(), world.now());
        let running = Running { number, dumper, made, done: 0, part: 0, last, asked };
        *self.running.borrow_mut() = Some(running);
        world.spawn(self.clone().let_go(world.clone(), number));
        Ok(StandbyReply::Dumping { dump: number, position })
    }

    /// Ends a dump that nobody asks for any more.
    async fn let_go(self: Rc<Self>, world: World, number: u64) {
        loop {
            let asked = match &*self.running.borrow() {
                Some(running) if running.number == number => running.asked,
                _ => return,
            };
            if world.now().since(asked) >= IDLE {
                self.running.borrow_mut().take();
                return;
            }
            world.sleep_until(asked + IDLE).await;
        }
    }

    fn is_busy(&self, world: &World) -> bool {
        let running = self.running.borrow();
        running.as_ref().is_some_and(|it| world.now().since(it.asked) < IDLE / 6)
    }

    /// A part of a dump; it may be asked for again.
    pub fn part(&self, world: &World, dump: u64, part: u64) -> Vec<u8> {
        let mut all = self.running.borrow_mut();
        let Some(running) = all.as_mut().filter(|it| it.number == dump) else {
            return encoded(&Err(Errno::ESTALE));
        };
        running.asked = world.now();
        if part.checked_add(1) == Some(running.part) {
            return running.last.clone();
        }
        if part != running.part {
            return encoded(&Err(Errno::EINVAL));
        }
        if running.done == running.made.len() {
            running.done = 0;
            running.made = match running.dumper.next_bytes() {
                Ok(made) => made,
                Err(_) => return encoded(&Err(Errno::EIO)),
            };
        }
        let rest = &running.made[running.done..];
        let count = rest.len().min(FEED_BYTES);
        let answer = encoded(&Ok(StandbyReply::Dumped { bytes: Bytes(&rest[..count]) }));
        running.done += count;
        running.part += 1;
        running.last.clone_from(&answer);
        answer
    }

    /// The store is to be closed: no dump reads it any more.
    pub fn end(&self) {
        self.closed.set(self.closed.get() + 1);
        self.running.borrow_mut().take();
    }
}

/// An answer without a dump.
pub(crate) fn refusal(errno: Errno) -> Vec<u8> {
    encoded(&Err(errno))
}

fn encoded(result: &StandbyResult<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    encode(result, &mut body);
    body
}
