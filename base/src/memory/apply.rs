//! Executes jobs: finds the target's segments, and combines them with the source's, piece by piece.
//!
//! Memory, source and result may each be cut into segments at any byte. Runs of whole elements are combined where they lie; an
//! element that lies in two segments is combined in a copy.
//!
//! Invariants: a job that does not fit its memory changes nothing; nobody else executes jobs on the same memory meanwhile. On
//! memory that is shared ([`super::Cells::share`]) others update elements by the processor's atomic operations, and so does this
//! executor, while nobody updates a block; it is the only one for elements for which there are none.
//!
//! A job on fleeting memory ([`super::Cells::fleeting`]) that finds some of it gone fails. Bytes before the gap were changed then.

use super::job::{Change, Job, Places, RECORD_BYTES};
use super::table::copy;
use super::update::EXTENT_MAX;
use super::{BufferTable, Operator, Segment, Slice, Update};
use crate::descriptor::Piece;
use crate::error::Fault;

mod fleeting;
mod scattered;

/// How elements are combined, and bytes copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Regime {
    /// This process alone does it.
    Alone,
    /// Others do, too, by the processor's atomic operations.
    Shared,
    /// This process alone does it, and some of the memory may be gone.
    Fleeting,
}

impl Regime {
    fn is_fleeting(self) -> bool {
        self == Regime::Fleeting
    }
}

/// Segments, of which bytes are taken from the front.
#[derive(Debug, Clone)]
struct Cursor<I> {
    segments: I,
    front: Segment,
}

impl<I: Iterator<Item = Segment>> Cursor<I> {
    fn new(segments: I) -> Cursor<I> {
        Cursor { segments, front: Segment::EMPTY }
    }

    /// Bytes that lie in one piece at the front; 0 where none is left.
    #[inline]
    fn left(&mut self) -> usize {
        while self.front.is_empty() {
            match self.segments.next() {
                Some(segment) => self.front = segment,
                None => return 0,
            }
        }
        self.front.len()
    }

    /// At most so many bytes from the front.
    #[inline]
    fn take(&mut self, bytes: usize) -> Segment {
        let taken = self.front.part(0, bytes);
        self.front = self.front.part(bytes, usize::MAX);
        taken
    }

    /// All bytes, if they are so many and lie in one piece.
    fn only(mut self, bytes: u64) -> Option<Segment> {
        (self.left() as u64 == bytes).then_some(self.front)
    }

    /// Takes so many bytes in pieces, each with its place among them. Returns how many there were.
    fn each(&mut self, bytes: usize, mut act: impl FnMut(usize, Segment)) -> usize {
        let mut done = 0;
        while done < bytes && self.left() > 0 {
            let piece = self.take(bytes - done);
            act(done, piece);
            done += piece.len();
        }
        done
    }

    /// The offset and the length of the next record; `None` behind the last one.
    fn record(&mut self, is_fleeting: bool) -> Result<Option<(u64, usize)>, Fault> {
        let mut head = [0; RECORD_BYTES];
        let mut is_there = true;
        let read = |at: usize, piece: Segment| {
            is_there = is_there && read(piece, &mut head[at..], is_fleeting);
        };
        match self.each(RECORD_BYTES, read) {
            _ if !is_there => Err(Fault::BadKey),
            0 => Ok(None),
            RECORD_BYTES => {
                let (offset, bytes) = head.split_first_chunk().ok_or(Fault::Invalid)?;
                let bytes = bytes.try_into().map(u32::from_le_bytes).map_err(|_| Fault::Invalid)?;
                Ok(Some((u64::from_le_bytes(*offset), bytes as usize)))
            }
            _ => Err(Fault::Invalid),
        }
    }
}

impl BufferTable {
    /// Executes a job with bytes of the table. What the elements of an update were before goes to `result`, without their
    /// padding; `result` may be the source. Returns what a single element was before, in its first bytes.
    ///
    /// # Errors
    /// [`Fault::BadKey`]: the target does not lie in writable memory, or ends within an element. [`Fault::Invalid`]: source or
    /// result have another length than it needs. Nothing was changed. [`Fault::BadKey`], too: some of fleeting memory is gone.
    /// Then a part of the target may have been changed.
    pub fn apply(&self, job: &Job, source: Slice, result: Option<Slice>) -> Result<[u8; 8], Fault> {
        let source = self.holds(source).then_some(source).ok_or(Fault::Invalid)?;
        let sent = (source.len, self.is_fleeting(source));
        self.execute(job, Cursor::new(self.resolve(source)), sent, result)
    }

