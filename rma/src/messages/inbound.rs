//! What other ranks sent: messages become works, which are executed in their order.
//!
//! Puts and gets of an origin may overtake each other. Accumulates of an origin never do, and a token waits for everything
//! before it.
//!
//! Invariants: an operation is judged as a whole before its first byte moves; one that is refused counts as done; a message
//! that makes no sense ends the dealings with its rank, and nothing else.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::memory::{Element, Memory, Operator, Places, Slice, Update};
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::slots::SlotId;
use ropewalk_net::Fault;

use super::hub::{Hub, PART_BYTES, TEAM};
use super::queue::Gate;
use super::state::Used;
use super::state::{Act, Held, Moving, Operand, WindowState, Work};
use super::verbs::{ACCUMULATE, GET, GET_ACCUMULATE, PUT, SWAP};
use super::wire::{Data, ITEM_BYTES_MAX, Item, Malformed, Place, Reader, Reason, Refused, Wanted};
use crate::error::Loss;
use crate::team::mail::{Kind, MESSAGE_BYTES};

/// Bytes of a result within a message, at most.
const RESULT_BYTES_MAX: u64 = (MESSAGE_BYTES - ITEM_BYTES_MAX) as u64;

/// An operation that is refused: why, and what is to be told.
type Judged<T> = Result<T, Refused>;

