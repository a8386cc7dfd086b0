//! Requests: those that were posted and not tested for, and those that are complete, in the order in which they
//! completed.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_face_common::{HandleBits, OPERATIONS_MAX};
use ropewalk_net::{OperationId, PeerId};

use crate::abi::{Address, Handle};
use crate::codes::{Code, SUCCESS};
use crate::process::PLACE_BITS;

/// A handle has the endpoint's place, the request's, and as much of its generation as there is room for.
const INDEX_BITS: u32 = 22;
const BITS: HandleBits = HandleBits::new(PLACE_BITS, INDEX_BITS);
const _: () = assert!(OPERATIONS_MAX <= 1 << INDEX_BITS);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send,
    Receive,
    Connect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Pending,
    /// It ended with an error, of which its handler has not been told.
    Failing,
    Done,
}

/// The outcome of a request, or of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub code: Code,
    pub source: Address,
    pub match_info: u64,
    pub message_bytes: u32,
    pub moved_bytes: u32,
}

#[derive(Debug)]
pub struct Request {
    pub kind: Kind,
    pub stage: Stage,
    /// As the user gave it; also its address is nobody's but the user's.
    pub context: usize,
    pub operation: Option<OperationId>,
    pub outcome: Outcome,
    /// Nobody has its handle: it is never reported.
    pub forgotten: bool,
    /// A call of ours waits for it: nobody else sees it, and no handler is told.
    pub hidden: bool,
    /// The final code of the request, whatever its operation reports.
    pub ending: Option<Code>,
    /// The peer that it failed to reach, or to hear of.
    pub unreached: Option<PeerId>,
    /// It has left its memory though it is under way.
    pub copied: bool,
    /// `limit`: the time that its peer may take to acknowledge it, or to bring more of it. `deadline`: the time
    /// of the next check.
    pub limit: Option<Duration>,
    pub deadline: Option<Instant>,
}

impl Request {
    pub fn new(kind: Kind, context: *mut c_void, match_info: u64) -> Request {
        let outcome = Outcome {
            code: SUCCESS,
            source: Address::default(),
            match_info,
            message_bytes: 0,
            moved_bytes: 0,
        };
        Request {
            kind,
            stage: Stage::Pending,
            context: context.expose_provenance(),
            operation: None,
            outcome,
            forgotten: false,
            hidden: false,
            ending: None,
            unreached: None,
            copied: false,
            limit: None,
            deadline: None,
        }
    }

    /// From now on it may take so long; without a limit for good.
    pub fn limit_to(&mut self, limit: Option<Duration>) {
        (self.limit, self.deadline) = (limit, limit.map(|limit| Instant::now() + limit));
    }

    /// The user's number for it.
    pub fn context(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.context)
    }
}

/// Requests by their handles, and the complete ones.
#[derive(Debug)]
pub struct Requests {
    slots: Slots<Request>,
    /// The requests that are complete, the earliest first; some may have been taken.
    done: VecDeque<SlotId>,
    done_count: usize,
    /// The requests of which a handler is to be told.
    failing: VecDeque<SlotId>,
}

impl Requests {
    /// None; `first` is where handles begin to count.
    pub fn new(first: u32) -> Requests {
        Requests {
            slots: Slots::counting_from(OPERATIONS_MAX, first),
            done: VecDeque::new(),
            done_count: 0,
            failing: VecDeque::new(),
        }
    }

    pub fn add(&mut self, request: Request) -> Option<SlotId> {
        self.slots.insert(request).ok()
    }

    pub fn get(&self, id: SlotId) -> Option<&Request> {
        self.slots.get(id)
    }

    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut Request> {
        self.slots.get_mut(id)
    }

    /// The handle by which a program of this endpoint's names a request.
    pub fn handle(place: usize, id: SlotId) -> Handle {
        std::ptr::without_provenance_mut(BITS.handle(place, id) as usize)
    }

    /// The place of the endpoint that a handle names.
    pub fn place_of(handle: Handle) -> usize {
        BITS.owner(handle.addr() as u64)
    }

    /// The request of a handle that its user still has.
    pub fn find(&self, place: usize, handle: Handle) -> Option<SlotId> {
        let id = BITS.find(place, handle.addr() as u64, |index| self.slots.id_at(index))?;
        let request = self.slots.get(id)?;
        (!request.forgotten && !request.hidden).then_some(id)
    }

    /// A request is complete.
    pub fn complete(&mut self, id: SlotId) {
        let Some(request) = self.slots.get_mut(id) else { return };
        request.stage = Stage::Done;
        if request.forgotten {
            self.slots.remove(id);
        } else if !request.hidden {
            self.done.push_back(id);
            self.done_count += 1;
        }
    }