    /// The same with bytes that lie outside of the table.
    ///
    /// # Errors
    /// As [`Self::apply`].
    ///
    /// # Safety
    /// `source` is mapped, and lies outside of every memory of the table.
    pub unsafe fn apply_outside(
        &self,
        job: &Job,
        source: Segment,
        result: Option<Slice>,
    ) -> Result<[u8; 8], Fault> {
        let segments = Cursor::new(std::iter::once(source));
        self.execute(job, segments, (source.len() as u64, false), result)
    }

    fn execute<S: Iterator<Item = Segment> + Clone>(
        &self,
        job: &Job,
        source: Cursor<S>,
        (sent, is_fleeting): (u64, bool),
        result: Option<Slice>,
    ) -> Result<[u8; 8], Fault> {
        let is_fleeting = is_fleeting || result.is_some_and(|it| self.is_fleeting(it));
        let regime = self.regime(&job.places, is_fleeting);
        if let (Places::One(region), Change::Records) = (&job.places, job.change) {
            return self.store_records(*region, source, sent, regime).map(|()| [0; 8]);
        }
        let act = || self.execute_as(job, source, sent, result, regime);
        let (Places::One(target) | Places::Shaped { region: target, .. }) = &job.places;
        match self.get(target.buffer).filter(|_| regime == Regime::Shared) {
            Some(memory) => memory.by_words((target.offset, target.len), act),
            None => act(),
        }
    }

    fn execute_as<S: Iterator<Item = Segment> + Clone>(
        &self,
        job: &Job,
        source: Cursor<S>,
        sent: u64,
        result: Option<Slice>,
        regime: Regime,
    ) -> Result<[u8; 8], Fault> {
        let target = self.judge(&job.places).ok_or(Fault::BadKey)?;
        check(job.change, target, sent, result.map(|it| it.len))?;
        if result.is_some_and(|it| !self.holds(it) || !self.is_writable(it)) {
            return Err(Fault::Invalid);
        }
        match &job.places {
            Places::One(slice) => {
                self.came(slice.buffer, target);
                let target = Cursor::new(self.resolve_writable(*slice));
                self.change(job.change, target, source, result, regime)
            }
            Places::Shaped { region, address, shape, count, from, bytes } => {
                self.came(region.buffer, target);
                if let Some(pieces) = self.scattered(&job.places) {
                    if self.exchange_plainly(job.change, &pieces, &source, result, regime) {
                        return Ok([0; 8]);
                    }
                    let target = Cursor::new(pieces.segments());
                    return self.change(job.change, target, source, result, regime);
                }
                let pieces = scattered::cut(shape.pieces(*count, *from), *bytes);
                let part = |piece: Piece| region.part((address + piece.offset) as u64, piece.bytes);
                let target = pieces.flat_map(|piece| self.resolve_writable(part(piece)));
                self.change(job.change, Cursor::new(target), source, result, regime)
            }
        }
    }

    /// How a job is executed. `is_fleeting`: its source or its result may be gone.
    #[inline]
    fn regime(&self, places: &Places, is_fleeting: bool) -> Regime {
        let (Places::One(target) | Places::Shaped { region: target, .. }) = places;
        // Memory that others update, too, has no other way, and does not go away.
        let is_shared = self.get(target.buffer).is_some_and(super::Memory::is_shared);
        match is_shared {
            true => Regime::Shared,
            false if is_fleeting || self.is_fleeting(*target) => Regime::Fleeting,
            false => Regime::Alone,
        }
    }

    /// Stores the data of records at their places, if all of them lie in the region.
    fn store_records<S: Iterator<Item = Segment> + Clone>(
        &self,
        region: Slice,
        mut source: Cursor<S>,
        sent: u64,
        regime: Regime,
    ) -> Result<(), Fault> {
        let is_fleeting = regime.is_fleeting();
        let mut judged = source.clone();
        while let Some((offset, bytes)) = judged.record(is_fleeting)? {
            if judged.each(bytes, |_, _| ()) < bytes {
                return Err(Fault::Invalid);
            }
            offset
                .checked_add(bytes as u64)
                .filter(|end| *end <= region.len)
                .ok_or(Fault::BadKey)?;
        }
        if !self.holds(region) || !self.is_writable(region) {
            return Err(Fault::BadKey);
        }
        self.came(region.buffer, sent);
        let mut is_there = true;
        while let Some((offset, bytes)) = source.record(is_fleeting)? {
            let place = region.part(offset, bytes as u64);
            let mut target = Cursor::new(self.resolve_writable(place));
            source.each(bytes, |_, from| {
                target.each(from.len(), |at, to| {
                    let from = from.part(at, to.len());
                    // SAFETY: the target lies in writable memory of the table; the source does too, or its owner vouches.
                    is_there &=
                        unsafe { copy(from.as_mut_ptr(), to.as_mut_ptr(), to.len(), is_fleeting) };
                });
            });
        }
        is_there.then_some(()).ok_or(Fault::BadKey)
    }

