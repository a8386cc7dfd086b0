//! The servers of a file's stripes: the layout computes groups, the map says where those are.
//!
//! A data server that is not in a group refuses calls about it. The client then asks for news of the map, and begins
//! the operation again.

use std::collections::BTreeSet;
use std::rc::Rc;

use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::{Layout, Members, Pool};
use ropewalk_wire::fs::map::{FIRST_EPOCH, Map, News, PART_BYTES};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::home::Home;

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

    /// Members that the group of each stripe should have.
    pub fn copies(&self) -> u8 {
        self.pool.copies
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

    /// The servers that may serve reads of a group of the pool besides the first one, and that one: none of files of one copy.
    pub fn readers(&self, group: Group) -> Vec<u32> {
        if self.copies() == 1 { Vec::new() } else { self.map.members(group) }
    }

    /// The servers that have all bytes of a stripe.
    pub fn members(&self, stripe: u32) -> Vec<u32> {
        self.map.members(self.group(stripe))
    }

    /// The epoch of the last change of a stripe's group, if a server is a member of it.
    pub fn member_since(&self, stripe: u32, server: u32) -> Option<u32> {
        let group = self.group(stripe);
        let since = self.map.membership(group).map_or(0, |membership| membership.since);
        self.map.members(group).contains(&server).then_some(since)
    }

    /// The servers that have a stripe, or are getting it.
    pub fn holders(&self, stripe: u32) -> Vec<u32> {
        let group = self.group(stripe);
        match self.map.membership(group) {
            Some(membership) => membership.holders().collect(),
            None => self.map.members(group),
        }
    }

    /// The place of bytes of a group that are not durable yet, and its losses. Of the first format: the server, which tells of its
    /// losses by its era.
    pub fn home(&self, group: Group) -> (Home, Option<u64>) {
        match self.map.membership(group) {
            Some(it) => (Home::Group(group), Some(u64::from(it.losses))),
            None => (Home::Server(self.server_of(group)), None),
        }
    }

    /// The places of all bytes of the pool's groups that are not durable yet.
    pub fn homes(&self) -> BTreeSet<Home> {
        let bands = match &self.pool.members {
            Members::Servers(servers) => {
                return servers.iter().copied().map(Home::Server).collect();
            }
            Members::Bands(bands) => bands.iter().filter_map(|band| self.map.band(*band)),
        };
        bands.flat_map(|band| band.groups()).map(|(group, _)| Home::Group(group)).collect()
    }

    /// All servers of the pool, in its order.
    pub fn servers(&self) -> Vec<u32> {
        self.map.servers_of(&self.pool)
    }
}

impl Client {
    /// The places of a layout's stripes.
    pub(crate) async fn places(&self, layout: &Layout) -> Result<Places, Errno> {
        let mut pool = self.pool_of(layout).await?;
        if matches!(pool.members, Members::Servers(_)) && self.map().epoch > FIRST_EPOCH {
            // Groups have changed, so the file system has left the first format meanwhile.
            pool = self.fetch_pool(layout.pool_version).await?;
            if matches!(pool.members, Members::Servers(_)) {
                return Err(Errno::EPROTO);
            }
        }
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
