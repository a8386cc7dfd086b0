//! Operations of an endpoint: sends, receives, tests, probes, cancels. Codes are native ones.

use std::ffi::c_void;

use ropewalk_base::memory::{Memory, Segment};
use ropewalk_base::slots::SlotId;
use ropewalk_net::{Channel, Level, OperationId, Oversize, PeerId, Posted};

use crate::abi::{Address, Handle};
use crate::codes::*;
use crate::endpoint::{Ep, State};
use crate::partners::Partners;
use crate::progress::deadline;
use crate::requests::{Kind, Outcome, Request, Requests, Stage};

const TAGGED: Channel = Channel::Tagged;

/// A message as a program posts it.
pub struct Posting<'a> {
    pub segments: &'a [Segment],
    pub match_info: u64,
    pub context: *mut c_void,
    /// The program wants its handle.
    pub is_wanted: bool,
}

/// A request that was taken out, as its status says.
pub struct Taken {
    pub outcome: Outcome,
    pub context: *mut c_void,
}

fn bytes_of(segments: &[Segment]) -> Result<u32, Code> {
    let bytes: u64 = segments.iter().map(|segment| segment.len() as u64).sum();
    u32::try_from(bytes).map_err(|_| BAD_SEGMENT_LIST)
}

fn check_mask(match_info: u64, mask: u64) -> Result<(), Code> {
    if match_info & !mask != 0 { Err(BAD_MATCH_MASK) } else { Ok(()) }
}

impl Ep {
    /// Sends a message. `synchronous`: it is complete when a receive took it.
    ///
    /// # Safety
    /// The segments stay as they are until the request is complete.
    pub unsafe fn isend(
        &self,
        posting: &Posting<'_>,
        to: Address,
        synchronous: bool,
    ) -> Result<Handle, Code> {
        let bytes = bytes_of(posting.segments)?;
        let mut state = self.look();
        self.take_events(&mut state);
        let id = state.partners.find(self.place, to).ok_or(BAD_ENDPOINT)?;
        let partner = state.partners.get(id).ok_or(BAD_ENDPOINT)?;
        let is_self = partner.is_own && !self.process.options.self_disabled;
        let peer = partner.peer.filter(|_| partner.is_up);
        let mut request = Request::new(Kind::Send, posting.context, posting.match_info);
        request.forgotten = !posting.is_wanted;
        request.outcome.message_bytes = bytes;
        request.outcome.source = to;
        request.limit_to(state.timeout);
        let timed = request.limit.is_some();
        let request = state.requests.add(request).ok_or(NO_RESOURCES)?;
        // Its former life is gone, and it did not connect again.
        let Some(peer) = peer else {
            state.requests.end(request, UNREACHABLE, true);
            self.announce();
            return Ok(self.handle(&state, request));
        };
        // SAFETY: the caller vouches for the segments.
        let memory = unsafe { Memory::from_raw(posting.segments, false) };
        let memory = match is_self && bytes > self.process.options.copy_bytes() {
            // SAFETY: as above.
            true => unsafe { self.copied(&mut state, request, posting.segments) }.unwrap_or(memory),
            false => memory,
        };
        let level = match (synchronous, is_self) {
            (true, _) => Level::Unseen,
            (false, true) => Level::Matched,
            // Long messages are announced in MX, and their senders know when they were taken, and how much of them.
            (false, false) if bytes > self.process.options.copy_bytes() => Level::Matched,
            (false, false) => Level::Buffered,
        };
        self.post_send(&mut state, request, peer, posting.match_info, memory, level)?;
        drop(state);
        if timed {
            // The keeper has to know of the deadline.
            self.rouse();
        }
        Ok(self.handle_of(posting, request))
    }

    fn post_send(
        &self,
        state: &mut State,
        request: SlotId,
        peer: PeerId,
        bits: u64,
        memory: Memory,
        level: Level,
    ) -> Result<(), Code> {
        let user = request.to_u64();
        match self.net.post_send(&self.main, peer, TAGGED, bits, memory, level, user) {
            Ok(posted) => {
                self.posted(state, request, posted);
                Ok(())
            }
            Err(_) => {
                state.requests.remove(request);
                Err(NO_RESOURCES)
            }
        }
    }

