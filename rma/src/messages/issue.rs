//! Operations of ours: each becomes items of the message that is being filled for its target.
//!
//! Data up to the eager threshold are copied once, into that message. Longer ones go in messages of their own: from memory to
//! memory where both sides are without gaps, else in parts.

use std::sync::Arc;

use ropewalk_base::memory::{Memory, Operator, Places, Slice};

use super::hub::{Hub, PART_BYTES};
use super::queue::Apart;
use super::state::{Apart as Awaited, Fetch, Moving};
use super::wire::{Data, ITEM_BYTES_MAX, Item, Place, Wanted};
use crate::error::Error;
use crate::operation::{Bytes, Destination, Operation, Source, Verb};
use crate::team::mail::{Kind, MESSAGE_BYTES};
use crate::ticket::Ticket;
use crate::types::Travelling;

/// Parts of data that are copied, for a target without gaps.
const COPY_BYTES: u64 = 1 << 20;

/// Where an operation goes, and who asks.
struct Way<'a> {
    window: u32,
    operation: &'a Operation<'a>,
    ticket: Option<&'a Arc<Ticket>>,
    /// The target's bytes lie without gaps, so far from its address.
    run: Option<i64>,
    /// The target's bytes with the padding of pairs.
    padded: bool,
    /// The type is too long to travel: from the first byte of all instances to behind the last one.
    whole: Option<(i64, i64)>,
    eager_bytes: u64,
}

impl Way<'_> {
    /// The target's instances in parts that travel; without gaps they are one, of bytes.
    fn travel(&self, tell: impl FnMut(Travelling<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let Operation { datatype, address, count, .. } = *self.operation;
        datatype.travel(self.padded, address, count, tell)
    }
}

impl<'a> Source<'a> {
    /// The cells that all data lie in without gaps, and where; of data that may be sent from there.
    fn run(&self) -> Option<(&'a ropewalk_base::memory::Cells, usize)> {
        let Bytes::Cells(cells, at) = self.bytes else { return None };
        let offset = self.datatype.run(false, self.count)?;
        Some((cells, (at as i64 + offset) as usize))
    }
}

impl Hub {
    /// Adds an operation to those that wait for its target; it may leave at once.
    ///
    /// # Errors
    /// The target is lost, or there is no room.
    pub fn issue(
        &mut self,
        window: u32,
        operation: &Operation<'_>,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<(), Error> {
        if let Some(error) = self.lost(window, operation.rank) {
            return Err(error);
        }
        let padded = matches!(operation.verb, Verb::Update { .. } | Verb::Swap { .. });
        let run = operation.datatype.run(padded, operation.count);
        let eager_bytes = self.window(window).eager_bytes;
        let whole = whole(operation, padded);
        let way = Way { window, operation, ticket, run, padded, whole, eager_bytes };
        let bytes = match operation.verb {
            Verb::Put(source) => self.issue_put(&way, &source)?,
            Verb::Get(destination) => self.issue_get(&way, &destination)?,
            Verb::Update { source, result, .. } => {
                self.issue_update(&way, &source, result.as_ref())?
            }
            Verb::Swap { .. } => self.issue_swap(&way)?,
        };
        let queue = &mut self.window(window).queues[operation.rank as usize];
        if queue.count(bytes) {
            queue.is_urgent = true;
            self.push(window, operation.rank);
            self.progress();
        }
        Ok(())
    }

    fn issue_put(&mut self, way: &Way<'_>, source: &Source<'_>) -> Result<u64, Error> {
        way.travel(|part| {
            let is_eager = part.bytes <= way.eager_bytes;
            let most = match (way.run, source.run()) {
                _ if is_eager => part.bytes,
                (None, _) => PART_BYTES,
                (Some(_), Some(_)) => part.bytes,
                (Some(_), None) => COPY_BYTES,
            };
            for from in (0..part.bytes).step_by(most as usize) {
                let bytes = most.min(part.bytes - from);
                let place = self.place(way, &part, from, bytes);
                let from = part.from + from;
                let data = self.data(way, source, (from, bytes), is_eager)?;
                let item = |data| Item::Put { window: way.window, place, data };
                self.add(way, source, from, data, item);
            }
            Ok(())
        })?;
        self.queue(way).is_unflushed = true;
        Ok(source.data_bytes())
    }

