//! The process that is the data server of a number.
//!
//! Invariants:
//! * a number's store changes only if a person ordered it (the shard's affair);
//! * while the process that was heard last under a number answers, no other one takes its place: with two in
//!   turn, writes that one acknowledged would be missed at the other.
//!
//! A process that died does not answer, so its next life is not kept waiting; one whose host went away is
//! waited for a moment.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::text::printable;
use ropewalk_net::{Address, PeerId};
use ropewalk_rpc::{Connection, Incoming, Options, Responder};
use ropewalk_wire::fs::data::DataRequest;
use ropewalk_wire::fs::head::{CallHead, Service, Status};
use ropewalk_wire::fs::meta::{Heartbeat, MetaReply, MetaRequest, MetaResult, Registration};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::upgrade::NEEDED_VERSION;
use ropewalk_wire::fs::value::Bytes;
use ropewalk_wire::fs::{decode, encode};

use super::MetaServer;
use crate::pools::ADDRESS_BYTES_MAX;
use crate::shard::{Call, Outcome};

/// The time for which a lost link is tried anew before its process counts as dead, and the time limit of an
/// answer.
const RETRY: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_secs(1);

/// Servers that join so soon after the start are those of a cluster that is being set up.
const SET_UP: Duration = Duration::from_secs(10);

impl MetaServer {
    /// Whether another process was heard under this number lately.
    pub(super) fn is_contested(&self, beat: &Heartbeat<'_>) -> bool {
        let servers = self.data_servers.servers.borrow();
        let holder = servers.get(&beat.server).filter(|holder| holder.boot != 0);
        let other = holder.is_some_and(|holder| holder.boot != beat.boot);
        drop(servers);
        other && !self.is_silent(beat.server)
    }

    /// Takes a heartbeat only if the process that had the number does not answer any more.
    pub(super) fn start_contest(self: &Rc<Self>, incoming: Incoming, responder: Responder) {
        let this = self.clone();
        self.task(async move {
            let Ok(MetaRequest::Heartbeat(beat)) = decode::<MetaRequest<'_>>(incoming.body())
            else {
                return;
            };
            let alive = loop {
                let probed = this.holder_boot(beat.server);
                // An earlier heartbeat of this very process, which it sent again, was taken meanwhile.
                if probed == Some(beat.boot) {
                    break None;
                }
                let alive = this.living_holder(beat.server).await;
                // Of several that wait for the same dead one, the first to go on is the next holder.
                if alive.is_some() || this.holder_boot(beat.server) == probed {
                    break alive;
                }
            };
            match alive {
                Some(address) => {
                    let shown = |bytes| printable(bytes, ADDRESS_BYTES_MAX);
                    (this.config.log)(&format!(
                        "data server {} at {} is refused: another process already runs as data \
                         server {0}, at {}",
                        beat.server,
                        shown(beat.address.0),
                        shown(&address)
                    ));
                    let alive = Registration::Alive { address: Bytes(&address) };
                    let result: MetaResult<'_> = Ok(MetaReply::Registered(alive));
                    let mut body = Vec::new();
                    encode(&result, &mut body);
                    this.send(responder, Status::Done, body);
                }
                None => this.serve_heartbeat(&beat, (incoming.peer, incoming.head), responder),
            }
            this.drain();
        });
    }

    fn holder_boot(&self, id: u32) -> Option<u64> {
        self.data_servers.servers.borrow().get(&id).map(|holder| holder.boot)
    }

    /// The address of the process that was heard last under a number, if it answers.
    async fn living_holder(&self, id: u32) -> Option<Vec<u8>> {
        let (address, boot, peer) = {
            let servers = self.data_servers.servers.borrow();
            let holder = servers.get(&id)?;
            (holder.address.clone(), holder.boot, holder.connection.as_ref()?.peer())
        };
        let proof = Some(self.proof());
        let term = self.term.term();
        let options = Options { limit: RETRY, proof, term, ..Options::default() };
        let connection = Connection::new(&self.world, &self.endpoint, peer, options);
        let mut body = Vec::new();
        encode(&DataRequest::Status, &mut body);
        let asked = self.world.timeout(ANSWER, connection.call_free(Service::Data, &body)).await;
        asked?.is_ok_and(|reply| reply.head.boot == boot).then_some(address)
    }