    /// The bytes of the target; `None` where some of them do not lie in writable memory.
    fn judge(&self, places: &Places) -> Option<u64> {
        match places {
            Places::One(slice) => {
                (self.holds(*slice) && self.is_writable(*slice)).then_some(slice.len)
            }
            Places::Shaped { region, address, shape, count, from, bytes } => {
                let bounds = shape.bounds(*count)?;
                let end = i64::try_from(region.len).unwrap_or(i64::MAX);
                let lies_inside = address.checked_add(bounds.start)? >= 0
                    && address.checked_add(bounds.end)? <= end;
                let has_them = from.checked_add(*bytes)? <= shape.len() * count;
                (lies_inside && has_them && self.holds(*region) && self.is_writable(*region))
                    .then_some(*bytes)
            }
        }
    }

    /// Whether all bytes of a slice lie in its memory.
    fn holds(&self, slice: Slice) -> bool {
        let bytes = self.get(slice.buffer).map(super::Memory::len);
        slice.len == 0
            || bytes.is_some_and(|all| slice.offset <= all && slice.len <= all - slice.offset)
    }

    fn is_writable(&self, slice: Slice) -> bool {
        slice.len == 0 || self.get(slice.buffer).is_some_and(super::Memory::is_writable)
    }

    fn change(
        &self,
        change: Change,
        mut target: Cursor<impl Iterator<Item = Segment> + Clone>,
        mut source: Cursor<impl Iterator<Item = Segment> + Clone>,
        result: Option<Slice>,
        regime: Regime,
    ) -> Result<[u8; 8], Fault> {
        let is_fleeting = regime.is_fleeting();
        let mut before = [0; 8];
        let is_done = match change {
            // They are stored by themselves.
            Change::Records => true,
            Change::Store => {
                while let bytes @ 1.. = target.left().min(source.left()) {
                    let (to, from) = (target.take(bytes), source.take(bytes));
                    // SAFETY: the target lies in writable memory of the table; the source does too, or its owner vouches.
                    if !unsafe { copy(from.as_mut_ptr(), to.as_mut_ptr(), bytes, is_fleeting) } {
                        return Err(Fault::BadKey);
                    }
                }
                true
            }
            Change::Update(update) => {
                let result = result.map(|it| Cursor::new(self.resolve_writable(it)));
                combine(update, target, source, result, regime)
            }
            Change::One { update, operand } => {
                let own = Segment::new(operand.as_ptr().cast_mut(), update.sent(1));
                let was = Segment::new(before.as_mut_ptr(), update.sent(1));
                let bytes = update.extent();
                // SAFETY: the place is one element; the arrays are our own, and as long as an element is sent at least.
                element(&mut target, bytes, is_fleeting, |place| unsafe {
                    execute(update, place, own, Some(was), regime)
                })
            }
            Change::Swap { element: kind, expected, desired } => {
                element(&mut target, kind.shape().extent, is_fleeting, |place| {
                    // SAFETY: the place is one element of the table's writable memory, or our own copy of it.
                    let was = unsafe {
                        match is_fleeting {
                            true => fleeting::compare_swap(place, expected, desired),
                            false => {
                                Some(Update::compare_swap_alone(kind, place, expected, desired))
                            }
                        }
                    };
                    before = was.unwrap_or_default();
                    was.is_some()
                })
            }
        };
        is_done.then_some(before).ok_or(Fault::BadKey)
    }
}

/// Whether source and result are as long as the change needs, and its target has whole elements.
fn check(change: Change, target: u64, sent: u64, result: Option<u64>) -> Result<(), Fault> {
    let single = |extent: usize| (target == extent as u64).then_some(()).ok_or(Fault::BadKey);
    let (is_sent, fetched) = match change {
        Change::Records => (false, None),
        Change::Store => (sent == target, None),
        Change::Update(update) => {
            let target = usize::try_from(target).map_err(|_| Fault::BadKey)?;
            let count = update.count(target).ok_or(Fault::BadKey)?;
            let whole = update.sent(count) as u64;
            (sent == whole || (sent == 0 && update.operator() == Operator::Nothing), Some(whole))
        }
        Change::One { update, operand } => {
            single(update.extent())?;
            (sent == 0 && update.sent(1) <= operand.len(), None)
        }
        Change::Swap { element, .. } => {
            single(element.shape().extent)?;
            (sent == 0 && element.is_comparable(), None)
        }
    };
    let is_fetched = result.is_none_or(|bytes| Some(bytes) == fetched);
    (is_sent && is_fetched).then_some(()).ok_or(Fault::Invalid)
}