    fn issue_get(&mut self, way: &Way<'_>, result: &Destination<'_>) -> Result<u64, Error> {
        let to_run = result.datatype.run(false, result.count);
        way.travel(|part| {
            let is_eager = part.bytes <= way.eager_bytes;
            let goes_whole = is_eager || way.run.and(to_run).is_some();
            let most = if goes_whole { part.bytes } else { PART_BYTES };
            for from in (0..part.bytes).step_by(most as usize) {
                let bytes = most.min(part.bytes - from);
                let place = self.place(way, &part, from, bytes);
                let wanted = self.want(way, result, (part.from + from, bytes), is_eager)?;
                self.item(way, 0).add(&Item::Get { window: way.window, place, wanted });
            }
            Ok(())
        })?;
        Ok(result.data_bytes())
    }

    fn issue_update(
        &mut self,
        way: &Way<'_>,
        source: &Source<'_>,
        result: Option<&Destination<'_>>,
    ) -> Result<u64, Error> {
        let Verb::Update { update, element, .. } = way.operation.verb else { return Ok(0) };
        let (extent, sent) = (update.extent() as u64, update.sent(1) as u64);
        let operator = update.operator();
        way.travel(|part| {
            let (first, total) = (part.from / extent, part.bytes / extent);
            let is_eager = total * sent <= way.eager_bytes;
            let most = if is_eager { total } else { PART_BYTES / extent };
            for from in (0..total).step_by(most as usize) {
                let count = most.min(total - from);
                let place = self.place(way, &part, from * extent, count * extent);
                let span = ((first + from) * sent, count * sent);
                let data = match operator {
                    Operator::Nothing => Data::None,
                    _ => self.data(way, source, span, is_eager)?,
                };
                let wanted = match result {
                    Some(result) => Some(self.want(way, result, span, is_eager)?),
                    None => None,
                };
                let window = way.window;
                let item = |data| Item::Update { window, element, operator, place, data, wanted };
                self.add(way, source, span.0, data, item);
            }
            Ok(())
        })?;
        // A result says that its operation is done.
        self.queue(way).is_unflushed |= result.is_none();
        Ok(way.operation.datatype.size() * way.operation.count)
    }

    fn issue_swap(&mut self, way: &Way<'_>) -> Result<u64, Error> {
        let Verb::Swap { element, expected, desired, result } = way.operation.verb else {
            return Ok(0);
        };
        let bytes = element.shape().extent as u64;
        way.travel(|part| {
            let place = self.place(way, &part, 0, bytes);
            let wanted = self.want(way, &result, (0, bytes), true)?;
            let window = way.window;
            let item = Item::Swap { window, element, place, expected, desired, wanted };
            self.item(way, 0).add(&item);
            Ok(())
        })?;
        Ok(bytes)
    }

    fn queue(&mut self, way: &Way<'_>) -> &mut super::queue::Queue {
        &mut self.window(way.window).queues[way.operation.rank as usize]
    }

    /// The message for an item with so many bytes of data.
    fn item(&mut self, way: &Way<'_>, data: usize) -> &mut super::queue::Parcel {
        let Hub { windows, mail, .. } = self;
        let state = windows.get_mut(&way.window).expect("the window is there until it is freed");
        let queue = &mut state.queues[way.operation.rank as usize];
        queue.parcel(ITEM_BYTES_MAX + data, || mail.buffer(MESSAGE_BYTES))
    }

    /// The place of some bytes of a part; the target is told of its type first, where it does not know it.
    fn place(&mut self, way: &Way<'_>, part: &Travelling<'_>, from: u64, bytes: u64) -> Place {
        let Travelling { shape, number, address, count, .. } = *part;
        if let Some(offset) = way.run {
            let (address, count) = (address + offset, part.bytes);
            return Place { address, layout: None, count, from, bytes, whole: None };
        }
        let (slot, is_known) = self.queue(way).slot(number, way.padded);
        if !is_known {
            let encoded = shape.encode();
            let parcel = self.item(way, encoded.len());
            let window = way.window;
            parcel.add(&Item::Type { window, slot, descriptor: 0..encoded.len() });
            parcel.data(encoded.len()).copy_from_slice(&encoded);
        }
        Place { address, layout: Some(slot), count, from, bytes, whole: way.whole }
    }

