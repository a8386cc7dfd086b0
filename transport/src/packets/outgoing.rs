//! Records on their way out: queued, cut into packets, and kept until a packet may leave.
//!
//! Invariant: a header is never cut; a record that was begun is finished before another one begins.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::shared::SharedBytes;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Header, Token, Urgency};

use crate::memory::{Bytes, Payload};

/// Frames that are in no hurry leave together: so many of them, or after so long, or with any other.
const PATIENT_MAX: usize = 4;
const PATIENT_FOR: Duration = Duration::from_micros(50);
/// Full packets that may wait for the window.
pub(super) const FULL_MAX: usize = 8;

/// A packet of the stream, as it is kept.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub record: u32,
    pub offset: u32,
    pub bytes: SharedBytes,
    /// The number of those bytes that belong to payloads.
    pub payload_bytes: u32,
    /// It is a part of the greeting of a link that is protected: it goes in clear.
    pub is_plain: bool,
}

/// Records on their way out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub urgent: VecDeque<Queued>,
    pub bulk: VecDeque<Queued>,
    /// The record that is being cut.
    pub current: Option<Cutting>,
    /// The packet that is being filled.
    pub building: Option<Sent>,
    pub full: VecDeque<Sent>,
    /// The number of the record that begins next.
    pub next_record: u32,
    /// More waits than a peer that reads can bring about.
    pub overflown: bool,
    /// Some of the memory of a record went away before it had left: what is sent of it is not what it was.
    pub is_spoiled: bool,
    /// When what waits goes: `ZERO` at once, `NEVER` where nothing does. And how many frames wait that are in no hurry.
    goes_at: Time,
    patient: usize,
}

/// A record of which something has left, or is to leave next.
#[derive(Debug)]
pub(super) struct Cutting {
    pub queued: Queued,
    /// Its header has left, and so many bytes of its payload.
    pub begun: bool,
    pub done: u64,
}

/// A record that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub header: Header,
    pub payload: Payload,
    pub token: Token,
}

impl Cutting {
    pub fn is_done(&self) -> bool {
        self.begun && self.done == self.queued.payload.len()
    }
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing {
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            current: None,
            building: None,
            full: VecDeque::new(),
            next_record: 0,
            overflown: false,
            is_spoiled: false,
            goes_at: Time::NEVER,
            patient: 0,
        }
    }
}

impl Outgoing {
    /// Whether everything left.
    pub fn is_empty(&self) -> bool {
        self.is_cut() && self.building.is_none() && self.full.is_empty()
    }

    /// Whether no record waits for being cut.
    pub fn is_cut(&self) -> bool {
        self.urgent.is_empty() && self.bulk.is_empty() && self.current.is_none()
    }

    /// Whether something is to go now.
    pub fn is_due(&self, now: Time) -> bool {
        self.goes_at <= now && !self.is_empty()
    }

    /// When something is to go that waits for others now.
    pub fn due(&self) -> Time {
        if self.goes_at == Time::ZERO { Time::NEVER } else { self.goes_at }
    }

    /// Nothing waits any more.
    pub fn hurry(&mut self) {
        (self.goes_at, self.patient) = (Time::ZERO, 0);
    }

    /// Nothing of what waits does any more.
    pub fn hurry_if_any(&mut self) {
        if !self.is_empty() {
            self.hurry();
        }
    }

    pub fn push(&mut self, queued: Queued, urgency: Urgency, now: Time) {
        let waits = self.goes_at > Time::ZERO;
        match urgency {
            Urgency::Patient if waits && self.patient + 1 < PATIENT_MAX => {
                self.patient += 1;
                self.goes_at = self.goes_at.min(now + PATIENT_FOR);
            }
            _ => self.hurry(),
        }
        let queue = match urgency {
            Urgency::Urgent | Urgency::Patient => &mut self.urgent,
            Urgency::Bulk => &mut self.bulk,
        };
        self.overflown |= queue.len() >= QUEUED_FRAMES_MAX;
        queue.push_back(queued);
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        let whole = |queued: &Queued| queued.header.as_bytes().len() as u64 + queued.payload.len();
        let current = self.current.as_ref().map_or(0, |cutting| {
            let header = if cutting.begun { 0 } else { cutting.queued.header.as_bytes().len() };
            header as u64 + cutting.queued.payload.len() - cutting.done
        });
        let cut = self.full.iter().chain(&self.building).map(|sent| sent.bytes.len() as u64);
        let queued = self.urgent.iter().chain(&self.bulk).map(whole);
        current + cut.sum::<u64>() + queued.sum::<u64>()
    }

