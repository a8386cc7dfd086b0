//! The travel of frames: queues, send window, transmission, faults on the way.
//!
//! Invariant: between two frames of a link urgent ones go first; within one urgency the order of
//! the orders holds on the way out, and on arrival where the rail promises order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{FrameOrder, LinkId, Ordered, Token, Urgency};
use ropewalk_rail::frame_lengths;

use crate::config::{Path, Release, spread};
use crate::connection::EndState;
use crate::network::{Event, Frame, Item, Message, Network};

/// An order whose outcome is to be reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unfinished {
    pub token: Token,
    /// The buffer that the order holds until then.
    pub held: Slice,
}

#[derive(Debug)]
struct Outgoing {
    number: u64,
    frame: Frame,
}

/// The sending half of one end.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    urgent: VecDeque<Outgoing>,
    bulk: VecDeque<Outgoing>,
    /// A frame is being put on the wire.
    wire_busy: bool,
    /// Frames in the send window.
    window: usize,
    /// Orders of frames and of native accesses, by number.
    pub unfinished: BTreeMap<u64, Unfinished>,
    pub order_count: u64,
    /// When the latest message arrives that must not be overtaken.
    pub last_arrival: Time,
}

impl Lane {
    /// Bytes of frames that are not on the wire.
    pub fn queued_bytes(&self) -> u64 {
        self.urgent.iter().chain(&self.bulk).map(|outgoing| outgoing.frame.bytes()).sum()
    }

    fn is_idle(&self) -> bool {
        self.urgent.is_empty() && self.bulk.is_empty() && !self.wire_busy && self.window == 0
    }
}

impl Network {
    /// Connection and side of a link whose owner may still order.
    pub(crate) fn find_link(&self, rail: usize, link: LinkId) -> Result<(u64, usize), Fault> {
        let (id, side) = self.find_end(rail, link)?;
        match self.connections[&id].ends[side].state {
            EndState::Closing => Err(Fault::Closed),
            _ => Ok((id, side)),
        }
    }

    /// The same, but also while the link is closing.
    pub(crate) fn find_end(&self, rail: usize, link: LinkId) -> Result<(u64, usize), Fault> {
        let found = self.rails[rail].links.get(link.slot).copied();
        let (id, side) =
            found.filter(|_| link.rail == self.rails[rail].index).ok_or(Fault::PeerReset)?;
        let connection = self.connections.get(&id).ok_or(Fault::PeerReset)?;
        if connection.ends[side].is_alive() { Ok((id, side)) } else { Err(Fault::PeerReset) }
    }

