//! The engine as a rail sees it during a poll. Its reports go to the core. This module adds a buffer for payload
//! without a place, and checksums for rails that need them.

use ropewalk_base::error::Fault;
use ropewalk_base::health::Suspicion;
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::payload::Sealing;
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::{ForeignEnd, ForeignMessage, LinkId, Placement, RemoteKey, Token};
use ropewalk_core::Core;
use ropewalk_rail::Report;
use ropewalk_rail::foreign::ForeignReport;
use ropewalk_wire::frame;

/// The engine as a rail sees it during a poll.
pub(crate) struct RailEvents<'a> {
    pub core: &'a mut Core,
    pub buffers: &'a mut BufferTable,
    pub pool: &'a Pool,
}

impl RailEvents<'_> {
    /// The core's answer to a header that is sound, with a buffer where it wants one.
    #[inline]
    fn placed(
        &mut self,
        link: LinkId,
        header: &[u8],
        place: impl FnOnce(&mut Core) -> Placement,
    ) -> Placement {
        if self.core.needs_checksum(link) && !frame::verify(header) {
            return self.core.corrupt_header(link);
        }
        let placement = match place(self.core) {
            Placement::Stage { bytes, token } => self.stage(bytes, token),
            placement => placement,
        };
        self.run_jobs();
        placement
    }

    /// Executes what peers want done with exposed memory.
    #[inline]
    pub fn run_jobs(&mut self) {
        if self.core.has_jobs() {
            self.execute();
        }
    }

    #[inline(never)]
    fn execute(&mut self) {
        while let Some(task) = self.core.next_job() {
            let bytes = task.result_bytes;
            let mut room =
                || self.buffers.insert(Memory::pooled(self.pool.take(bytes as usize)?)).ok();
            let result = if bytes > 0 { room() } else { None };
            let slice = result.map(|buffer| Slice { buffer, offset: 0, len: bytes.into() });
            let outcome = match bytes > 0 && slice.is_none() {
                true => Err(Fault::Busy),
                false => self.buffers.apply(task.job, task.source, slice),
            };
            self.core.job_done(outcome, result);
        }
    }

    /// A buffer for a payload that has no place so far.
    #[cold]
    fn stage(&mut self, bytes: u32, token: Token) -> Placement {
        let Some(buffer) = self.pool.take(bytes as usize) else {
            return self.core.unstaged(token);
        };
        match self.buffers.insert(Memory::pooled(buffer)) {
            Ok(id) => Placement::Into { slice: self.core.staged(token, id, bytes), token },
            Err(_) => self.core.unstaged(token),
        }
    }
}

impl Report for RailEvents<'_> {
    fn buffers(&self) -> &BufferTable {
        self.buffers
    }

    fn link_up(&mut self, link: LinkId, accepted: bool) {
        self.core.link_up(link, accepted);
    }

    fn link_from(&mut self, link: LinkId, host: &[u8]) {
        self.core.came_from(link, host);
    }

    fn link_down(&mut self, link: LinkId, fault: Fault) {
        self.core.link_down(link, fault);
    }

    fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.placed(link, header, |core| core.place(link, header, payload_bytes))
    }

    fn place_whole(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.placed(link, header, |core| core.place_whole(link, header, payload_bytes))
    }

    fn sealing(&mut self, link: LinkId) -> Sealing {
        self.core.sealing(link)
    }

    fn received(&mut self, _link: LinkId, token: Token) {
        let Some(wants) = self.core.wants(token) else {
            self.core.received(token, &[]);
            return self.run_jobs();
        };
        if wants.checksum.is_some_and(|checksum| self.buffers.crc32c(wants.slice) != checksum) {
            return self.core.received_corrupt(token);
        }
        let mut bytes = vec![0; if wants.greeting { wants.slice.len as usize } else { 0 }];
        self.buffers.read(wants.slice, &mut bytes);
        self.core.received(token, &bytes);
        self.run_jobs();
    }

    #[cold]
    fn unplaced(&mut self, _link: LinkId, token: Token) {
        self.core.unplaced(token);
        self.run_jobs();
    }

    fn done(&mut self, token: Token) {
        self.core.done(token);
    }

    fn failed(&mut self, token: Token, fault: Fault) {
        self.core.failed(token, fault);
    }

    fn foreign(&mut self) -> Option<&mut dyn ForeignReport> {
        Some(self)
    }

    fn crowded(&mut self) {
        self.core.make_room();
    }

    fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        self.core.suspect(link, cause);
    }

    fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        self.core.revoked(link, key);
    }
}

impl ForeignReport for RailEvents<'_> {
    fn up(&mut self, link: LinkId, name: u128, accepted: bool) {
        self.core.foreign_up(link, name, accepted);
    }

    fn message(&mut self, link: LinkId, message: ForeignMessage, whole: bool) -> Option<Placement> {
        match self.core.foreign_message(link, message, whole)? {
            Placement::Stage { bytes, token } => Some(self.stage(bytes, token)),
            placement => Some(placement),
        }
    }

    fn key_judged(&mut self, link: LinkId, key: u32, right: bool) {
        self.core.foreign_key(link, key, right);
    }

    fn ended(&mut self, link: LinkId, end: ForeignEnd) {
        self.core.foreign_end(link, end);
    }
}
