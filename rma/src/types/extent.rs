//! Lower and upper bounds of types: where an instance begins and ends for those who put instances side by side.
//!
//! Bounds that were set by `resized` count before those of data, as MPI's marks do. Without such a mark the extent of a
//! struct is rounded up to the alignment of its elements, as a C compiler does.

use ropewalk_base::descriptor::Malformed;
use ropewalk_base::memory::Element;

/// Bounds are at most so far from zero, as those of descriptors.
const FAR: i128 = 1 << 56;

/// From the lower bound of an instance to its upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub lower: i64,
    pub upper: i64,
    /// Some `resized` set the bounds.
    pub is_set: bool,
    /// The alignment of its elements in C.
    pub alignment: u32,
    /// There are neither elements nor set bounds: it counts nowhere.
    pub is_nothing: bool,
}

impl Extent {
    /// Of nothing.
    pub const EMPTY: Extent =
        Extent { lower: 0, upper: 0, is_set: false, alignment: 1, is_nothing: true };

    /// Of a predefined type.
    pub fn of(element: Element) -> Extent {
        let shape = element.shape();
        let alignment = match element {
            Element::Complex32 | Element::Complex64 => shape.value / 2,
            Element::LongDouble | Element::LongDoubleIndex => 16,
            // The value or the index, whichever asks for more.
            _ if shape.index_at.is_some() => shape.value.max(size_of::<i32>()),
            _ => shape.value,
        };
        let (upper, alignment) = (shape.extent as i64, alignment as u32);
        Extent { lower: 0, upper, is_set: false, alignment, is_nothing: false }
    }

    /// Bytes from one instance to the next.
    pub fn bytes(&self) -> i64 {
        self.upper - self.lower
    }

    /// Those that `resized` sets.
    pub fn resized(&self, lower: i64, bytes: i64) -> Result<Extent, Malformed> {
        let upper = i128::from(lower) + i128::from(bytes);
        let (lower, upper) = (near(i128::from(lower))?, near(upper)?);
        Ok(Extent { lower, upper, is_set: true, is_nothing: false, ..*self })
    }

    /// Of `count` instances of this, `stride` bytes apart, the first one moved by `by`.
    fn repeated(&self, by: i128, count: u64, stride: i128) -> (i128, i128) {
        let last = stride * i128::from(count - 1);
        let (lower, upper) = (i128::from(self.lower) + by, i128::from(self.upper) + by);
        (lower + last.min(0), upper + last.max(0))
    }

    /// The same of all parts; each is moved by so many bytes and has so many instances side by side.
    pub fn joined<'a>(
        parts: impl Iterator<Item = (i128, u64, &'a Extent)> + Clone,
    ) -> Result<Extent, Malformed> {
        let parts = parts.filter(|(_, count, part)| *count > 0 && !part.is_nothing);
        let is_set = parts.clone().any(|(_, _, part)| part.is_set);
        let alignment = parts.clone().map(|(_, _, part)| part.alignment).max().unwrap_or(1);
        let counted = parts.filter(|(_, _, part)| part.is_set || !is_set);
        let all = counted
            .map(|(by, count, part)| part.repeated(by, count, i128::from(part.bytes())))
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let Some((lower, upper)) = all else { return Ok(Extent::EMPTY) };
        let (lower, upper) = (near(lower)?, near(upper)?);
        Ok(Extent { lower, upper, is_set, alignment, is_nothing: false })
    }

    /// Of `count` instances of this, `stride` bytes apart.
    pub fn strided(&self, count: u64, stride: i64) -> Result<Extent, Malformed> {
        if count == 0 || self.is_nothing {
            return Ok(Extent::EMPTY);
        }
        let (lower, upper) = self.repeated(0, count, i128::from(stride));
        Ok(Extent { lower: near(lower)?, upper: near(upper)?, ..*self })
    }

    /// The upper bound of a struct where nothing set it: whole alignments from the lower one.
    pub fn aligned(self) -> Result<Extent, Malformed> {
        if self.is_set {
            return Ok(self);
        }
        let alignment = i128::from(self.alignment);
        let over = (i128::from(self.upper) - i128::from(self.lower)).rem_euclid(alignment);
        let upper = i128::from(self.upper) + if over > 0 { alignment - over } else { 0 };
        Ok(Extent { upper: near(upper)?, ..self })
    }
}

pub(super) fn near(value: i128) -> Result<i64, Malformed> {
    if value.abs() > FAR { Err(Malformed::TooFar) } else { Ok(value as i64) }
}