    pub(crate) fn order_frame(
        &mut self,
        rail: usize,
        order: &FrameOrder,
        buffers: &BufferTable,
    ) -> Ordered {
        let (id, side) = match self.find_link(rail, order.link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        let config = &self.rails[rail].config;
        let (release, window_frames) = (config.release, config.window_frames);
        if order.payload.len > u64::from(config.capabilities.frame_payload_bytes_max) {
            return Ordered::Refused(Fault::Oversize);
        }
        let header = order.header.as_bytes();
        if frame_lengths(header) != Some((header.len(), order.payload.len as u32)) {
            return Ordered::Refused(Fault::Invalid);
        }
        let mut payload = vec![0; order.payload.len as usize];
        if buffers.read(order.payload, &mut payload) != payload.len() {
            return Ordered::Refused(Fault::Invalid);
        }
        self.trace.mix_bytes(header);
        self.trace.mix_bytes(&payload);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let lane = &mut connection.ends[side].lane;
        let number = lane.order_count;
        lane.order_count += 1;
        let room = lane.window + lane.urgent.len() + lane.bulk.len() < window_frames;
        // Nobody waits for the outcome of a frame without token, and it holds no buffer of anyone
        // since its bytes were copied here.
        let released = order.token == Token::NONE || (release == Release::AtOnce && room);
        if !released {
            let held = Unfinished { token: order.token, held: order.payload };
            lane.unfinished.insert(number, held);
        }
        let outgoing = Outgoing { number, frame: Frame { header: order.header, payload } };
        match order.urgency {
            Urgency::Urgent | Urgency::Patient => lane.urgent.push_back(outgoing),
            Urgency::Bulk => lane.bulk.push_back(outgoing),
        }
        self.pump(id, side);
        if released { Ordered::Released } else { Ordered::Pending }
    }

    /// Lets go of the memory of an order: of a frame, whose outcome goes under another token then, or of
    /// an access, whose answer nobody waits for any more. Where the outcome lies in the inbox already,
    /// either is right: to change it, or to say that it comes.
    pub(crate) fn let_go(
        &mut self,
        rail: usize,
        link: LinkId,
        token: Token,
        later: Option<Token>,
    ) -> Ordered {
        let (id, side) = match self.find_end(rail, link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let later = later.filter(|later| *later != Token::NONE);
        let unfinished = &mut connection.ends[side].lane.unfinished;
        let found = unfinished.iter().find(|(_, order)| order.token == token);
        if let Some(number) = found.map(|(number, _)| *number) {
            unfinished.remove(&number);
            if let Some(token) = later {
                unfinished.insert(number, Unfinished { token, held: Slice::NONE });
            }
            return Ordered::Released;
        }
        let reported = self.rails[rail].inbox.iter().position(|item| item.is_outcome_of(token));
        match reported {
            Some(position) if self.random.below(2) == 0 => {
                let inbox = &mut self.rails[rail].inbox;
                match later {
                    Some(token) => inbox[position] = Item::Done { token, held: Slice::NONE },
                    None => drop(inbox.remove(position)),
                }
                Ordered::Released
            }
            _ => Ordered::Refused(Fault::Invalid),
        }
    }

    /// Closes a link once its earlier orders are sent.
    pub(crate) fn order_close(&mut self, rail: usize, link: LinkId) -> Ordered {
        let (id, side) = match self.find_link(rail, link) {
            Ok(found) => found,
            Err(fault) => return Ordered::Refused(fault),
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let end = &mut connection.ends[side];
        if end.state == EndState::Connecting {
            self.hang_up(id, side, Fault::Closed);
        } else {
            end.state = EndState::Closing;
            self.pump(id, side);
        }
        Ordered::Released
    }

    /// Puts queued frames on the wire while window and wire have room.
    pub(crate) fn pump(&mut self, id: u64, side: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let (from, to) = (connection.ends[side].rail, connection.ends[1 - side].rail);
            let (reliable, mute) = (connection.reliable, connection.mute);
            let path = self.path(from, to);
            // A stream keeps frames that its peer does not take; a datagram rail sends into the void.
            if reliable && (path.blocked || mute) {
                return;
            }
            let config = &self.rails[from].config;
            let (window_frames, release) = (config.window_frames, config.release);
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let end = &mut connection.ends[side];
            let open = matches!(end.state, EndState::Up | EndState::Closing);
            let lane = &mut end.lane;
            if !open || lane.wire_busy || lane.window >= window_frames {
                return;
            }
            let next = lane.urgent.front().or(lane.bulk.front());
            if reliable && next.is_some_and(|next| next.frame.bytes() > path.frame_bytes_max) {
                return;
            }
            let Some(next) = lane.urgent.pop_front().or_else(|| lane.bulk.pop_front()) else {
                if end.state == EndState::Closing && end.lane.is_idle() {
                    self.hang_up(id, side, Fault::Closed);
                }
                return;
            };
            let busy = path.transmission(next.frame.bytes());
            end.traffic.sent(next.frame.bytes());
            lane.window += 1;
            // On a shared cable it queues behind what others sent; its link may send the next one at once.
            let queued = self.queue(from, busy);
            let wait = queued.unwrap_or_default();
            let free = self.now + wait + busy;
            if queued.is_none() && busy > Duration::ZERO {
                self.set_wire_busy(id, side);
                self.schedule(free, Event::WireFree { connection: id, side });
            }
            let after = match release {
                Release::AtOnce => Duration::ZERO,
                Release::WhenSent(after) => after,
            };
            let sent = Event::Sent { connection: id, side, number: next.number };
            self.schedule(free + after, sent);
            let counters = &mut self.rails[from].counters;
            counters.frames_sent += 1;
            counters.bytes_sent += next.frame.bytes();
            self.launch(id, 1 - side, next.frame, [wait, wait + busy], path);
        }
    }

    /// A frame is on its way to `side`; its fate is decided here.
    /// It leaves from the first of these times on, and has left after the second.
    fn launch(
        &mut self,
        id: u64,
        side: usize,
        mut frame: Frame,
        [wait, busy]: [Duration; 2],
        path: Path,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (reliable, ordered) = (connection.reliable, connection.ordered);
        if !reliable {
            let is_too_long = frame.bytes() > path.frame_bytes_max;
            if is_too_long || self.random.chance(path.loss) {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.ends[1 - side].traffic.lost(frame.bytes());
                }
                return;
            }
            if self.random.chance(path.header_corruption) {
                let bytes = frame.header.as_bytes_mut();
                let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            if !frame.payload.is_empty() && self.random.chance(path.payload_corruption) {
                let bit = self.random.below(frame.payload.len() as u64 * 8) as usize;
                frame.payload[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let frame = Arc::new(frame);
        if !ordered && self.random.chance(path.reordering) {
            // Held back without a claim on the order of later frames.
            let at = self.now + busy + path.latency;
            let at = spread(at, path.reordering_delay, &mut self.random);
            let message = Message::Whole(frame.clone());
            self.schedule(at, Event::Arrive { connection: id, side, message });
        } else if reliable && ordered && !frame.payload.is_empty() && busy > Duration::ZERO {
            // The header is there while the payload still arrives: the peer may die in between.
            self.send(id, side, Message::Head(frame.clone()), wait);
            self.send(id, side, Message::Tail(frame.clone()), busy);
        } else {
            self.send(id, side, Message::Whole(frame.clone()), busy);
        }
        if !reliable && self.random.chance(path.duplication) {
            let at = self.now + busy + path.latency;
            let at = spread(at, path.reordering_delay, &mut self.random);
            let message = Message::Whole(frame);
            self.schedule(at, Event::Arrive { connection: id, side, message });
        }
    }

    fn set_wire_busy(&mut self, id: u64, side: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ends[side].lane.wire_busy = true;
        }
    }

    pub(crate) fn handle_wire_free(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[side].lane.wire_busy = false;
        self.pump(id, side);
    }

    pub(crate) fn handle_sent(&mut self, id: u64, side: usize, number: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        if !end.is_alive() {
            return;
        }
        end.lane.window -= 1;
        let rail = end.rail;
        if let Some(order) = end.lane.unfinished.remove(&number) {
            self.push(rail, Item::Done { token: order.token, held: order.held });
        }
        self.pump(id, side);
    }
}
