//! Operations of ours become remote accesses: puts and gets one for each part of their data, as the target's datatype lies, or
//! lists of segments where instances may overlap; and updates of runs of elements.

use std::convert::Infallible;
use std::sync::Arc;

use ropewalk_base::limits::LOCKED_PUT_BYTES_MAX;
use ropewalk_base::memory::{Change, Memory, Operator, Update};
use ropewalk_base::verb::{RemoteLayout, RemoteSegment, Strided};
use ropewalk_net::{Atomic, Direction};

use super::posting::Next;
use super::state::Again;
use super::state::{Landing, Note, Place, Prepared, Reduction, Round, What};
use crate::error::Error;
use crate::messages::hub::Hub;
use crate::messages::verbs::{ACCUMULATE, GET, GET_ACCUMULATE, PUT, SWAP};
use crate::messages::wire::{Reason, Refused};
use crate::operation::{Bytes, Destination, Operation, Source, Verb};
use crate::ticket::Ticket;
use crate::types::Travelling;

/// Segments of a list. A peer keeps four times as many operations apart.
const SEGMENTS: usize = 256;
/// Bytes of a part, where data are copied.
const PART_BYTES: u64 = 256 << 10;
/// Data of the user's cells are copied up to so many bytes: then they are the user's again at once.
const COPIED_BYTES: u64 = 16 << 10;

/// An operation, and what its accesses have in common.
struct Issue<'a> {
    operation: &'a Operation<'a>,
    ticket: Option<&'a Arc<Ticket>>,
    verb: u8,
    address: i64,
    bytes: u64,
    /// The window is dynamic.
    is_dynamic: bool,
    /// A put that goes in a frame of its own: a notice goes with it.
    is_alone: bool,
    round: Arc<Round>,
}

impl Issue<'_> {
    fn note(&self, landing: Landing, borrows: bool) -> Note {
        let is_local = borrows || !matches!(landing, Landing::Nothing);
        // Copied data are the caller's again at once.
        let ticket = self.ticket.filter(|_| is_local).cloned();
        if let Some(ticket) = &ticket {
            ticket.add();
        }
        let Issue { verb, address, bytes, .. } = *self;
        let again = self.is_dynamic.then(Box::<Again>::default);
        let (value, round) = (0, self.round.clone());
        Note { landing, is_local, ticket, verb, address, bytes, value, again, _round: round }
    }

    /// A byte of the target's instances, in its region.
    fn at(&self, offset: i64) -> u64 {
        (self.operation.address + offset) as u64
    }
}

impl Hub {
    /// Starts an operation, or queues it.
    ///
    /// False: it is done already, so that nobody waits for it.
    ///
    /// # Errors
    /// The target is lost.
    pub fn operate_remotely(
        &mut self,
        window: u32,
        operation: &Operation<'_>,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<bool, Error> {
        let is_queued = self.prepare_remotely(window, operation, ticket, false)?;
        if is_queued {
            self.push_lane(window, operation.rank, Next::Operations);
        }
        Ok(is_queued)
    }

