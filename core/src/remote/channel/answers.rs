//! Answers: what elements of ours were before a peer changed them, on the way to it.

use std::collections::VecDeque;

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::verb::Urgency;
use ropewalk_wire::frame::ReplyBody;

use crate::api::*;
use crate::credit::Charge;
use crate::engine::Core;
use crate::orders::{Order, Payload};

/// Longer answers are data frames among others.
const URGENT_BYTES_MAX: u64 = 4 << 10;

/// An answer that fetched elements, until it leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub number: u64,
    pub buffer: BufferId,
    pub bytes: u32,
}

impl Core {
    pub(super) fn answer_value(&mut self, id: PeerId, number: u64, value: [u8; 8]) {
        self.number_over(id, number);
        self.reply(id, number, value, None);
    }

    /// An update is applied, and its peer wants to know what the elements were.
    pub(super) fn answer_elements(&mut self, id: PeerId, session: u32, answer: Answer) {
        if !self.peers.has_session(id, session) {
            return self.drop_answer(id, session, answer);
        }
        self.number_over(id, answer.number);
        if let Some(session) = self.peers.session_mut(id) {
            session.one_sided().answers.push_back(answer);
        }
        self.pump_answers(id);
    }

    fn drop_answer(&mut self, id: PeerId, session: u32, answer: Answer) {
        self.outputs.push(Output::Release(answer.buffer));
        self.free_charge(id, session, Charge::Update { payload_bytes: answer.bytes.into() });
    }

    /// Answers leave, where a path takes them: credit bounds them.
    pub(crate) fn pump_answers(&mut self, id: PeerId) {
        while let Some(session) = self.peers.session_mut(id) {
            let is_up = session.reliable.is_some() || session.paths.control().is_some();
            let (name, one_sided) = (session.name(), session.one_sided.as_mut());
            let next = one_sided.filter(|_| is_up).and_then(|it| it.answers.pop_front());
            let Some(Answer { number, buffer, bytes }) = next else { return };
            let slice = Slice { buffer, offset: 0, len: bytes.into() };
            let bulk = slice.len > URGENT_BYTES_MAX;
            let urgency = if bulk { Urgency::Bulk } else { Urgency::Urgent };
            let order = Order::Answer { peer: id, session: name, buffer, bytes, bulk };
            self.reply(id, number, [0; 8], Some(Payload { slice, urgency, order }));
        }
    }

    /// Answers of a session that ends do not leave.
    pub(crate) fn drop_answers(&mut self, id: PeerId, session: u32, answers: VecDeque<Answer>) {
        answers.into_iter().for_each(|answer| self.drop_answer(id, session, answer));
    }

    /// No rail has an answer any more.
    pub(crate) fn answer_released(&mut self, order: Order) {
        if let Order::Answer { peer, session, buffer, bytes, .. } = order {
            let answer = Answer { number: 0, buffer, bytes };
            self.drop_answer(peer, session, answer);
        }
    }

    fn reply(&mut self, id: PeerId, number: u64, value: [u8; 8], payload: Option<Payload>) {
        let applied = self.mark_for(id).into();
        let body = ReplyBody { number: number.into(), applied, value, status: 0, reserved: [0; 7] };
        self.emit(id, body, payload);
    }
}
