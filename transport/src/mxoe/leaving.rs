//! The packets that go.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{self, Fragment, Message, Packet, SESSION_UNKNOWN};

use super::connect::Stage;
use super::machine::{Mxoe, Partner, emit};
use super::sending::Kept;
use crate::memory::APART_BYTES_MIN;
use crate::memory::Bytes;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// The next packet of a partner: first packets that make the session, messages, asks and replies; then an
    /// acknowledgement alone.
    pub(super) fn next_of(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<Leaving> {
        if let Some(written) = self.next_connect(id, out) {
            return Some(Leaving::whole(written));
        }
        self.number(id, memory);
        if let Some(leaving) = self.next_message(id, out) {
            return Some(leaving);
        }
        let other = self.next_pull(id, out);
        let other = other.or_else(|| self.next_reply(id, memory, out));
        other.or_else(|| self.next_ack(id, out)).map(Leaving::whole)
    }

    /// The acknowledgement of messages that arrived, if it is due. A closed link that has acknowledged all of them
    /// ends.
    fn next_ack(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let now = self.driver.now;
        let state = self.partners.get_mut(id)?;
        let closed = matches!(state.stage, Stage::Closing { .. }) && state.sending.is_done();
        // A link that ends acknowledges first all that has arrived: nobody would answer a message that comes again.
        let due = state.receiving.due();
        let waits = due > now && (!closed || due == Time::NEVER);
        if waits || state.session == SESSION_UNKNOWN {
            if closed {
                self.end(id, Fault::Closed);
            }
            return None;
        }
        state.acks_sent += 1;
        let ack = mxoe::Ack {
            to: state.endpoint,
            from: self.config.endpoint,
            session: state.session,
            acknowledged: state.receiving.tell(),
            number: state.acks_sent,
        };
        Some(emit(&Packet::Ack(ack), state.index, self.config.dialect, out))
    }

    /// The next message, or fragment of one.
    pub(super) fn next_message(&mut self, id: SlotId, out: &mut [u8]) -> Option<Leaving> {
        let (now, dialect, from) = (self.driver.now, self.config.dialect, self.config.endpoint);
        let state = self.partners.get_mut(id)?;
        if state.is_held() {
            return None;
        }
        let (number, ..) = state.sending.next()?;
        let acknowledged = state.receiving.tell();
        let (to, session, index) = (state.endpoint, state.session, state.index);
        let round_trip = state.round_trip;
        let Partner { sending, .. } = state;
        let sequence = sending.sequence(number);
        let (_, kept, fragment) = sending.next()?;
        let message =
            |match_info| Message { to, from, session, sequence, acknowledged, match_info };
        let mut last = true;
        let mut apart = None;
        let written = match kept {
            Kept::Eager { bits, bytes, .. } => {
                let message = message(*bits);
                let unit = dialect.fragment_bytes() as usize;
                let begin = fragment as usize * unit;
                let part = &bytes[begin..bytes.len().min(begin + unit)];
                last = begin + part.len() == bytes.len();
                let total = bytes.len();
                let packet = if total <= mxoe::TINY_BYTES_MAX {
                    Packet::Tiny(message, part)
                } else if total <= mxoe::SMALL_BYTES_MAX {
                    Packet::Small(message, part)
                } else {
                    let (fragment, offset) = (fragment as u8, begin as u32);
                    let total_bytes = total as u32;
                    Packet::Medium(Fragment { message, total_bytes, fragment, offset }, part)
                };
                let header = emit(&packet, index, dialect, out);
                if part.len() >= APART_BYTES_MIN {
                    apart = Some(bytes.part(begin..begin + part.len()));
                    header
                } else {
                    out[header..header + part.len()].copy_from_slice(part);
                    self.counters.bytes_copied += part.len() as u64;
                    header + part.len()
                }
            }
            Kept::Announce { bits, bytes, region, region_sequence } => {
                let packet = Packet::Rendezvous(mxoe::Rendezvous {
                    message: message(*bits),
                    total_bytes: *bytes,
                    region: *region,
                    region_sequence: *region_sequence,
                    region_offset: 0,
                });
                emit(&packet, index, dialect, out)
            }
            Kept::Notify { bytes, region, region_sequence } => {
                let (bytes, region, region_sequence) = (*bytes, *region, *region_sequence);
                let packet = Packet::Notify(mxoe::Notify {
                    to,
                    from,
                    session,
                    sequence,
                    acknowledged,
                    bytes,
                    region,
                    region_sequence,
                });
                emit(&packet, index, dialect, out)
            }
        };
        sending.left(last, &round_trip, now);
        Some(Leaving { written, tail: 0, kept: apart })
    }
}
