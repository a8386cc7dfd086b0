//! Datatypes: which bytes of memory the instances of a type have, in which order, and of what.
//!
//! MPI's constructors: a predefined type, then contiguous, vector, indexed, struct, subarray and resized ones made of others.
//! A type is a cheap handle. It may be dropped as soon as a call with it has returned.
//!
//! Invariants:
//! * all sums are checked, with 128 bits: a type never reaches farther than addresses do;
//! * a count of zero is legal everywhere, and makes a type without data;
//! * padding of pairs is no data: it is neither sent nor written.

mod build;
mod extent;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_base::descriptor::{Descriptor, Malformed};
use ropewalk_base::memory::Element;
use thiserror::Error;

pub use build::Order;
use extent::Extent;

/// Why something is no datatype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TypeError {
    /// It has too many pieces or loops, or reaches too far.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Dimension `dimension` of a subarray does not lie in that of its array.
    #[error(
        "a subarray has {part} elements from {start} on in dimension {dimension}, of an array with {size}"
    )]
    Subarray { dimension: usize, size: u64, part: u64, start: u64 },
}

/// What the data of a type consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// There are none.
    Nothing,
    /// Elements of one predefined type: what an accumulate needs.
    One(Element),
    /// Elements of several ones.
    Mixed,
}

/// A datatype. Cloning gives another handle on the same one.
#[derive(Debug, Clone)]
pub struct Datatype {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// No two types of a process have the same.
    number: u64,
    /// The data.
    data: Arc<Descriptor>,
    /// The same with the padding of pairs.
    padded: Arc<Descriptor>,
    /// Where both begin, if they are one piece.
    data_run: Option<i64>,
    padded_run: Option<i64>,
    class: Class,
    extent: Extent,
}

/// Where the only piece of one instance begins.
fn only_piece(of: &Descriptor) -> Option<i64> {
    let first = of.pieces(1, 0).next()?;
    (first.bytes == of.len()).then_some(first.offset)
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Datatype {
    /// A predefined type.
    pub fn of(element: Element) -> Datatype {
        build::predefined(element)
    }

    fn new(data: Descriptor, padded: Option<Descriptor>, class: Class, extent: Extent) -> Datatype {
        let data = Arc::new(data);
        let padded = padded.map_or_else(|| data.clone(), Arc::new);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (data_run, padded_run) = (only_piece(&data), only_piece(&padded));
        let inner = Inner { number, data, padded, data_run, padded_run, class, extent };
        Datatype { inner: Arc::new(inner) }
    }

    /// Bytes of data of one instance (MPI's size).
    pub fn size(&self) -> u64 {
        self.inner.data.len()
    }

    /// Bytes from one instance to the next.
    pub fn extent(&self) -> i64 {
        self.inner.extent.bytes()
    }

    /// The lower bound: an offset from the address of an instance.
    pub fn lower_bound(&self) -> i64 {
        self.inner.extent.lower
    }

    /// From the first byte of data of one instance to behind the last one, as offsets; empty where there are no data.
    pub fn true_bounds(&self) -> Range<i64> {
        self.inner.data.bounds(1).expect("one instance was judged when it was made")
    }

    /// What its data consist of.
    pub fn class(&self) -> Class {
        self.inner.class
    }

    /// Elements of one instance, where they are all of one predefined type.
    pub fn elements(&self) -> Option<u64> {
        match self.inner.class {
            Class::Nothing => Some(0),
            Class::One(element) => Some(self.size() / element.shape().sent() as u64),
            Class::Mixed => None,
        }
    }

    /// The bytes of its data, in their order.
    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.inner.data
    }

    /// The bytes of its elements with the padding of pairs: what an update walks over. The same as
    /// [`Self::descriptor`] where elements have none.
    pub(crate) fn padded(&self) -> &Arc<Descriptor> {
        &self.inner.padded
    }

    /// Another handle on the same type (MPI's dup).
    pub fn dup(&self) -> Datatype {
        self.clone()
    }

    /// Where `count` instances begin, if their data (`padded`: with the padding of pairs) are one piece without gaps.
    pub(crate) fn run(&self, padded: bool, count: u64) -> Option<i64> {
        let (of, run) = match padded {
            true => (&self.inner.padded, self.inner.padded_run),
            false => (&self.inner.data, self.inner.data_run),
        };
        run.filter(|_| count == 1 || of.extent() == of.len() as i64)
    }

    /// No other type of this process has this number.
    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }
}

impl From<Element> for Datatype {
    fn from(element: Element) -> Datatype {
        Datatype::of(element)
    }
}

#[cfg(test)]
mod tests;