    /// Large messages to oneself are copied, so that their senders have their memory back at once, as MX
    /// promises. Small ones are staged in any case.
    ///
    /// # Safety
    /// The segments can be read.
    unsafe fn copied(
        &self,
        state: &mut State,
        request: SlotId,
        segments: &[Segment],
    ) -> Option<Memory> {
        let bytes = segments.iter().map(|segment| segment.len()).sum();
        let mut copy = self.pool.take(bytes)?;
        let mut rest = &mut copy[..];
        for segment in segments {
            let (part, after) = rest.split_at_mut(segment.len());
            // SAFETY: the caller vouches for the segment, and the part is as long.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.as_mut_ptr(), part.as_mut_ptr(), part.len());
            }
            rest = after;
        }
        if let Some(request) = state.requests.get_mut(request) {
            request.copied = true;
        }
        Some(Memory::pooled(copy))
    }

    /// Receives a message.
    ///
    /// # Safety
    /// The segments are the request's until it is complete.
    pub unsafe fn irecv(&self, posting: &Posting<'_>, mask: u64) -> Result<Handle, Code> {
        check_mask(posting.match_info, mask)?;
        if !self.covers_context(mask) {
            return Err(BAD_MATCHING_FOR_CONTEXT_IDS);
        }
        let bits = posting.match_info;
        bytes_of(posting.segments)?;
        let mut state = self.look();
        let mut request = Request::new(Kind::Receive, posting.context, bits);
        request.forgotten = !posting.is_wanted;
        request.limit_to(state.timeout);
        let timed = request.limit.is_some();
        let request = state.requests.add(request).ok_or(NO_RESOURCES)?;
        // SAFETY: the caller vouches for the segments.
        let memory = unsafe { Memory::from_raw(posting.segments, true) };
        let (user, cut) = (request.to_u64(), Oversize::Truncate);
        match self.net.post_receive(&self.main, TAGGED, None, bits, mask, memory, cut, user) {
            Ok(posted) => self.posted(&mut state, request, posted),
            Err(_) => {
                state.requests.remove(request);
                return Err(NO_RESOURCES);
            }
        }
        drop(state);
        if timed {
            // As above.
            self.rouse();
        }
        Ok(self.handle_of(posting, request))
    }

    fn handle_of(&self, posting: &Posting<'_>, id: SlotId) -> Handle {
        match posting.is_wanted {
            true => Requests::handle(self.place, id),
            false => std::ptr::null_mut(),
        }
    }

    fn posted(&self, state: &mut State, request: SlotId, posted: Posted) {
        match posted {
            Posted::Done(completed) => {
                self.ended(state, &completed);
                self.announce();
            }
            Posted::Pending(operation) => {
                if let Some(request) = state.requests.get_mut(request) {
                    request.operation = Some(operation);
                }
            }
        }
    }

    /// The handle of a request, if somebody has it.
    pub fn handle(&self, state: &State, id: SlotId) -> Handle {
        match state.requests.get(id).is_some_and(|request| !request.forgotten) {
            true => Requests::handle(self.place, id),
            false => std::ptr::null_mut(),
        }
    }

    fn find(&self, state: &State, handle: Handle) -> Result<SlotId, Code> {
        state.requests.find(self.place, handle).ok_or(BAD_REQUEST)
    }

    /// Takes a complete request out.
    fn take(state: &mut State, id: SlotId) -> Option<Taken> {
        if !state.requests.is_done(id) {
            return None;
        }
        let request = state.requests.remove(id)?;
        Some(Taken { outcome: request.outcome, context: request.context() })
    }

    pub fn test(&self, handle: Handle) -> Result<Option<Taken>, Code> {
        let mut state = self.progress();
        let id = self.find(&state, handle)?;
        Ok(Ep::take(&mut state, id))
    }

    pub fn wait_request(&self, handle: Handle, ms: Option<u32>) -> Result<Option<Taken>, Code> {
        let id = self.find(&self.lock(), handle)?;
        self.wait(deadline(ms), |state| Ep::take(state, id))
    }

    fn take_any(state: &mut State, bits: u64, mask: u64) -> Option<Taken> {
        let id = state.requests.first_done(bits, mask)?;
        Ep::take(state, id)
    }

    pub fn test_any(&self, bits: u64, mask: u64) -> Result<Option<Taken>, Code> {
        check_mask(bits, mask)?;
        Ok(Ep::take_any(&mut self.progress(), bits, mask))
    }

    pub fn wait_any(&self, bits: u64, mask: u64, ms: Option<u32>) -> Result<Option<Taken>, Code> {
        check_mask(bits, mask)?;
        self.wait(deadline(ms), |state| Ep::take_any(state, bits, mask))
    }

    fn check_peek(&self) -> Result<(), Code> {
        match self.settings.context_bits {
            0 => Ok(()),
            _ => Err(NOT_SUPPORTED_WITH_CONTEXT_IDS),
        }
    }

    /// The oldest complete request; it stays.
    pub fn ipeek(&self) -> Result<Option<Handle>, Code> {
        self.check_peek()?;
        let mut state = self.progress();
        Ok(state.requests.first_done(0, 0).map(|id| Requests::handle(self.place, id)))
    }

    pub fn peek(&self, ms: Option<u32>) -> Result<Option<Handle>, Code> {
        self.check_peek()?;
        self.wait(deadline(ms), |state| {
            state.requests.first_done(0, 0).map(|id| Requests::handle(self.place, id))
        })
    }

    fn probe_now(&self, state: &mut State, bits: u64, mask: u64) -> Option<Outcome> {
        let found = self.net.probe(TAGGED, None, bits, mask)?;
        let source = self.source(state, Some(found.peer));
        let message_bytes = found.bytes as u32;
        let (code, moved_bytes) = (SUCCESS, message_bytes);
        Some(Outcome { code, source, match_info: found.bits, message_bytes, moved_bytes })
    }

    pub fn iprobe(&self, bits: u64, mask: u64) -> Result<Option<Outcome>, Code> {
        check_mask(bits, mask)?;
        let mut state = self.progress();
        Ok(self.probe_now(&mut state, bits, mask))
    }

    pub fn probe(&self, bits: u64, mask: u64, ms: Option<u32>) -> Result<Option<Outcome>, Code> {
        check_mask(bits, mask)?;
        self.wait(deadline(ms), |state| self.probe_now(state, bits, mask))
    }

    /// Whether a send has left its memory.
    pub fn ibuffered(&self, handle: Handle) -> Result<bool, Code> {
        let state = self.progress();
        let id = self.find(&state, handle)?;
        let request = state.requests.get(id).ok_or(BAD_REQUEST)?;
        if request.kind != Kind::Send {
            return Err(BAD_REQUEST);
        }
        let left = |operation: OperationId| self.net.is_buffered(operation);
        Ok(request.stage != Stage::Pending || request.copied || request.operation.is_some_and(left))
    }

    /// Cancels a receive without a message, or a connect without an answer; false where it is too late.
    /// `keep`: it ends as cancelled, and is still to be tested.
    pub fn cancel(&self, handle: Handle, keep: bool) -> Result<bool, Code> {
        let mut state = self.progress();
        let id = self.find(&state, handle)?;
        let request = state.requests.get(id).ok_or(BAD_REQUEST)?;
        let (kind, stage, operation) = (request.kind, request.stage, request.operation);
        if kind == Kind::Send {
            return Err(CANCEL_NOT_SUPPORTED);
        }
        if stage != Stage::Pending {
            return Ok(false);
        }
        let cancelled = match kind {
            Kind::Connect => self.take_connect_back(&mut state, id),
            _ => operation.is_some_and(|operation| self.net.withdraw(operation)),
        };
        if cancelled && keep {
            state.requests.end(id, CANCELLED, false);
            self.announce();
        } else if cancelled {
            state.requests.remove(id);
        }
        Ok(cancelled)
    }

    /// Nobody will test for a request.
    pub fn forget(&self, handle: Handle) -> Result<(), Code> {
        let mut state = self.progress();
        let id = self.find(&state, handle)?;
        let done = state.requests.is_done(id);
        if done {
            state.requests.remove(id);
        } else if let Some(request) = state.requests.get_mut(id) {
            request.forgotten = true;
        }
        Ok(())
    }

    /// The user's pointer of a request.
    pub fn context_of(&self, handle: Handle) -> Result<*mut c_void, Code> {
        let state = self.lock();
        let id = self.find(&state, handle)?;
        state.requests.get(id).map(Request::context).ok_or(BAD_REQUEST)
    }

    /// Connects, and waits for it.
    pub fn connect(&self, place: (u64, u32), key: u32, ms: Option<u32>) -> Result<Address, Code> {
        let ours = self.url_of_ours(place);
        let mut state = self.look();
        if state.is_handling() {
            return Err(NOT_IN_HANDLER);
        }
        let until = deadline(ms);
        let limit = ms.map(|ms| std::time::Duration::from_millis(ms.into()));
        let context = std::ptr::null_mut();
        let id = self.iconnect(&mut state, place, ours, key, 0, context, limit, true)?;
        drop(state);
        let waited = self.wait(until, |state| Ep::take(state, id));
        match waited {
            Ok(Some(taken)) if taken.outcome.code == SUCCESS => Ok(taken.outcome.source),
            Ok(Some(taken)) => Err(taken.outcome.code),
            Ok(None) => {
                let mut state = self.lock();
                self.take_connect_back(&mut state, id);
                state.requests.remove(id);
                Err(TIMEOUT)
            }
            Err(code) => Err(code),
        }
    }

    /// Begins to connect for a request that is tested for.
    pub fn connect_later(
        &self,
        place: (u64, u32),
        key: u32,
        posting: &Posting<'_>,
    ) -> Result<Handle, Code> {
        let ours = self.url_of_ours(place);
        let mut state = self.look();
        let (bits, context) = (posting.match_info, posting.context);
        let id = self.iconnect(&mut state, place, ours, key, bits, context, None, false)?;
        let done = state.requests.is_done(id);
        if !posting.is_wanted {
            match done {
                true => drop(state.requests.remove(id)),
                false => {
                    if let Some(request) = state.requests.get_mut(id) {
                        request.forgotten = true;
                    }
                }
            }
        }
        drop(state);
        self.announce();
        Ok(self.handle_of(posting, id))
    }

    /// Forgets a partner: operations under way with it end, its address names nothing any more.
    pub fn disconnect(&self, address: Address) -> Result<(), Code> {
        let mut state = self.look();
        let id = state.partners.find(self.place, address).ok_or(BAD_ENDPOINT)?;
        if id == state.own {
            return Ok(());
        }
        // It may have connected over one network, and we over another.
        let mut names = state.partners.names_of(id);
        names.retain(|name| self.net.peer_rail(*name).is_some());
        let partner = state.partners.remove(id);
        self.drop_connects(&mut state, id);
        names.extend(partner.and_then(|partner| partner.peer));
        for name in names {
            // Several names may be one peer's.
            if self.net.is_known(name) {
                self.net.forget(name);
            }
        }
        drop(state);
        // Completions of what was under way are there.
        drop(self.look());
        self.announce();
        Ok(())
    }

    /// Sets how long a request may wait for a peer that does not answer; without one for all later ones.
    pub fn set_timeout(&self, handle: Option<Handle>, ms: u32) -> Result<(), Code> {
        let mut state = self.look();
        let limit = (ms != 0).then(|| crate::environment::in_resends(ms));
        match handle {
            None => state.timeout = limit,
            Some(handle) => {
                let id = self.find(&state, handle)?;
                self.set_limit(&mut state, id, limit);
            }
        }
        Ok(())
    }

    /// Nothing is progressed any more, until as many calls of `reenable` were made.
    pub fn disable(&self) -> Result<(), Code> {
        loop {
            let mut state = self.lock();
            if state.in_handler.is_none() || state.is_handling() {
                state.disabled += 1;
                return Ok(());
            }
            let version = self.version.load(std::sync::atomic::Ordering::SeqCst);
            drop(state);
            let changed = || self.version.load(std::sync::atomic::Ordering::SeqCst) != version;
            self.election.rest(deadline(None), &changed);
        }
    }

    pub fn reenable(&self) -> Result<(), Code> {
        let mut state = self.lock();
        state.disabled = state.disabled.saturating_sub(1);
        drop(state);
        drop(self.progress());
        self.announce();
        Ok(())
    }
}

/// The endpoint that an address belongs to, with what `look` finds in its partner.
pub fn with_partner<T>(
    address: Address,
    look: impl FnOnce(&mut crate::partners::Partner) -> T,
) -> Result<T, Code> {
    let endpoint = crate::process::endpoint_at(Partners::place_of(address)).ok_or(BAD_ENDPOINT)?;
    let mut state = endpoint.lock();
    let id = state.partners.find(endpoint.place, address).ok_or(BAD_ENDPOINT)?;
    state.partners.get_mut(id).map(look).ok_or(BAD_ENDPOINT)
}
