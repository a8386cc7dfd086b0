//! Faults of a virtual disk: calls that fail, and bytes at rest that have changed.

use std::path::Path;

use super::image::PAGE_BYTES;
use super::{Entry, VirtualDisk};

/// Faults that wait for their moment: each number counts down to the call that fails.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) read: u64,
    pub(super) write: u64,
    pub(super) sync: u64,
    pub(super) halt: u64,
    pub(super) halted: bool,
    pub(super) skip_sync: bool,
}

/// Counts one call down; true if this is the one that fails.
pub(super) fn due(countdown: &mut u64) -> bool {
    if *countdown == 0 {
        return false;
    }
    *countdown -= 1;
    *countdown == 0
}

impl VirtualDisk {
    /// The `number`-th read from now answers EIO (1 is the next; 0 calls it off).
    pub fn fail_read(&self, number: u64) {
        self.state().faults.read = number;
    }

    /// The `number`-th write from now answers EIO, and any part of it may be written.
    pub fn fail_write(&self, number: u64) {
        self.state().faults.write = number;
    }

    /// The `number`-th sync from now answers EIO; some of the changes that it should have made durable are lost.
    pub fn fail_sync(&self, number: u64) {
        self.state().faults.sync = number;
    }

    /// The machine stops at the `number`-th changing call from now: that call is made in part,
    /// it and all later calls fail, until `crash` or `survive_process_death`.
    pub fn halt_after(&self, number: u64) {
        self.state().faults.halt = number;
    }

    /// Stops the machine now, as [`VirtualDisk::halt_after`] does later.
    pub fn halt(&self) {
        self.state().faults.halted = true;
    }

    /// Whether the machine has stopped.
    pub fn is_halted(&self) -> bool {
        self.state().faults.halted
    }

    /// A planted bug for tests of the tests: syncs answer success and do nothing.
    pub fn skip_sync(&self, skip: bool) {
        self.state().faults.skip_sync = skip;
    }

    /// Flips one bit of a file at rest. Panics where there is no such byte: the test is wrong.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) {
        let mut state = self.state();
        let Some(Entry::File(number)) = state.live.get(path) else {
            panic!("no file {} to flip a bit in", path.display())
        };
        let node = state.files.get_mut(&number).expect("a named file exists");
        assert!(node.live.flip(offset, bit), "no byte {offset} in {}", path.display());
        node.durable.flip(offset, bit);
    }

    /// The page of a file that holds `offset` cannot be read any more, from now on and in all lives: reads
    /// of any part of it answer EIO, as do writes of a part, which would have to read the rest. It is
    /// whole again once all of it was written. Panics where there is no such file: the test is wrong.
    pub fn spoil(&self, path: &Path, offset: u64) {
        let mut state = self.state();
        let Some(Entry::File(number)) = state.live.get(path) else {
            panic!("no file {} to spoil", path.display())
        };
        state.spoiled.insert((number, offset / PAGE_BYTES));
    }

    /// Everything that [`VirtualDisk::spoil`] has spoiled can be read again, as it was.
    pub fn unspoil(&self) {
        self.state().spoiled.clear();
    }
}
