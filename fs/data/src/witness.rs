//! A data server as the witness of an election: it votes, and has no metadata (`docs/design/114-election.md`).
//!
//! A new cluster has no active metadata server before the witness has voted, and a new data server does not start before an
//! active metadata server has taken it in. So the witness has a door of its own, which takes ballots from the beginning, and
//! hands over to the data server once that has started.
//!
//! Invariants
//! * a ballot counts only if a metadata server of this cluster has proven that it is its own;
//! * a door that is closed answers nobody, and nothing is stored behind it any more.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ropewalk_base::world::World;
use ropewalk_election::{Ballot, Record, VoterKeeper};
use ropewalk_net::PeerId;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::lines::Lines;
use ropewalk_rpc::{Answer, Handler, Incoming, Marks, Responder, Secret, Server};
use ropewalk_store::superblock::Boot;
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::{decode, election, encode};

use crate::config::{DataConfig, DataError};

/// Ballots that wait for the disk at a time, before the data server has started.
const BALLOTS_MAX: usize = 64;

/// The voter of a data server.
pub(crate) struct Witness {
    keeper: Rc<VoterKeeper>,
    lines: Lines,
    /// Callers that the door refused.
    strangers: Cell<u64>,
}

/// The server's first handler.
pub(crate) struct Door {
    world: World,
    secret: Secret,
    marks: Marks,
    witness: Rc<Witness>,
    server: RefCell<Option<Rc<dyn Handler>>>,
    is_closed: Cell<bool>,
    ballots: Cell<usize>,
}

/// The ballot in a call, if its caller may cast it.
pub(crate) fn ballot_of(incoming: &Incoming) -> Result<Ballot, Status> {
    let Ok(ballot) = decode::<election::Ballot>(incoming.body()) else {
        return Err(Status::Malformed);
    };
    if incoming.head.session != 0 {
        return Err(Status::Malformed);
    }
    let own = Member { role: Role::Metadata, number: ballot.server() };
    if incoming.member == Some(own) { Ok(ballot.into()) } else { Err(Status::Unproven) }
}

impl Witness {
    /// The body of the answer, once it may leave; None: the disk fails.
    pub(crate) async fn answer(&self, ballot: &Ballot) -> Option<Vec<u8>> {
        match self.keeper.answer(ballot).await {
            Ok(answer) => {
                let mut body = Vec::new();
                encode(&election::Answer::from(&answer), &mut body);
                Some(body)
            }
            Err(error) => {
                self.lines.say(&error.to_string());
                None
            }
        }
    }

    /// Callers that were refused before the data server had started.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers.get()
    }

    fn refuses_stranger(&self) {
        self.strangers.set(self.strangers.get() + 1);
        self.lines.say(
            "refused a caller that has not proven to be the metadata server for which it speaks",
        );
    }
}

impl Door {
    /// Takes ballots from now on, where the configuration says so.
    pub(crate) async fn open(
        world: &World,
        endpoint: &LocalEndpoint,
        config: &DataConfig,
        boot: Boot,
    ) -> Result<Option<Rc<Door>>, DataError> {
        let Some(witness) = config.witness else { return Ok(None) };
        let (directory, first) = (config.directory.clone(), Record::fresh());
        let keeper = VoterKeeper::open(world, directory, witness.lease, first).await?;
        let lines = Lines::new(world, config.log.clone());
        let door = Rc::new(Door {
            world: world.clone(),
            secret: config.secret.clone(),
            marks: Marks { boot: boot.id, era: boot.era, ..Marks::default() },
            witness: Rc::new(Witness { keeper, lines, strangers: Cell::new(0) }),
            server: RefCell::new(None),
            is_closed: Cell::new(false),
            ballots: Cell::new(0),
        });
        Server::start(world, endpoint.clone(), door.clone());
        Ok(Some(door))
    }

    pub(crate) fn witness(&self) -> &Rc<Witness> {
        &self.witness
    }

    /// From now on calls are the data server's.
    pub(crate) fn hand_over(&self, server: Rc<dyn Handler>) {
        *self.server.borrow_mut() = Some(server);
    }

    /// Answers nobody any more; completes when nothing is being stored.
    pub(crate) async fn close(&self) {
        self.is_closed.set(true);
        self.witness.keeper.settled().await;
    }

    fn send(&self, responder: Responder, status: Status, body: Vec<u8>) {
        responder.send(Answer { status, body, marks: self.marks });
    }

    fn vote(self: Rc<Self>, incoming: &Incoming, responder: Responder) {
        let ballot = match ballot_of(incoming) {
            Ok(ballot) => ballot,
            Err(status) => {
                if status == Status::Unproven {
                    self.witness.refuses_stranger();
                }
                return self.send(responder, status, Vec::new());
            }
        };
        if self.ballots.get() >= BALLOTS_MAX {
            return self.send(responder, Status::Unavailable, Vec::new());
        }
        self.ballots.set(self.ballots.get() + 1);
        let world = self.world.clone();
        world.spawn(async move {
            let answer = match self.is_closed.get() {
                true => None,
                false => self.witness.answer(&ballot).await,
            };
            self.ballots.set(self.ballots.get() - 1);
            match answer {
                _ if self.is_closed.get() => {}
                Some(body) => self.send(responder, Status::Done, body),
                None => self.send(responder, Status::Unavailable, Vec::new()),
            }
        });
    }
}

impl Handler for Door {
    fn secret(&self) -> Option<Secret> {
        Some(self.secret.clone())
    }

    fn saw_pretender(&self, member: Member, peer: PeerId) {
        match &*self.server.borrow() {
            Some(server) => server.saw_pretender(member, peer),
            None => self.witness.refuses_stranger(),
        }
    }

    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let server = self.server.borrow().clone();
        match server {
            _ if self.is_closed.get() => {}
            Some(server) => server.handle(incoming, responder),
            None if incoming.head.service == Service::Election => self.vote(&incoming, responder),
            // As long as it has not started it says nothing, as a server that is no witness.
            None => {}
        }
    }
}
