//! Exposing memory to peers: to whom, under what name.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::verb::RemoteKey;
use ropewalk_core::{Exposing, GroupId, Member};

use crate::context::{Context, Written};
use crate::counter::Told;
use crate::endpoint::Endpoint;
use crate::engine::Command;

/// Memory that peers may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposed {
    /// By which it is unexposed, and which peers may be told.
    pub key: RemoteKey,
    /// The name, if it has one. Peers make their handle out of it: [`RemoteKey::named`].
    pub name: Option<u64>,
}

impl Endpoint {
    /// Makes memory accessible on these terms. [`Fault::NameTaken`] if another region of this endpoint has the name: that is
    /// free once its [`Endpoint::unexpose`] was called. Accesses by a name go by frames over each medium.
    pub fn expose_as(&self, memory: Memory, terms: Exposing) -> Result<Exposed, (Memory, Fault)> {
        self.expose_told(memory, terms, Told::default())
    }

    /// The same, and somebody is told of what peers do.
    pub fn expose_told(
        &self,
        memory: Memory,
        terms: Exposing,
        told: Told,
    ) -> Result<Exposed, (Memory, Fault)> {
        let (events, counts) = (told.written.is_some(), !told.counters.is_empty());
        let terms = Exposing { events, counts, ..terms };
        let mut engine = self.locked();
        let (key, name) = engine.expose_as(memory, terms, told)?;
        drop(engine);
        self.exposed();
        Ok(Exposed { key, name })
    }

    /// The next event of a put with immediate data into a region whose exposure named this context. The context is rung for
    /// each, and [`Endpoint::wait`] returns. Events that nobody takes use up the credit of the peers that bring them about, whose
    /// further ones wait: 512 and more for each peer, requests that nobody has taken counted in.
    pub fn next_written(&self, context: &Context) -> Option<Written> {
        let written = context.queue.pop_written()?;
        let (peer, session) = (written.peer, written.session);
        self.leave(Command::RequestTaken { peer, session, bytes: 0 });
        Some(written)
    }

    /// Whether such an event waits to be taken.
    pub fn has_written(&self, context: &Context) -> bool {
        context.queue.has_written()
    }

    /// Makes a group of peers for [`Audience::Group`](ropewalk_core::Audience::Group). Members that were looked up are called:
    /// a peer is recognized as one of them once it has answered at its address. Those that are named by the numbers of their
    /// endpoints are recognized from the beginning.
    pub fn add_group(&self, members: &[Member]) -> Result<GroupId, Fault> {
        let mut engine = self.locked();
        let group = engine.core.add_group(members)?;
        for member in members {
            if let Member::Peer(peer) = member {
                engine.core.want_session(*peer);
            }
        }
        engine.drain();
        Ok(group)
    }

    /// Nothing more is exposed to a group; it ends with the last region that is.
    pub fn drop_group(&self, group: GroupId) {
        self.locked().core.drop_group(group);
    }
}
