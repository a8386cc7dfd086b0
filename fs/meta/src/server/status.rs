//! The server's report on itself. It is answered at once, whatever else waits: the caller asks for the state
//! of the server, not for its data.

use std::time::Duration;

use ropewalk_base::disk::Space;
use ropewalk_rpc::Responder;
use ropewalk_store::{JournaledStore, MetaStore, Room as StoreRoom};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::head::{REPLY_BYTES_MAX, Status};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::status::{
    Activity, CLIENT_NAME_BYTES_MAX, Figure, KnownServer, MetaStatus, Room, SessionInfo,
    activity_of, disk_work,
};
use ropewalk_wire::fs::value::Bytes;

use super::MetaServer;
use crate::pools::{DOMAIN_BYTES_MAX, Shortage};
use crate::shard::{Admission, Shard};
use crate::store_rows::StoreRows;

/// Most bytes of a session in a reply, and of a server beside its address.
const SESSION_BYTES: usize = 40 + CLIENT_NAME_BYTES_MAX;
const SERVER_BYTES: usize = 100 + DOMAIN_BYTES_MAX;
/// Bytes of a reply beside its entries.
const FRAME_BYTES: usize = 64;

/// Whether a request is answered here.
pub(super) fn is_status(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::Status | MetaRequest::ListSessions { .. } | MetaRequest::ListServers { .. }
    )
}

impl MetaServer {
    /// Answers a request of which [`is_status`] holds.
    pub(super) fn answer_status(&self, request: &MetaRequest<'_>, responder: Responder) {
        let body = match *request {
            MetaRequest::ListSessions { after, bytes_max } => self.sessions_after(after, bytes_max),
            MetaRequest::ListServers { from, bytes_max } => self.servers_from(from, bytes_max),
            _ => self.status(),
        };
        match body {
            Some(body) => self.send(responder, Status::Done, body),
            None => self.send(responder, Status::Unavailable, Vec::new()),
        }
    }

    fn status(&self) -> Option<Vec<u8>> {
        Some(encoded(&MetaReply::Status(self.report()?)))
    }