    /// Has the shard judge a heartbeat, and tells people the news.
    pub(super) fn serve_heartbeat(
        self: &Rc<Self>,
        beat: &Heartbeat<'_>,
        (peer, head): (PeerId, CallHead),
        responder: Responder,
    ) {
        let now = self.now();
        let address = self.with_node(peer, beat.address.0);
        let beat = &Heartbeat { address: Bytes(&address), ..*beat };
        let request = MetaRequest::Heartbeat(*beat);
        let call = Call { session: 0, slot: 0, sequence: 0, request, now };
        let Some(mut shard) = self.shard() else {
            return self.send(responder, Status::Unavailable, Vec::new());
        };
        let newest = head.newest;
        if newest < NEEDED_VERSION && shard.was_lifted() {
            // It does not know that objects of the former format must not be left behind.
            drop(shard);
            return self.send(responder, Status::Malformed, Vec::new());
        }
        if shard.is_older_copy(beat.history, Term(beat.met), head.map) {
            drop(shard);
            let mut body = Vec::new();
            let result: MetaResult<'_> = Ok(MetaReply::Registered(Registration::OlderMetadata));
            encode(&result, &mut body);
            self.send(responder, Status::Done, body);
            return self.note_verdict(beat, (peer, None), Registration::OlderMetadata);
        }
        let before = shard.pools.member(beat.server);
        let outcome = shard.execute(call);
        drop(shard);
        if let Outcome::Refused(status) = outcome {
            return self.send(responder, status, Vec::new());
        }
        let mut unfenced = false;
        if let Outcome::Reply(reply) = &outcome
            && let Ok(Ok(MetaReply::Registered(verdict))) = decode::<MetaResult<'_>>(&reply.bytes)
        {
            let is_taken = matches!(verdict, Registration::Taken { .. });
            if is_taken && before != Some(beat.store) {
                let owed = self.shard().and_then(|shard| shard.fences_owed_by(beat.server).ok());
                self.data_servers.owe(beat.server, owed.unwrap_or_default(), self.world.now());
            }
            self.note_verdict(beat, (peer, before), verdict);
            if let (Registration::Taken { .. }, Some(mut shard)) = (verdict, self.shard()) {
                shard.note_server_version(beat.server, newest);
            }
            // A server that has yet to join serves nobody, and answers no fence.
            unfenced = matches!(verdict, Registration::Taken { .. })
                && beat.history != 0
                && self.data_servers.is_unfenced(beat.server, beat.boot);
        }
        if !unfenced {
            return self.finish(responder, 0, 0, outcome);
        }
        // The server takes no session's changes before it has this answer: it gets its fences first.
        if !self.data_servers.begin_delivery(beat.server) {
            return self.send(responder, Status::Unavailable, Vec::new());
        }
        let (this, server, boot) = (self.clone(), beat.server, beat.boot);
        self.task(async move {
            if !this.deliver_owed(server).await {
                return this.send(responder, Status::Unavailable, Vec::new());
            }
            this.data_servers.note_fenced(server, boot);
            this.finish(responder, 0, 0, outcome);
        });
    }

    /// The address of a data server with the node that it has proven to be, if it has: whoever gets this address insists on
    /// that node.
    fn with_node(&self, peer: PeerId, address: &[u8]) -> Vec<u8> {
        let text = std::str::from_utf8(address).ok();
        let parsed = text.and_then(|text| Address::parse(text).ok());
        let node = self.endpoint.endpoint().peer_node(peer);
        let named = parsed.zip(node).and_then(|(address, node)| address.of_node(&node));
        let named = named.map(|address| address.to_string().into_bytes());
        named.filter(|it| it.len() <= ADDRESS_BYTES_MAX).unwrap_or_else(|| address.to_vec())
    }

    fn note_verdict(
        self: &Rc<Self>,
        beat: &Heartbeat<'_>,
        (caller, before): (PeerId, Option<u128>),
        verdict: Registration<'_>,
    ) {
        let id = beat.server;
        let tell = |what: &str| {
            let address = printable(beat.address.0, ADDRESS_BYTES_MAX);
            (self.config.log)(&format!("data server {id} at {address} {what}"));
        };
        match verdict {
            Registration::Taken { .. } => {
                if before.is_some_and(|before| before != beat.store) {
                    tell(
                        "starts with an empty directory, as --replace orders: its former data is \
                         lost; 'ropewalk check' lists the files",
                    );
                }
                // A cluster that is just being set up says nothing of each of its servers.
                if before.is_none() && self.world.now().since(self.started) >= SET_UP {
                    let address = printable(beat.address.0, ADDRESS_BYTES_MAX);
                    let note = Level::Note.mark();
                    (self.config.log)(&format!("{note}data server {id} at {address} joins the cluster"));
                }
                self.data_servers.forget_asker(id);
                self.saw_data_server((id, beat.boot), caller, beat.address.0);
            }
            Registration::OtherStore => {
                tell("is refused: its directory does not hold the data that it had")
            }
            Registration::OtherMetadata { .. } => {
                tell(
                    "is refused: its data belongs to files that this metadata server does not know",
                );
            }
            Registration::NotAdmitted => {
                self.data_servers.note_asker(id, beat.address.0, self.world.now());
                tell(&format!(
                    "asks to join and is refused: admit it by 'ropewalk server add {id}'"
                ))
            }
            Registration::OlderMetadata => self.fail(&format!(
                "its directory is an older copy than the one that data server {id} knows: restore the newer \
                 one; if that is lost, see the log of that data server for the way out"
            )),
            Registration::Alive { .. } | Registration::KnownBy { .. } => {}
        }
    }
}
