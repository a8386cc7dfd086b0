//! Operations on memory that is mapped here: this rank loads and stores it by itself, within the call.
//!
//! Such an operation is complete when it is done: nothing of it is under way. Its place in an epoch is that of any other: where
//! the gate is closed it waits in its lane, and is done when the gate opens. Tokens and locks travel by frames all the same; they
//! leave after the stores before them, and come before the loads behind them.
//!
//! Invariant: whether an element is updated here or by the target's executor depends on its length and its address alone, so
//! that accumulates of one element keep their order.

use ropewalk_base::descriptor::Piece;
use ropewalk_base::memory::{Cells, Change, Memory, Operator, Update, Updater};
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::verb::{RemoteLayout, Strided};
use ropewalk_net::{Atomic, Direction};

use super::state::{Prepared, What};
use crate::messages::hub::Hub;
use crate::operation::{Destination, Operation, Source, Verb};

/// Bytes of a short update, whose elements lie in registers and the nearest lines of the stack.
const SHORT_BYTES: usize = 64;
/// Bytes of elements of longer ones that are combined at a time, in buffers on the stack, which are zeroed first.
const FEW_BYTES: usize = 512;
const PART_BYTES: usize = 4096;
/// Flushes that find nothing to do between two looks at other windows, whose ranks may wait for this one.
const IDLE_FLUSHES_MAX: u32 = 64;

impl Hub {
    /// Does an operation, if its memory is mapped, its gate is open and nothing is before it. False: it has to be prepared.
    pub(super) fn do_at_once(&mut self, window: u32, operation: &Operation<'_>) -> bool {
        let remote = self.remote(window);
        let (rank, number) = (operation.rank, operation.rank as usize);
        let Some(cells) = &remote.mapped[number] else { return false };
        if !remote.lanes[number].queue.is_empty() || !remote.is_open(rank) {
            return false;
        }
        let updaters = &mut remote.updaters;
        // Memory that is gone is refused as for any other rank.
        let is_there = |it: Piece| is_there(cells, operation.address + it.offset, it.bytes);
        let copies = matches!(operation.verb, Verb::Put(_) | Verb::Get(_));
        if copies && cells.is_fleeting() && !operation.pieces().all(is_there) {
            return false;
        }
        let copied = match &operation.verb {
            Verb::Put(source) => {
                put(cells, operation, source);
                source.data_bytes()
            }
            Verb::Get(destination) => {
                get(cells, operation, destination);
                destination.data_bytes()
            }
            Verb::Update { update, source, result, .. } => {
                let Some(updater) = updaters.of(number, cells) else { return false };
                let operands = (source, result.as_ref());
                let Some(copied) = update_run((updater, cells), operation, *update, operands)
                else {
                    return false;
                };
                copied
            }
            Verb::Swap { element, expected, desired, result } => {
                let offset = operation.datatype.run(true, 1).unwrap_or(0);
                let at = (operation.address + offset) as usize;
                let swap = |updater: &mut Updater| {
                    updater.compare_swap(cells, at, *element, *expected, *desired)
                };
                let Some(before) = updaters.of(number, cells).and_then(swap) else {
                    return false;
                };
                result.scatter(0, &before[..element.shape().extent]);
                element.shape().extent as u64
            }
        };
        self.copied += copied;
        true
    }

    /// Does an access that was prepared. Gives it back where the target has to.
    pub(super) fn do_mapped(&mut self, window: u32, rank: u32, next: Prepared) -> Option<Prepared> {
        let Some(cells) = self.remote(window).mapped[rank as usize].clone() else {
            return Some(next);
        };
        if cells.is_fleeting() && !are_there(&cells, &next) {
            return Some(next);
        }
        let Prepared { what, memory, note } = next;
        let bytes = memory.len();
        let (value, memory) = match what {
            What::Access(way, layout) => {
                access(&cells, way, &layout, &memory);
                (0, memory)
            }
            // The bytes are there before the notice leaves.
            What::Notify { at, raise, .. } => {
                access(&cells, Direction::Put, &RemoteLayout::At(at), &memory);
                self.copied += bytes;
                let what = self.remote(window).notice(rank, raise);
                return Some(Prepared { what, memory: Memory::empty(), note });
            }
            What::Atomic { at, atomic: Atomic { change, token: false, .. } } => {
                let updater = self.remote(window).updaters.of(rank as usize, &cells);
                match updater.and_then(|it| one((it, &cells), at, change)) {
                    Some(before) => (u64::from_le_bytes(before), memory),
                    None => return Some(Prepared { what, memory, note }),
                }
            }
            What::Update { remote: RemoteLayout::At(at), update, fetch } => {
                let Some(buffer) = memory.into_pooled() else {
                    unreachable!("elements of an update lie in a buffer of the pool")
                };
                let many = match self.remote(window).updaters.of(rank as usize, &cells) {
                    Some(updater) => update_many((updater, &cells), at, update, fetch, buffer),
                    None => (false, buffer),
                };
                match many {
                    (true, buffer) => (0, Memory::pooled(buffer)),
                    (false, buffer) => {
                        return Some(Prepared { what, memory: Memory::pooled(buffer), note });
                    }
                }
            }
            What::Atomic { .. } | What::Reduce(_) | What::Update { .. } | What::Records => {
                return Some(Prepared { what, memory, note });
            }
        };
        self.copied += bytes;
        self.end_access(window, rank, &note, (Ok(()), value), memory);
        None
    }

