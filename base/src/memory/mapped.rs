//! Copies and atomic updates that an origin makes by itself, in cells that it has mapped.
//!
//! Invariant: a copy of 1, 2, 4 or 8 bytes is one load and one store where both places are aligned (`store`).

use super::gate::Way;
use super::party::Party;
use super::{Cells, Element, Memory, OutOfCells, Segment, Update, store};

/// So many bytes of elements or more are a block. With fewer the barrier takes as long as their instructions.
const BLOCK_BYTES: usize = 2048;
/// Bytes of elements that are updated before others get their turn.
const BLOCK_MOST: usize = 64 * 1024;

impl Cells {
    /// Copies bytes to other cells, or to another place of these. Others who read or write there meanwhile may see a part.
    ///
    /// # Errors
    /// One of the places does not lie inside; nothing was copied.
    #[inline]
    pub fn copy(
        &self,
        at: usize,
        to: &Cells,
        to_at: usize,
        bytes: usize,
    ) -> Result<(), OutOfCells> {
        let (from, to) = (self.place(at, bytes)?, to.place(to_at, bytes)?);
        // SAFETY: both places lie inside of allocations that are alive, and to which no reference exists.
        unsafe { store::copy(from.as_mut_ptr(), to.as_mut_ptr(), bytes) };
        Ok(())
    }

    /// Copies `bytes` bytes of a memory to here, from its byte `skip` on; as many as it has.
    ///
    /// # Errors
    /// They do not lie inside; nothing was copied.
    pub fn fill(
        &self,
        at: usize,
        from: &Memory,
        skip: u64,
        bytes: usize,
    ) -> Result<(), OutOfCells> {
        let mut place = self.place(at, bytes)?;
        for segment in from.parts(skip, bytes as u64) {
            // SAFETY: the place lies inside, and is as long as all parts at least; a memory keeps its segments mapped.
            unsafe { store::copy(segment.as_mut_ptr(), place.as_mut_ptr(), segment.len()) };
            place = place.part(segment.len(), usize::MAX);
        }
        Ok(())
    }

    /// Copies `bytes` bytes from here to a memory, from its byte `skip` on; as many as it has, and none where it may not be
    /// written.
    ///
    /// # Errors
    /// They do not lie inside; nothing was copied.
    pub fn drain(&self, at: usize, to: &Memory, skip: u64, bytes: usize) -> Result<(), OutOfCells> {
        let mut place = self.place(at, bytes)?;
        for segment in to.parts(skip, bytes as u64).take_while(|_| to.is_writable()) {
            // SAFETY: as in `fill`, the other way round; the memory may be written.
            unsafe { store::copy(place.as_mut_ptr(), segment.as_mut_ptr(), segment.len()) };
            place = place.part(segment.len(), usize::MAX);
        }
        Ok(())
    }

    /// [`Updater::update`], for somebody who has no updater of their own. It waits for others of this process who do the same.
    ///
    /// # Panics
    /// As there.
    pub fn update(
        &self,
        at: usize,
        count: usize,
        update: Update,
        source: &[u8],
        result: Option<&mut [u8]>,
    ) -> Option<()> {
        update_by(self.party().as_deref_mut(), self, (at, count), update, source, result)
    }

    /// [`Updater::compare_swap`], in the same way.
    ///
    /// # Panics
    /// As there.
    pub fn compare_swap(
        &self,
        at: usize,
        element: Element,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> Option<[u8; 8]> {
        swap_by(self.party().as_deref_mut(), self, (at, element), expected, desired)
    }

    /// Somebody who updates elements here, beside others.
    pub fn updater(&self) -> Updater {
        Updater { party: self.new_party(), whole: self.whole().clone() }
    }

    /// Whether both are parts of the same cells.
    pub fn is_of_same_memory(&self, other: &Cells) -> bool {
        self.whole().is_same(other.whole())
    }

    fn shared_place(&self, at: usize, bytes: usize) -> Option<Segment> {
        self.place(at, bytes).ok().filter(|_| self.is_shared())
    }
}

/// One of those who update elements of shared memory: it has its own place in the memory's lock.
///
/// Single elements are updated by the processor's atomic operations. Of many it updates whole blocks by plain loops, while
/// nobody else updates anything; unless others update single ones all the time.
#[derive(Debug)]
pub struct Updater {
    /// It goes before the cells that keep its words.
    party: Option<Party>,
    whole: Cells,
}

impl Updater {
    /// Combines `count` elements at a byte of `cells`, which belong to the memory of this updater, with those of `source`, and
    /// puts what they were before into `result`: both as they are sent, without padding. Each element changes at once, as all
    /// see it who update this memory so, and the one who executes jobs on it ([`Cells::share`]). `Operator::Nothing` reads
    /// nothing of `source`.
    ///
    /// `None`: the elements do not lie inside, the processor has no atomic operation for them at this address, or the cells are
    /// not shared. Nothing was changed; the executor has to do it.
    ///
    /// # Panics
    /// `source` or `result` does not have as many elements. The cells belong to another memory.
    #[inline]
    pub fn update(
        &mut self,
        cells: &Cells,
        at: usize,
        count: usize,
        update: Update,
        source: &[u8],
        result: Option<&mut [u8]>,
    ) -> Option<()> {
        assert!(cells.is_of_same_memory(&self.whole), "an updater is of one memory");
        update_by(self.party.as_mut(), cells, (at, count), update, source, result)
    }

