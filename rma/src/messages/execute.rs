//! Execution of what other ranks want: the works of each, in their order.

use ropewalk_base::memory::{BufferTable, Change, Element, Job, Memory, Places, Slice, Update};
use ropewalk_net::Fault;

use super::hub::Hub;
use super::state::{Act, Moving, Operand, Work};
use super::verbs::{ACCUMULATE, GET, GET_ACCUMULATE, PUT, SWAP};
use super::wire::{Data, Item, Reason, Refused, Wanted};
use crate::epochs::LockKind;
use crate::error::Loss;
use crate::team::mail::Kind;

/// Data of one rank that are received at a time, and those of them that need a buffer here.
const RECEIVING_MAX: usize = 64;
const STAGED_MAX: usize = 4;
/// Results for one rank that are under way in messages of their own.
const ANSWERS_MAX: usize = 8;

/// What became of a work.
enum Step {
    Done,
    /// It waits; others may go on.
    Waits,
    /// It waits, and so does everything behind it.
    Stops,
    /// What follows in its message waits for the lock.
    Parks,
}

/// What waits before a work.
#[derive(Default)]
struct Before {
    any: bool,
    accumulates: bool,
}

impl Hub {
    /// Executes what can be executed now.
    pub fn advance_all(&mut self) {
        while let Some(rank) = self.ready.pop() {
            self.advance(rank);
        }
    }

    fn advance(&mut self, rank: u32) {
        let mut works = std::mem::take(&mut self.inbound[rank as usize].works);
        let mut before = Before::default();
        let mut at = 0;
        while at < works.len() && self.lost[rank as usize].is_none() {
            match self.step(rank, &mut works[at], &before) {
                Step::Waits => {
                    before.any = true;
                    before.accumulates |= matches!(works[at].act, Act::Update { .. });
                    at += 1;
                    continue;
                }
                Step::Stops => break,
                Step::Parks => {
                    let (window, message) = (works[at].window, works[at].message);
                    let behind = works.split_off(at + 1);
                    let rides = |it: &Work| it.window == window && it.message == message;
                    let (parked, others) = behind.into_iter().partition::<Vec<_>, _>(rides);
                    works.extend(others);
                    self.window(window).parked.insert(rank, parked);
                    self.park(message);
                }
                Step::Done => {}
            }
            if let Some(work) = works.remove(at) {
                self.release(work.message);
            }
        }
        // Works that were granted a lock meanwhile follow.
        let inbound = &mut self.inbound[rank as usize];
        works.append(&mut inbound.works);
        inbound.works = works;
        if self.lost[rank as usize].is_some() {
            self.drop_works(rank);
        }
    }

    fn step(&mut self, rank: u32, work: &mut Work, before: &Before) -> Step {
        let window = work.window;
        match &mut work.act {
            Act::Put { places, operand } => {
                self.receive(rank, window, work.serial, operand, Some(places));
                match operand {
                    Operand::Placed => Step::Done,
                    _ => self.store(rank, window, places, operand),
                }
            }
            Act::Get { places, wanted } => self.get(rank, window, places, *wanted),
            Act::Update { update, places, operand, wanted } => {
                self.receive(rank, window, work.serial, operand, None);
                let is_here = !matches!(operand, Operand::Awaited { .. } | Operand::Moving);
                let is_full = self.inbound[rank as usize].answers >= ANSWERS_MAX;
                if before.accumulates || !is_here || is_full && wanted.is_some() {
                    return Step::Waits;
                }
                self.reduce(rank, window, (*update, places), operand, *wanted);
                Step::Done
            }
            Act::Swap { element, expected, desired, places, wanted } => {
                if before.accumulates {
                    return Step::Waits;
                }
                self.swap(rank, window, (*element, *expected, *desired), places, *wanted);
                Step::Done
            }
            _ if before.any => Step::Stops,
            token => self.token_due(rank, window, token),
        }
    }

