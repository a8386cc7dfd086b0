//! The servers of a file's stripes: the layout computes groups, the map says where those are.
//!
//! A data server that is not in a group refuses calls about it. The client then asks for news of the map, and begins
//! the operation again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_wire::fs::data::{DataRequest, FileId, GROUPS_MAX, ObjectRange};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::{Layout, Pool};
use ropewalk_wire::fs::map::{Map, News, PART_BYTES};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::inode::Inode;

/// The pause before the map is asked for while a group's server does not answer.
const MAP_PAUSE: Duration = Duration::from_millis(250);

/// The place of bytes that are not durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    /// They are lost with the server's era.
    Server(u32),
    /// They are lost when all members of the group have lost theirs.
    Group(Group),
}

/// The places of a file's stripes, by one state of the map.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    layout: Layout,
    pool: Rc<Pool>,
    map: Rc<Map>,
}

impl Places {
    /// None where the map lacks bands of the pool.
    pub fn new(layout: &Layout, pool: Rc<Pool>, map: Rc<Map>) -> Option<Places> {
        map.covers(&pool).then_some(Places { layout: *layout, pool, map })
    }

    pub fn group(&self, stripe: u32) -> Group {
        self.layout.group(stripe, &self.pool)
    }

    /// The server to which calls about a stripe go.
    pub fn server(&self, stripe: u32) -> u32 {
        self.server_of(self.group(stripe))
    }

    /// The server to which calls about a group of the pool go.
    pub fn server_of(&self, group: Group) -> u32 {
        self.map.first(group).expect("the map covers the pool")
    }

    /// The place of bytes of a group that are not durable yet, and, of a group of several members, its losses.
    pub fn home(&self, group: Group) -> (Home, Option<u64>) {
        match self.map.membership(group) {
            Some(it) if it.is_mirrored() => (Home::Group(group), Some(u64::from(it.losses))),
            _ => (Home::Server(self.server_of(group)), None),
        }
    }

    /// Notes that ranges were written by a server of this era, and are not durable yet.
    pub fn note_unsynced(&self, inode: &Inode, pieces: &[ObjectRange], era: u64) {
        let mut unsynced = inode.unsynced.borrow_mut();
        for piece in pieces {
            let (home, losses) = self.home(piece.group);
            unsynced.entry(home).or_insert(losses.unwrap_or(era));
        }
    }

    /// The places of all bytes of the pool's groups that are not durable yet.
    pub fn homes(&self) -> BTreeSet<Home> {
        let mirrored = self.map.bands(0).flat_map(|band| band.groups());
        let mirrored =
            mirrored.filter(|(_, it)| it.is_mirrored()).map(|(group, _)| Home::Group(group));
        self.servers().into_iter().map(Home::Server).chain(mirrored).collect()
    }

    /// All servers of the pool, in its order.
    pub fn servers(&self) -> Vec<u32> {
        self.map.servers_of(&self.pool)
    }
}

impl Client {
    /// The places of a layout's stripes.
    pub(crate) async fn places(&self, layout: &Layout) -> Result<Places, Errno> {
        let pool = self.pool_of(layout).await?;
        let known = || Places::new(layout, pool.clone(), self.map());
        if let Some(places) = known() {
            return Ok(places);
        }
        self.fetch_map(self.map().epoch + 1).await?;
        known().ok_or(Errno::EPROTO)
    }

    /// The map as far as it is known.
    pub(crate) fn map(&self) -> Rc<Map> {
        self.inner.map.borrow().clone()
    }

    /// Makes bytes of a file durable at these places. With each place: its era, or its losses, when that was done.
    pub(crate) async fn sync_homes(
        &self,
        file: FileId,
        homes: impl IntoIterator<Item = Home>,
    ) -> Vec<(Home, Result<u64, Errno>)> {
        let mut left: Vec<Home> = homes.into_iter().collect();
        let mut synced = Vec::new();
        while !left.is_empty() {
            let map = self.map();
            let mut by_server: BTreeMap<u32, Vec<Home>> = BTreeMap::new();
            for home in left.drain(..) {
                let server = match home {
                    Home::Server(server) => Some(server),
                    Home::Group(group) => map.first(group),
                };
                match server {
                    Some(server) => by_server.entry(server).or_default().push(home),
                    None => synced.push((home, Err(Errno::EPROTO))),
                }
            }
            let asked = by_server.iter().flat_map(|(server, homes)| {
                homes.chunks(GROUPS_MAX).map(move |homes| (*server, homes))
            });
            let asked = asked.map(|(server, homes)| self.sync_some(file, server, homes));
            for (homes, answer) in join_all(asked).await {
                let outdated = answer == Err(Errno::ESTALE) && self.map().epoch > map.epoch;
                if outdated && homes.iter().any(|home| matches!(home, Home::Group(_))) {
                    left.extend(homes);
                    continue;
                }
                let now = self.map();
                for home in homes {
                    let state = answer.and_then(|era| match home {
                        Home::Server(_) => Ok(era),
                        Home::Group(group) => {
                            let group = now.membership(*group).ok_or(Errno::EPROTO)?;
                            Ok(u64::from(group.losses))
                        }
                    });
                    synced.push((*home, state));
                }
            }
        }
        synced
    }

    /// Has one server make bytes durable; its era.
    async fn sync_some<'a>(
        &self,
        file: FileId,
        server: u32,
        homes: &'a [Home],
    ) -> (&'a [Home], Result<u64, Errno>) {
        let group = |home: &Home| match home {
            Home::Server(_) => None,
            Home::Group(group) => Some(*group),
        };
        let groups = homes.iter().filter_map(group).collect();
        let request = DataRequest::Sync { files: vec![file], groups };
        let answer = self.ask_data(server, &request, |_| Ok(())).await;
        (homes, answer.map(|((), era)| era))
    }

    /// Completes when the map gives one of these groups another first server than this one.
    pub(crate) async fn deposed(&self, server: u32, groups: &[Group]) {
        loop {
            self.inner.world.sleep(MAP_PAUSE).await;
            // While the metadata server cannot be asked, nobody knows.
            let _ = self.fetch_map(self.map().epoch + 1).await;
            let map = self.map();
            if groups.iter().any(|group| map.first(*group) != Some(server)) {
                return;
            }
        }
    }

    /// Asks for news of the map, unless the state of this epoch is known already.
    pub(crate) async fn fetch_map(&self, epoch: u32) -> Result<(), Errno> {
        let _guard = self.inner.pool_lock.acquire().await;
        if self.map().epoch >= epoch {
            return Ok(());
        }
        let mut news = News::of(&self.map());
        loop {
            let News { since, from, .. } = news;
            let request = MetaRequest::GetMap { since, from, server: None, bytes_max: PART_BYTES };
            let taken = self
                .ask(&request, |reply| match reply {
                    MetaReply::Map { epoch, bands, end } => {
                        news.take(epoch, bands, end).map_err(|_| Errno::EPROTO)
                    }
                    _ => unexpected(),
                })
                .await?;
            if taken {
                break;
            }
        }
        *self.inner.map.borrow_mut() = Rc::new(news.map());
        Ok(())
    }
}
