//! Commands of users to the engine, beside posts.

use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Memory, Slice};
use ropewalk_base::time::Time;
use ropewalk_base::verb::RemoteKey;
use ropewalk_core::{Exposing, OperationId, PeerId, Served};

use crate::context::{Completed, Queue, Written};
use crate::counter::Told;
use crate::engine::Engine;
use crate::engine::exposures::Receiver;
use crate::posts::Post;

/// A command that is left for the holder of the engine.
#[derive(Debug)]
pub(crate) enum Command {
    Post(OperationId, Post),
    Cancel(OperationId),
    RequestTaken {
        peer: PeerId,
        session: u32,
        bytes: u32,
    },
    /// The last sleeper is awake. See [`Shared::disarm`](crate::shared::Shared::disarm).
    StandUp,
}

impl Engine {
    /// Carries out a command that was left for the holder of the engine.
    pub fn command(&mut self, command: Command) {
        match command {
            Command::Post(id, post) => {
                self.start_left(id, post);
            }
            Command::Cancel(id) => {
                self.core.cancel(id);
            }
            Command::RequestTaken { peer, session, bytes } => {
                self.core.request_taken(peer, session, bytes);
            }
            Command::StandUp => {}
        }
        self.drain();
    }

    /// Whether an operation is under way, and its context's number.
    pub fn pending_in(&self, id: OperationId) -> Option<u32> {
        Some(self.operations.get(id)?.context)
    }

    /// From now on [`Engine::fetch_still_since`] has answers.
    pub fn follow_fetches(&mut self) {
        self.follows_fetches = true;
    }

    /// Since when nothing more has come of the long message that a receive fetches; `None` if it fetches nothing.
    pub fn fetch_still_since(&mut self, receive: OperationId, now: Time) -> Option<Time> {
        let buffer = self.operations.get(receive)?.buffer;
        self.buffers.still_since(buffer, now)
    }

    /// The bytes of a staged message.
    pub fn read_staged(&self, buffer: BufferId, bytes: &mut Vec<u8>) {
        let len = self.buffers.get(buffer).map_or(0, Memory::len);
        bytes.resize(len as usize, 0);
        self.buffers.read(Slice { buffer, offset: 0, len }, bytes);
    }

    /// Makes memory accessible to peers.
    pub fn expose_as(
        &mut self,
        memory: Memory,
        terms: Exposing,
        told: Told,
    ) -> Result<(RemoteKey, Option<u64>), (Memory, Fault)> {
        if terms.writable && !memory.is_writable() {
            return Err((memory, Fault::Invalid));
        }
        let len = memory.len();
        let buffer = self.buffers.insert(memory).map_err(|memory| (memory, Fault::Busy))?;
        let slice = Slice { buffer, offset: 0, len };
        match self.core.expose_as(slice, terms) {
            Ok((key, name)) => {
                self.exposures.begin(key, buffer, told);
                self.drain();
                Ok((key, name))
            }
            Err(fault) => {
                let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
                Err((memory, fault))
            }
        }
    }

    /// Ends an exposure; its memory comes back through `queue` with `user`.
    pub fn unexpose(&mut self, key: RemoteKey, queue: Arc<Queue>, user: u64) -> Result<(), Fault> {
        self.exposures.end(key, Receiver { queue, user })?;
        let result = self.core.unexpose(key);
        self.drain();
        result
    }

    /// A peer put into a region with immediate data.
    pub(super) fn written(&mut self, written: Written) {
        let listener = self.exposures.listener(written.key);
        if !listener.is_some_and(|queue| queue.push_written(written)) {
            self.core.event_taken(written.peer, written.session);
        }
    }

    /// A peer did something to a region that counts.
    pub(super) fn served(&mut self, key: RemoteKey, what: Served) {
        self.exposures.count(key, what);
    }

    /// Nobody holds exposed memory any more: it goes back to its user.
    pub(super) fn unexposed(&mut self, key: RemoteKey) {
        let Some((buffer, receiver)) = self.exposures.remove(key) else { return };
        let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
        if let Some(Receiver { queue, user }) = receiver {
            let bytes = memory.len();
            queue.push(Completed {
                operation: OperationId(key.slot),
                user,
                outcome: Ok(()),
                bytes,
                message_bytes: bytes,
                peer: None,
                bits: 0,
                memory,
            });
        }
    }
}
