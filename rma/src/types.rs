//! Datatypes: which bytes of memory the instances of a type have, in which order, and of what.
//!
//! MPI's constructors: a predefined type, then contiguous, vector, indexed, struct, subarray and resized ones made of others.
//! A type is a cheap handle. It may be dropped as soon as a call with it has returned.
//!
//! Invariants:
//! * all sums are checked, with 128 bits: a type never reaches farther than addresses do;
//! * a count of zero is legal everywhere, and makes a type without data;
//! * padding of pairs is no data: it is neither sent nor written;
//! * a type may have more nodes than travel: targets get such a type in sections.

mod build;
mod extent;
mod sections;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use ropewalk_base::descriptor::{Descriptor, Malformed};
use ropewalk_base::memory::Element;
use thiserror::Error;

pub use build::Order;
use extent::Extent;
use sections::Cut;
pub(crate) use sections::Travelling;

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
    /// Of data that are too long to travel: their sections, and those with padding, once they are needed.
    sections: [OnceLock<Vec<Cut>>; 2],
}

/// Where the only piece of one instance begins.
fn only_piece(of: &Descriptor) -> Option<i64> {
    let first = of.pieces(1, 0).next()?;
    (first.bytes == of.len()).then_some(first.offset)
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Datatype {
    /// A predefined type. All that are of one element are the same.
    pub fn of(element: Element) -> Datatype {
        static ALL: LazyLock<[Datatype; Element::ALL.len()]> =
            LazyLock::new(|| Element::ALL.map(build::predefined));
        ALL[element as usize - 1].clone()
    }

    fn new(data: Descriptor, padded: Option<Descriptor>, class: Class, extent: Extent) -> Datatype {
        let data = Arc::new(data);
        let padded = padded.map_or_else(|| data.clone(), Arc::new);
        let number = number();
        let sections = [const { OnceLock::new() }; 2];
        let (data_run, padded_run) = (only_piece(&data), only_piece(&padded));
        let inner = Inner { number, data, padded, data_run, padded_run, class, extent, sections };
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

    /// Gives `count` instances at an address, in parts that may travel: one, or one for each section of each instance. `padded`: with
    /// the padding of pairs.
    ///
    /// # Errors
    /// Those of `tell`, which is not asked again then.
    pub(crate) fn travel<E>(
        &self,
        padded: bool,
        address: i64,
        count: u64,
        mut tell: impl FnMut(Travelling<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let of = if padded { &self.inner.padded } else { &self.inner.data };
        if of.may_travel() {
            let (shape, number, bytes) = (of, self.inner.number, of.len() * count);
            return tell(Travelling { shape, number, address, count, from: 0, bytes });
        }
        let cut = || of.sections().into_iter().map(|it| Cut::new(it, &number)).collect();
        let sections = self.inner.sections[usize::from(padded)].get_or_init(cut);
        let mut from = 0;
        // The target refuses an operation that reaches farther than addresses do.
        let place = |instance: i64| address.wrapping_add(instance.wrapping_mul(of.extent()));
        (0..count as i64).try_for_each(|instance| {
            sections::each(sections, place(instance), &mut from, &mut tell)
        })
    }
}

impl From<Element> for Datatype {
    fn from(element: Element) -> Datatype {
        Datatype::of(element)
    }
}

#[cfg(test)]
mod tests;