    /// Queues it, or refuses it; false where it is done already. `is_alone`: a put goes in a frame of its own.
    pub(super) fn prepare_remotely(
        &mut self,
        window: u32,
        operation: &Operation<'_>,
        ticket: Option<&Arc<Ticket>>,
        is_alone: bool,
    ) -> Result<bool, Error> {
        let rank = operation.rank;
        if let Some(error) = self.lost(window, rank) {
            return Err(error);
        }
        let (verb, padded) = match operation.verb {
            Verb::Put(_) => (PUT, false),
            Verb::Get(_) => (GET, false),
            Verb::Update { result: None, .. } => (ACCUMULATE, true),
            Verb::Update { .. } => (GET_ACCUMULATE, true),
            Verb::Swap { .. } => (SWAP, true),
        };
        let shape =
            if padded { operation.datatype.padded() } else { operation.datatype.descriptor() };
        let remote = self.remote(window);
        let is_dynamic = remote.directory.is_some();
        // Which addresses are attached is seen when it may go.
        let window_bytes = if is_dynamic { i64::MAX as u64 } else { remote.sizes[rank as usize] };
        let bounds = shape.bounds(operation.count).unwrap_or(0..i64::MAX);
        let first = i128::from(operation.address) + i128::from(bounds.start);
        let bytes = (i128::from(bounds.end) - i128::from(bounds.start)) as u64;
        let address = i64::try_from(first).unwrap_or(i64::MAX);
        if first < 0 || first + i128::from(bytes) > i128::from(window_bytes) {
            // The target would refuse it, but may get it in parts.
            let (reason, fetch) = match is_dynamic {
                true => (Reason::Unattached, 0),
                false => (Reason::Bounds, 0),
            };
            let refused = Refused { window, reason, verb, address, bytes, window_bytes, fetch };
            self.refused_remotely(rank, refused, ticket.map(|it| &**it));
            return Ok(true);
        }
        if self.do_at_once(window, operation) {
            return Ok(false);
        }
        let round = self.remote(window).lanes[rank as usize].round.clone();
        let issue = Issue { operation, ticket, verb, address, bytes, is_dynamic, is_alone, round };
        match operation.verb {
            Verb::Put(source) => self.put_remotely(window, &issue, &source),
            Verb::Get(destination) => self.get_remotely(window, &issue, &destination),
            Verb::Update { update, source, result, .. } => {
                self.update_remotely(window, &issue, update, (&source, result.as_ref()));
            }
            Verb::Swap { element, expected, desired, result } => {
                let change = Change::Swap { element, expected, desired };
                let value = Landing::Value(Place::new(&result, 0), element.shape().extent);
                let at = issue.operation.datatype.run(true, 1).unwrap_or(0);
                self.atomic_remotely(window, &issue, at, change, value);
            }
        }
        Ok(true)
    }

    fn put_remotely(&mut self, window: u32, issue: &Issue<'_>, source: &Source<'_>) {
        let run = issue.operation.datatype.run(false, issue.operation.count);
        if let Some(offset) = run {
            if self.put_joins(window, issue, source, offset) {
                return;
            }
            let remote = RemoteLayout::At(issue.at(offset));
            let lent = lent((Some(source), None), 0, source.data_bytes());
            let borrows = lent.is_some();
            let memory = lent.unwrap_or_else(|| self.gathered(source, 0, source.data_bytes()));
            let note = issue.note(Landing::Nothing, borrows);
            return self.prepare(window, issue, What::Access(Direction::Put, remote), memory, note);
        }
        let each = |from, bytes, remote| {
            let memory = self.gathered(source, from, bytes);
            let note = issue.note(Landing::Nothing, false);
            self.prepare(window, issue, What::Access(Direction::Put, remote), memory, note);
        };
        let Operation { datatype, count, .. } = issue.operation;
        match datatype.descriptor().is_plainly_apart(*count) {
            true => parts(issue, each),
            false => lists(issue, each),
        }
    }

    /// Puts a short put together with one that waits for the same rank. False: it goes by itself.
    fn put_joins(&mut self, window: u32, issue: &Issue<'_>, source: &Source<'_>, at: i64) -> bool {
        let bytes = source.data_bytes();
        let is_short = (1..=u64::from(LOCKED_PUT_BYTES_MAX)).contains(&bytes);
        if !is_short || issue.is_alone || issue.is_dynamic {
            return false;
        }
        let Hub { remotes, mail, copied, .. } = self;
        let rank = issue.operation.rank as usize;
        let remote = remotes.get_mut(&window).filter(|remote| remote.mapped[rank].is_none());
        let Some(remote) = remote else { return false };
        let fill = |data: &mut [u8]| source.gather(0, data);
        let lane = &mut remote.lanes[rank];
        let joined = lane.join(issue.at(at), bytes as usize, |bytes| mail.buffer(bytes), fill);
        *copied += joined.unwrap_or(0);
        joined.is_some()
    }

    fn get_remotely(&mut self, window: u32, issue: &Issue<'_>, result: &Destination<'_>) {
        let own = result.datatype.run(false, result.count);
        let own = own.map(|offset| (result.at as i64 + offset) as u64);
        let mut get = |from: u64, bytes: u64, remote| {
            let (memory, landing) = match own {
                Some(at) => {
                    let range = (at + from) as usize..(at + from + bytes) as usize;
                    let memory = result.cells.memory(range).expect("all data were judged");
                    (memory, Landing::Nothing)
                }
                None => {
                    let buffer = self.mail.buffer(bytes as usize);
                    (Memory::pooled(buffer), Landing::All(Place::new(result, from)))
                }
            };
            let note = issue.note(landing, true);
            self.prepare(window, issue, What::Access(Direction::Get, remote), memory, note);
        };
        match issue.operation.datatype.run(false, issue.operation.count) {
            Some(offset) => get(0, result.data_bytes(), RemoteLayout::At(issue.at(offset))),
            None => parts(issue, get),
        }
    }

