//! Dynamic windows by messages: the target finds the region of an address when an operation comes.
//!
//! Invariant: once memory is detached no operation finds it, those that wait are refused, and what is on the way to it or from it
//! has ended.

use std::ops::Range;

use ropewalk_base::memory::{BufferId, Cells, Memory, Slice};

use super::hub::Hub;
use super::state::{Region, Used, WindowState};
use crate::error::Error;

impl WindowState {
    /// The region that a range of addresses lies in, and where it begins. `None`: there is none.
    pub fn attached(&self, start: i128, end: i128) -> Option<(Slice, i64)> {
        let address = u64::try_from(start).ok()?;
        let (begin, region) = self.regions.as_ref()?.range(..=address).next_back()?;
        let fits = end <= i128::from(*begin) + i128::from(region.bytes) && !region.is_leaving;
        let all = Slice { buffer: region.memory, offset: 0, len: region.bytes };
        fits.then_some((all, *begin as i64))
    }

    /// The region of a buffer of the table.
    fn region(&mut self, memory: BufferId) -> Option<&mut Region> {
        self.regions.as_mut()?.values_mut().find(|region| region.memory == memory)
    }
}

impl Hub {
    /// Others reach memory of ours by its address.
    ///
    /// # Errors
    /// There is no room.
    pub fn attach(&mut self, window: u32, cells: &Cells, range: Range<usize>) -> Result<(), Error> {
        let address = (cells.address().addr() + range.start) as u64;
        let memory = cells.memory(range.clone()).expect("the range was judged");
        let bytes = memory.len();
        let memory = self.table.insert(memory).map_err(|_| Error::Room("one more region"))?;
        let (cells, base) = (cells.clone(), range.start);
        let region = Region { cells, base, bytes, memory, moving: 0, is_leaving: false };
        self.window(window).regions.get_or_insert_default().insert(address, region);
        Ok(())
    }

    /// Detaches it. False: something moves there still.
    pub fn detach(&mut self, window: u32, address: u64) -> bool {
        let Hub { windows, table, .. } = self;
        let regions = windows.get_mut(&window).and_then(|state| state.regions.as_mut());
        let Some(regions) = regions else { return true };
        let Some(region) = regions.get_mut(&address) else { return true };
        if !std::mem::replace(&mut region.is_leaving, true) {
            table.remove(region.memory);
        }
        if region.moving > 0 {
            return false;
        }
        regions.remove(&address);
        true
    }

    /// Detaches everything. False: something moves still.
    pub fn detach_regions(&mut self, window: u32) -> bool {
        let regions = self.window(window).regions.as_ref();
        let addresses: Vec<u64> = regions.map_or(Vec::new(), |all| all.keys().copied().collect());
        let mut moves = addresses;
        moves.retain(|address| !self.detach(window, *address));
        moves.is_empty()
    }

    /// A part of a window, for a rail; and the memory that is in use from now on. `None`: it is gone.
    pub fn memory(&mut self, window: u32, slice: Slice) -> Option<(Memory, Used)> {
        let Hub { windows, table, .. } = self;
        let state = windows.get_mut(&window)?;
        let part = |cells: &Cells, base: usize| {
            let from = base + slice.offset as usize;
            cells.memory(from..from + slice.len as usize).ok()
        };
        if slice.buffer == state.memory {
            let memory =
                part(&state.cells, state.base).filter(|_| table.get(slice.buffer).is_some())?;
            state.moving += 1;
            return Some((memory, Some((window, slice.buffer))));
        }
        let region = state.region(slice.buffer).filter(|region| !region.is_leaving)?;
        let memory = part(&region.cells, region.base)?;
        region.moving += 1;
        Some((memory, Some((window, slice.buffer))))
    }

    /// Data have moved.
    pub fn moved(&mut self, used: Used) {
        let Some((window, memory)) = used else { return };
        let Some(state) = self.windows.get_mut(&window) else { return };
        if memory == state.memory {
            state.moving -= 1;
        } else if let Some(region) = state.region(memory) {
            region.moving -= 1;
        }
    }
}
