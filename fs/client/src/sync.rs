//! Makes bytes durable where they are: at a server, or at all members of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_wire::fs::data::{DataRequest, FileId, GROUPS_MAX, ObjectRange};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::map::{FIRST_EPOCH, Membership};
use ropewalk_wire::fs::value::Errno;

use crate::client::Client;
use crate::home::Home;
use crate::inode::Inode;
use crate::places::Places;

/// The pause before the map is asked for while a server does not answer, of a group with other members.
const MAP_PAUSE: Duration = Duration::from_millis(250);
/// The same where there is no link to the server any more: it may leave the group soon.
const LINKLESS_PAUSE: Duration = Duration::from_millis(50);
/// Such pauses for each call. By then the server has left the group, or there is nobody who could take its place.
const LINKLESS_LOOKS: u32 = 40;
/// The same of a group without.
const LONE_PAUSE: Duration = Duration::from_millis(500);

impl Places {
    /// Notes that ranges were written by a server of this era, and are not durable yet.
    pub fn note_unsynced(&self, inode: &Inode, pieces: &[ObjectRange], era: u64) {
        let mut unsynced = inode.unsynced.borrow_mut();
        for piece in pieces {
            let (home, losses) = self.home(piece.group);
            unsynced.entry(home).or_insert(losses.unwrap_or(era));
        }
    }
}

impl Client {
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
                if outdated {
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

    /// Whether the link to a server that has answered before is lost.
    pub(crate) fn is_linkless(&self, server: u32) -> bool {
        self.inner.servers.borrow().get(&server).is_some_and(|it| it.connection.is_linkless())
    }

    /// Completes when the map gives one of these groups another first server than this one.
    pub(crate) async fn deposed(&self, server: u32, groups: &[Group]) {
        let mut looks = LINKLESS_LOOKS;
        loop {
            let map = self.map();
            let is_mirrored =
                |group: &Group| map.membership(*group).is_some_and(Membership::is_mirrored);
            if groups.iter().any(is_mirrored) {
                let until = self.inner.world.now() + MAP_PAUSE;
                while self.inner.world.now() < until {
                    self.inner.world.sleep(LINKLESS_PAUSE).await;
                    if looks > 0 && self.is_linkless(server) {
                        looks -= 1;
                        break;
                    }
                }
            } else {
                self.inner.world.sleep(LONE_PAUSE).await;
            }
            // While the metadata server cannot be asked, nobody knows.
            let _ = self.fetch_map(self.map().epoch + 1).await;
            let map = self.map();
            // A group of the first format is none any more when the file system has left that.
            let is_former = |it: &Group| it.server().is_some() && map.epoch > FIRST_EPOCH;
            if groups.iter().any(|it| map.first(*it) != Some(server) || is_former(it)) {
                return;
            }
        }
    }
}