    /// A request ended, perhaps with an error, of which the handler is told first.
    pub fn end(&mut self, id: SlotId, code: Code, raise: bool) {
        let Some(request) = self.slots.get_mut(id) else { return };
        if request.stage != Stage::Pending {
            return;
        }
        request.outcome.code = code;
        request.operation = None;
        if code == SUCCESS || !raise || request.hidden {
            return self.complete(id);
        }
        request.stage = Stage::Failing;
        self.failing.push_back(id);
    }

    /// The next request of whose error the handler is told.
    pub fn next_failing(&mut self) -> Option<SlotId> {
        self.failing.pop_front()
    }

    /// The handler made this of the error.
    pub fn failed(&mut self, id: SlotId, code: Code) {
        if let Some(request) = self.slots.get_mut(id) {
            request.outcome.code = code;
            self.complete(id);
        }
    }

    /// Whether a request is complete.
    pub fn is_done(&self, id: SlotId) -> bool {
        self.slots.get(id).is_some_and(|request| request.stage == Stage::Done)
    }

    /// The first complete request whose match information fits.
    pub fn first_done(&mut self, bits: u64, mask: u64) -> Option<SlotId> {
        self.tidy();
        let fits = |id: &&SlotId| {
            let request = self.slots.get(**id);
            request.is_some_and(|request| (request.outcome.match_info ^ bits) & mask == 0)
        };
        self.done.iter().find(fits).copied()
    }

    /// Takes a request out.
    pub fn remove(&mut self, id: SlotId) -> Option<Request> {
        let request = self.slots.remove(id)?;
        if request.stage == Stage::Done && !request.hidden {
            self.done_count -= 1;
            self.tidy();
        }
        Some(request)
    }

    /// Cuts off the requests that were taken, if they are most of the list.
    fn tidy(&mut self) {
        while self.done.front().is_some_and(|id| self.slots.get(*id).is_none()) {
            self.done.pop_front();
        }
        if self.done.len() > 64 + 2 * self.done_count {
            let slots = &self.slots;
            self.done.retain(|id| slots.get(*id).is_some());
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Request)> {
        self.slots.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bits: u64) -> Request {
        Request::new(Kind::Send, std::ptr::null_mut(), bits)
    }

    #[test]
    fn a_handle_names_one_request_of_one_endpoint_and_no_later_one() {
        let mut requests = Requests::new(1);
        let id = requests.add(request(1)).unwrap();
        let handle = Requests::handle(3, id);
        assert!(!handle.is_null());
        assert_eq!((Requests::place_of(handle), requests.find(3, handle)), (3, Some(id)));
        assert_eq!(requests.find(2, handle), None);
        assert_eq!(requests.find(3, std::ptr::null_mut()), None);
        requests.remove(id);
        let again = requests.add(request(1)).unwrap();
        assert_eq!(again.index, id.index);
        assert_eq!(requests.find(3, handle), None);
    }

    #[test]
    fn complete_requests_are_found_in_their_order_and_by_their_bits() {
        let mut requests = Requests::new(1);
        let ids: Vec<SlotId> = (0..500).map(|bits| requests.add(request(bits)).unwrap()).collect();
        ids.iter().rev().for_each(|id| requests.end(*id, SUCCESS, true));
        assert_eq!(requests.first_done(0, 0), Some(ids[499]));
        assert_eq!(requests.first_done(7, u64::MAX), Some(ids[7]));
        for id in &ids[1..499] {
            requests.remove(*id);
        }
        assert!(requests.done.len() <= 64 + 2 * 2);
        assert_eq!(requests.first_done(7, u64::MAX), None);
        assert_eq!(requests.first_done(0, 1), Some(ids[0]));
        requests.remove(ids[499]);
        assert_eq!(requests.first_done(0, 0), Some(ids[0]));
    }

    #[test]
    fn errors_wait_for_their_handler_and_what_is_forgotten_goes() {
        let mut requests = Requests::new(1);
        let failing = requests.add(request(1)).unwrap();
        requests.end(failing, 95, true);
        assert_eq!(requests.first_done(0, 0), None);
        assert_eq!(requests.next_failing(), Some(failing));
        requests.failed(failing, SUCCESS);
        assert_eq!(requests.first_done(0, 0), Some(failing));
        let forgotten = requests.add(Request { forgotten: true, ..request(2) }).unwrap();
        requests.end(forgotten, SUCCESS, true);
        assert!(requests.get(forgotten).is_none());
    }
}
