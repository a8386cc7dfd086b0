//! Progress within calls: completions are taken in, handlers are told, and threads wait.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_face_common::{Sleep, wait};
use ropewalk_net::endpoint::PeerEvent;
use ropewalk_net::{Awaited, Completed, PeerId};

use crate::abi::{Address, CONTINUE, FINISHED};
use crate::codes::*;
use crate::endpoint::{Ep, Handler, State};
use crate::errors;
use crate::requests::{Kind, Stage};

/// The length of a wait that a program means to be endless.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// The longest wait at a stretch: a precaution, on which nothing else depends.
const LOOK_AFTER: Duration = Duration::from_secs(10);
/// Handlers see no more of a message: longer ones are announced in MX, however long those are that leave at once here.
const SHOWN_BYTES_MAX: u64 = ropewalk_base::limits::EAGER_BYTES_SHORT as u64;

/// A time-out in milliseconds; `None` is endless.
pub fn deadline(ms: Option<u32>) -> Instant {
    let now = Instant::now();
    let limit = ms.map_or(FOREVER, |ms| Duration::from_millis(ms.into()));
    now.checked_add(limit).unwrap_or(now + LOOK_AFTER)
}

impl Ep {
    /// One round: a pass over the rails, completions, handlers. Leaves the state locked.
    pub fn progress(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.is_frozen() {
            return state;
        }
        self.gather(&mut state, true);
        self.settle(state)
    }

