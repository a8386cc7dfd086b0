//! Open files and directories by the numbers that the kernel gets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::task::Semaphore;
use ropewalk_client::{Client, File, Listed, handover};

use crate::errno::Errno;

/// Open files and directories of one mount, at most.
const HANDLES_MAX: usize = 1 << 20;

/// The open object behind a handle.
pub(super) enum Open {
    /// A file, and whether it was opened to bypass the kernel's page cache.
    File(Rc<File>, bool),
    Directory(Rc<OpenDirectory>),
}

/// An open directory, and the part of its listing that was fetched and not yet handed out.
pub(super) struct OpenDirectory {
    /// One reader at a time.
    pub turn: Semaphore,
    pub listing: RefCell<Listing>,
}

impl OpenDirectory {
    pub fn new() -> OpenDirectory {
        OpenDirectory { turn: Semaphore::new(1), listing: RefCell::default() }
    }
}

#[derive(Default)]
pub(super) struct Listing {
    /// The offset behind which the next entry in `entries` comes.
    pub at: u64,
    pub entries: VecDeque<Listed>,
    pub end: bool,
    /// Attributes were fetched with it, as far as others do not own them.
    pub plus: bool,
}

pub(super) struct Handles {
    slots: Slots<Open>,
}

impl Handles {
    pub fn new() -> Handles {
        Handles { slots: Slots::with_limit(HANDLES_MAX) }
    }

    pub fn add(&mut self, open: Open) -> Result<u64, Errno> {
        self.slots.insert(open).map(SlotId::to_u64).map_err(|_| Errno::EMFILE)
    }

    pub fn file(&self, handle: u64) -> Result<Rc<File>, Errno> {
        match self.slots.get(SlotId::from_u64(handle)) {
            Some(Open::File(file, _)) => Ok(file.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// A file, and whether it was opened to go past the pages of the kernel.
    pub fn file_to_write(&self, handle: u64) -> Result<(Rc<File>, bool), Errno> {
        match self.slots.get(SlotId::from_u64(handle)) {
            Some(Open::File(file, direct)) => Ok((file.clone(), *direct)),
            _ => Err(Errno::EBADF),
        }
    }

    pub fn directory(&self, handle: u64) -> Result<Rc<OpenDirectory>, Errno> {
        match self.slots.get(SlotId::from_u64(handle)) {
            Some(Open::Directory(directory)) => Ok(directory.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    /// All of them, for another process.
    pub fn to_state(&self) -> Vec<handover::Handle> {
        let state = |(id, open): (SlotId, &Open)| {
            let file = match open {
                Open::File(file, direct) => Some(file.to_state(*direct)),
                Open::Directory(_) => None,
            };
            handover::Handle { handle: id.to_u64(), file }
        };
        self.slots.iter().map(state).collect()
    }

    /// The ones of another process, opened again with this client. None where they cannot be.
    pub fn of_state(client: &Client, state: &[handover::Handle]) -> Option<Handles> {
        let opened = state.iter().map(|one| {
            let open = match &one.file {
                Some(file) => Open::File(Rc::new(client.open_again(file)), file.direct),
                None => Open::Directory(Rc::new(OpenDirectory::new())),
            };
            (SlotId::from_u64(one.handle), open)
        });
        Slots::of_entries(HANDLES_MAX, opened).map(|slots| Handles { slots })
    }

    pub fn remove(&mut self, handle: u64) -> Option<Open> {
        self.slots.remove(SlotId::from_u64(handle))
    }
}