    /// A token, everything before which is done.
    fn token_due(&mut self, rank: u32, window: u32, token: &Act) -> Step {
        let Some(state) = self.windows.get_mut(&window) else {
            return self.token_too_late(rank, window, token);
        };
        match *token {
            Act::Lock { kind, rides } => return self.lock(rank, window, kind, rides),
            Act::Unlock { token } => match state.locks.release(rank) {
                Ok(granted) => {
                    self.tell(rank, &Item::Done { window, token });
                    granted.into_iter().for_each(|next| self.granted(window, next));
                }
                Err(why) => self.lose(rank, Loss::Protocol(why)),
            },
            Act::Flush { token } => self.tell(rank, &Item::Done { window, token }),
            Act::Complete => {
                let origin = &mut state.origins[rank as usize];
                origin.completes += 1;
            }
            Act::Notify { counter } => match state.counters.get_mut(counter as usize) {
                Some(count) => *count += 1,
                None => self.lose(rank, Loss::Protocol("a notice for a counter that there is not")),
            },
            _ => {}
        }
        Step::Done
    }

    /// A token for a window that is gone: all before it was refused.
    fn token_too_late(&mut self, rank: u32, window: u32, token: &Act) -> Step {
        match *token {
            _ if !self.is_gone(window) => {
                self.lose(rank, Loss::Protocol("a token for a window that is not there"));
            }
            Act::Lock { rides: false, .. } => self.tell(rank, &Item::Granted { window }),
            Act::Unlock { token } | Act::Flush { token } => {
                self.tell(rank, &Item::Done { window, token });
            }
            _ => {}
        }
        Step::Done
    }

    fn lock(&mut self, rank: u32, window: u32, kind: LockKind, rides: bool) -> Step {
        match self.window(window).locks.ask(rank, kind) {
            Ok(true) => {
                self.tell_of_death(window, rank);
                if !rides {
                    self.tell(rank, &Item::Granted { window });
                }
            }
            Ok(false) if rides => return Step::Parks,
            Ok(false) => {}
            Err(why) => self.lose(rank, Loss::Protocol(why)),
        }
        Step::Done
    }

    /// A rank has the lock: it hears whether another one died with it (R18).
    fn tell_of_death(&mut self, window: u32, rank: u32) {
        if self.window(window).locks.tells_of_death() {
            self.refuse(rank, Refused { window, ..Refused::of(Reason::OwnerDied) });
        }
    }

    /// A rank has the lock for which it waited.
    pub fn granted(&mut self, window: u32, rank: u32) {
        self.tell_of_death(window, rank);
        match self.window(window).parked.remove(&rank) {
            Some(works) => {
                self.inbound[rank as usize].works.extend(works);
                self.ready.push(rank);
            }
            None => self.tell(rank, &Item::Granted { window }),
        }
    }

    /// Posts the receive of data that come apart, if that is not done and there is room: into the window, if they lie there
    /// in one piece (`places`), else into a buffer.
    fn receive(
        &mut self,
        rank: u32,
        window: u32,
        serial: u64,
        operand: &mut Operand,
        places: Option<&Places>,
    ) {
        let Operand::Awaited { number, bytes } = *operand else { return };
        let inbound = &mut self.inbound[rank as usize];
        let direct = match places {
            Some(Places::One(slice)) => Some(*slice),
            _ => None,
        };
        if inbound.receiving >= RECEIVING_MAX || direct.is_none() && inbound.staged >= STAGED_MAX {
            return;
        }
        let memory = match direct {
            Some(slice) if !self.table.is_there(slice) => None,
            Some(slice) => self.memory(window, slice),
            None => Some((Memory::pooled(self.mail.buffer(bytes as usize)), None)),
        };
        let Some((memory, used)) = memory else {
            // The memory was detached or is gone: the data come to nothing, and the operation is refused.
            *operand = Operand::None;
            return self.drain(rank, &Data::Apart { number, bytes }, None);
        };
        let staged = direct.is_none();
        let Ok(token) = self.moving.insert(Moving::Operand { rank, serial, staged, used }) else {
            return self.moved(used);
        };
        let inbound = &mut self.inbound[rank as usize];
        inbound.receiving += 1;
        inbound.staged += usize::from(staged);
        *operand = Operand::Moving;
        self.mail.receive(rank, Kind::Data, number, memory, token.to_u64());
    }