    /// The same with elements that lie in cells of the origin, from a byte on, and without a result. `None`, too, where they do not
    /// lie there, or target and source have bytes in common.
    ///
    /// # Panics
    /// The cells of the target belong to another memory.
    #[inline]
    pub fn update_from(
        &mut self,
        cells: &Cells,
        at: usize,
        count: usize,
        update: Update,
        (source, source_at): (&Cells, usize),
    ) -> Option<()> {
        assert!(cells.is_of_same_memory(&self.whole), "an updater is of one memory");
        let source = source.place(source_at, update.sent(count)).ok()?;
        let place = cells.shared_place(at, count.checked_mul(update.extent())?)?;
        if place.overlaps(source) {
            return None;
        }
        update_place(self.party.as_mut(), place, update, source, None)
    }

    /// Sets the element at a byte to `desired`, if it has the expected value; returns what it was, in its first bytes. At once,
    /// as [`Self::update`]; `None` as there.
    ///
    /// # Panics
    /// Elements of this type cannot be compared ([`Element::is_comparable`]). The cells belong to another memory.
    #[inline]
    pub fn compare_swap(
        &mut self,
        cells: &Cells,
        at: usize,
        element: Element,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> Option<[u8; 8]> {
        assert!(cells.is_of_same_memory(&self.whole), "an updater is of one memory");
        swap_by(self.party.as_mut(), cells, (at, element), expected, desired)
    }
}

#[inline]
fn update_by(
    party: Option<&mut Party>,
    cells: &Cells,
    (at, count): (usize, usize),
    update: Update,
    source: &[u8],
    result: Option<&mut [u8]>,
) -> Option<()> {
    let place = cells.shared_place(at, count.checked_mul(update.extent())?)?;
    let source = Segment::new(source.as_ptr().cast_mut(), source.len());
    let result = result.map(|it| Segment::new(it.as_mut_ptr(), it.len()));
    update_place(party, place, update, source, result)
}

/// Updates a place of shared cells by elements that are the caller's own, or lie in cells of the origin: no two of these overlap.
#[inline]
fn update_place(
    party: Option<&mut Party>,
    place: Segment,
    update: Update,
    source: Segment,
    result: Option<Segment>,
) -> Option<()> {
    let Some(party) = party else {
        // SAFETY: the place lies inside of shared cells, and may be written; source and result are mapped as long as the caller
        // has them, and overlap nothing. Others update elements of the cells in the same way.
        return unsafe { update.apply_shared(place, source, result) }.ok();
    };
    if !update.element().is_atomic_at(place.address()) {
        return None;
    }
    if place.len() < BLOCK_BYTES {
        party.update(false, |way| part(update, way, place, source, result));
        return Some(());
    }
    // Others get their turn between two blocks.
    let (count, most) = (place.len() / update.extent(), BLOCK_MOST / update.extent());
    let mut done = 0;
    while done < count {
        let many = most.min(count - done);
        let of = |all: Segment, bytes: usize| all.part(done * bytes, many * bytes);
        let target = of(place, update.extent());
        let (source, result) =
            (of(source, update.sent(1)), result.map(|it| of(it, update.sent(1))));
        party.update(true, |way| part(update, way, target, source, result));
        done += many;
    }
    Some(())
}

/// Combines elements in the way that the lock gave.
fn part(update: Update, way: Way, target: Segment, source: Segment, result: Option<Segment>) {
    // SAFETY: the place lies inside of shared cells, and may be written; source and result are as in `update_place`. Whoever is
    // alone has the lock, without which nobody updates elements here; else others update them by instructions, too.
    unsafe {
        match way {
            Way::Alone => update.apply(target, source, result),
            Way::Words => {
                let done = update.apply_shared(target, source, result);
                done.expect("the processor has such operations");
            }
        }
    }
}

#[inline]
fn swap_by(
    party: Option<&mut Party>,
    cells: &Cells,
    (at, element): (usize, Element),
    expected: [u8; 8],
    desired: [u8; 8],
) -> Option<[u8; 8]> {
    let place = cells.shared_place(at, element.shape().extent)?;
    // SAFETY: the place lies inside, and may be written; others update it in the same way, or not at this time.
    let swap = || unsafe { Update::compare_swap(element, place, expected, desired) }.ok();
    match party {
        Some(party) => party.update(false, |_| swap()),
        None => swap(),
    }
}

#[cfg(test)]
mod tests;
