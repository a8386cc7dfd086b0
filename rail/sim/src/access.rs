//! Native reads and writes: events that the target's rail carries out at its own poll.
//!
//! One rail cannot reach the buffers of another one's endpoint, so the memory of an access is
//! touched when the target (or, for the answer to a read, the origin) is polled; neither the
//! protocol core nor the application of the target is asked.
//!
//! Invariants:
//! * an access that found its key counts as in flight until it is carried out, and a revocation is
//!   confirmed only when none of its key is in flight; or, of a region that is only read, at times at
//!   once: then those in flight are refused;
//! * an access that arrives after the revocation was ordered is refused;
//! * with the link die its exposures; accesses still in flight then touch nothing.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Ordered, RemoteKey, RemoteLayout, Token};

use crate::frames::Unfinished;
use crate::network::{Event, Item, Message, Network};

/// A remote key in a form that has an order.
pub(crate) type KeyName = (SlotId, u64);

fn name_of(key: RemoteKey) -> KeyName {
    (key.slot, key.secret)
}

/// A region that the peer may access.
#[derive(Debug)]
pub(crate) struct Exposure {
    pub key: RemoteKey,
    region: Slice,
    writable: bool,
    pub revoking: bool,
    in_flight: usize,
}

/// A read or write on its way to the target.
#[derive(Debug)]
pub(crate) struct Access {
    number: u64,
    key: RemoteKey,
    remote: RemoteLayout,
    bytes: u64,
    /// The bytes of a write.
    data: Option<Vec<u8>>,
}

/// The answer on its way back: the bytes of a read, none for a write.
#[derive(Debug)]
pub(crate) struct Reply {
    number: u64,
    outcome: Result<Vec<u8>, Fault>,
}

/// An order of an access, as the core gave it.
pub(crate) struct AccessOrder {
    pub link: LinkId,
    pub key: RemoteKey,
    pub remote: RemoteLayout,
    pub local: Slice,
    pub token: Token,
    pub write: bool,
}

/// The parts of `region` that an access touches, in order; `None` where one lies outside.
fn parts(region: Slice, remote: &RemoteLayout, bytes: u64) -> Option<Vec<Slice>> {
    let part = |offset: u64, len: u64| {
        let fits = offset.checked_add(len).is_some_and(|end| end <= region.len);
        fits.then(|| region.part(offset, len))
    };
    match remote {
        RemoteLayout::At(offset) => Some(vec![part(*offset, bytes)?]),
        RemoteLayout::List(list) => {
            list.iter().map(|segment| part(segment.offset, segment.len)).collect()
        }
        RemoteLayout::Strided(_) => None,
    }
}

/// Whether the remote side names exactly `bytes` bytes, in a bounded number of pieces.
fn is_well_formed(remote: &RemoteLayout, bytes: u64) -> bool {
    match remote {
        RemoteLayout::At(_) => true,
        RemoteLayout::List(list) => {
            let total = list.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len));
            list.len() <= REMOTE_SEGMENTS_MAX && total == Some(bytes)
        }
        RemoteLayout::Strided(_) => false,
    }
}

impl Access {
    /// Touches the target's memory: the outcome for the origin.
    pub(crate) fn carry_out(&self, region: Slice, buffers: &BufferTable) -> Result<Vec<u8>, Fault> {
        let parts = parts(region, &self.remote, self.bytes).ok_or(Fault::BadKey)?;
        let mut bytes = Vec::new();
        let mut done = 0;
        for part in parts {
            let len = part.len as usize;
            let moved = match &self.data {
                Some(data) => buffers.write(part, &data[done..done + len]),
                None => {
                    bytes.resize(done + len, 0);
                    buffers.read(part, &mut bytes[done..])
                }
            };
            if moved != len {
                return Err(Fault::BadKey);
            }
            done += len;
        }
        Ok(bytes)
    }
}