    /// Whether a flush has nothing to wait for at some ranks, and nothing to tell.
    pub(super) fn is_at_rest(&mut self, window: u32, ranks: &[u32], local: bool) -> bool {
        let state = &self.windows[&window];
        let is_told = state.refused == 0;
        let is_here = |rank: &u32| {
            let rank = *rank as usize;
            self.lost[rank].is_none() && !state.missing[rank]
        };
        if !is_told || !ranks.iter().all(is_here) {
            return false;
        }
        let remote = self.remote(window);
        let rests = |rank: &u32| {
            let lane = &remote.lanes[*rank as usize];
            let is_over = if local { lane.is_local() } else { lane.is_flushed() };
            is_over && remote.mapped[*rank as usize].is_some()
        };
        if !ranks.iter().all(rests) {
            return false;
        }
        remote.idle_flushes = (remote.idle_flushes + 1) % IDLE_FLUSHES_MAX;
        remote.idle_flushes != 0
    }
}

fn is_there(cells: &Cells, at: i64, bytes: u64) -> bool {
    cells.is_there(at as usize, bytes as usize)
}

/// Whether all bytes are there that an access reads or writes here.
#[cold]
fn are_there(cells: &Cells, next: &Prepared) -> bool {
    let mut left = next.memory.len();
    let mut is_there = |at: i64, bytes: u64| {
        let bytes = bytes.min(left);
        left -= bytes;
        is_there(cells, at, bytes)
    };
    match &next.what {
        What::Access(_, RemoteLayout::At(at)) | What::Notify { at, .. } => {
            is_there(*at as i64, u64::MAX)
        }
        What::Access(_, RemoteLayout::List(list)) => {
            list.iter().all(|it| is_there(it.offset as i64, it.len))
        }
        What::Access(_, RemoteLayout::Strided(Strided { shape, address, count, from })) => {
            shape.pieces(*count, *from).all(|it| is_there(address + it.offset, it.bytes))
        }
        _ => true,
    }
}

/// Walks over two lists of pieces that have as many bytes: gives the offset in each, and how many bytes lie there.
fn walk(
    mut one: impl Iterator<Item = Piece>,
    mut other: impl Iterator<Item = Piece>,
    mut each: impl FnMut(i64, i64, usize),
) {
    let nothing = Piece { offset: 0, bytes: 0 };
    let (mut a, mut b) = (nothing, nothing);
    loop {
        if a.bytes == 0 {
            let Some(next) = one.next() else { return };
            a = next;
        }
        if b.bytes == 0 {
            let Some(next) = other.next() else { return };
            b = next;
        }
        let bytes = a.bytes.min(b.bytes);
        each(a.offset, b.offset, bytes as usize);
        for piece in [&mut a, &mut b] {
            (piece.offset, piece.bytes) = (piece.offset + bytes as i64, piece.bytes - bytes);
        }
    }
}

fn put(cells: &Cells, operation: &Operation<'_>, source: &Source<'_>) {
    if let (Some(to), Some(from)) = (operation.only(), source.only()) {
        let bytes = source.data_bytes() as usize;
        return source.copy_to(from, cells, (operation.address + to) as usize, bytes);
    }
    walk(operation.pieces(), source.pieces(), |to, from, bytes| {
        source.copy_to(from, cells, (operation.address + to) as usize, bytes);
    });
}

fn get(cells: &Cells, operation: &Operation<'_>, to: &Destination<'_>) {
    let copy = |from: i64, own: i64, bytes: usize| {
        let (from, own) = ((operation.address + from) as usize, (to.at as i64 + own) as usize);
        cells.copy(from, to.cells, own, bytes).expect("all data were judged");
    };
    match (operation.only(), to.only()) {
        (Some(from), Some(own)) => copy(from, own, to.data_bytes() as usize),
        _ => walk(operation.pieces(), to.pieces(), copy),
    }
}

