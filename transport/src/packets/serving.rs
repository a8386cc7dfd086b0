//! Regions that serve: asks of the other side, and the pieces that answer them.
//!
//! Invariant: a region that was revoked is neither read nor written: its asks and its readings went with it.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Ordered, RemoteKey};
use ropewalk_wire::packets::{self, Kind, PieceBody, PullBody, RefusalBody};
use zerocopy::IntoBytes;

use super::machine::{Event, Machine};
use super::remote_writes::BAD_KEY;
use super::transfers::{Purpose, Reading, Serving, Source};
use crate::memory::Bytes;
use crate::pull::Ask;

/// Asks of one link that wait for being served. A correct peer has fewer under way.
const SERVING_MAX: usize = 256;
/// Refusals that wait.
const REFUSALS_MAX: usize = 64;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    pub(super) fn revoke(&mut self, id: SlotId, key: RemoteKey) -> Ordered {
        let slot = key.slot.to_u64();
        let Some(state) = self.links.get_mut(id) else { return Ordered::Refused(Fault::BadKey) };
        if state.exposed.get(&slot).is_none_or(|exposed| exposed.secret != key.secret) {
            return Ordered::Refused(Fault::BadKey);
        }
        state.exposed.remove(&slot);
        state.serving.retain(|it| it.source.offered || it.source.slot != slot);
        let takings: Vec<(u64, SlotId)> =
            state.takings.iter().map(|(offer, id)| (*offer, *id)).collect();
        for (offer, reading) in takings {
            let here =
                |it: &Reading| matches!(it.purpose, Purpose::Take { region, .. } if region == slot);
            if self.readings.get(reading).is_some_and(here) {
                self.end_reading(reading);
                self.take_over(id, offer, BAD_KEY);
            }
        }
        self.driver.tell(Event::Revoked { link: id, key });
        Ordered::Released
    }

    /// Pieces of a region are asked for.
    pub(super) fn asked(&mut self, id: SlotId, body: &PullBody) {
        let Some(state) = self.links.get_mut(id) else { return };
        let (handle, slot) = (body.handle.get(), body.key_slot.get());
        let source = Source { slot, secret: body.key_secret.get(), offered: body.offered == 1 };
        let (offset, total) = (body.offset.get(), body.total_bytes.get());
        let region = match source.offered {
            true => state.offers.get(slot).map(|it| (it.secret, it.slice)),
            false => state.exposed.get(&slot).map(|it| (it.secret, it.slice)),
        };
        let end = offset.checked_add(total).filter(|_| total > 0);
        let legal = |(secret, slice): &(u64, Slice)| {
            *secret == source.secret && end.is_some_and(|end| end <= slice.len)
        };
        let Some((_, slice)) = region.filter(legal) else {
            if state.refusals.len() < REFUSALS_MAX {
                state.refusals.push_back((handle, BAD_KEY));
            }
            return;
        };
        let piece_bytes = u32::from(body.piece_bytes.get());
        let longest = usize::from(state.packet_bytes) - packets::overhead(Kind::Piece);
        let ask = Ask { first: body.first.get(), pieces: body.pieces.get() };
        let last = u64::from(ask.first) + u64::from(63 - ask.pieces.leading_zeros().min(63));
        let fits = (1..=longest as u32).contains(&piece_bytes) && ask.pieces != 0;
        if !fits || last >= total.div_ceil(piece_bytes.into()) || last > u32::MAX.into() {
            return self.violated(id);
        }
        if state.serving.len() < SERVING_MAX {
            let slice = slice.part(offset, total);
            state.serving.push_back(Serving { handle, source, slice, piece_bytes, ask });
        }
    }

    /// The next piece of what was asked for.
    pub(super) fn next_piece(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<usize> {
        let route = self.route(id)?;
        let state = self.links.get_mut(id)?;
        let serving = state.serving.front_mut()?;
        let bit = serving.ask.pieces.trailing_zeros();
        serving.ask.pieces &= serving.ask.pieces - 1;
        let piece = serving.ask.first + bit;
        let offset = u64::from(piece) * u64::from(serving.piece_bytes);
        let bytes = (serving.slice.len - offset).min(serving.piece_bytes.into());
        let from = serving.slice.part(offset, bytes);
        let body =
            PieceBody { handle: serving.handle.into(), piece: piece.into(), reserved: 0.into() };
        let handle = serving.handle;
        if serving.ask.pieces == 0 {
            state.serving.pop_front();
        }
        let mut is_there = true;
        let fill = |to: &mut [u8]| is_there = memory.try_read(from, to);
        let written = packets::seal(out, Kind::Piece, route, body.as_bytes(), bytes as usize, fill);
        if !is_there {
            return Some(self.refuse_pull(id, handle, out));
        }
        Some(written)
    }

    /// The memory that is asked for is not there (any more): nothing more of it is served, and that is said in this packet.
    #[cold]
    fn refuse_pull(&mut self, id: SlotId, handle: u64, out: &mut [u8]) -> usize {
        if let Some(state) = self.links.get_mut(id) {
            state.serving.retain(|it| it.handle != handle);
        }
        let route = self.route(id).expect("a link that serves has a route");
        let body = RefusalBody { handle: handle.into(), reason: BAD_KEY, reserved: [0; 7] };
        packets::seal(out, Kind::Refusal, route, body.as_bytes(), 0, |_| ())
    }
}
