//! Guards for values that are taken out while a call is under way, and put back if its future is dropped.
//!
//! Programs drop futures: at a time-out, or at the losing side of a race. Changes that were acknowledged must
//! not be lost with them.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use ropewalk_base::memory::Memory;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::verb::RemoteKey;
use ropewalk_net::Audience;
use ropewalk_net::local::LocalEndpoint;

use crate::home::Home;
use crate::inode::{Dirty, Inode};

/// Changes that are being reported.
pub(crate) struct Reported<'a> {
    inode: &'a Inode,
    /// They are of this tenure; another one has nothing to do with them.
    tenure: u64,
    dirty: Dirty,
}

impl<'a> Reported<'a> {
    pub fn new(inode: &'a Inode, dirty: Dirty) -> Reported<'a> {
        let tenure = inode.state.borrow().tenure;
        Reported { inode, tenure, dirty }
    }

    /// The server has them, or they are lost.
    pub fn settled(mut self) {
        self.dirty = Dirty::default();
    }
}

impl Deref for Reported<'_> {
    type Target = Dirty;
    fn deref(&self) -> &Dirty {
        &self.dirty
    }
}

impl DerefMut for Reported<'_> {
    fn deref_mut(&mut self) -> &mut Dirty {
        &mut self.dirty
    }
}

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        let mut state = self.inode.state.borrow_mut();
        state.under_way = Dirty::default();
        if state.tenure == self.tenure {
            let kept = state.dirty.merge(std::mem::take(&mut self.dirty));
            if !kept {
                state.losses.add();
            }
        }
    }
}

/// Places that are being asked to make bytes durable, each with its era or losses at the first of them. Those that
/// another sync asks at this moment are among them: that one may have begun before the latest writes, and
/// its end is not awaited.
pub(crate) struct Unsynced<'a> {
    inode: &'a Inode,
    homes: BTreeMap<Home, u64>,
    settled: bool,
}

impl<'a> Unsynced<'a> {
    pub fn take(inode: &'a Inode) -> Unsynced<'a> {
        let mut homes = std::mem::take(&mut *inode.unsynced.borrow_mut());
        let mut syncing = inode.syncing.borrow_mut();
        // The older era counts, here too.
        homes.extend(syncing.iter().map(|(home, (era, _))| (*home, *era)));
        for (home, era) in &homes {
            syncing.entry(*home).or_insert((*era, 0)).1 += 1;
        }
        Unsynced { inode, homes, settled: false }
    }

    /// All of them have answered.
    pub fn settled(mut self) {
        self.settled = true;
    }
}

impl Deref for Unsynced<'_> {
    type Target = BTreeMap<Home, u64>;
    fn deref(&self) -> &BTreeMap<Home, u64> {
        &self.homes
    }
}

impl Drop for Unsynced<'_> {
    fn drop(&mut self) {
        let mut syncing = self.inode.syncing.borrow_mut();
        for home in self.homes.keys() {
            let (_, syncs) = syncing.get_mut(home).expect("it is noted");
            *syncs -= 1;
            if *syncs == 0 {
                syncing.remove(home);
            }
        }
        if !self.settled {
            // The older era counts: it is the one whose end takes something along.
            self.inode.unsynced.borrow_mut().append(&mut self.homes);
        }
    }
}

/// A change that a data server was asked for. Without an answer nobody knows whether, or when, it
/// comes about: before others may write, or we do again, the file gets a new write epoch.
pub(crate) struct InDoubt<'a> {
    inode: &'a Inode,
    answered: bool,
}

impl<'a> InDoubt<'a> {
    pub fn new(inode: &'a Inode) -> InDoubt<'a> {
        InDoubt { inode, answered: false }
    }

    /// It was done or refused, or never left.
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.inode.in_doubt.set(true);
        }
    }
}

/// A buffer that servers may reach.
pub(crate) struct Exposed<'a> {
    endpoint: &'a LocalEndpoint,
    key: Option<RemoteKey>,
}

impl<'a> Exposed<'a> {
    /// Makes a buffer accessible; the buffer where that is not possible.
    pub fn new(
        endpoint: &'a LocalEndpoint,
        buffer: PoolBuffer,
        writable: bool,
    ) -> Result<(Exposed<'a>, RemoteKey), Option<PoolBuffer>> {
        match endpoint.expose(Memory::pooled(buffer), writable, Audience::Everybody) {
            Ok(key) => Ok((Exposed { endpoint, key: Some(key) }, key)),
            Err((memory, _)) => Err(memory.into_pooled()),
        }
    }

    /// The buffer, when no server can reach it any more.
    pub async fn end(mut self) -> Option<PoolBuffer> {
        let key = self.key.take()?;
        self.endpoint.unexpose(key).await.memory.into_pooled()
    }
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            // Nobody waits for the end: the buffer goes back to its pool then.
            drop(self.endpoint.unexpose(key));
        }
    }
}
