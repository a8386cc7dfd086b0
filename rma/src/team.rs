//! Teams: the ranks that make windows together.

pub(crate) mod exchanges;
pub(crate) mod mail;
pub(crate) mod shared;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::memory::Cells;
use ropewalk_net::{Endpoint, Group};

use crate::direct::Sharing;
use crate::error::{BadArgument, Error};
use crate::options::{Implementation, WindowOptions};
use crate::window::Window;
use shared::{EXCHANGE_BYTES_MAX, Shared};

/// The ranks of a group, as one of them sees them. Cloning gives another handle. Threads may call at the same time, but all
/// ranks make collective calls in one order.
#[derive(Clone)]
pub struct Team {
    pub(crate) shared: Arc<Shared>,
}

impl Team {
    /// The team of a group, whose messages have the upper 16 bits of `tag`: nobody else uses these among tagged messages
    /// of the endpoint. All ranks call it.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn new(endpoint: &Endpoint, group: &Group, tag: u64) -> Result<Team, Error> {
        Ok(Team { shared: Shared::open(endpoint, group, tag)? })
    }

    /// The number of this rank.
    pub fn rank(&self) -> u32 {
        self.shared.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.shared.size()
    }

    /// Makes a window over fresh memory of `bytes` bytes, zeroed. All ranks call it, each with its own size. Ranks of one host
    /// and user whose endpoints have shared memory map it, if [`WindowOptions::map_memory`] says so: then their operations are
    /// loads and stores of their own.
    ///
    /// # Errors
    /// Ranks made different windows, one is lost, there is no such memory, or the options make no sense.
    pub fn allocate(&self, bytes: usize, options: &WindowOptions) -> Result<Window, Error> {
        let is_direct = options.implementation == Implementation::Direct;
        let is_offered = options.map_memory && is_direct && self.size() > 1;
        let share = || self.shared.endpoint().share_memory(bytes);
        if let Some((cells, offer)) = is_offered.then(share).flatten() {
            let sharing = Sharing::Offered(offer);
            return self.make(&cells, 0..bytes, options, sharing);
        }
        match Cells::try_zeroed(bytes) {
            Some(cells) => self.create(&cells, 0..bytes, options),
            None => {
                // A range that no cells have is refused by all, and nobody waits.
                drop(self.create(&Cells::zeroed(0), 0..1, options));
                Err(Error::Room("the memory of this window"))
            }
        }
    }

    /// Makes a window over fresh memory that every rank loads and stores, beside all operations (MPI_Win_allocate_shared). All
    /// ranks call it, each with its own size. Without [`WindowOptions::noncontiguous`] the memory of the next rank begins where
    /// that of the rank before ends. [`Window::shared_query`] has the memory of each rank.
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`Error::NotShared`]: the ranks are not of one host and user, or the endpoint of one has no shared
    /// memory. All ranks are told the same.
    pub fn allocate_shared(&self, bytes: usize, options: &WindowOptions) -> Result<Window, Error> {
        self.shared.call(|| Window::allocate_shared(&self.shared, bytes, options))
    }

    /// Makes a window over a range of the user's cells. All ranks call it.
    ///
    /// # Errors
    /// As [`Self::allocate`]; the range does not lie in the cells; or a window of another implementation or team exposes some of it.
    pub fn create(
        &self,
        cells: &Cells,
        range: Range<usize>,
        options: &WindowOptions,
    ) -> Result<Window, Error> {
        self.make(cells, range, options, Sharing::Not)
    }

    fn make(
        &self,
        cells: &Cells,
        range: Range<usize>,
        options: &WindowOptions,
        sharing: Sharing,
    ) -> Result<Window, Error> {
        self.shared.call(|| Window::create(&self.shared, cells, range, options, sharing))
    }

    /// Makes a window without memory, to which each rank attaches what it has ([`Window::attach`]). Operations name the target's
    /// addresses. All ranks call it. Displacements count bytes: the unit is 1.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_dynamic(&self, options: &WindowOptions) -> Result<Window, Error> {
        self.make(&Cells::zeroed(0), 0..0, options, Sharing::Dynamic)
    }

    /// Gives some bytes to all ranks, and returns those of all, by rank. All ranks call it.
    ///
    /// # Errors
    /// They are more than 32 KiB, or a rank is lost.
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if bytes.len() > EXCHANGE_BYTES_MAX {
            let (bytes, most) = (bytes.len(), EXCHANGE_BYTES_MAX);
            return Err(Error::Team(BadArgument::Exchange { bytes, most }));
        }
        self.shared.call(|| self.shared.exchange(bytes))
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn barrier(&self) -> Result<(), Error> {
        let _turn = self.shared.turn();
        self.shared.barrier(None)
    }

    /// Bytes that windows of this rank copied by themselves: between the program's memory and buffers, and to and from mapped
    /// windows. Copies of the endpoint ([`Endpoint::bytes_copied`]) come on top.
    pub fn bytes_copied(&self) -> u64 {
        self.shared.with(|hub| hub.bytes_copied())
    }

    /// Serves what other ranks want of any window.
    pub fn progress(&self) {
        self.shared.with(|hub| hub.progress());
    }

    /// Serves other ranks until `stop` says so: for a thread that a program gives to its windows. It sleeps as calls that wait
    /// do. It asks `stop` ten times a second, and whenever another call makes progress, such as [`Self::progress`].
    ///
    /// # Errors
    /// The endpoint is closed.
    pub fn serve_until(&self, stop: impl Fn() -> bool) -> Result<(), Error> {
        self.shared.until(|_| Ok(stop().then_some(())))
    }

    /// Waits, at most `limit`, until everything that left is at its ranks: before the endpoint is closed.
    pub fn settle(&self, limit: Duration) {
        self.shared.settle(limit);
    }
}
