//! A client by hand: regions, checksums, calls.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::checksum::crc32c;
use ropewalk_base::ids::Origin;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::RemoteKey;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Audience, PeerId};
use ropewalk_rpc::{CallError, Connection, Grantor, Options, Proof, Secret};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, Bulk, Condition, DataReply, DataRequest, DataResult, EMBEDDED_BYTES_MAX, FileId,
    Found, ObjectInfo, ObjectName, ObjectRange, Source,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

/// The secret of the cluster's members.
pub fn secret() -> Secret {
    Secret::new(ropewalk_sim::cluster::SECRET)
}

fn proof() -> Option<Proof> {
    Some(Proof { secret: secret(), member: Member { role: Role::Metadata, number: 0 } })
}

#[derive(Clone)]
pub struct Client {
    pub world: World,
    pub endpoint: LocalEndpoint,
    pub connection: Connection,
    /// Calls as a metadata server, for requests that belong to no session.
    meta: Connection,
    /// The boot id of the last reply, whatever it said.
    pub era: Rc<Cell<u64>>,
    pool: Pool,
}

/// The failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    Errno(Errno),
    Call(CallError),
}

pub type Outcome<T> = Result<T, Failed>;

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub found: Vec<Found>,
    pub bytes: Vec<u8>,
}

/// A data server's life and room, as `Status` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub objects: u64,
    pub object_bytes: u64,
    pub available_bytes: u64,
    /// Calls and bytes by kind.
    pub activities: BTreeMap<Vec<u8>, (u64, u64)>,
}

pub fn file(inode: u64) -> FileId {
    FileId { inode, generation: 1, epoch: 1 }
}

pub fn range(stripe: u32, offset: u32, len: u32) -> ObjectRange {
    // The cluster's data server is number 3.
    ObjectRange { stripe, group: Group::of_server(3), offset, len }
}

/// The checksums of pieces, as the schema wants them.
pub fn checksums(pieces: &[ObjectRange], mut bytes: &[u8]) -> Vec<u8> {
    let mut sums = Vec::new();
    for piece in pieces {
        let (mut own, rest) = bytes.split_at(piece.len as usize);
        bytes = rest;
        let mut offset = piece.offset;
        while !own.is_empty() {
            let run = ((BLOCK_BYTES - offset % BLOCK_BYTES) as usize).min(own.len());
            sums.extend_from_slice(&crc32c(&own[..run]).to_le_bytes());
            own = &own[run..];
            offset += run as u32;
        }
    }
    sums
}

pub fn total(pieces: &[ObjectRange]) -> usize {
    pieces.iter().map(|piece| piece.len as usize).sum()
}

fn bulk(key: RemoteKey, offset: u64) -> Bulk {
    Bulk { key_slot: key.slot.to_u64(), key_secret: key.secret, offset }
}

/// Bytes before and after what is exposed for a transfer: nothing of it may be touched.
const MARGIN: usize = 100;
const UNTOUCHED: u8 = 0xa5;

impl Client {
    pub fn new(world: &World, endpoint: &LocalEndpoint, peer: PeerId) -> Client {
        let options = Options { limit: crate::cluster::LIMIT, ..Options::default() };
        Client {
            world: world.clone(),
            endpoint: endpoint.clone(),
            connection: Connection::new(world, endpoint, peer, options.clone()),
            meta: Connection::new(world, endpoint, peer, Options { proof: proof(), ..options }),
            era: Rc::default(),
            pool: Pool::with_budget(256 << 20),
        }
    }

    /// The same client, who knows the server by another address.
    pub fn moved(&self) -> Client {
        let options = Options { limit: crate::cluster::LIMIT, ..Options::default() };
        let connection = self.connection.moved(self.connection.peer(), options);
        Client { connection, ..self.clone() }
    }

    /// From now on calls are of this session, as the metadata server would have given it to us.
    pub fn use_session(&self, session: u64, epoch: u32) {
        self.connection.set_session(session, epoch, self.token(session));
    }

    /// The token of a session of ours.
    pub fn token(&self, session: u64) -> u64 {
        let identity = self.endpoint.endpoint().identity();
        let own = Origin { endpoint: identity.endpoint, incarnation: identity.incarnation };
        Grantor::new(&secret()).token(session, own, false)
    }

