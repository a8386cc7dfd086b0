//! The metadata store of this project: journal, overlay, index.
//!
//! A commit goes to the journal and to the overlay, which reads see first. A checkpoint freezes
//! the overlay, waits until the journal is durable up to there, writes the frozen changes to the
//! index beside the executor, and cuts the journal. A start brings
//! what the journal holds above the index's position into the index.
//!
//! Invariants
//! * reads see overlay, then frozen overlay, then index, hence always the last commit;
//! * the index never holds what the journal does not hold durably;
//! * memory is bounded: a commit is refused (`Busy`) when the overlay is over twice its limit,
//!   and `ready` waits when it is over the limit;
//! * after the first error of the disk nothing is acknowledged any more, until a restart.

mod open;
mod scan;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

use crate::batch::{self, Batch};
use crate::error::StoreError;
use crate::index::{Index, IndexReader};
use crate::journal::{Journal, JournalConfig, Recovery};
use crate::marks::{Position, Reached};
use crate::meta_store::{KeyRange, MetaStore, Order, Row, Value};
use crate::overlay::Overlay;
use crate::superblock::Boot;

/// How long to wait before a full disk is asked again.
const FULL_RETRY: Duration = Duration::from_millis(500);
/// Room that the index may need for a checkpoint, per byte of changes and at all.
const INDEX_GROWTH_FACTOR: u64 = 4;
const INDEX_GROWTH_BYTES: u64 = 4 << 20;

/// Sizes and times of an embedded store.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedConfig {
    pub journal: JournalConfig,
    /// Memory for pages of the index, in bytes.
    pub cache_bytes: usize,
    /// Changes in memory that start a checkpoint, in bytes.
    pub overlay_bytes: usize,
    /// Bytes in the journal that start a checkpoint.
    pub journal_bytes: u64,
}

impl Default for EmbeddedConfig {
    fn default() -> EmbeddedConfig {
        EmbeddedConfig {
            journal: JournalConfig::default(),
            cache_bytes: 24 << 20,
            overlay_bytes: 8 << 20,
            journal_bytes: 48 << 20,
        }
    }
}

impl EmbeddedConfig {
    /// Changes in memory above which `ready` waits.
    fn overlay_bytes_ready(&self) -> usize {
        self.overlay_bytes * 2
    }

    /// Changes in memory above which commits are refused.
    fn overlay_bytes_max(&self) -> usize {
        self.overlay_bytes * 4
    }
}

/// What an embedded store counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmbeddedCounts {
    pub commits: u64,
    pub checkpoints: u64,
    /// Memory of changes that are not in the index, in bytes.
    pub overlay_bytes: usize,
}

/// The embedded store. Cloning gives another handle; stays on its executor.
#[derive(Clone)]
pub struct EmbeddedStore {
    shared: Rc<Shared>,
}

struct Shared {
    world: World,
    directory: PathBuf,
    config: EmbeddedConfig,
    boot: Boot,
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
    full: bool,
    counts: EmbeddedCounts,
}

impl EmbeddedStore {
    /// What the start found in the journal.
    pub fn recovery(&self) -> Recovery {
        self.shared.recovery
    }

    /// The journal, for a standby's feed.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// The index holds everything up to here.
    pub fn checkpointed(&self) -> Position {
        self.shared.state.borrow().checkpoint
    }

    /// Figures for whoever watches the server.
    pub fn counts(&self) -> EmbeddedCounts {
        let state = self.shared.state.borrow();
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.bytes());
        EmbeddedCounts { overlay_bytes: state.active.bytes() + frozen, ..state.counts }
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

impl MetaStore for EmbeddedStore {
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
        let shared = &self.shared;
        let mut state = shared.state.borrow_mut();
        if state.active.bytes() > shared.config.overlay_bytes_max() {
            return Err(shared.no_room(&state));
        }
        let position = match shared.journal.append(batch.bytes()) {
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
        for change in batch::changes(batch.bytes()) {
            state.active.apply(change.expect("a batch reads what it wrote"));
        }
        state.counts.commits += 1;
        let due = state.active.bytes() >= shared.config.overlay_bytes
            || shared.journal.written_bytes() - state.journal_mark >= shared.config.journal_bytes;
        drop(state);
        if due {
            shared.start_checkpoint();
        }
        Ok(position)
    }

