//! Makes the data frames of streams.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Urgency;
use ropewalk_wire::frame::{DataBody, FragmentBody};

use super::{Stream, StreamKind};
use crate::api::*;
use crate::engine::Core;
use crate::orders::{Order, Payload};

impl Core {
    /// Makes data frames, the peer's streams in turn, as many as its link takes.
    pub(crate) fn pump_streams(&mut self, id: PeerId) {
        loop {
            let Some(peer) = self.peers.get_mut(id) else { return };
            let Some(session) = peer.session.as_mut() else { return };
            let Some(next) = session.streams.next_bytes() else { return };
            let room = session.has_data_room(next, &self.routes.controllers, self.now);
            if !room {
                return;
            }
            if self.bulk.is_spent() {
                // A peer that reads as fast as we send would keep this pass from everybody else.
                return self.bulk.wait(id, &mut peer.throttled);
            }
            let Some(mut stream) = session.streams.pop() else { return };
            let max = session.granted.frame_bytes();
            self.bulk.spend(stream.left.len.min(max));
            self.send_part(id, &mut stream, max);
            if stream.left.len == 0 {
                self.served(&stream.kind);
                self.stream_ended(&stream.kind);
                self.put_has_left(&stream.kind);
            } else if let Some(session) = self.peers.session_mut(id) {
                session.streams.push(stream);
            }
        }
    }

    /// A pass begins: data frames have room again, and those who waited for it come in turn.
    pub(crate) fn refill_bulk(&mut self) {
        self.bulk.refill();
        // Those for whom nothing is left stay where they are, and come first in the next pass.
        while let Some(id) = self.bulk.next_throttled(&mut self.peers) {
            self.pump(id);
        }
    }

    /// All data frames of a stream were made, or none are made any more.
    pub(crate) fn stream_ended(&mut self, kind: &StreamKind) {
        match kind {
            StreamKind::Serve { region, .. } => {
                if let Some(region) = self.regions.get_mut(*region) {
                    region.streams -= 1;
                }
            }
            StreamKind::Message { operation, .. } => self.release_memory(*operation),
            StreamKind::Put(put) => {
                if let Some(state) = self.access_mut(put.operation()) {
                    state.streaming = false;
                }
            }
        }
    }

    /// Makes the next frame of a stream, with at most `max` bytes.
    fn send_part(&mut self, id: PeerId, stream: &mut Stream, max: u64) {
        let len = stream.left.len.min(max);
        let bulk = |order, left: &mut Slice, len| {
            let slice = left.part(0, len);
            *left = left.part(len, left.len - len);
            Some(Payload { slice, urgency: Urgency::Bulk, order })
        };
        match &mut stream.kind {
            StreamKind::Message { operation, channel, message, offset } => {
                let body = FragmentBody {
                    message: (*message).into(),
                    offset: (*offset).into(),
                    channel: *channel as u8,
                    reserved: [0; 7],
                };
                *offset += len;
                let operation = *operation;
                self.counters.fragments_sent += 1;
                self.retain_memory(operation);
                let order = Order::Fragment { operation, peer: id };
                self.emit(id, body, bulk(order, &mut stream.left, len));
            }
            StreamKind::Serve { region, cookie, into_offset, .. } => {
                if let Some(state) = self.regions.get_mut(*region) {
                    state.retained += 1;
                }
                let body = DataBody { cookie: (*cookie).into(), offset: (*into_offset).into() };
                // The peer's own number: it is its affair where this ends.
                *into_offset = into_offset.wrapping_add(len);
                let order = Order::ServeFrame { region: *region, peer: id, cookie: *cookie };
                self.emit(id, body, bulk(order, &mut stream.left, len));
            }
            StreamKind::Put(put) => {
                let operation = put.operation();
                let (body, here) = put.next(len);
                self.retain_memory(operation);
                let order = Order::PutFrame { operation, peer: id, bulk: true };
                self.emit(id, body, bulk(order, &mut stream.left, here));
            }
        }
    }

    pub(crate) fn drop_streams_of(&mut self, slot: SlotId) {
        match self.regions.get(slot).filter(|it| it.streams > 0).map(|region| region.audience) {
            Some(Audience::One(peer)) => self.drop_streams_to(peer, slot),
            Some(Audience::Everybody | Audience::Group(_)) => {
                let ids: Vec<PeerId> = self.peers.iter().map(|(id, _)| id).collect();
                ids.into_iter().for_each(|id| self.drop_streams_to(id, slot));
            }
            None => {}
        }
    }

    fn drop_streams_to(&mut self, id: PeerId, slot: SlotId) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let mut refused = Vec::new();
        session.streams.retain(|stream| match stream.kind {
            StreamKind::Serve { region, cookie, .. } if region == slot => {
                refused.push(cookie);
                false
            }
            _ => true,
        });
        if let Some(region) = self.regions.get_mut(slot) {
            region.streams -= refused.len() as u32;
        }
        for cookie in refused {
            self.emit_result(id, cookie, Err(Fault::BadKey));
        }
    }
}
