//! A data server without data: it tells the metadata server that it lives, and notes what it is told.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_net::Address;
use ropewalk_rpc::{
    Answer, Connection, Handler, Incoming, Marks, Options, Proof, Responder, Secret, Server,
};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Node, Simulation};
use ropewalk_wire::fs::data::{DataReply, DataRequest, DataResult};
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::meta::{Heartbeat, MetaRequest};
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Bytes;
use ropewalk_wire::fs::{decode, encode};

/// The orders to a data server, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Fence(u64, u32),
    /// Inode, stripe, offset.
    Truncate(u64, u32, u32),
    Reap(Vec<(u64, u32)>),
}

pub type Log = Rc<RefCell<Vec<Told>>>;

struct Listener(Log);

impl Handler for Listener {
    fn secret(&self) -> Option<Secret> {
        Some(super::secret())
    }

    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        assert_eq!(incoming.head.service, Service::Data);
        let told = match decode::<DataRequest<'_>>(incoming.body()).expect("requests decode") {
            DataRequest::Fence { session, epoch } => Told::Fence(session, epoch),
            DataRequest::Truncate { file, stripe, offset, .. } => {
                Told::Truncate(file.inode, stripe, offset)
            }
            DataRequest::Reap { inodes } => Told::Reap(inodes),
            // Whether the former life lives; the next life answers here.
            DataRequest::Status => {
                return responder.send(Answer {
                    status: Status::Done,
                    body: Vec::new(),
                    marks: Marks::default(),
                });
            }
            other => panic!("a metadata server has no business with {other:?}"),
        };
        self.0.borrow_mut().push(told);
        let result: DataResult<'_> = Ok(DataReply::Done);
        let mut body = Vec::new();
        encode(&result, &mut body);
        responder.send(Answer { status: Status::Done, body, marks: Marks::default() });
    }
}

/// Adds data server number `id` as `dataID`; the log of its orders.
pub fn add(simulation: &mut Simulation, id: u32) -> Log {
    let log = Log::default();
    let (disk, seen) = (Arc::new(VirtualDisk::new(0)), log.clone());
    simulation.add_node(&format!("data{id}"), disk, move |node| boot(node, id, seen.clone()));
    log
}

fn boot(node: &Node, id: u32, log: Log) {
    let (endpoint, world) = (super::endpoint(node), node.world().clone());
    Server::start(&world, endpoint.clone(), Rc::new(Listener(log)));
    let meta = Address::parse("sim://meta").expect("an address");
    let peer = endpoint.endpoint().lookup(&meta).expect("room for a peer");
    let member = Member { role: Role::Data, number: id };
    let proof = Some(Proof { secret: super::secret(), member });
    let options = Options { proof, ..Options::default() };
    let connection = Connection::new(&world, &endpoint, peer, options);
    let life = node.life();
    node.world().spawn(async move {
        let address = format!("sim://data{id}");
        let request = MetaRequest::Heartbeat(Heartbeat {
            server: id,
            boot: life,
            era: 1,
            store: u128::from(id) + 1,
            history: 0,
            met: 0,
            known_by: 0,
            replace: false,
            admit: true,
            room: Room {
                total_bytes: 1 << 40,
                free_bytes: 1 << 39,
                available_bytes: 1 << 39,
                file_system: 0,
            },
            address: Bytes(address.as_bytes()),
            domain: Bytes(b""),
        });
        let mut body = Vec::new();
        encode(&request, &mut body);
        loop {
            drop(connection.call_free(Service::Meta, &body).await);
            world.sleep(Duration::from_secs(1)).await;
        }
    });
}
