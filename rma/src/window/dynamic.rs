//! Memory that a rank attaches to a dynamic window, and detaches (MPI_Win_attach, MPI_Win_detach).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use ropewalk_base::memory::Cells;

use super::Window;
use crate::claims::Claim;
use crate::direct::directory::REGIONS_MAX;
use crate::error::{BadArgument, Error};

/// What this rank has attached: bytes by address. Whoever attaches or detaches has the lock.
pub(super) type Attached = Mutex<BTreeMap<u64, Region>>;

#[derive(Debug)]
pub(super) struct Region {
    bytes: u64,
    /// As long as others may reach it.
    _claim: Option<Claim>,
}

/// Whether a region may come to those that are there.
fn judge(attached: &BTreeMap<u64, Region>, address: u64, bytes: u64) -> Result<(), BadArgument> {
    if attached.len() >= REGIONS_MAX {
        return Err(BadArgument::Regions { most: REGIONS_MAX });
    }
    let before = attached.range(..=address).next_back();
    let behind = attached.range(address..).next();
    let overlaps = before
        .is_some_and(|(start, has)| *start == address || start + has.bytes > address)
        || behind.is_some_and(|(start, _)| *start < address + bytes);
    if overlaps { Err(BadArgument::Attached { address, bytes }) } else { Ok(()) }
}

impl Window {
    /// Whether memory is attached to it: [`Team::create_dynamic`](crate::Team::create_dynamic) made it.
    pub fn is_dynamic(&self) -> bool {
        self.inner.attached.is_some()
    }

    /// Attaches a range of cells: from now on others reach it by its address, which this returns and which somebody has to tell
    /// them. Not collective. An operation lies within one region; none are joined. The cells stay until they are detached.
    ///
    /// # Errors
    /// The window is not one of [`Team::create_dynamic`](crate::Team::create_dynamic), or was freed; the range does not lie in the
    /// cells; some of it is attached already, or exposed by a window of another implementation; or there are 1,024 regions.
    pub fn attach(&self, cells: &Cells, range: Range<usize>) -> Result<u64, Error> {
        drop(self.inner.epochs()?);
        let judged = self.inner.attached.as_ref().ok_or(BadArgument::NotDynamic);
        let attached = self.inner.argument(judged)?;
        let judged = cells.memory(range.clone()).map_err(BadArgument::from);
        let bytes = self.inner.argument(judged)?.len();
        let address = (cells.address().addr() + range.start) as u64;
        let mut attached = attached.lock().expect("nobody panics with it");
        self.inner.argument(judge(&attached, address, bytes))?;
        let executor = self.inner.team.executor(self.inner.options.implementation);
        let claim = Claim::new(cells, &range, executor);
        let claim = Some(self.inner.argument(claim)?);
        if bytes > 0 {
            self.inner.way.attach(cells, range)?;
        }
        attached.insert(address, Region { bytes, _claim: claim });
        Ok(address)
    }

    /// Detaches the region that begins at an address. When it returns nobody reaches the memory any more: operations that come
    /// later are refused. Not collective.
    ///
    /// # Errors
    /// No such region is attached; or the endpoint is closed.
    pub fn detach(&self, address: u64) -> Result<(), Error> {
        drop(self.inner.epochs()?);
        let judged = self.inner.attached.as_ref().ok_or(BadArgument::NotDynamic);
        let attached = self.inner.argument(judged)?;
        let mut attached = attached.lock().expect("nobody panics with it");
        let judged =
            attached.get(&address).map(|it| it.bytes).ok_or(BadArgument::NotAttached(address));
        let bytes = self.inner.argument(judged)?;
        if bytes > 0 {
            self.inner.way.detach(address)?;
        }
        attached.remove(&address);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_apart() {
        let region = |bytes| Region { bytes, _claim: None };
        let attached = BTreeMap::from([(100, region(50)), (200, region(0)), (300, region(8))]);
        let is_apart = |address, bytes| judge(&attached, address, bytes).is_ok();
        assert!(is_apart(50, 50) && is_apart(150, 50) && is_apart(150, 0) && is_apart(308, 1));
        assert!(!is_apart(50, 51) && !is_apart(149, 1) && !is_apart(149, 0) && !is_apart(120, 5));
        assert!(!is_apart(200, 0) && !is_apart(190, 20) && !is_apart(0, 1000));
        let full = (0..REGIONS_MAX as u64).map(|at| (at * 8, region(8))).collect();
        assert_eq!(judge(&full, 1 << 20, 8), Err(BadArgument::Regions { most: REGIONS_MAX }));
    }
}
