//! Starting a store: index, then journal, then what the journal has above the index.
//!
//! Invariant: what the journal held is in the index, written anew and synced, before the start
//! goes on. Reading it back proves nothing: had a sync failed before the restart, it would be in
//! the page cache and nowhere else.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::Disk;
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

use super::{EmbeddedConfig, EmbeddedCounts, EmbeddedStore, Shared, State};
use crate::batch;
use crate::error::StoreError;
use crate::index::{Index, IndexReader};
use crate::journal::{self, Journal, OpenJournal, RecoveredJournal};
use crate::marks::Position;
use crate::overlay::Overlay;
use crate::superblock::Boot;

const JOURNAL_NAME: &str = "journal";

/// What is read on a helper thread.
struct Parts {
    index: Index,
    reader: IndexReader,
    journal: RecoveredJournal,
}

impl EmbeddedStore {
    /// Opens the store in a claimed directory; makes it where the directory is new.
    ///
    /// `accept_loss`: go on at the first missing record where durable ones are lost.
    pub async fn open(
        world: &World,
        directory: &Path,
        boot: Boot,
        config: EmbeddedConfig,
        accept_loss: bool,
    ) -> Result<EmbeddedStore, StoreError> {
        let (disk, path) = (world.disk(), directory.to_path_buf());
        let parts = world
            .offload(move || read(&*disk, path, boot.counter, config, accept_loss))
            .await
            .unwrap_or(Err(StoreError::ShuttingDown))?;
        let recovery = parts.journal.recovery;
        let state = State {
            active: Overlay::default(),
            frozen: None,
            reader: parts.reader,
            checkpoint: recovery.last,
            journal_mark: 0,
            running: false,
            full: false,
            counts: EmbeddedCounts::default(),
        };
        let shared = Rc::new(Shared {
            world: world.clone(),
            directory: directory.to_path_buf(),
            config,
            boot,
            journal: Journal::start(world, parts.journal),
            recovery,
            index: Arc::new(parts.index),
            state: RefCell::new(state),
            changed: Notify::new(),
        });
        Ok(EmbeddedStore { shared })
    }
}

fn read(
    disk: &dyn Disk,
    directory: PathBuf,
    epoch: u64,
    config: EmbeddedConfig,
    accept_loss: bool,
) -> Result<Parts, StoreError> {
    let journal_path = directory.join(JOURNAL_NAME);
    disk.create_directory(&journal_path)
        .and_then(|()| disk.sync_directory(&directory))
        .map_err(|cause| StoreError::io("cannot make", &journal_path, cause))?;
    let index = Index::open(disk, &directory, config.cache_bytes)?;
    let checkpoint = index.as_ref().map_or(Ok(0), Index::position)?;
    let open = OpenJournal {
        epoch,
        checkpoint: Position(checkpoint),
        must_exist: index.is_some(),
        accept_loss,
    };
    let mut overlay = Overlay::default();
    let replay = &mut |_: u64, payload: &[u8]| {
        for change in batch::stored_changes(payload, &journal_path) {
            overlay.apply(change?);
        }
        Ok(())
    };
    let found = journal::recover(disk, &journal_path, config.journal, open, replay)?;
    let last = found.recovery.last.0;
    let (index, journal) = match index {
        Some(index) => {
            // Also where nothing was replayed: the commit writes the index's own head anew.
            index.apply(&overlay, last)?;
            (index, found.begin(disk)?)
        }
        None => {
            // Only in this order does an index prove that the journal had its first segment.
            let journal = found.begin(disk)?;
            let index = Index::create(disk, &directory, config.cache_bytes)?;
            index.apply(&overlay, last)?;
            (index, journal)
        }
    };
    let reader = index.reader()?;
    Ok(Parts { index, reader, journal })
}