    /// The same without a pass, for calls that post.
    pub fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.is_frozen() {
            return state;
        }
        self.gather(&mut state, false);
        self.settle(state)
    }

    /// Takes completions in.
    fn gather(&self, state: &mut State, pass: bool) {
        let mut next = match pass {
            true => self.net.test(&self.main),
            false => self.net.take(&self.main),
        };
        self.take_events(state);
        let mut any = false;
        while let Some(completed) = next {
            any = true;
            self.ended(state, &completed);
            next = self.net.take(&self.main);
        }
        if any {
            self.announce();
        }
        state.arrivals_seen = self.net.arrivals();
    }

    /// Calls the handlers that are to be called.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        loop {
            if let Some(id) = state.requests.next_failing() {
                state = self.raise_for(state, id);
                continue;
            }
            let asked = state.handler.filter(|_| !state.is_frozen());
            let Some(handler) = asked.filter(|_| state.offers_seen != self.net.arrivals()) else {
                return state;
            };
            state = self.offer(state, handler);
            self.gather(&mut state, false);
        }
    }

    /// Tells the handler of errors about a request.
    fn raise_for<'a>(&'a self, state: MutexGuard<'a, State>, id: SlotId) -> MutexGuard<'a, State> {
        let Some(request) = state.requests.get(id) else { return state };
        let code = request.outcome.code;
        let text = match request.kind {
            Kind::Send => c"a send ended with an error",
            Kind::Receive => c"a receive ended with an error",
            Kind::Connect => c"a connect ended with an error",
        };
        let unreached = request.unreached;
        drop(state);
        let why = unreached.and_then(|peer| self.net.why_unreachable(peer));
        let with_why = why.map(|why| CString::new(format!("{}: {why}", text.to_string_lossy())));
        let with_why = with_why.and_then(Result::ok);
        let text = with_why.as_deref().unwrap_or(text);
        let code = errors::raise(self.error_handler(), text, code);
        let mut state = self.lock();
        state.requests.failed(id, code);
        self.announce();
        state
    }

    /// Asks the handler about all messages that nobody posted a receive for.
    fn offer<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut handler: Handler,
    ) -> MutexGuard<'a, State> {
        state.offers_seen = self.net.arrivals();
        loop {
            let mut bytes = std::mem::take(&mut state.offered);
            let Some(offered) = self.net.next_offer(&mut bytes) else {
                state.offered = bytes;
                return state;
            };
            self.take_events(&mut state);
            let message = offered.message;
            let source = self.source(&mut state, Some(message.peer));
            state.in_handler = Some(std::thread::current().id());
            drop(state);
            let data = match offered.is_whole && message.bytes <= SHOWN_BYTES_MAX {
                // Also of none, if that is all that there is.
                true => bytes.as_mut_ptr().cast::<c_void>(),
                false => std::ptr::null_mut(),
            };
            let context = std::ptr::with_exposed_provenance_mut(handler.context);
            let length = message.bytes as u32;
            // SAFETY: the function is the program's, with the pointer that came with it; the data is ours,
            // and has `length` bytes.
            let answer = unsafe { (handler.function)(context, source, message.bits, length, data) };
            state = self.lock();
            match answer {
                CONTINUE => self.net.end_offer(&offered, false),
                FINISHED => self.net.end_offer(&offered, true),
                other => {
                    eprintln!(
                        "libmyriexpress: a handler of unexpected messages returned {other}, which \
                         is not one of its values"
                    );
                    std::process::abort();
                }
            }
            state.in_handler = None;
            state.offered = bytes;
            self.announce();
            match state.handler.filter(|_| state.disabled == 0) {
                Some(next) => handler = next,
                None => {
                    // There may be more to ask about, later.
                    state.offers_seen = state.offers_seen.wrapping_sub(1);
                    return state;
                }
            }
        }
    }

    /// An operation ended.
    pub fn ended(&self, state: &mut State, completed: &Completed) {
        let id = SlotId::from_u64(completed.user);
        let source = match state.requests.get(id).map(|request| request.kind) {
            Some(Kind::Receive) => self.source(state, completed.peer),
            Some(Kind::Send) => Address::default(),
            // Taken back meanwhile.
            Some(Kind::Connect) | None => return,
        };
        let Some(request) = state.requests.get_mut(id) else { return };
        if request.stage != Stage::Pending {
            // It was cancelled, and says what it said then.
            return;
        }
        let outcome = &mut request.outcome;
        outcome.moved_bytes = completed.bytes as u32;
        if request.kind == Kind::Receive {
            outcome.source = source;
            outcome.match_info = completed.bits;
            outcome.message_bytes = completed.message_bytes as u32;
        }
        let cut = request.kind == Kind::Send && completed.bytes < completed.message_bytes;
        let code = match completed.outcome {
            _ if request.ending.is_some() => request.ending.unwrap_or_default(),
            Ok(()) if cut => TRUNCATED,
            Ok(()) => SUCCESS,
            Err(Fault::Truncated) => TRUNCATED,
            // With a known source, the fault means that the sender was forgotten.
            Err(Fault::Cancelled) if source != Address::default() => ABORTED,
            Err(Fault::Busy) => NO_RESOURCES,
            Err(fault) => self.lost(state, completed.peer, fault),
        };
        if completed.outcome.is_err()
            && matches!(code, UNREACHABLE | TIMEOUT | BAD_SESSION | ENDPOINT_CLOSED)
            && let Some(request) = state.requests.get_mut(id)
        {
            request.unreached = completed.peer;
        }
        // The caller of a cancel knows of it.
        state.requests.end(id, code, code != CANCELLED);
    }

    /// The code for a failed operation with a peer. Hosts that speak MXoE say whether an endpoint was closed,
    /// or is another one by now.
    fn lost(&self, state: &State, peer: Option<PeerId>, fault: Fault) -> Code {
        let partner = peer.and_then(|peer| state.partners.of_peer(peer));
        let partner = partner.and_then(|id| state.partners.get(id));
        match fault {
            Fault::Closed | Fault::PeerReset if !partner.is_some_and(|it| it.is_foreign) => {
                UNREACHABLE
            }
            Fault::Closed => ENDPOINT_CLOSED,
            Fault::PeerReset => BAD_SESSION,
            _ => UNREACHABLE,
        }
    }

    /// The address of who sent something.
    pub fn source(&self, state: &mut State, peer: Option<PeerId>) -> Address {
        let Some(peer) = peer else { return Address::default() };
        let found = state.partners.of_peer(peer).or_else(|| {
            let found = state.partners.of_peer(self.net.resolve(peer))?;
            state.partners.name(peer, found);
            Some(found)
        });
        found.map_or(Address::default(), |id| state.partners.address(self.place, id))
    }

    /// Takes note of sessions that ended, and of peers that turned out to be one.
    pub fn take_events(&self, state: &mut State) {
        if state.events_seen == self.net.event_count() {
            return;
        }
        let count = self.net.event_count();
        let expected = count - std::mem::replace(&mut state.events_seen, count);
        let mut taken = 0u64;
        while let Some(event) = self.net.next_event() {
            taken += 1;
            match event {
                PeerEvent::Up(peer) => self.foreign_up(state, peer),
                PeerEvent::KeyJudged { peer, key, right } => {
                    self.key_judged(state, peer, key, right);
                }
                PeerEvent::Aliased { alias, peer } => {
                    let known = state.partners.of_peer(alias);
                    if let Some(partner) = known.or_else(|| state.partners.of_peer(peer)) {
                        state.partners.name(alias, partner);
                        state.partners.name(peer, partner);
                    }
                }
                PeerEvent::Down(peer, fault) => {
                    if let Some(id) = state.partners.of_peer(peer) {
                        self.foreign_refusal(state, id, fault);
                        self.session_lost(state, id, Some(peer));
                    }
                }
            }
        }
        // One that came while we looked is counted already.
        state.events_seen += taken.saturating_sub(expected);
        if taken < expected {
            // More happened than is kept.
            for id in state.partners.all_up() {
                self.session_lost(state, id, None);
            }
        }
    }

    /// A session with a partner ended: unless there is another under another name, it is gone. A later session
    /// would be another life of the peer.
    fn session_lost(&self, state: &mut State, id: SlotId, gone: Option<PeerId>) {
        let names = state.partners.names_of(id);
        // A session that `gone` has by now is a later one.
        let is_other = |name: &PeerId| gone.is_none_or(|gone| !self.net.same_peer(gone, *name));
        let mut others = names.into_iter().filter(is_other);
        let other = others.find(|name| self.net.peer_rail(*name).is_some());
        let Some(partner) = state.partners.get_mut(id).filter(|partner| !partner.is_own) else {
            return;
        };
        if let Some(other) = other {
            partner.peer = Some(other);
            partner.is_foreign = self.net.foreign_name(other).is_some();
            return;
        }
        partner.is_up = false;
        self.connection_lost(state, id);
    }

    /// Waits until `find` finds something, at most until `deadline`. `None`: the time is over, or all waiters
    /// were woken.
    pub fn wait<T>(
        &self,
        deadline: Instant,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Code> {
        let wakeups = self.wakeups.load(Ordering::SeqCst);
        let seen = Cell::default();
        let look = |_: &mut Option<()>| {
            let (arrivals, events) = (self.net.arrivals(), self.net.event_count());
            let mut state = self.progress();
            if let Some(found) = find(&mut state) {
                return Some(Ok(found));
            }
            if state.is_handling() {
                return Some(Err(NOT_IN_HANDLER));
            }
            let version = self.version.load(Ordering::SeqCst);
            seen.set(SeenInVain { arrivals, events, version, is_frozen: state.is_frozen() });
            drop(state);
            self.is_closing.load(Ordering::SeqCst).then_some(Err(BAD_ENDPOINT))
        };
        let sleep = |deadline: Instant| {
            if self.wakeups.load(Ordering::SeqCst) != wakeups {
                return Sleep::Over;
            }
            self.sleep(deadline.min(Instant::now() + LOOK_AFTER), seen.get());
            Sleep::News(None)
        };
        wait(Some(deadline), look, sleep).transpose()
    }

    /// Sleeps until something is other than it was seen.
    fn sleep(&self, until: Instant, seen: SeenInVain) {
        let changed = || self.version.load(Ordering::SeqCst) != seen.version;
        let (arrivals, events) = (seen.arrivals, seen.events);
        let told = || self.net.arrivals() != arrivals || self.net.event_count() != events;
        let news = || changed() || told();
        if seen.is_frozen {
            self.election.rest(until, &changed);
        } else {
            let at_context =
                |limit| self.net.wait_ready(&self.main, Awaited::Program, limit, &news);
            self.election.sleep(until, &news, at_context);
        }
    }
}

/// The counts of an endpoint, and whether it was frozen, at a look that found nothing.
#[derive(Clone, Copy, Default)]
struct SeenInVain {
    arrivals: u64,
    events: u64,
    version: u64,
    is_frozen: bool,
}