    /// A call; the result of `take` for its reply, and the server's boot id.
    pub async fn call<T>(
        &self,
        request: &DataRequest<'_>,
        take: impl FnOnce(DataReply<'_>) -> T,
    ) -> Outcome<(T, u64)> {
        let mut body = Vec::new();
        encode(request, &mut body);
        // Calls without a session have no numbers, as those of the metadata server.
        let reply = if self.connection.session() == 0 {
            self.meta.call_free(Service::Data, &body).await
        } else {
            self.connection.call(Service::Data, &body).await
        };
        let reply = reply.map_err(Failed::Call)?;
        self.era.set(reply.head.era);
        let result = decode::<DataResult<'_>>(reply.body()).expect("replies decode");
        Ok((take(result.map_err(Failed::Errno)?), reply.head.boot))
    }

    /// A call whose reply says no more than that it was done.
    pub async fn done(&self, request: &DataRequest<'_>) -> Outcome<u64> {
        let (done, boot) = self
            .call(request, |reply| matches!(reply, DataReply::Done | DataReply::Punched { .. }))
            .await?;
        assert!(done, "the reply is `Done`");
        Ok(boot)
    }

    /// Writes, with the bytes in the request where they fit; the boot id of the reply.
    pub async fn write(&self, file: FileId, pieces: &[ObjectRange], bytes: &[u8]) -> Outcome<u64> {
        if bytes.len() <= EMBEDDED_BYTES_MAX as usize {
            let source = Source::Embedded(Bytes(bytes));
            self.write_from(file, pieces, source, &checksums(pieces, bytes)).await
        } else {
            self.write_bulk(file, pieces, bytes, &checksums(pieces, bytes)).await
        }
    }

    /// Writes from a region.
    pub async fn write_bulk(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
        bytes: &[u8],
        checksums: &[u8],
    ) -> Outcome<u64> {
        let mut whole = vec![UNTOUCHED; MARGIN];
        whole.extend_from_slice(bytes);
        let memory = Memory::pooled(self.pool.copy_of(&whole).expect("within the budget"));
        let key = self.endpoint.expose(memory, false, Audience::Everybody).expect("exposed");
        let source = Source::Bulk(bulk(key, MARGIN as u64));
        let written = self.write_from(file, pieces, source, checksums).await;
        self.endpoint.unexpose(key).await;
        written
    }

    pub async fn write_from(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
        source: Source<'_>,
        checksums: &[u8],
    ) -> Outcome<u64> {
        let (pieces, checksums) = (pieces.to_vec(), Bytes(checksums));
        let request = DataRequest::Write { file, pieces, source, checksums };
        let (written, boot) = self.call(&request, |reply| reply == DataReply::Written).await?;
        assert!(written, "the reply is `Written`");
        Ok(boot)
    }

    /// Reads, with the bytes in the reply where they fit; checks the checksums.
    pub async fn read(&self, file: FileId, pieces: &[ObjectRange]) -> Outcome<Content> {
        if total(pieces) <= EMBEDDED_BYTES_MAX as usize {
            self.read_embedded(file, pieces).await
        } else {
            self.read_bulk(file, pieces).await
        }
    }

    pub async fn read_embedded(&self, file: FileId, pieces: &[ObjectRange]) -> Outcome<Content> {
        let request = DataRequest::Read { file, pieces: pieces.to_vec(), bulk: None, verify: true };
        let take = |reply: DataReply<'_>| match reply {
            DataReply::Read { found, bytes, checksums } => {
                (found, bytes.0.to_vec(), checksums.0.to_vec())
            }
            other => panic!("a read is answered with {other:?}"),
        };
        let ((found, bytes, sums), _) = self.call(&request, take).await?;
        assert_eq!(bytes.len(), total(pieces));
        assert_eq!(sums, checksums(pieces, &bytes));
        assert_eq!(found.len(), pieces.len());
        Ok(Content { found, bytes })
    }

    /// Reads into a region, and sees that nothing beside it was touched.
    pub async fn read_bulk(&self, file: FileId, pieces: &[ObjectRange]) -> Outcome<Content> {
        let bytes = total(pieces);
        let whole = vec![UNTOUCHED; bytes + 2 * MARGIN];
        let memory = Memory::pooled(self.pool.copy_of(&whole).expect("within the budget"));
        let key = self.endpoint.expose(memory, true, Audience::Everybody).expect("exposed");
        let bulk = Some(bulk(key, MARGIN as u64));
        let request = DataRequest::Read { file, pieces: pieces.to_vec(), bulk, verify: true };
        let take = |reply: DataReply<'_>| match reply {
            DataReply::Read { found, bytes, checksums } => {
                assert!(bytes.0.is_empty(), "with bulk nothing is embedded");
                (found, checksums.0.to_vec())
            }
            other => panic!("a read is answered with {other:?}"),
        };
        let outcome = self.call(&request, take).await;
        let ended = self.endpoint.unexpose(key).await;
        let whole = ended.memory.into_pooled().expect("the region comes back").to_vec();
        let ((found, sums), _) = outcome?;
        assert!(whole[..MARGIN].iter().all(|byte| *byte == UNTOUCHED));
        assert!(whole[MARGIN + bytes..].iter().all(|byte| *byte == UNTOUCHED));
        let content = whole[MARGIN..MARGIN + bytes].to_vec();
        assert_eq!(sums, checksums(pieces, &content));
        assert_eq!(found.len(), pieces.len());
        Ok(Content { found, bytes: content })
    }

    pub async fn sync(&self, files: &[FileId]) -> Outcome<u64> {
        self.done(&DataRequest::Sync { files: files.to_vec(), groups: Vec::new() }).await
    }

    pub async fn status(&self) -> Outcome<Status> {
        let take = |reply: DataReply<'_>| match reply {
            DataReply::Status(status) => Status {
                objects: status.objects,
                object_bytes: status.object_bytes,
                available_bytes: status.room.available_bytes,
                activities: status
                    .activities
                    .iter()
                    .map(|done| (done.kind.0.to_vec(), (done.calls, done.bytes)))
                    .collect(),
            },
            other => panic!("status is answered with {other:?}"),
        };
        Ok(self.call(&DataRequest::Status, take).await?.0)
    }

    /// Examines objects: the condition of each.
    pub async fn examine(&self, objects: &[ObjectName], read: bool) -> Outcome<Vec<Condition>> {
        let take = |reply: DataReply<'_>| match reply {
            DataReply::Examined { conditions } => conditions,
            other => panic!("an examination is answered with {other:?}"),
        };
        let request = DataRequest::Examine { objects: objects.to_vec(), read };
        Ok(self.call(&request, take).await?.0)
    }

    /// One page of the listing.
    pub async fn list(
        &self,
        after: Option<(u64, u32, u32)>,
        bytes_max: u32,
    ) -> Outcome<(Vec<ObjectInfo>, bool)> {
        let take = |reply: DataReply<'_>| match reply {
            DataReply::Objects { objects, end } => (objects, end),
            other => panic!("a listing is answered with {other:?}"),
        };
        Ok(self.call(&DataRequest::List { after, bytes_max }, take).await?.0)
    }
}