impl Hub {
    /// Takes a message apart.
    pub fn arrive(&mut self, rank: u32, buffer: PoolBuffer) {
        if self.lost[rank as usize].is_some() {
            return;
        }
        let mut reader = Reader::new(&buffer);
        let mut items = std::mem::take(&mut self.items);
        loop {
            match reader.next() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(why) => {
                    items.clear();
                    self.lose(rank, Loss::Protocol(why));
                    break;
                }
            }
        }
        let Ok(buffer) = self.table.insert(Memory::pooled(buffer)) else {
            return self.lose(rank, Loss::Session(Fault::Busy));
        };
        let Ok(message) = self.held.insert(Held { rank, buffer, uses: 1, is_parked: false }) else {
            return self.lose(rank, Loss::Session(Fault::Busy));
        };
        for item in items.drain(..) {
            if self.lost[rank as usize].is_some() {
                break;
            }
            if let Err(why) = self.take(rank, message, item) {
                self.lose(rank, Loss::Protocol(why));
            }
        }
        self.items = items;
        self.release(message);
        self.ready.push(rank);
    }

    fn take(&mut self, rank: u32, message: SlotId, item: Item) -> Result<(), Malformed> {
        match item {
            Item::Type { window, slot, descriptor } => {
                return self.learn(rank, message, window, slot, descriptor);
            }
            Item::Lock { window, kind, rides } => {
                self.queue_work(rank, message, window, Act::Lock { kind, rides });
            }
            Item::Unlock { window, token } => {
                self.queue_work(rank, message, window, Act::Unlock { token });
            }
            Item::Flush { window, token } => {
                self.queue_work(rank, message, window, Act::Flush { token });
            }
            Item::Complete { window } => self.queue_work(rank, message, window, Act::Complete),
            Item::Notify { window, counter } => {
                self.queue_work(rank, message, window, Act::Notify { counter });
            }
            Item::Result { fetch, bytes } => {
                let from = self.slice(message, bytes);
                return self.result(rank, fetch, from);
            }
            Item::Refused(refused) => self.refused(rank, refused),
            Item::Exchange { round, bytes } => {
                return self.exchange_came(rank, message, round, bytes);
            }
            Item::GaveUp { lost, call } => return self.gave_up(rank, call, lost),
            Item::Post { .. } | Item::Barrier { .. } | Item::Done { .. } | Item::Granted { .. } => {
                return self.token(rank, item);
            }
            Item::Nothing => {}
            operation => return self.operation(rank, message, operation),
        }
        Ok(())
    }

    fn queue_work(&mut self, rank: u32, message: SlotId, window: u32, act: Act) {
        if let Some(held) = self.held.get_mut(message) {
            held.uses += 1;
        }
        let inbound = &mut self.inbound[rank as usize];
        inbound.serial += 1;
        let serial = inbound.serial;
        inbound.works.push_back(Work { serial, window, message, act });
    }

    fn learn(
        &mut self,
        rank: u32,
        message: SlotId,
        window: u32,
        slot: u8,
        descriptor: Range<usize>,
    ) -> Result<(), Malformed> {
        let mut bytes = vec![0; descriptor.len()];
        self.table.read(self.slice(message, descriptor), &mut bytes);
        let made = Descriptor::decode(&bytes).map_err(|_| "a datatype is none")?;
        // A window that was freed meanwhile learns nothing; operations on it are refused.
        let Some(state) = self.windows.get_mut(&window) else { return Ok(()) };
        let types = &mut state.origins[rank as usize].types;
        *types.get_mut(usize::from(slot)).ok_or("a datatype has no such number")? =
            Some(Arc::new(made));
        Ok(())
    }

    fn token(&mut self, rank: u32, item: Item) -> Result<(), Malformed> {
        if let Item::Barrier { lost: Some(lost), .. } = item
            && lost >= self.size
        {
            return Err("a rank is lost that there is not");
        }
        if let Item::Barrier { domain: TEAM, lost } = item {
            self.domain.came(rank, lost);
            return Ok(());
        }
        let (Item::Post { window }
        | Item::Barrier { domain: window, .. }
        | Item::Done { window, .. }
        | Item::Granted { window }) = item
        else {
            return Ok(());
        };
        let is_gone = self.is_gone(window);
        let Some(state) = self.windows.get_mut(&window) else {
            return is_gone.then_some(()).ok_or("a token for a window that is not there");
        };
        let queue = &mut state.queues[rank as usize];
        match item {
            Item::Barrier { lost, .. } => state.domain.came(rank, lost),
            Item::Post { .. } => queue.posts += 1,
            Item::Done { token, .. } if token > queue.done && token <= queue.token => {
                queue.done = token;
            }
            Item::Granted { .. } if queue.gate == Gate::Asked => queue.gate = Gate::Open,
            _ => return Err("an answer to what was not asked"),
        }
        self.opened(window, rank);
        Ok(())
    }

    fn exchange_came(
        &mut self,
        rank: u32,
        message: SlotId,
        round: u64,
        bytes: Range<usize>,
    ) -> Result<(), Malformed> {
        let mut copy = vec![0; bytes.len()];
        self.table.read(self.slice(message, bytes), &mut copy);
        self.exchanges.came(rank, round, copy)
    }

    /// A rank has given a collective call up: it has no window of it, where this rank may have one.
    fn gave_up(&mut self, rank: u32, call: u64, lost: u32) -> Result<(), Malformed> {
        self.exchanges.gave_up(rank, call, lost)?;
        let is_of_it = |(_, state): &(&u32, &WindowState)| state.call == call;
        let of_it: Vec<u32> = self.windows.iter().filter(is_of_it).map(|(it, _)| *it).collect();
        of_it.into_iter().for_each(|window| self.miss(window, rank));
        Ok(())
    }

    /// Where an operation's bytes lie in a window.
    fn judge(&self, rank: u32, window: u32, place: &Place) -> Judged<Places> {
        let refused = |reason| Refused { window, ..Refused::of(reason) };
        let state = self.windows.get(&window).ok_or(refused(Reason::Window))?;
        let outside = |start: i128, end: i128| Refused {
            address: i64::try_from(start).unwrap_or(i64::MAX),
            bytes: u64::try_from(end - start).unwrap_or(u64::MAX),
            window_bytes: state.bytes,
            ..refused(Reason::Bounds)
        };
        let unattached = |start, end| Refused { reason: Reason::Unattached, ..outside(start, end) };
        let address = i128::from(place.address);
        let (start, end, total) = match place.layout {
            None => (address, address + i128::from(place.count), i128::from(place.count)),
            Some(slot) => {
                let known = state.origins[rank as usize].types.get(usize::from(slot));
                let shape = known.and_then(Option::as_ref).ok_or(refused(Reason::Type))?;
                let far = || outside(address, address + i128::from(i64::MAX));
                let bounds = shape.bounds(place.count).ok_or_else(far)?;
                let total = i128::from(shape.len()) * i128::from(place.count);
                (address + i128::from(bounds.start), address + i128::from(bounds.end), total)
            }
        };
        // An operation is judged as a whole, also where its type comes in sections.
        let (first, behind) = place.whole.map_or((start, end), |it| (it.0.into(), it.1.into()));
        let (start, end) = (start.min(first), end.max(behind));
        let ends = i128::from(place.from) + i128::from(place.bytes);
        let is_dynamic = state.regions.is_some();
        let most = if is_dynamic { i128::MAX } else { i128::from(state.bytes) };
        if start < 0 || end > most || ends > total {
            return Err(outside(start, end));
        }
        let all = Slice { buffer: state.memory, offset: 0, len: state.bytes };
        let (region, begin) = match state.regions {
            Some(_) => state.attached(start, end).ok_or(unattached(start, end))?,
            None => (all, 0),
        };
        let (address, bytes) = (place.address - begin, place.bytes);
        Ok(match place.layout {
            None => Places::One(region.part(address as u64 + place.from, bytes)),
            Some(slot) => {
                let shape = state.origins[rank as usize].types[usize::from(slot)].clone();
                Places::Shaped {
                    region,
                    address,
                    shape: shape.ok_or(refused(Reason::Type))?,
                    count: place.count,
                    from: place.from,
                    bytes,
                }
            }
        })
    }

    /// Judges an operation and queues it, or refuses it.
    fn operation(&mut self, rank: u32, message: SlotId, item: Item) -> Result<(), Malformed> {
        let (verb, window, place, data, wanted) = match item {
            Item::Put { window, place, ref data } => (PUT, window, place, data.clone(), None),
            Item::Get { window, place, wanted } => (GET, window, place, Data::None, Some(wanted)),
            Item::Update { window, place, ref data, wanted, .. } => {
                let verb = if wanted.is_some() { GET_ACCUMULATE } else { ACCUMULATE };
                (verb, window, place, data.clone(), wanted)
            }
            Item::Swap { window, place, wanted, .. } => {
                (SWAP, window, place, Data::None, Some(wanted))
            }
            _ => return Err("this is no operation"),
        };
        let judged = self.judge(rank, window, &place);
        let whole = place.layout.is_none();
        let act = match (item, judged) {
            (_, Err(refused)) => Err(refused),
            (Item::Put { .. }, Ok(places)) => {
                let operand = self.operand(message, &data, place.bytes, whole)?;
                let operand = operand.ok_or("a put has no data")?;
                Ok(Act::Put { places, operand })
            }
            (Item::Get { wanted, .. }, Ok(places)) => {
                check_result(&wanted, place.bytes, whole)?;
                Ok(Act::Get { places, wanted })
            }
            (Item::Update { element, operator, .. }, Ok(places)) => {
                self.judge_update(message, element, operator, places, (&place, &data, wanted))?
            }
            (Item::Swap { element, expected, desired, wanted, .. }, Ok(places)) => {
                check_result(&wanted, element.shape().extent as u64, whole)?;
                if place.bytes != element.shape().extent as u64 {
                    return Err("a swap of more or less than one element");
                }
                let is_comparable = element.is_comparable() && wanted.apart.is_none();
                is_comparable
                    .then_some(Act::Swap { element, expected, desired, places, wanted })
                    .ok_or(Refused::of(Reason::Operator))
            }
            _ => return Err("this is no operation"),
        };
        match act {
            Ok(act) => self.queue_work(rank, message, window, act),
            Err(refused) => {
                let fetch = wanted.map_or(0, |it| it.fetch);
                self.refuse(rank, Refused { window, verb, fetch, ..refused });
                self.drain(rank, &data, wanted);
            }
        }
        Ok(())
    }

    fn judge_update(
        &self,
        message: SlotId,
        element: Element,
        operator: Operator,
        places: Places,
        (place, data, wanted): (&Place, &Data, Option<Wanted>),
    ) -> Result<Judged<Act>, Malformed> {
        let Some(update) = Update::new(element, operator) else {
            return Ok(Err(Refused::of(Reason::Operator)));
        };
        let bytes = usize::try_from(place.bytes).map_err(|_| "an operation is too long")?;
        let count = update.count(bytes).ok_or("an accumulate of a part of an element")?;
        let sent = update.sent(count) as u64;
        if let Some(wanted) = &wanted {
            check_result(wanted, sent, false)?;
        }
        let operand = match self.operand(message, data, sent, false)? {
            Some(operand) => operand,
            None if operator == Operator::Nothing => Operand::None,
            None => return Err("an accumulate has no data"),
        };
        Ok(Ok(Act::Update { update, places, operand, wanted }))
    }

    /// The data of an operation; `None`: it has none. `direct`: they go to memory without a stop.
    fn operand(
        &self,
        message: SlotId,
        data: &Data,
        wanted: u64,
        direct: bool,
    ) -> Result<Option<Operand>, Malformed> {
        match data {
            Data::None => Ok(None),
            Data::Inline(range) if range.len() as u64 == wanted => {
                Ok(Some(Operand::Here(self.slice(message, range.clone()))))
            }
            &Data::Apart { number, bytes }
                if bytes == wanted && (direct || bytes <= PART_BYTES) =>
            {
                Ok(Some(Operand::Awaited { number, bytes }))
            }
            _ => Err("an operation has more or less data than it needs"),
        }
    }

    /// What a refused operation has under way ends.
    pub fn drain(&mut self, rank: u32, data: &Data, wanted: Option<Wanted>) {
        if let Data::Apart { number, .. } = data
            && let Ok(token) = self.moving.insert(Moving::Refused)
        {
            self.mail.receive(rank, Kind::Data, *number, Memory::empty(), token.to_u64());
        }
        if let Some(number) = wanted.and_then(|it| it.apart) {
            self.answer(rank, number, (Memory::empty(), None));
        }
    }

    /// Sends a result in a message of its own.
    pub fn answer(&mut self, rank: u32, number: u64, (memory, used): (Memory, Used)) {
        let Ok(token) = self.moving.insert(Moving::AnswerOut { rank, used }) else {
            self.moved(used);
            return self.lose(rank, Loss::Session(Fault::Busy));
        };
        self.inbound[rank as usize].answers += 1;
        self.mail.send_apart(rank, Kind::Answer, number, memory, token.to_u64());
    }

    /// The rank is lost: nothing that it wanted is done any more.
    pub fn drop_works(&mut self, rank: u32) {
        for work in std::mem::take(&mut self.inbound[rank as usize].works) {
            if let Act::Put { operand: Operand::Staged(buffer, _), .. }
            | Act::Update { operand: Operand::Staged(buffer, _), .. } = work.act
            {
                self.table.remove(buffer);
            }
            self.release(work.message);
        }
    }
}

/// `direct`: the result is sent from memory without a stop, where it goes apart.
fn check_result(wanted: &Wanted, bytes: u64, direct: bool) -> Result<(), Malformed> {
    let most = match (wanted.apart, direct) {
        (None, _) => RESULT_BYTES_MAX,
        (Some(_), true) => u64::MAX,
        (Some(_), false) => PART_BYTES,
    };
    if bytes <= most { Ok(()) } else { Err("a result is longer than such results may be") }
}
