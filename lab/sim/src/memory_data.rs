//! A data server that keeps objects in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::checksum::crc32c;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::Address;
use ropewalk_net::Direction;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::{Answer, Connection, Handler, Incoming, Marks, Options, Responder, Server};
use ropewalk_wire::fs::data::*;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::MetaRequest;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

use crate::node::Node;

type Objects = BTreeMap<(u64, u32, u32), Vec<u8>>;

pub struct MemoryData {
    world: ropewalk_base::world::World,
    endpoint: LocalEndpoint,
    pool: Pool,
    objects: Rc<RefCell<Objects>>,
    boot: u64,
}

fn sums(bytes: &[u8], offset: u32, out: &mut Vec<u8>) {
    let mut at = offset % BLOCK_BYTES;
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest.len().min((BLOCK_BYTES - at) as usize);
        out.extend_from_slice(&crc32c(&rest[..run]).to_le_bytes());
        rest = &rest[run..];
        at = 0;
    }
}

impl MemoryData {
    pub fn start(node: &Node, endpoint: LocalEndpoint, id: u32, objects: Rc<RefCell<Objects>>) {
        let world = node.world().clone();
        let server = Rc::new(MemoryData {
            world: world.clone(),
            endpoint: endpoint.clone(),
            pool: Pool::with_budget(1 << 30),
            objects,
            boot: node.life() + 100,
        });
        Server::start(&world, endpoint.clone(), server);
        let meta = Address::parse("sim://meta").unwrap();
        let peer = endpoint.endpoint().lookup(&meta).unwrap();
        let connection = Connection::new(&world, &endpoint, peer, Options::default());
        let life = node.life();
        node.world().spawn(async move {
            let address = format!("sim://data{id}");
            let request = MetaRequest::Heartbeat {
                server: id,
                boot: life,
                total_bytes: 1 << 40,
                available_bytes: 1 << 39,
                address: Bytes(address.as_bytes()),
            };
            let mut body = Vec::new();
            encode(&request, &mut body);
            loop {
                drop(connection.call_free(ropewalk_wire::fs::head::Service::Meta, &body).await);
                world.sleep(Duration::from_secs(1)).await;
            }
        });
    }

    async fn work(&self, incoming: &Incoming) -> Vec<u8> {
        let mut out = Vec::new();
        let mut reply = |result: DataResult<'_>| encode(&result, &mut out);
        match decode::<DataRequest<'_>>(incoming.body()).expect("decodes") {
            DataRequest::Write { file, pieces, source, checksums } => {
                let total: usize = pieces.iter().map(|piece| piece.len as usize).sum();
                let bytes = match source {
                    Source::Embedded(bytes) => bytes.0.to_vec(),
                    Source::Bulk(bulk) => {
                        let key = RemoteKey {
                            slot: SlotId::from_u64(bulk.key_slot),
                            secret: bulk.key_secret,
                        };
                        let memory = Memory::pooled(self.pool.take(total).unwrap());
                        let remote = RemoteLayout::At(bulk.offset);
                        let done = self
                            .endpoint
                            .access(Direction::Get, incoming.peer, key, remote, memory)
                            .await;
                        if done.outcome.is_err() {
                            reply(Err(Errno::EIO));
                            return out;
                        }
                        done.memory.into_pooled().unwrap().to_vec()
                    }
                };
                let mut at = 0;
                let mut own = Vec::new();
                for piece in pieces {
                    let data = &bytes[at..at + piece.len as usize];
                    sums(data, piece.offset, &mut own);
                    at += piece.len as usize;
                    let mut objects = self.objects.borrow_mut();
                    let object =
                        objects.entry((file.inode, file.generation, piece.stripe)).or_default();
                    let end = (piece.offset + piece.len) as usize;
                    if object.len() < end {
                        object.resize(end, 0);
                    }
                    object[piece.offset as usize..end].copy_from_slice(data);
                }
                assert_eq!(own, checksums.0);
                reply(Ok(DataReply::Written));
            }
            DataRequest::Read { file, pieces, bulk } => {
                let (mut found, mut bytes, mut own) = (Vec::new(), Vec::new(), Vec::new());
                for piece in pieces {
                    let mut data = vec![0; piece.len as usize];
                    match self.objects.borrow().get(&(file.inode, file.generation, piece.stripe)) {
                        Some(object) => {
                            found.push(Found::Present);
                            let begin = (piece.offset as usize).min(object.len());
                            let len = (object.len() - begin).min(data.len());
                            data[..len].copy_from_slice(&object[begin..begin + len]);
                        }
                        None => found.push(Found::Absent),
                    }
                    sums(&data, piece.offset, &mut own);
                    bytes.extend(data);
                }
                if let Some(bulk) = bulk {
                    let key = RemoteKey {
                        slot: SlotId::from_u64(bulk.key_slot),
                        secret: bulk.key_secret,
                    };
                    let total = bytes.len() as u64;
                    let memory = Memory::pooled(self.pool.copy_of(&bytes).unwrap());
                    let remote = RemoteLayout::At(bulk.offset);
                    let done = self
                        .endpoint
                        .access(Direction::Put, incoming.peer, key, remote, memory)
                        .await;
                    if done.outcome.is_err() {
                        reply(Err(Errno::EIO));
                        return out;
                    }
                    bytes.clear();
                }
                reply(Ok(DataReply::Read { found, bytes: Bytes(&bytes), checksums: Bytes(&own) }));
            }
            DataRequest::Truncate { file, stripe, offset } => {
                let mut objects = self.objects.borrow_mut();
                objects.retain(|key, object| {
                    if key.0 != file.inode || key.1 != file.generation {
                        return true;
                    }
                    if offset > 0 && key.2 + 1 == stripe {
                        object.truncate(offset as usize);
                    }
                    key.2 < stripe
                });
                reply(Ok(DataReply::Done));
            }
            DataRequest::Reap { inodes } => {
                let mut objects = self.objects.borrow_mut();
                objects
                    .retain(|key, _| !inodes.iter().any(|gone| gone.0 == key.0 && gone.1 >= key.1));
                reply(Ok(DataReply::Done));
            }
            _ => reply(Ok(DataReply::Done)),
        }
        out
    }
}

impl Handler for MemoryData {
    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let world = self.world.clone();
        world.spawn(async move {
            let body = self.work(&incoming).await;
            let marks = Marks { boot: self.boot, written: 0, durable: 0 };
            responder.send(Answer { status: Status::Done, body, marks });
        });
    }
}