/// Combines elements where they lie, as the memory has to be updated. False where some of it is gone.
///
/// # Safety
/// As [`Update::apply`]. On shared memory others update them by [`Update::apply_shared`] only.
unsafe fn execute(
    update: Update,
    place: Segment,
    own: Segment,
    before: Option<Segment>,
    regime: Regime,
) -> bool {
    // SAFETY: as the caller vouches; who needs a lock finds nobody else but this executor here.
    unsafe {
        match regime {
            Regime::Fleeting => return fleeting::apply(update, place, own, before),
            Regime::Shared if update.apply_shared(place, own, before).is_ok() => {}
            Regime::Alone | Regime::Shared => update.apply(place, own, before),
        }
    }
    true
}

/// Combines all elements of a target with those of a source. False where some of the memory is gone.
fn combine(
    update: Update,
    mut target: Cursor<impl Iterator<Item = Segment> + Clone>,
    mut source: Cursor<impl Iterator<Item = Segment>>,
    mut result: Option<Cursor<impl Iterator<Item = Segment>>>,
    regime: Regime,
) -> bool {
    let is_fleeting = regime.is_fleeting();
    let (extent, sent) = (update.extent(), update.sent(1));
    let reads = update.operator() != Operator::Nothing;
    while let left @ 1.. = target.left() {
        let mut count = left / extent;
        if reads {
            count = count.min(source.left() / sent);
        }
        if let Some(result) = &mut result {
            count = count.min(result.left() / sent);
        }
        if count > 0 {
            let own = if reads { source.take(count * sent) } else { Segment::EMPTY };
            let before = result.as_mut().map(|it| it.take(count * sent));
            let target = target.take(count * extent);
            // SAFETY: the table's memory, and what a caller vouched for; all have as many elements.
            if !unsafe { execute(update, target, own, before, regime) } {
                return false;
            }
            continue;
        }
        let (mut own, mut before) = ([0u8; EXTENT_MAX], [0u8; EXTENT_MAX]);
        let mut is_there = true;
        if reads {
            source.each(sent, |at, piece| is_there &= read(piece, &mut own[at..], is_fleeting));
        }
        let own = Segment::new(own.as_mut_ptr(), if reads { sent } else { 0 });
        let was = Segment::new(before.as_mut_ptr(), sent);
        // SAFETY: one element, and arrays of our own that have room for the longest one.
        is_there = is_there
            && element(&mut target, extent, is_fleeting, |place| unsafe {
                execute(update, place, own, Some(was), regime)
            });
        if let Some(result) = &mut result {
            result.each(sent, |at, piece| is_there &= write(&before[at..], piece, is_fleeting));
        }
        if !is_there {
            return false;
        }
    }
    true
}

/// Changes one element where it lies; in a copy, where it lies in several segments. Of these the bytes that change are
/// written, and no padding. False where some of the memory is gone.
fn element(
    target: &mut Cursor<impl Iterator<Item = Segment> + Clone>,
    bytes: usize,
    is_fleeting: bool,
    act: impl FnOnce(Segment) -> bool,
) -> bool {
    if target.left() >= bytes {
        return act(target.take(bytes));
    }
    let (mut before, mut after) = ([0u8; EXTENT_MAX], [0u8; EXTENT_MAX]);
    let mut is_there = true;
    let mut pieces = target.clone();
    pieces.each(bytes, |at, piece| is_there &= read(piece, &mut before[at..], is_fleeting));
    after.copy_from_slice(&before);
    if !is_there || !act(Segment::new(after.as_mut_ptr(), bytes)) {
        return false;
    }
    target.each(bytes, |at, piece| {
        for byte in (0..piece.len()).filter(|byte| before[at + byte] != after[at + byte]) {
            is_there &= write(&after[at + byte..], piece.part(byte, 1), is_fleeting);
        }
    });
    is_there
}

/// Copies a segment to the front of `to`, which is as long at least. False where it is gone.
fn read(from: Segment, to: &mut [u8], is_fleeting: bool) -> bool {
    let to = &mut to[..from.len()];
    // SAFETY: the segment is mapped (module) or fleeting, and the slice is the caller's own.
    unsafe { copy(from.as_mut_ptr(), to.as_mut_ptr(), to.len(), is_fleeting) }
}

/// Copies the front of `from` over a segment; it is as long at least. False where the segment is gone.
fn write(from: &[u8], to: Segment, is_fleeting: bool) -> bool {
    let from = &from[..to.len()];
    // SAFETY: the segment is mapped (module) or fleeting, and may be written.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len(), is_fleeting) }
}

#[cfg(test)]
mod tests;
