//! The metadata store of this project: journal, overlay, index.
//!
//! A commit goes to the journal and to the overlay, which reads see first. A checkpoint freezes
//! the overlay, waits until the journal is durable and all members have written up to there, writes the frozen changes to the
//! index beside the executor, in parts where there is little room, and cuts the journal. A start
//! brings what the journal holds above the index's position into the index.
//!
//! Invariants
//! * reads see overlay, then frozen overlay, then index, hence always the last commit;
//! * the index never holds what the journal does not hold durably, nor what a member lacks;
//! * memory is bounded: a commit is refused (`Busy`) when the overlay is over twice its limit,
//!   and `ready` waits when it is over the limit;
//! * after the first error of the disk nothing is acknowledged any more, until a restart.

mod checkpoint;
mod copy;
mod open;
mod room;
mod scan;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::task::{Notify, race};
use ropewalk_base::world::World;

use crate::batch::{self, Batch};
use crate::error::StoreError;
use crate::index::{Index, IndexReader};
use crate::journal::{Journal, JournalConfig, Recovery};
use crate::marks::{Position, Reached};
use crate::meta_store::{KeyRange, MetaStore, Order, Row, Value};
use crate::overlay::Overlay;
use room::Spaces;

pub use copy::{Snapshot, StoreCopy};
pub use open::FoundStore;
pub use room::Room;

/// The time that other handles of a store get to go, and the pause before one looks again.
const CLOSING: Duration = Duration::from_secs(5);
const CLOSING_PAUSE: Duration = Duration::from_micros(200);

/// Sizes and times of a journaled store.
#[derive(Debug, Clone, Copy)]
pub struct JournaledConfig {
    pub journal: JournalConfig,
    /// Memory for pages of the index, in bytes.
    pub cache_bytes: usize,
    /// Changes in memory that start a checkpoint, in bytes.
    pub overlay_bytes: usize,
    /// Bytes in the journal that start a checkpoint.
    pub journal_bytes: u64,
    /// Bytes on the disk that are kept for changes that free room.
    pub reserve_bytes: u64,
}

impl Default for JournaledConfig {
    fn default() -> JournaledConfig {
        JournaledConfig {
            journal: JournalConfig::default(),
            cache_bytes: 24 << 20,
            overlay_bytes: 8 << 20,
            journal_bytes: 48 << 20,
            reserve_bytes: 16 << 20,
        }
    }
}

impl JournaledConfig {
    /// Changes in memory above which commits are refused.
    fn overlay_bytes_max(&self) -> usize {
        self.overlay_bytes * 4
    }
}

/// The counters of a journaled store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournaledCounts {
    pub commits: u64,
    pub checkpoints: u64,
    /// Memory of changes that are not in the index, in bytes.
    pub overlay_bytes: usize,
}

/// The journaled store. Cloning gives another handle; stays on its executor.
#[derive(Clone)]
pub struct JournaledStore {
    shared: Rc<Shared>,
}

struct Shared {
    world: World,
    directory: PathBuf,
    config: JournaledConfig,
    journal: Journal,
    recovery: Recovery,
    index: Arc<Index>,
    state: RefCell<State>,
    /// Told at every end of a checkpoint, good or bad.
    changed: Notify,
}

struct State {
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
    reader: IndexReader,
    /// The index holds everything up to here.
    checkpoint: Position,
    /// Written bytes of the journal when the last checkpoint began.
    journal_mark: u64,
    running: bool,
    /// A checkpoint writes to the index.
    applying: bool,
    /// No part of a checkpoint finds room.
    full: bool,
    room: Room,
    /// As they were seen last.
    spaces: Spaces,
    /// The free space within the index is known, as of the last checkpoint.
    measured: bool,
    /// Changes in memory that start a checkpoint: fewer where there is little room.
    overlay_goal: usize,
    counts: JournaledCounts,
}

impl State {
    /// Memory of changes that are not in the index, in bytes.
    fn overlay_bytes(&self) -> usize {
        self.active.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.bytes())
    }
}

impl JournaledStore {
    /// The result of the journal's recovery at the start.
    pub fn recovery(&self) -> Recovery {
        self.shared.recovery
    }

    /// The journal, for a standby's feed.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// Takes a record from the journal of another store, which this one follows. As [`MetaStore::commit`], it wants
    /// [`MetaStore::ready`] before.
    ///
    /// # Errors
    /// As those of `commit`; `Gap` where it is not the next one; `Senseless` where it is no batch. Nothing was changed then.
    pub fn accept(&self, position: Position, record: &[u8]) -> Result<(), StoreError> {
        let next = self.shared.journal.position().0 + 1;
        if position.0 != next {
            return Err(StoreError::Gap { next, got: position.0 });
        }
        if batch::changes(record).any(|change| change.is_none()) {
            return Err(StoreError::Senseless { position: position.0 });
        }
        self.shared.append(record).map(drop)
    }