    /// Data came for a work.
    pub fn operand_came(
        &mut self,
        rank: u32,
        (serial, staged): (u64, bool),
        outcome: Result<u64, Fault>,
        memory: Memory,
    ) {
        let expected = memory.len();
        let is_gone = outcome == Err(Fault::BadKey) && !staged;
        let came = match outcome {
            Ok(bytes) => bytes == expected,
            Err(Fault::Truncated) => false,
            Err(_) if is_gone => true,
            Err(fault) => return self.lose(rank, Loss::Session(fault)),
        };
        if !came {
            return self.lose(rank, Loss::Protocol("data of another length than was told"));
        }
        let inbound = &mut self.inbound[rank as usize];
        inbound.receiving -= 1;
        let work = inbound.works.iter_mut().find(|it| it.serial == serial);
        let Some(Work { act: Act::Put { operand, .. } | Act::Update { operand, .. }, .. }) = work
        else {
            return;
        };
        // Without data it is refused when its turn comes.
        *operand = if is_gone { Operand::None } else { Operand::Placed };
        if staged {
            match self.table.insert(memory) {
                Ok(buffer) => *operand = Operand::Staged(buffer, expected),
                Err(_) => return self.lose(rank, Loss::Session(Fault::Busy)),
            }
        }
        self.ready.push(rank);
    }

    /// The bytes of an operand; `None` where they are not here.
    fn source(operand: &Operand) -> Option<Slice> {
        match *operand {
            Operand::Here(slice) => Some(slice),
            Operand::Staged(buffer, len) => Some(Slice { buffer, offset: 0, len }),
            Operand::None => Some(Slice::NONE),
            _ => None,
        }
    }

    /// An operand was used.
    fn used(&mut self, rank: u32, operand: &Operand) {
        if let Operand::Staged(buffer, _) = *operand {
            self.table.remove(buffer);
            self.inbound[rank as usize].staged -= 1;
            // Data behind it may come now.
            self.ready.push(rank);
        }
    }

    fn store(&mut self, rank: u32, window: u32, places: &Places, operand: &Operand) -> Step {
        let Some(source) = Hub::source(operand) else { return Step::Waits };
        let job = Job { change: Change::Store, places: places.clone() };
        if self.table.apply(&job, source, None).is_err() {
            self.refuse_late(rank, window, PUT, None);
        }
        self.used(rank, operand);
        Step::Done
    }

    fn get(&mut self, rank: u32, window: u32, places: &Places, wanted: Wanted) -> Step {
        let (bytes, buffer) = match places {
            Places::One(slice) => (slice.len, slice.buffer),
            Places::Shaped { bytes, region, .. } => (*bytes, region.buffer),
        };
        if self.table.get(buffer).is_none() {
            self.refuse_late(rank, window, GET, Some(wanted));
            return Step::Done;
        }
        let Some(number) = wanted.apart else {
            self.get_short(rank, window, places, wanted);
            return Step::Done;
        };
        if self.inbound[rank as usize].answers >= ANSWERS_MAX {
            return Step::Waits;
        }
        let memory = match places {
            Places::One(slice) if !self.table.is_there(*slice) => None,
            Places::One(slice) => self.memory(window, *slice),
            Places::Shaped { .. } => {
                let mut buffer = self.mail.buffer(bytes as usize);
                let is_there = gather(&self.table, places, &mut buffer);
                is_there.then(|| (Memory::pooled(buffer), None))
            }
        };
        match memory {
            Some(memory) => self.answer(rank, number, memory),
            None => self.refuse_late(rank, window, GET, Some(wanted)),
        }
        Step::Done
    }

    /// A get whose result goes in a message with others.
    fn get_short(&mut self, rank: u32, window: u32, places: &Places, wanted: Wanted) {
        let (region, bytes) = match places {
            Places::One(slice) => (*slice, slice.len as usize),
            Places::Shaped { region, bytes, .. } => (*region, *bytes as usize),
        };
        let item = Item::result(wanted.fetch, bytes);
        if !self.table.is_fleeting(region) {
            return self.reply_with(rank, &item, bytes, |table, to| {
                gather(table, places, to);
            });
        }
        // A result that was begun cannot be taken back.
        let mut copy = vec![0; bytes];
        match gather(&self.table, places, &mut copy) {
            true => self.reply_with(rank, &item, bytes, |_, to| to.copy_from_slice(&copy)),
            false => self.refuse_late(rank, window, GET, Some(wanted)),
        }
    }

