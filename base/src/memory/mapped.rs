//! Copies and atomic updates that an origin makes by itself, in cells that it has mapped.
//!
//! Invariant: a copy of 1, 2, 4 or 8 bytes is one load and one store where both places are aligned (`store`).

use super::{Cells, Element, Memory, OutOfCells, Segment, Update, store};

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

    /// Combines `count` elements at a byte with those of `source`, and puts what they were before into `result`: both as they
    /// are sent, without padding. Each element changes at once, as all see it who update this memory so, and the one who
    /// executes jobs on it ([`Cells::share`]). `Operator::Nothing` reads nothing of `source`.
    ///
    /// `None`: the elements do not lie inside, the processor has no atomic operation for them at this address, or the cells are
    /// not shared. Nothing was changed; the executor has to do it.
    ///
    /// # Panics
    /// `source` or `result` does not have as many elements.
    pub fn update(
        &self,
        at: usize,
        count: usize,
        update: Update,
        source: &[u8],
        result: Option<&mut [u8]>,
    ) -> Option<()> {
        let place = self.shared_place(at, count.checked_mul(update.extent())?)?;
        let source = Segment::new(source.as_ptr().cast_mut(), source.len());
        let result = result.map(|it| Segment::new(it.as_mut_ptr(), it.len()));
        // SAFETY: the place lies inside, and may be written; the slices are the caller's own, so that neither overlaps
        // another one. The cells are shared, so that others update elements of this kind in the same way.
        unsafe { update.apply_shared(place, source, result) }.ok()
    }

    /// Sets the element at a byte to `desired`, if it has the expected value; returns what it was, in its first bytes. At once,
    /// as [`Self::update`]; `None` as there.
    ///
    /// # Panics
    /// Elements of this type cannot be compared ([`Element::is_comparable`]).
    pub fn compare_swap(
        &self,
        at: usize,
        element: Element,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> Option<[u8; 8]> {
        let place = self.shared_place(at, element.shape().extent)?;
        // SAFETY: as in `update`.
        unsafe { Update::compare_swap(element, place, expected, desired) }.ok()
    }

    fn shared_place(&self, at: usize, bytes: usize) -> Option<Segment> {
        self.place(at, bytes).ok().filter(|_| self.is_shared())
    }
}

#[cfg(test)]
mod tests;