    fn update_remotely(
        &mut self,
        window: u32,
        issue: &Issue<'_>,
        update: Update,
        (source, result): (&Source<'_>, Option<&Destination<'_>>),
    ) {
        let takes = update.operator() != Operator::Nothing;
        if !takes && result.is_none() {
            return;
        }
        let (extent, sent) = (update.extent() as u64, update.sent(1) as u64);
        let most = PART_BYTES / extent;
        let at_origin = self.remote(window).at_origin;
        let Operation { datatype, count, .. } = *issue.operation;
        let shape = datatype.padded();
        let operands = (source, result);
        let is_run = datatype.run(true, count).is_some();
        // Where elements are mapped each run goes in the way that its address says.
        let is_mapped = self.remote(window).mapped[issue.operation.rank as usize].is_some();
        if !is_run && !at_origin && !is_mapped && shape.is_plainly_apart(count) {
            let each = |first, bytes, remote| {
                let span = (first / extent, bytes / extent);
                self.elements_remotely(window, issue, update, operands, span, remote);
            };
            return strided(issue, true, most * extent, each);
        }
        let mut done = 0;
        for piece in shape.pieces(count, 0) {
            let (mut offset, mut left) = (piece.offset, piece.bytes / extent);
            while left > 0 {
                let many = left.min(most);
                if many == 1 && sent <= 8 && !at_origin {
                    let mut operand = [0; 8];
                    if takes {
                        source.gather(done * sent, &mut operand[..sent as usize]);
                        self.copied += sent;
                    }
                    let place = result.map(|result| Place::new(result, done * sent));
                    let landing = place
                        .map_or(Landing::Nothing, |place| Landing::Value(place, sent as usize));
                    let change = Change::One { update, operand };
                    self.atomic_remotely(window, issue, offset, change, landing);
                } else {
                    let remote = RemoteLayout::At(issue.at(offset));
                    self.elements_remotely(window, issue, update, operands, (done, many), remote);
                }
                (offset, left, done) = (offset + (many * extent) as i64, left - many, done + many);
            }
        }
    }

    /// Prepares an update of some elements: so many from the first one on.
    fn elements_remotely(
        &mut self,
        window: u32,
        issue: &Issue<'_>,
        update: Update,
        (source, result): (&Source<'_>, Option<&Destination<'_>>),
        (first, count): (u64, u64),
        remote: RemoteLayout,
    ) {
        let takes = update.operator() != Operator::Nothing;
        let at_origin = self.remote(window).at_origin;
        let sent = update.sent(1) as u64;
        let is_mapped = self.remote(window).mapped[issue.operation.rank as usize].is_some();
        if !at_origin && !is_mapped {
            let operands = (takes.then_some(source), result);
            if let Some(memory) = lent(operands, first * sent, count * sent) {
                let what = What::Update { remote, update, fetch: result.is_some() };
                let note = issue.note(Landing::Nothing, true);
                return self.prepare(window, issue, what, memory, note);
            }
        }
        let place = result.map(|result| Place::new(result, first * sent));
        let fetch = place.is_some();
        let halves = 1 + u64::from(fetch && takes && !at_origin);
        let bytes = (count * sent) as usize;
        let mut buffer = self.mail.buffer(bytes * halves as usize);
        if takes {
            source.gather(first * sent, &mut buffer[..bytes]);
            self.copied += bytes as u64;
        }
        let landing = match place {
            Some(place) if takes && !at_origin => Landing::Half(place),
            Some(place) => Landing::All(place),
            None => Landing::Nothing,
        };
        let what = match remote {
            RemoteLayout::At(at) if at_origin => {
                let bytes = count as usize * update.extent();
                What::Reduce(Reduction { at, change: Change::Update(update), bytes })
            }
            remote => What::Update { remote, update, fetch },
        };
        let note = issue.note(landing, false);
        self.prepare(window, issue, what, Memory::pooled(buffer), note);
    }

    fn atomic_remotely(
        &mut self,
        window: u32,
        issue: &Issue<'_>,
        offset: i64,
        change: Change,
        landing: Landing,
    ) {
        let at = issue.at(offset);
        if let (Change::Swap { element, .. }, true) = (change, self.remote(window).at_origin) {
            let bytes = element.shape().extent;
            let what = What::Reduce(Reduction { at, change, bytes });
            let note = issue.note(landing, false);
            return self.prepare(window, issue, what, Memory::empty(), note);
        }
        let fetch = !matches!(landing, Landing::Nothing);
        let atomic = Atomic { change, fetch, token: false };
        let (what, note) = (What::Atomic { at, atomic }, issue.note(landing, false));
        self.prepare(window, issue, what, Memory::empty(), note);
    }