    async fn ready(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        loop {
            if let Some(error) = shared.journal.failed() {
                return Err(error.stopped());
            }
            let changed = shared.changed.notified();
            if shared.has_overlay_room()? {
                return shared.journal.ready().await;
            }
            shared.start_checkpoint();
            changed.await;
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

    fn era(&self) -> u64 {
        self.shared.boot.era
    }

    fn boot_id(&self) -> u64 {
        self.shared.boot.id
    }
}

impl Shared {
    fn no_room(&self, state: &State) -> StoreError {
        if state.full {
            StoreError::Full { path: self.directory.clone(), what: "the metadata store" }
        } else {
            StoreError::Busy
        }
    }

    /// Whether changes may be added; an error where no checkpoint can help.
    fn has_overlay_room(&self) -> Result<bool, StoreError> {
        let state = self.state.borrow();
        if state.active.bytes() <= self.config.overlay_bytes_ready() {
            return Ok(true);
        }
        if state.full { Err(self.no_room(&state)) } else { Ok(false) }
    }

    /// Whether a checkpoint can still come to an end.
    fn check_going(&self) -> Result<(), StoreError> {
        if let Some(error) = self.journal.failed() {
            return Err(error.stopped());
        }
        let state = self.state.borrow();
        if state.full { Err(self.no_room(&state)) } else { Ok(()) }
    }

    /// Whether the index may grow by what a checkpoint of the overlay can need.
    fn has_room(&self, overlay_bytes: usize) -> Result<bool, StoreError> {
        let fail = |cause| StoreError::io("cannot ask for the room of", &self.directory, cause);
        let space = self.world.disk().space(&self.directory).map_err(fail)?;
        Ok(space.available >= overlay_bytes as u64 * INDEX_GROWTH_FACTOR + INDEX_GROWTH_BYTES)
    }

    /// Starts a checkpoint where none runs and there is something to do.
    fn start_checkpoint(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        let done = self.journal.position() <= state.checkpoint;
        if state.running || done || self.journal.failed().is_some() {
            return;
        }
        match self.has_room(state.active.bytes()) {
            Ok(true) => state.full = false,
            Ok(false) if state.full => return,
            Ok(false) => {
                // An engine that meets a full disk in the middle of a commit stops for good; it
                // is not asked before there is room.
                state.full = true;
                drop(state);
                return self.retry_later();
            }
            Err(error) => {
                drop(state);
                self.journal.fail(error);
                return self.changed.notify_all();
            }
        }
        state.running = true;
        state.journal_mark = self.journal.written_bytes();
        let frozen = Arc::new(std::mem::take(&mut state.active));
        state.frozen = Some(frozen.clone());
        drop(state);
        let position = self.journal.position();
        let shared = self.clone();
        self.world.spawn(async move {
            let result = shared.write_checkpoint(frozen, position).await;
            shared.checkpoint_done(position, result);
        });
    }

    async fn write_checkpoint(
        self: &Rc<Self>,
        frozen: Arc<Overlay>,
        position: Position,
    ) -> Result<IndexReader, StoreError> {
        self.journal.wait_durable(position).await?;
        let index = self.index.clone();
        let applied = self.world.offload(move || {
            index.apply(&frozen, position.0)?;
            index.reader()
        });
        applied.await.unwrap_or(Err(StoreError::ShuttingDown))
    }

    fn checkpoint_done(
        self: &Rc<Self>,
        position: Position,
        result: Result<IndexReader, StoreError>,
    ) {
        let mut state = self.state.borrow_mut();
        state.running = false;
        match result {
            Ok(reader) => {
                state.reader = reader;
                state.frozen = None;
                state.checkpoint = position;
                state.counts.checkpoints += 1;
                drop(state);
                self.journal.cut(position);
            }
            Err(error) => {
                // The frozen changes stay: reads go on, nothing new is acknowledged.
                drop(state);
                self.journal.fail(error);
            }
        }
        self.changed.notify_all();
    }

    fn retry_later(self: &Rc<Self>) {
        let sleep = self.world.sleep(FULL_RETRY);
        let weak = Rc::downgrade(self);
        self.changed.notify_all();
        self.world.spawn(async move {
            sleep.await;
            if let Some(shared) = weak.upgrade() {
                shared.state.borrow_mut().full = false;
                shared.start_checkpoint();
            }
        });
    }
}