    /// How the data of a part go.
    fn data(
        &mut self,
        way: &Way<'_>,
        source: &Source<'_>,
        (from, bytes): (u64, u64),
        is_eager: bool,
    ) -> Result<Data, Error> {
        if is_eager {
            return Ok(Data::Inline(0..bytes as usize));
        }
        let (window, rank) = (way.window, way.operation.rank);
        let lent = source.run().map(|(cells, at)| {
            let at = at + from as usize;
            cells.memory(at..at + bytes as usize).expect("all data were judged")
        });
        let (counts, memory) = match lent {
            Some(memory) => (true, memory),
            None => {
                let mut buffer = self.mail.buffer(bytes as usize);
                source.gather(from, &mut buffer);
                self.copied += bytes;
                (false, Memory::pooled(buffer))
            }
        };
        // Copied data are the caller's again at once.
        let ticket = way.ticket.filter(|_| counts).cloned();
        let moving = Moving::Out { window, rank, counts, ticket: ticket.clone() };
        let token = self.moving.insert(moving).map_err(|_| Error::Room("one more operation"))?;
        if let Some(ticket) = ticket {
            ticket.add();
        }
        let number = self.number();
        let queue = self.queue(way);
        queue.sends += u32::from(counts);
        let parcel = self.item(way, 0);
        parcel.apart.push(Apart { number, memory, token: token.to_u64() });
        Ok(Data::Apart { number, bytes })
    }

    /// Adds an item with its data, where they go in its message.
    fn add(
        &mut self,
        way: &Way<'_>,
        source: &Source<'_>,
        from: u64,
        data: Data,
        item: impl FnOnce(Data) -> Item,
    ) {
        let inline = match &data {
            Data::Inline(range) => range.len(),
            _ => 0,
        };
        let parcel = self.item(way, inline);
        parcel.add(&item(data));
        source.gather(from, parcel.data(inline));
        self.copied += inline as u64;
    }

    /// Registers that a part of a result is awaited.
    fn want(
        &mut self,
        way: &Way<'_>,
        result: &Destination<'_>,
        (from, bytes): (u64, u64),
        is_eager: bool,
    ) -> Result<Wanted, Error> {
        let (window, rank) = (way.window, way.operation.rank);
        let room = || Error::Room("one more operation");
        let memory = self.table.insert(result.cells.all()).map_err(|_| room())?;
        let region = Slice { buffer: memory, offset: 0, len: result.cells.len() as u64 };
        let run = result.datatype.run(false, result.count);
        let at = run.map(|offset| (result.at as i64 + offset) as u64 + from);
        let places = match at {
            Some(at) => Places::One(region.part(at, bytes)),
            None => Places::Shaped {
                region,
                address: result.at as i64,
                shape: result.datatype.descriptor().clone(),
                count: result.count,
                from,
                bytes,
            },
        };
        let direct = at.is_some();
        let apart = (!is_eager).then_some(Awaited { direct, empty: false, refused: false });
        let ticket = way.ticket.cloned();
        let fetch = Fetch { window, rank, ticket: ticket.clone(), memory, places, bytes, apart };
        let fetch = self.fetches.insert(fetch).map_err(|_| room())?.to_u64();
        self.queue(way).fetches += 1;
        if let Some(ticket) = ticket {
            ticket.add();
        }
        if is_eager {
            return Ok(Wanted { fetch, apart: None });
        }
        let number = self.number();
        let into = match at {
            Some(at) => result.cells.memory(at as usize..(at + bytes) as usize),
            None => Ok(Memory::pooled(self.mail.buffer(bytes as usize))),
        };
        let into = into.expect("all data were judged");
        let token = self.moving.insert(Moving::Answer { fetch }).map_err(|_| room())?;
        self.mail.receive(rank, Kind::Answer, number, into, token.to_u64());
        Ok(Wanted { fetch, apart: Some(number) })
    }
}

/// The range of an operation whose type travels in sections: the target judges each by it.
fn whole(operation: &Operation<'_>, padded: bool) -> Option<(i64, i64)> {
    let Operation { datatype, address, count, .. } = *operation;
    let of = if padded { datatype.padded() } else { datatype.descriptor() };
    if of.may_travel() {
        return None;
    }
    // Every target refuses a type that reaches farther than addresses do.
    let bounds = of.bounds(count).unwrap_or(i64::MIN..i64::MAX);
    Some((address.saturating_add(bounds.start), address.saturating_add(bounds.end)))
}