    fn gathered(&mut self, source: &Source<'_>, from: u64, bytes: u64) -> Memory {
        let mut buffer = self.mail.buffer(bytes as usize);
        source.gather(from, &mut buffer);
        self.copied += bytes;
        Memory::pooled(buffer)
    }

    fn prepare(
        &mut self,
        window: u32,
        issue: &Issue<'_>,
        what: What,
        memory: Memory,
        mut note: Note,
    ) {
        let lane = &mut self.remote(window).lanes[issue.operation.rank as usize];
        lane.serial += 1;
        if let Some(again) = &mut note.again {
            again.serial = lane.serial;
        }
        lane.queue.push_back(Prepared { what, memory, note });
    }
}

impl Source<'_> {
    /// The user's cells that so many bytes of the data lie in without gaps, from their byte `from` on.
    fn lent(&self, from: u64, bytes: u64) -> Option<Memory> {
        let Bytes::Cells(cells, at) = self.bytes else { return None };
        let at = (at as i64 + self.datatype.run(false, self.count)?) as u64 + from;
        Some(cells.memory(at as usize..(at + bytes) as usize).expect("all data were judged"))
    }
}

impl Destination<'_> {
    /// The same of cells that results go to.
    fn lent(&self, from: u64, bytes: u64) -> Option<Memory> {
        let source = Source::cells(self.cells, self.at, self.count, self.datatype);
        source.lent(from, bytes)
    }
}

/// The user's cells for elements, and for what they were, where both are long and lie there without gaps.
fn lent(
    (source, result): (Option<&Source<'_>>, Option<&Destination<'_>>),
    from: u64,
    bytes: u64,
) -> Option<Memory> {
    if bytes <= COPIED_BYTES {
        return None;
    }
    match (source, result) {
        (Some(source), None) => source.lent(from, bytes),
        (None, Some(result)) => result.lent(from, bytes),
        (Some(source), Some(result)) => {
            let (own, before) = (source.lent(from, bytes)?, result.lent(from, bytes)?);
            Some(Memory::joined(vec![own, before]))
        }
        (None, None) => None,
    }
}

/// Parts of the target's instances, each with its place and its length in the data.
fn parts(issue: &Issue<'_>, each: impl FnMut(u64, u64, RemoteLayout)) {
    strided(issue, false, PART_BYTES, each);
}

/// The same of so many bytes at most; `padded`: with the padding of pairs, which counts in places and lengths, too.
fn strided(
    issue: &Issue<'_>,
    padded: bool,
    most: u64,
    mut each: impl FnMut(u64, u64, RemoteLayout),
) {
    let Operation { datatype, address, count, .. } = *issue.operation;
    let told = datatype.travel(padded, address, count, |part| {
        let Travelling { shape, address, count, .. } = part;
        for from in (0..part.bytes).step_by(most as usize) {
            let strided = Strided { shape: shape.clone(), address, count, from };
            let bytes = most.min(part.bytes - from);
            each(part.from + from, bytes, RemoteLayout::Strided(strided));
        }
        Ok::<(), Infallible>(())
    });
    let Ok(()) = told;
}

/// The target's bytes as lists, each with its place and its length in the data.
fn lists(issue: &Issue<'_>, mut each: impl FnMut(u64, u64, RemoteLayout)) {
    let mut segments = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    let mut tell = |segments: &mut Vec<RemoteSegment>, from: &mut u64, bytes: &mut u64| {
        if !segments.is_empty() {
            each(*from, *bytes, RemoteLayout::List(std::mem::take(segments).into()));
            (*from, *bytes) = (*from + *bytes, 0);
        }
    };
    for piece in issue.operation.datatype.descriptor().pieces(issue.operation.count, 0) {
        segments.push(RemoteSegment { offset: issue.at(piece.offset), len: piece.bytes });
        bytes += piece.bytes;
        if segments.len() == SEGMENTS || bytes >= PART_BYTES {
            tell(&mut segments, &mut from, &mut bytes);
        }
    }
    tell(&mut segments, &mut from, &mut bytes);
}