    /// The index holds everything up to here.
    pub fn checkpointed(&self) -> Position {
        self.shared.state.borrow().checkpoint
    }

    /// Figures for people that watch the server.
    pub fn counts(&self) -> JournaledCounts {
        let state = self.shared.state.borrow();
        JournaledCounts { overlay_bytes: state.overlay_bytes(), ..state.counts }
    }

    /// The changes that the store can still accept.
    pub fn room(&self) -> Room {
        self.shared.state.borrow().room
    }

    /// Looks how much room there is; to be called now and then, since others write to the disk, too.
    pub fn look(&self) {
        self.shared.look_after();
    }

    /// Takes no change any more, and completes when nothing is done to the files any more: another store may be opened in their
    /// place. Commits that are not written are given up.
    ///
    /// # Errors
    /// `Busy`: somebody still has another handle after five seconds.
    pub async fn close(self) -> Result<(), StoreError> {
        let shared = self.shared;
        shared.journal.fail(StoreError::ShuttingDown);
        loop {
            let changed = shared.changed.notified();
            if !shared.state.borrow().running {
                break;
            }
            changed.await;
        }
        shared.journal.rest().await;
        let until = shared.world.now() + CLOSING;
        // The last handle closes the index, here and nowhere else.
        while Rc::strong_count(&shared) > 1 || Arc::strong_count(&shared.index) > 1 {
            if shared.world.now() >= until {
                return Err(StoreError::Busy);
            }
            shared.world.sleep(CLOSING_PAUSE).await;
        }
        Ok(())
    }

    /// Brings everything that is committed now into the index.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        let target = shared.journal.position();
        while shared.state.borrow().checkpoint < target {
            let changed = shared.changed.notified();
            shared.start_checkpoint();
            shared.check_going()?;
            changed.await;
            shared.check_going()?;
        }
        Ok(())
    }
}

impl Shared {
    /// Adds a batch to journal and overlay, and sees to checkpoints.
    fn append(self: &Rc<Self>, bytes: &[u8]) -> Result<Position, StoreError> {
        let shared = self;
        let mut state = shared.state.borrow_mut();
        if state.active.bytes() > shared.config.overlay_bytes_max() {
            return Err(shared.no_room(&state));
        }
        let position = match shared.journal.append(bytes) {
            Ok(position) => position,
            Err(error) => {
                drop(state);
                if error.is_full() {
                    // A checkpoint frees segments of the journal.
                    shared.start_checkpoint();
                }
                return Err(error);
            }
        };
        for change in batch::changes(bytes) {
            state.active.apply(change.expect("a batch reads what it wrote"));
        }
        state.counts.commits += 1;
        let due = state.active.bytes() >= state.overlay_goal
            || shared.journal.written_bytes() - state.journal_mark >= shared.config.journal_bytes
            || !shared.journal.has_room();
        drop(state);
        if due {
            shared.start_checkpoint();
        }
        Ok(position)
    }
}

impl MetaStore for JournaledStore {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        let state = self.shared.state.borrow();
        if let Some(known) = state.active.get(key) {
            return Ok(known.clone());
        }
        if let Some(known) = state.frozen.as_ref().and_then(|frozen| frozen.get(key)) {
            return Ok(known.clone());
        }
        state.reader.get(key)
    }

    fn scan(
        &self,
        range: KeyRange<'_>,
        order: Order,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        if range.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let state = self.shared.state.borrow();
        scan::merged(&state.active, state.frozen.as_deref(), &state.reader, range, order, limit)
    }

    fn commit(&self, batch: &Batch) -> Result<Position, StoreError> {
        batch.check()?;
        self.shared.append(batch.bytes())
    }

    async fn ready(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        loop {
            if let Some(error) = shared.journal.failed() {
                return Err(error.stopped());
            }
            let (changed, prepared) = (shared.changed.notified(), shared.journal.prepared());
            let journal_room = shared.journal.has_room();
            if shared.has_overlay_room()? && journal_room {
                return shared.journal.ready().await;
            }
            if !journal_room {
                // Only a checkpoint makes room there.
                shared.check_going()?;
            }
            shared.start_checkpoint();
            race(changed, pin!(prepared)).await;
        }
    }

    fn position(&self) -> Position {
        self.shared.journal.position()
    }

    fn written(&self) -> Position {
        self.shared.journal.written()
    }

    fn durable(&self) -> Position {
        self.shared.journal.durable()
    }

    fn wait_written(&self, position: Position) -> Reached {
        self.shared.journal.wait_written(position)
    }

    fn wait_durable(&self, position: Position) -> Reached {
        self.shared.journal.wait_durable(position)
    }
}