    /// The buffers that it holds, at the end.
    pub fn take_buffers(&mut self) -> impl Iterator<Item = SharedBytes> {
        let full = std::mem::take(&mut self.full);
        full.into_iter().chain(self.building.take()).map(|sent| sent.bytes)
    }

    /// The tokens of what was not cut, at the end.
    pub fn take_tokens(&mut self) -> Vec<Token> {
        let current = self.current.take().map(|cutting| cutting.queued);
        let queues = self.urgent.drain(..).chain(self.bulk.drain(..));
        let pending = |queued: &Queued| queued.token != Token::NONE && queued.payload.len() > 0;
        current.into_iter().chain(queues).filter(pending).map(|queued| queued.token).collect()
    }

    /// Nothing more joins the packet that is being filled.
    pub fn end_packet(&mut self) {
        self.full.extend(self.building.take());
    }

    /// All that was cut goes in clear, and nothing that follows joins it.
    pub fn end_plain(&mut self) {
        self.end_packet();
        self.full.iter_mut().for_each(|sent| sent.is_plain = true);
    }

    /// The next packet; where there is nothing to say and an answer is wanted one without bytes, between two
    /// records.
    pub fn next(&mut self, probes: bool) -> Option<Sent> {
        let sent = self.full.pop_front().or_else(|| self.building.take());
        if self.is_empty() {
            (self.goes_at, self.patient) = (Time::NEVER, 0);
        }
        let probe = sent.is_none() && probes && self.current.is_none();
        sent.or_else(|| probe.then(|| Sent { record: self.next_record, ..Sent::default() }))
    }

    pub fn find(&mut self, token: Token) -> Option<&mut Queued> {
        let current = self.current.as_mut().map(|cutting| &mut cutting.queued);
        let queues = self.urgent.iter_mut().chain(self.bulk.iter_mut());
        current.into_iter().chain(queues).find(|queued| queued.token == token)
    }

    /// Forgets the frame of this token, unless its record has begun.
    pub fn forget(&mut self, token: Token) -> bool {
        [&mut self.bulk, &mut self.urgent].into_iter().any(|queue| {
            let at = queue.iter().position(|queued| queued.token == token);
            at.and_then(|at| queue.remove(at)).is_some()
        })
    }
}

impl Outgoing {
    /// A record begins: in the packet that is being filled, where its header fits, and all of it does or
    /// does not fit into a fresh one either.
    pub fn begin(&mut self, queued: &Queued, room: usize) {
        let Some(building) = &self.building else { return };
        let header = queued.header.as_bytes().len();
        let whole = header + queued.payload.len() as usize;
        let left = room - building.bytes.len();
        if left < header || (left < whole && whole <= room) {
            self.full.extend(self.building.take());
        }
    }

    /// Adds what fits of the current record to the packet that is being filled, or to a new one, in `buffer`,
    /// which is given back where it was not needed.
    pub fn append(
        &mut self,
        buffer: SharedBytes,
        room: usize,
        memory: &dyn Bytes,
    ) -> Option<SharedBytes> {
        let Cutting { queued, begun, done } = self.current.as_mut()?;
        let header = queued.header.as_bytes();
        let mut spare = Some(buffer);
        let building = self.building.get_or_insert_with(|| {
            let offset = if *begun { header.len() as u32 + *done as u32 } else { 0 };
            let bytes = spare.take().unwrap_or_default();
            Sent { record: self.next_record, offset, bytes, payload_bytes: 0, is_plain: false }
        });
        let bytes = building.bytes.alone().expect("it has not left");
        if !std::mem::replace(begun, true) {
            bytes.extend_from_slice(header);
        }
        let part = (room - bytes.len()).min((queued.payload.len() - *done) as usize);
        let begin = bytes.len();
        match &queued.payload {
            Payload::Held(slice) => {
                bytes.resize(begin + part, 0);
                let is_there = memory.try_read(slice.part(*done, part as u64), &mut bytes[begin..]);
                self.is_spoiled |= !is_there;
            }
            Payload::Own(own) => {
                bytes.extend_from_slice(&own[*done as usize..*done as usize + part]);
            }
        }
        building.payload_bytes += part as u32;
        *done += part as u64;
        if bytes.len() == room {
            self.full.extend(self.building.take());
        }
        spare
    }
}
