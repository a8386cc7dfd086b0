//! Checkpoints, and how much room they find.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::room::{Room, Spaces, admission_bytes};
use super::{Shared, State};
use crate::error::StoreError;
use crate::index::{GROWTH_BYTES, Part};
use crate::marks::Position;
use crate::overlay::Overlay;

/// The pause before a full disk is asked again.
const FULL_RETRY: Duration = Duration::from_millis(500);
/// Changes in memory that start a checkpoint, however little room there is.
const OVERLAY_BYTES_MIN: usize = 64 << 10;

impl Shared {
    pub(super) fn no_room(&self, state: &State) -> StoreError {
        if state.full { state.spaces.full(&self.directory) } else { StoreError::Busy }
    }

    /// Whether changes may be added; an error where no checkpoint can help.
    pub(super) fn has_overlay_room(&self) -> Result<bool, StoreError> {
        let state = self.state.borrow();
        if state.active.bytes() <= 2 * state.overlay_goal {
            return Ok(true);
        }
        if state.full { Err(self.no_room(&state)) } else { Ok(false) }
    }

    /// Whether a checkpoint can still come to an end.
    pub(super) fn check_going(&self) -> Result<(), StoreError> {
        if let Some(error) = self.journal.failed() {
            return Err(error.stopped());
        }
        let state = self.state.borrow();
        if state.full { Err(self.no_room(&state)) } else { Ok(()) }
    }

    /// Looks how much room there is, and sets the changes that are admitted.
    pub(super) fn look(&self) -> Result<Spaces, StoreError> {
        let fail = |cause| StoreError::io("cannot ask for the room of", &self.directory, cause);
        let space = self.world.disk().space(&self.directory).map_err(fail)?;
        let mut state = self.state.borrow_mut();
        state.spaces.available = space.available;
        state.spaces.reserve = self.index.reserve_bytes();
        let kept = self.config.reserve_bytes;
        let excess = state.spaces.excess(kept);
        let mut needed = admission_bytes(state.overlay_bytes());
        if state.room != Room::Ample {
            // Not in and out with every file.
            needed += GROWTH_BYTES;
        }
        let before = state.room;
        let missing = needed.saturating_sub(excess);
        state.room = match missing {
            0 => Room::Ample,
            _ if state.spaces.is_tight(kept, state.overlay_bytes()) => Room::Tight { missing },
            _ => Room::Short { missing },
        };
        let goal = usize::try_from(excess / 16).unwrap_or(usize::MAX).max(OVERLAY_BYTES_MIN);
        state.overlay_goal = self.config.overlay_bytes.min(goal);
        let (spaces, short) = (state.spaces, state.room != Room::Ample);
        drop(state);
        if short != (before != Room::Ample) {
            self.journal.set_frugal(short);
        }
        Ok(spaces)
    }

    /// Looks, and brings removals into the index where room is short: only there they free room.
    pub(super) fn look_after(self: &Rc<Self>) {
        if self.journal.failed().is_some() || self.state.borrow().running {
            return;
        }
        // A disk that does not tell now tells later, or at the next checkpoint.
        if self.look().is_ok() && self.state.borrow().room != Room::Ample {
            self.start_checkpoint();
        }
    }

    /// Starts a checkpoint where none runs and there is something to do.
    pub(super) fn start_checkpoint(self: &Rc<Self>) {
        let state = self.state.borrow();
        let known = state.room == Room::Ample || state.measured;
        let done = self.journal.position() <= state.checkpoint && known;
        let running = state.running;
        drop(state);
        if running || done || self.journal.failed().is_some() {
            return;
        }
        let mut state = self.state.borrow_mut();
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

    /// Brings frozen changes into the index. After each part readers go on with what the index is then,
    /// so that the blocks of before are free; the frozen changes hide what is not yet whole.
    async fn write_checkpoint(
        self: &Rc<Self>,
        frozen: Arc<Overlay>,
        position: Position,
    ) -> Result<(), StoreError> {
        // The index is never cut: it takes nothing that a member may lack.
        self.journal.wait_own_durable(position).await?;
        self.journal.wait_written(position).await?;
        self.state.borrow_mut().applying = true;
        let mut after: Option<Box<[u8]>> = None;
        loop {
            let room = self.room_for_part().await?;
            let (index, frozen) = (self.index.clone(), frozen.clone());
            let applied = self.world.offload(move || {
                let part = index.apply(&frozen, after.as_deref(), position.0, room)?;
                Ok((part, index.reader()?))
            });
            let (part, reader) = applied.await.unwrap_or(Err(StoreError::ShuttingDown))?;
            self.state.borrow_mut().reader = reader;
            match part {
                Part::Last => break,
                Part::Through(key) => after = Some(key),
            }
        }
        self.settle().await
    }

    /// The bytes that the next part may write; waits while there is no room for any. An engine that meets a
    /// full disk in the middle of a commit stops for good. So no part begins without room.
    async fn room_for_part(self: &Rc<Self>) -> Result<u64, StoreError> {
        loop {
            if let Some(error) = self.journal.failed() {
                return Err(error.stopped());
            }
            let mut spaces = self.look()?;
            if !spaces.may_grow() {
                let index = self.index.clone();
                let measured = self.world.offload(move || index.measure());
                spaces.inside = measured.await.unwrap_or(Err(StoreError::ShuttingDown))?;
            }
            let room = spaces.part_bytes();
            {
                let mut state = self.state.borrow_mut();
                state.spaces.inside = spaces.inside;
                state.full = room.is_none();
            }
            if let Some(room) = room {
                return Ok(room);
            }
            self.changed.notify_all();
            self.world.sleep(FULL_RETRY).await;
        }
    }

    /// Takes the reserve up again, and where that does not make room enough finds out how much there is
    /// within the index.
    async fn settle(self: &Rc<Self>) -> Result<(), StoreError> {
        let outside = self.look()?.excess_outside(self.config.reserve_bytes);
        let active = self.state.borrow().active.bytes();
        // The threshold to leave a shortage is higher than the threshold to enter one.
        let measure = outside < admission_bytes(active) + GROWTH_BYTES;
        let index = self.index.clone();
        let settled = self.world.offload(move || {
            let inside = if measure { index.measure()? } else { 0 };
            index.replenish()?;
            Ok((inside, index.reader()?))
        });
        let (inside, reader) = settled.await.unwrap_or(Err(StoreError::ShuttingDown))?;
        let mut state = self.state.borrow_mut();
        (state.spaces.inside, state.reader) = (inside, reader);
        state.measured = measure;
        Ok(())
    }

    fn checkpoint_done(self: &Rc<Self>, position: Position, result: Result<(), StoreError>) {
        let mut state = self.state.borrow_mut();
        (state.running, state.applying) = (false, false);
        if result.is_ok() {
            state.frozen = None;
            state.checkpoint = position;
            state.counts.checkpoints += 1;
        }
        drop(state);
        // Otherwise the frozen changes stay: reads go on, nothing new is acknowledged.
        let result = result.and_then(|()| {
            self.journal.cut(position);
            self.look()
        });
        if let Err(error) = result {
            self.journal.fail(error);
        }
        self.changed.notify_all();
    }
}