/// An update of elements that lie without gaps at the target, and here without gaps or few. Returns the bytes that it copied.
fn update_run(
    at_target: (&mut Updater, &Cells),
    operation: &Operation<'_>,
    update: Update,
    (source, result): (&Source<'_>, Option<&Destination<'_>>),
) -> Option<u64> {
    let offset = operation.datatype.run(true, operation.count)?;
    let elements = operation.datatype.elements()?.checked_mul(operation.count)?;
    let elements = usize::try_from(elements).ok()?;
    let at = (operation.address + offset) as usize;
    let takes = update.operator() != Operator::Nothing;
    let sent = elements.checked_mul(update.sent(1))?;
    let operands = (takes.then_some(source), result);
    if sent <= SHORT_BYTES {
        update_parts::<SHORT_BYTES>(at_target, (at, elements), update, operands)?;
    } else {
        let (updater, cells) = at_target;
        if let (Some(source), None) = operands
            && let Some(from) = source.only()
            && source.combine_at(from, (updater, cells), (at, elements), update).is_some()
        {
            return Some(sent as u64);
        }
        let has_gaps = operands.0.is_some_and(|it| it.only().is_none())
            || result.is_some_and(|it| it.only().is_none());
        if has_gaps {
            return None;
        }
        let at_target = (updater, cells);
        match sent <= FEW_BYTES {
            true => update_parts::<FEW_BYTES>(at_target, (at, elements), update, operands)?,
            false => update_parts::<PART_BYTES>(at_target, (at, elements), update, operands)?,
        }
    }
    Some(sent as u64 * (u64::from(takes) + u64::from(result.is_some())))
}

/// Updates elements, as many at a time as a buffer of `BYTES` has room for. `None`: the target has to do it; nothing was changed.
fn update_parts<const BYTES: usize>(
    (updater, cells): (&mut Updater, &Cells),
    (at, elements): (usize, usize),
    update: Update,
    (source, result): (Option<&Source<'_>>, Option<&Destination<'_>>),
) -> Option<()> {
    let (mut own, mut before) = ([0; BYTES], [0; BYTES]);
    let most = BYTES / update.extent();
    let mut done = 0;
    loop {
        let many = most.min(elements - done);
        let (first, bytes) = (update.sent(done), update.sent(many));
        let own = source.map_or(&[][..], |source| {
            source.gather(first as u64, &mut own[..bytes]);
            &own[..bytes]
        });
        let fetched = result.map(|_| &mut before[..bytes]);
        // All parts are aligned alike: the first one is refused, or none is.
        updater.update(cells, at + done * update.extent(), many, update, own, fetched)?;
        if let Some(result) = result {
            result.scatter(first as u64, &before[..bytes]);
        }
        done += many;
        if done == elements {
            return Some(());
        }
    }
}

/// A put or a get, of data that lie in a memory.
fn access(cells: &Cells, way: Direction, layout: &RemoteLayout, memory: &Memory) {
    let mut done = 0;
    let mut copy = |at: u64, bytes: u64| {
        let moved = match way {
            Direction::Put => cells.fill(at as usize, memory, done, bytes as usize),
            Direction::Get => cells.drain(at as usize, memory, done, bytes as usize),
        };
        moved.expect("the target's bounds were judged");
        done += bytes;
    };
    match layout {
        RemoteLayout::At(at) => copy(*at, memory.len()),
        RemoteLayout::List(list) => list.iter().for_each(|it| copy(it.offset, it.len)),
        RemoteLayout::Strided(Strided { shape, address, count, from }) => {
            let mut left = memory.len();
            for piece in shape.pieces(*count, *from) {
                let bytes = piece.bytes.min(left);
                if bytes == 0 {
                    return;
                }
                copy((address + piece.offset) as u64, bytes);
                left -= bytes;
            }
        }
    }
}

/// A change of one element; what it was before.
fn one((updater, cells): (&mut Updater, &Cells), at: u64, change: Change) -> Option<[u8; 8]> {
    let mut before = [0; 8];
    match change {
        Change::One { update, operand } => {
            let sent = update.sent(1);
            let before = Some(&mut before[..sent]);
            updater.update(cells, at as usize, 1, update, &operand[..sent], before)?;
        }
        Change::Swap { element, expected, desired } => {
            before = updater.compare_swap(cells, at as usize, element, expected, desired)?;
        }
        Change::Store | Change::Records | Change::Update(_) => return None,
    }
    Some(before)
}

/// An update of elements in the first half of a buffer, of which the second half takes what they were; of all of it where
/// nothing is fetched, or nothing is combined. False: the target has to do it.
fn update_many(
    (updater, cells): (&mut Updater, &Cells),
    at: u64,
    update: Update,
    fetch: bool,
    mut buffer: PoolBuffer,
) -> (bool, PoolBuffer) {
    let reads_only = update.operator() == Operator::Nothing;
    let bytes = if fetch && !reads_only { buffer.len() / 2 } else { buffer.len() };
    let count = bytes / update.sent(1);
    let done = match (fetch, reads_only) {
        (false, _) => updater.update(cells, at as usize, count, update, &buffer, None),
        (true, true) => updater.update(cells, at as usize, count, update, &[], Some(&mut buffer)),
        (true, false) => {
            let (own, before) = buffer.split_at_mut(bytes);
            updater.update(cells, at as usize, count, update, own, Some(before))
        }
    };
    (done.is_some(), buffer)
}
