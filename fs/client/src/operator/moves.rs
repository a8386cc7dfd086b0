//! Groups of data servers, for those who have servers drained, replaced or removed.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_wire::fs::data::{Cleaned, DataReply, DataRequest};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::orders::{Moves, Orders, ServerOrder};
use ropewalk_wire::fs::value::Errno;

use super::judge::layout;
use super::{Operator, OperatorError};

/// Bytes of a page of inodes.
const PAGE_BYTES: u32 = 64 * 1024;

/// How often a server is asked again, and after which pause, that cannot be cleaned since another one was not heard.
const TIMES_BUSY: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The groups of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerShare {
    /// It orders the writes of so many groups.
    pub orders: u64,
    /// It has copies of so many further ones.
    pub copies: u64,
    /// It is being brought into step in so many.
    pub coming: u64,
    /// Groups of which it is the only member.
    pub alone: u64,
}

impl ServerShare {
    /// All groups that it is in.
    pub fn groups(&self) -> u64 {
        self.orders + self.copies + self.coming
    }
}

impl Operator {
    /// Gives an order about the servers of groups. Returns the orders that hold now, and the state of the moves.
    pub async fn order(&self, order: ServerOrder) -> Result<(Orders, Moves), OperatorError> {
        self.ask_meta(&MetaRequest::Order(order), |reply, _| match reply {
            MetaReply::Orders { orders, moves } => Some((orders, moves)),
            _ => None,
        })
        .await
    }

    /// The groups of each data server that has some.
    pub async fn shares(&self) -> Result<BTreeMap<u32, ServerShare>, OperatorError> {
        self.learn_map().await?;
        let map = self.map.borrow().clone();
        let mut shares = BTreeMap::<u32, ServerShare>::new();
        for group in map.bands(0).flat_map(|band| &band.groups) {
            for (place, server) in group.servers.iter().enumerate() {
                let share = shares.entry(*server).or_default();
                *(if place == 0 { &mut share.orders } else { &mut share.copies }) += 1;
                share.alone += u64::from(group.servers.len() == 1);
            }
            for server in &group.newcomers {
                shares.entry(*server).or_default().coming += 1;
            }
        }
        Ok(shares)
    }

    /// Throws away the bytes of groups that a server gave away, or only counts them. `restored`: also where the metadata were restored
    /// from a dump while the server had bytes. `tell` hears of all so far.
    pub async fn clean(
        &self,
        server: u32,
        (remove, restored): (bool, bool),
        tell: &dyn Fn(Cleaned),
    ) -> Result<Cleaned, OperatorError> {
        self.learn_map().await?;
        let map = self.map.borrow().epoch;
        let (mut all, mut patience) = (Cleaned::default(), TIMES_BUSY);
        loop {
            let request = DataRequest::Clean { map, after: all.after, remove, restored };
            let read = |reply: DataReply<'_>, _| match reply {
                DataReply::Cleaned(some) => Some(some),
                _ => None,
            };
            let Cleaned { seen, objects, bytes, unclear, after } =
                match self.ask_data(server, &request, read).await {
                    // One heartbeat that comes late is no reason to stop.
                    Err(OperatorError::Refused { errno: Errno::EBUSY, .. }) if patience > 0 => {
                        patience -= 1;
                        self.world.sleep(PAUSE).await;
                        continue;
                    }
                    answer => answer?,
                };
            patience = TIMES_BUSY;
            all.seen += seen;
            all.objects += objects;
            all.bytes += bytes;
            all.unclear += unclear;
            all.after = after;
            tell(all);
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Files of which a server has bytes that no other one has: some of their paths, and how many there are.
    pub async fn last_copies(
        &self,
        server: u32,
        most: usize,
    ) -> Result<(Vec<Vec<u8>>, u64), OperatorError> {
        self.learn_map().await?;
        let (mut paths, mut count, mut from) = (Vec::new(), 0, 0);
        loop {
            let request = MetaRequest::ListInodes { from, bytes_max: PAGE_BYTES };
            let page = self.ask_meta(&request, |reply, _| match reply {
                MetaReply::Inodes { inodes, end } => Some((inodes, end)),
                _ => None,
            });
            let (inodes, end) = page.await?;
            for inode in &inodes {
                let Some(layout) = layout(inode) else { continue };
                let places = self.places(layout).await?;
                let mut stripes =
                    inode.written.iter().flat_map(|(first, count)| *first..*first + *count);
                if !stripes.any(|stripe| places.members(stripe) == [server]) {
                    continue;
                }
                count += 1;
                if paths.len() < most {
                    paths.extend(self.path_of(inode.attributes.inode).await?);
                }
            }
            match inodes.last().and_then(|last| last.attributes.inode.checked_add(1)) {
                Some(next) if !end => from = next,
                _ => return Ok((paths, count)),
            }
        }
    }

    /// A path of an inode; None where it has no name (any more), or too long a one.
    pub(super) async fn path_of(&self, inode: u64) -> Result<Option<Vec<u8>>, OperatorError> {
        let request = MetaRequest::GetPath { inode };
        let path = self.ask_meta(&request, |reply, _| match reply {
            MetaReply::Content { bytes } => Some(bytes.0.to_vec()),
            _ => None,
        });
        match path.await {
            Ok(path) => Ok(Some(path)),
            Err(OperatorError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