    /// The server's report on itself. None: it was stopped.
    pub fn report(&self) -> Option<MetaStatus<'static>> {
        let shard = self.shard()?;
        let newest = shard.pools.newest(1);
        Some(MetaStatus {
            server: self.config.server.0,
            uptime: milliseconds(self.world.now().since(self.started)),
            inodes: shard.inode_count,
            sessions: shard.sessions.iter().count() as u32,
            waiting: shard.waiting() as u32,
            position: shard.position(),
            written: self.store.written().0,
            durable: self.store.durable().0,
            in_grace: shard.is_in_grace(),
            full: self.admission.get() != Admission::All,
            missing_bytes: self.missing_bytes(),
            room: self.room(),
            reaps: shard.reaps_under_way() as u32,
            cuts: shard.cuts.len() as u32,
            pool_version: newest.map_or(0, |pool| pool.version),
            pool_servers: newest.map_or(0, |pool| shard.pools.map().servers_of(pool).len() as u32),
            activities: self.counters.activities(),
            work: self.work(),
            figures: self.figures(&shard),
        })
    }

    /// Writes and syncs of the journal, and the calls to the disk, of which they are a part.
    fn work(&self) -> Vec<Activity<'static>> {
        let journal = self.store.journal();
        let (writes, syncs) = journal.times();
        let mut work = vec![
            activity_of("journal write", writes, journal.written_bytes()),
            activity_of("journal sync", syncs, 0),
        ];
        work.extend(self.world.disk().times().as_ref().into_iter().flat_map(disk_work));
        work
    }

    fn figures(&self, shard: &Shard<StoreRows<JournaledStore>>) -> Vec<Figure<'static>> {
        let (now, silence) = (self.world.now(), self.config.shard.server_silence);
        let known = shard.pools.known(0);
        let silent = known.iter().filter(|id| !shard.pools.is_alive(**id, now, silence)).count();
        let Shortage { groups, short, last, together, losses } = shard.pools.shortage();
        let figures: [(&str, u64); 14] = [
            ("meta_leases", shard.leases.len() as u64),
            ("meta_backlog_calls", self.backlog.borrow().len() as u64),
            ("meta_unwritten_replies", self.until_written.len() as u64),
            ("meta_undurable_replies", self.until_durable.len() as u64),
            ("meta_journal_bytes_total", self.store.journal().written_bytes()),
            ("meta_data_messages_total", self.messages_to_data_servers().total()),
            ("meta_map_epoch", shard.pools.map().epoch.into()),
            ("meta_data_servers", known.len() as u64),
            ("meta_data_servers_silent", silent as u64),
            ("meta_groups_mirrored", groups),
            ("meta_groups_short", short),
            ("meta_groups_last_copy", last),
            ("meta_groups_together", together),
            ("meta_group_losses", losses),
        ];
        figures.map(|(name, value)| Figure { name: Bytes(name.as_bytes()), value }).into()
    }

    fn missing_bytes(&self) -> u64 {
        match self.store.room() {
            StoreRoom::Ample => 0,
            StoreRoom::Short { missing } | StoreRoom::Tight { missing } => missing,
        }
    }

    fn room(&self) -> Option<Room> {
        let space = self.world.disk().space(&self.config.directory).ok()?;
        let Space { total, free, available, identity } = space;
        Some(Room {
            total_bytes: total,
            free_bytes: free,
            available_bytes: available,
            file_system: identity,
        })
    }

    fn sessions_after(&self, after: u64, bytes_max: u32) -> Option<Vec<u8>> {
        let (shard, now) = (self.shard()?, self.world.now());
        let most = (room(bytes_max) / SESSION_BYTES).max(1);
        let mut found: Vec<_> = shard.sessions.after(after).take(most + 1).collect();
        let end = found.len() <= most;
        found.truncate(most);
        let sessions = found
            .iter()
            .map(|(id, session)| SessionInfo {
                session: *id,
                name: Bytes(&session.row.name),
                left: milliseconds(session.deadline.since(now)),
                inodes: shard.leases.count(*id) as u64,
                fencing: session.row.fencing,
            })
            .collect();
        Some(encoded(&MetaReply::Sessions { sessions, end }))
    }

    fn servers_from(&self, from: u32, bytes_max: u32) -> Option<Vec<u8>> {
        let (shard, now) = (self.shard()?, self.world.now());
        let newest = shard.pools.newest(1);
        let (mut servers, mut end, mut left) = (Vec::new(), true, room(bytes_max));
        // Servers that asked and may join by now are no news.
        let mut askers = self.data_servers.askers(from);
        askers
            .retain(|(id, ..)| !shard.pools.is_admitted(*id) && shard.pools.member(*id).is_none());
        let mut all = shard.pools.known(from);
        all.extend(askers.iter().map(|(id, ..)| *id));
        for id in all {
            let server = shard.pools.server(id);
            let asker = askers.iter().find(|(asker, ..)| *asker == id);
            let address = server.map(|server| &server.address);
            let address = address.or(asker.map(|(.., address)| address)).map_or(&[][..], |it| it);
            let takes = SERVER_BYTES + address.len();
            if takes > left && !servers.is_empty() {
                end = false;
                break;
            }
            left = left.saturating_sub(takes);
            servers.push(KnownServer {
                server: id,
                address: Bytes(address),
                silence: server.map(|server| milliseconds(now.since(server.heard()))),
                boot: server.map_or(0, |server| server.boot),
                room: server.map_or(Room::default(), |server| server.room),
                alive: shard.pools.is_alive(id, now, self.config.shard.server_silence),
                full: server.is_some_and(|server| !server.has_room()),
                in_pool: newest.is_some_and(|pool| shard.pools.map().has(pool, id)),
                fences_owed: self.data_servers.owed(id) as u32,
                asked: asker.map(|(_, asked, _)| milliseconds(now.since(*asked))),
                domain: Bytes(server.map_or(&[][..], |server| &server.domain)),
            });
        }
        Some(encoded(&MetaReply::Servers { servers, end }))
    }
}

fn room(bytes_max: u32) -> usize {
    (bytes_max as usize).clamp(1024, REPLY_BYTES_MAX) - FRAME_BYTES
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn encoded(reply: &MetaReply<'_>) -> Vec<u8> {
    let result: MetaResult<'_> = Ok(reply.clone());
    let mut body = Vec::new();
    encode(&result, &mut body);
    body
}