    fn swap(
        &mut self,
        rank: u32,
        window: u32,
        (element, expected, desired): (Element, [u8; 8], [u8; 8]),
        places: &Places,
        wanted: Wanted,
    ) {
        let change = Change::Swap { element, expected, desired };
        let job = Job { change, places: places.clone() };
        let bytes = element.shape().extent;
        match self.table.apply(&job, Slice::NONE, None) {
            Ok(was) => {
                let item = Item::result(wanted.fetch, bytes);
                self.reply_with(rank, &item, bytes, |_, to| to.copy_from_slice(&was[..bytes]));
                self.copied += bytes as u64;
            }
            Err(_) => self.refuse_late(rank, window, SWAP, Some(wanted)),
        }
    }

    /// Reduces an operand into the window. A result takes the place of the operand.
    fn reduce(
        &mut self,
        rank: u32,
        window: u32,
        (update, places): (Update, &Places),
        operand: &Operand,
        wanted: Option<Wanted>,
    ) {
        let memory_bytes = match places {
            Places::One(slice) => slice.len,
            Places::Shaped { bytes, .. } => *bytes,
        };
        let sent = update.count(memory_bytes as usize).map_or(0, |count| update.sent(count));
        let source = Hub::source(operand).unwrap_or(Slice::NONE);
        let mut own = None;
        if wanted.is_some() && source.len == 0 {
            own = self.table.insert(Memory::pooled(self.mail.buffer(sent))).ok();
        }
        let room = own.map_or(source, |buffer| Slice { buffer, offset: 0, len: sent as u64 });
        let job = Job { change: Change::Update(update), places: places.clone() };
        let applied = self.table.apply(&job, source, wanted.map(|_| room));
        let verb = if wanted.is_some() { GET_ACCUMULATE } else { ACCUMULATE };
        match (applied, wanted) {
            (Err(_), wanted) => self.refuse_late(rank, window, verb, wanted),
            (Ok(_), Some(wanted)) => self.send_result(rank, wanted, room),
            (Ok(_), None) => {}
        }
        if let Some(buffer) = own {
            self.table.remove(buffer);
        }
        self.used(rank, operand);
    }

    /// Sends a result that lies in a buffer of the table, in which nobody needs it any more.
    fn send_result(&mut self, rank: u32, wanted: Wanted, from: Slice) {
        let bytes = from.len as usize;
        let fill = |table: &BufferTable, to: &mut [u8]| {
            table.read(from, to);
        };
        match wanted.apart {
            None => self.reply_with(rank, &Item::result(wanted.fetch, bytes), bytes, fill),
            Some(number) => {
                let is_whole = self.table.get(from.buffer).is_some_and(|it| it.len() == from.len);
                let memory = match is_whole.then(|| self.table.remove(from.buffer)).flatten() {
                    Some(memory) => memory,
                    None => {
                        let mut buffer = self.mail.buffer(bytes);
                        fill(&self.table, &mut buffer);
                        Memory::pooled(buffer)
                    }
                };
                self.answer(rank, number, (memory, None));
            }
        }
    }

    /// An operation that was judged finds its window gone.
    fn refuse_late(&mut self, rank: u32, window: u32, verb: u8, wanted: Option<Wanted>) {
        let fetch = wanted.map_or(0, |it| it.fetch);
        self.refuse(rank, Refused { window, verb, fetch, ..Refused::of(Reason::Window) });
        if let Some(number) = wanted.and_then(|it| it.apart) {
            self.answer(rank, number, (Memory::empty(), None));
        }
    }
}

/// Copies the bytes of places, one after the other. False where some of them are gone.
fn gather(table: &BufferTable, places: &Places, to: &mut [u8]) -> bool {
    match places {
        Places::One(slice) => table.try_read(*slice, to).is_ok(),
        Places::Shaped { region, address, shape, count, from, .. } => {
            let mut done = 0;
            for piece in shape.pieces(*count, *from) {
                let bytes = (to.len() - done).min(piece.bytes as usize);
                if bytes == 0 {
                    return true;
                }
                let part = region.part((address + piece.offset) as u64, bytes as u64);
                if table.try_read(part, &mut to[done..done + bytes]).is_err() {
                    return false;
                }
                done += bytes;
            }
            true
        }
    }
}