impl Network {
    pub(crate) fn order_expose(
        &mut self,
        rail: usize,
        link: LinkId,
        key: RemoteKey,
        region: Slice,
        writable: bool,
    ) -> Ordered {
        let promises = self.rails[rail].config.capabilities;
        if !promises.native_read && !promises.native_write {
            return Ordered::Refused(Fault::NotPermitted);
        }
        let (id, side) = match self.find_link(rail, link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let exposure = Exposure { key, region, writable, revoking: false, in_flight: 0 };
        let before = connection.ends[side].exposures.insert(name_of(key), exposure);
        assert!(before.is_none(), "a key is exposed once over a link");
        Ordered::Released
    }

    pub(crate) fn order_revoke(&mut self, rail: usize, link: LinkId, key: RemoteKey) -> Ordered {
        let (id, side) = match self.find_end(rail, link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let exposure = match connection.ends[side].exposures.get_mut(&name_of(key)) {
            Some(exposure) => exposure,
            None => return Ordered::Refused(Fault::BadKey),
        };
        exposure.revoking = true;
        let read = !exposure.writable && exposure.in_flight > 0;
        if read && self.random.below(2) == 0 {
            exposure.in_flight = 0;
        }
        self.confirm_if_free(id, side, key);
        Ordered::Pending
    }

    pub(crate) fn order_access(
        &mut self,
        rail: usize,
        order: AccessOrder,
        buffers: &BufferTable,
    ) -> Ordered {
        let promises = self.rails[rail].config.capabilities;
        let able = if order.write { promises.native_write } else { promises.native_read };
        if !able {
            return Ordered::Refused(Fault::NotPermitted);
        }
        let (id, side) = match self.find_link(rail, order.link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        if !is_well_formed(&order.remote, order.local.len) {
            return Ordered::Refused(Fault::Invalid);
        }
        let mut data = None;
        if order.write {
            let mut bytes = vec![0; order.local.len as usize];
            if buffers.read(order.local, &mut bytes) != bytes.len() {
                return Ordered::Refused(Fault::Invalid);
            }
            self.trace.mix_bytes(&bytes);
            data = Some(bytes);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let lane = &mut connection.ends[side].lane;
        let number = lane.order_count;
        lane.order_count += 1;
        lane.unfinished.insert(number, Unfinished { token: order.token, held: order.local });
        self.rails[rail].counters.bytes_native += order.local.len;
        let (key, remote, bytes) = (order.key, order.remote, order.local.len);
        let access = Access { number, key, remote, bytes, data };
        self.send(id, 1 - side, Message::Access(access), std::time::Duration::ZERO);
        Ordered::Pending
    }

    /// An access reached the rail of its target: it is refused, or counts from now on.
    pub(crate) fn handle_access(&mut self, id: u64, side: usize, access: Access) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let rails = [connection.ends[side].rail, connection.ends[1 - side].rail];
        let exposure = connection.ends[side].exposures.get_mut(&name_of(access.key));
        let allowed = exposure.filter(|exposure| {
            let may = exposure.writable || access.data.is_none();
            let inside = parts(exposure.region, &access.remote, access.bytes).is_some();
            may && inside && !exposure.revoking
        });
        let Some(exposure) = allowed else {
            self.answer(id, side, access.number, Err(Fault::BadKey));
            return;
        };
        exposure.in_flight += 1;
        let ready = self.now + self.path(rails[1], rails[0]).transmission(access.bytes);
        self.schedule(ready, Event::AccessReady { connection: id, side, access });
    }

    pub(crate) fn handle_access_ready(&mut self, id: u64, side: usize, access: Access) {
        let Some(connection) = self.connections.get(&id) else { return };
        let rail = connection.ends[side].rail;
        if connection.ends[side].is_alive() {
            self.push(rail, Item::Access { connection: id, side, access });
        }
    }

    /// The region of an access that is to be carried out now; `None` where its link died.
    pub(crate) fn region_of(&self, id: u64, side: usize, access: &Access) -> Option<Slice> {
        let connection = self.connections.get(&id)?;
        Some(connection.ends[side].exposures.get(&name_of(access.key))?.region)
    }

    /// An access found nothing any more.
    pub(crate) fn refuse_access(&mut self, id: u64, side: usize, access: &Access) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.ends[side].is_alive() {
            self.answer(id, side, access.number, Err(Fault::BadKey));
        }
    }

    /// An access was carried out.
    pub(crate) fn finish_access(
        &mut self,
        id: u64,
        side: usize,
        access: &Access,
        outcome: Result<Vec<u8>, Fault>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let exposure = connection.ends[side].exposures.get_mut(&name_of(access.key));
        let exposure = exposure.expect("an exposure outlives the accesses in flight to it");
        exposure.in_flight -= 1;
        self.confirm_if_free(id, side, access.key);
        self.answer(id, side, access.number, outcome);
    }

    fn confirm_if_free(&mut self, id: u64, side: usize, key: RemoteKey) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        let free = end
            .exposures
            .get(&name_of(key))
            .is_some_and(|exposure| exposure.revoking && exposure.in_flight == 0);
        if let (true, rail, Some(link)) = (free, end.rail, end.link) {
            end.exposures.remove(&name_of(key));
            self.push(rail, Item::Revoked { link, key });
        }
    }

    fn answer(&mut self, id: u64, side: usize, number: u64, outcome: Result<Vec<u8>, Fault>) {
        let reply = Reply { number, outcome };
        self.send(id, 1 - side, Message::Reply(reply), std::time::Duration::ZERO);
    }

    /// An answer reached the origin's rail.
    pub(crate) fn handle_reply(&mut self, id: u64, side: usize, reply: Reply) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        let rail = end.rail;
        let Some(order) = end.lane.unfinished.remove(&reply.number) else { return };
        let (token, held) = (order.token, order.held);
        match reply.outcome {
            Ok(data) => self.push(rail, Item::Answer { token, local: held, data }),
            Err(fault) => self.push(rail, Item::Failed { token, held, fault }),
        }
    }
}
