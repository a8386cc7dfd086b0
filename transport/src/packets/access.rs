//! Native access: reads that pull, writes that are offered ([`super::remote_writes`]) and pulled, and regions that
//! serve.
//!
//! Both directions end in a [`Reading`](super::transfers::Reading) at the side to which the bytes go. This side asks for no more than its ring can
//! take, and it alone writes. So nothing lands late: a reading that this side ends is over.
//!
//! Invariants:
//! * an access is over when all its readings, or all its offers, are;
//! * a region that was revoked is neither read nor written: its asks and its readings went with it;
//! * pieces under way are counted, for each link and together, until they came or their reading ended.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Ordered, RemoteKey, RemoteLayout, RemoteSegment, Token, Verb};

use super::machine::{Event, Machine};
use super::transfers::{Access, Exposed, Purpose, Source};
use crate::driver::Driven;
use crate::memory::Bytes;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Carries out an order that is no frame, as a rail does.
    pub fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
        match verb {
            Verb::Read { link, key, remote, local, token, .. } => {
                self.access(link.slot, *key, remote, *local, *token, false)
            }
            Verb::Write { link, key, remote, local, token } => {
                self.access(link.slot, *key, remote, *local, *token, true)
            }
            Verb::Expose { link, key, region, writable } => {
                let Some(state) = self.links.get_mut(link.slot) else {
                    return Ordered::Refused(Fault::PeerReset);
                };
                let (secret, slice, writable) = (key.secret, *region, *writable);
                state.exposed.insert(key.slot.to_u64(), Exposed { secret, slice, writable });
                Ordered::Released
            }
            Verb::Revoke { link, key } => self.revoke(link.slot, *key),
            Verb::DetachSend { link, token, later } => {
                self.detach(link.slot, *token, *later, memory)
            }
            Verb::SkipSend { link, token } => self.skip(link.slot, *token, memory),
            Verb::CancelAccess { token, .. } => self.stop(*token),
            Verb::CancelReceive { link, token } => self.unplace(link.slot, *token),
            Verb::Close { link } => self.close(link.slot),
        }
    }

    fn access(
        &mut self,
        id: SlotId,
        key: RemoteKey,
        remote: &RemoteLayout,
        local: Slice,
        token: Token,
        write: bool,
    ) -> Ordered {
        let Some(state) = self.links.get(id) else { return Ordered::Refused(Fault::PeerReset) };
        if !state.is_up() {
            return Ordered::Refused(Fault::Closed);
        }
        let whole;
        let segments: &[RemoteSegment] = match remote {
            RemoteLayout::At(offset) => {
                whole = [RemoteSegment { offset: *offset, len: local.len }];
                &whole
            }
            RemoteLayout::List(list) => list,
            RemoteLayout::Strided(_) => return Ordered::Refused(Fault::Invalid),
        };
        let named = segments.iter().map(|it| it.len).fold(0, u64::saturating_add);
        if named != local.len || segments.len() > REMOTE_SEGMENTS_MAX {
            return Ordered::Refused(Fault::Invalid);
        }
        if local.len == 0 {
            return Ordered::Released;
        }
        let access = Access { link: id, token, left: 0, readings: Vec::new(), offers: Vec::new() };
        let Ok(access) = self.accesses.insert(access) else { return Ordered::Refused(Fault::Busy) };
        self.by_token.insert(token.0, access);
        let mut done = 0;
        let count = segments.iter().filter(|it| it.len > 0).count();
        let parts = segments.iter().filter(|it| it.len > 0).map(|it| {
            done += it.len;
            (it.offset, local.part(done - it.len, it.len))
        });
        if write {
            self.offer(id, access, key, count as u32, parts);
        } else {
            let source = Source { slot: key.slot.to_u64(), secret: key.secret, offered: false };
            for (offset, local) in parts {
                if !self.read(id, source, offset, local, Purpose::Read { access }) {
                    self.end_access(access);
                    return Ordered::Refused(Fault::Busy);
                }
            }
        }
        self.touch(id);
        Ordered::Pending
    }

    /// A segment of an access is over; with the last one, or one that failed, so is the access.
    pub(super) fn segment_over(&mut self, id: SlotId, outcome: Result<(), Fault>) {
        let Some(access) = self.accesses.get_mut(id) else { return };
        access.left = access.left.saturating_sub(1);
        if outcome.is_ok() && access.left > 0 {
            return;
        }
        let token = access.token;
        self.end_access(id);
        self.driver.tell(Event::Ended { token, outcome });
    }

    /// Takes an access out, with everything that is still under way for it; its offers that the other side pulls.
    fn end_access(&mut self, id: SlotId) -> Vec<u64> {
        let mut pulled = Vec::new();
        let Some(access) = self.accesses.remove(id) else { return pulled };
        self.by_token.remove(&access.token.0);
        for reading in access.readings {
            self.end_reading(reading);
        }
        if let Some(state) = self.links.get_mut(access.link) {
            for offer in access.offers {
                if state.offers.withdraw(offer) {
                    state.serving.retain(|it| !it.source.offered || it.source.slot != offer);
                    pulled.push(offer);
                }
            }
        }
        pulled
    }

    fn stop(&mut self, token: Token) -> Ordered {
        let Some(access) = self.by_token.get(&token.0).copied() else {
            return Ordered::Refused(Fault::Invalid);
        };
        let link = self.accesses.get(access).map(|access| access.link);
        let pulled = self.end_access(access);
        if let Some(link) = link {
            self.withdraw(link, &pulled);
        }
        Ordered::Released
    }

    /// Everything that was ordered on a link fails.
    pub(super) fn end_orders(&mut self, id: SlotId, fault: Fault) {
        let Some(state) = self.links.get_mut(id) else { return };
        for token in state.out.take_tokens() {
            self.driver.tell(Event::Ended { token, outcome: Err(fault) });
        }
        let takings: Vec<SlotId> = state.takings.drain().map(|(_, reading)| reading).collect();
        takings.into_iter().for_each(|reading| self.end_taking(reading));
        let accesses = self.accesses.iter().filter(|(_, access)| access.link == id);
        let accesses: Vec<(SlotId, Token)> = accesses.map(|(id, it)| (id, it.token)).collect();
        for (access, token) in accesses {
            self.end_access(access);
            self.driver.tell(Event::Ended { token, outcome: Err(fault) });
        }
    }
}
