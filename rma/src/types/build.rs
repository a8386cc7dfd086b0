//! The constructors of derived types.

use ropewalk_base::descriptor::{Descriptor, Malformed};
use ropewalk_base::memory::Element;

use super::extent::{Extent, near};
use super::{Class, Datatype, TypeError};

/// Which dimension of an array lies without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The last one.
    C,
    /// The first one.
    Fortran,
}

/// Bytes of the index of a pair.
const INDEX: u64 = size_of::<i32>() as u64;

pub(super) fn predefined(element: Element) -> Datatype {
    let made = || -> Result<Datatype, Malformed> {
        let shape = element.shape();
        let extent = shape.extent as i64;
        let whole = Descriptor::contiguous(shape.extent as u64)?;
        if shape.sent() == shape.extent {
            return Ok(Datatype::new(whole, None, Class::One(element), Extent::of(element)));
        }
        let (value, index) =
            (Descriptor::contiguous(shape.value as u64)?, Descriptor::contiguous(INDEX)?);
        let index = shape.index_at.map(|at| (at as i64, &index));
        let parts: Vec<_> = std::iter::once((0, &value)).chain(index).collect();
        let data = Descriptor::joined(&parts)?.resized(extent)?;
        Ok(Datatype::new(data, Some(whole), Class::One(element), Extent::of(element)))
    };
    made().expect("a predefined type has two pieces at most")
}

/// A part of an indexed type or a struct: `count` instances side by side, so many bytes from the address.
#[derive(Clone, Copy)]
struct Block<'a> {
    at: i64,
    count: u64,
    of: &'a Datatype,
}

impl Datatype {
    /// `count` instances side by side.
    ///
    /// # Errors
    /// It has too many pieces, or reaches too far. So have all types below.
    pub fn contiguous(&self, count: u64) -> Result<Datatype, TypeError> {
        self.hvector(1, count, 0)
    }

    /// `count` blocks of `length` instances each; the blocks are `stride` instances apart.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn vector(&self, count: u64, length: u64, stride: i64) -> Result<Datatype, TypeError> {
        self.hvector(count, length, self.instances(stride)?)
    }

    /// The same with a stride in bytes.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn hvector(&self, count: u64, length: u64, stride: i64) -> Result<Datatype, TypeError> {
        let own = self.inner.extent;
        let block = own.strided(length, own.bytes())?;
        let count = if length == 0 { 0 } else { count };
        let extent = block.strided(count, stride)?;
        let made = |one: &Descriptor| -> Result<Descriptor, Malformed> {
            let block = one.repeated(length, own.bytes())?;
            block.repeated(count, stride)?.resized(extent.bytes())
        };
        let class = if count == 0 { Class::Nothing } else { self.class() };
        self.derived(made, class, extent)
    }

    /// Blocks, each with its number of instances and its displacement in instances.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn indexed(&self, blocks: &[(u64, i64)]) -> Result<Datatype, TypeError> {
        let block =
            |&(count, at): &(u64, i64)| Ok(Block { at: self.instances(at)?, count, of: self });
        joined(&blocks.iter().map(block).collect::<Result<Vec<_>, Malformed>>()?, false)
    }

    /// The same with displacements in bytes.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn hindexed(&self, blocks: &[(u64, i64)]) -> Result<Datatype, TypeError> {
        let block = |&(count, at): &(u64, i64)| Block { at, count, of: self };
        joined(&blocks.iter().map(block).collect::<Vec<_>>(), false)
    }

    /// Blocks of `length` instances each, with displacements in instances.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn indexed_block(&self, length: u64, at: &[i64]) -> Result<Datatype, TypeError> {
        self.indexed(&at.iter().map(|&at| (length, at)).collect::<Vec<_>>())
    }

    /// Blocks of `length` instances each, with displacements in bytes.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn hindexed_block(&self, length: u64, at: &[i64]) -> Result<Datatype, TypeError> {
        self.hindexed(&at.iter().map(|&at| (length, at)).collect::<Vec<_>>())
    }

    /// A struct: blocks, each with its number of instances, its displacement in bytes and its type. The extent is
    /// rounded up to the alignment of the elements, as in C, unless `resized` set it.
    ///
    /// # Errors
    /// As [`Self::contiguous`].
    pub fn structure(blocks: &[(u64, i64, &Datatype)]) -> Result<Datatype, TypeError> {
        let block = |&(count, at, of): &(u64, i64, _)| Block { at, count, of };
        joined(&blocks.iter().map(block).collect::<Vec<_>>(), true)
    }

    /// A part of an array. Each dimension has the size of the array, the size of the part, and where the part starts;
    /// all in instances. The extent is that of the array.
    ///
    /// # Errors
    /// The part does not lie in the array; or as [`Self::contiguous`].
    pub fn subarray(
        &self,
        dimensions: &[(u64, u64, u64)],
        order: Order,
    ) -> Result<Datatype, TypeError> {
        for (dimension, &(size, part, start)) in dimensions.iter().enumerate() {
            if part > size || start > size - part {
                return Err(TypeError::Subarray { dimension, size, part, start });
            }
        }
        let mut stride = i128::from(self.extent());
        let (mut at, mut parts) = (0_i128, Vec::new());
        let mut add = |&(size, part, start): &(u64, u64, u64)| -> Result<(), Malformed> {
            at = i128::from(near(at + stride * i128::from(start))?);
            parts.push((part, near(stride)?));
            stride = i128::from(near(stride * i128::from(size))?);
            Ok(())
        };
        match order {
            Order::C => dimensions.iter().rev().try_for_each(&mut add)?,
            Order::Fortran => dimensions.iter().try_for_each(&mut add)?,
        }
        let bytes = near(stride)?;
        let is_empty = parts.iter().any(|(part, _)| *part == 0);
        let made = |one: &Descriptor| -> Result<Descriptor, Malformed> {
            if is_empty {
                return Descriptor::contiguous(0)?.resized(bytes);
            }
            let part =
                parts.iter().try_fold(one.clone(), |it, (part, by)| it.repeated(*part, *by))?;
            Descriptor::joined(&[(at as i64, &part)])?.resized(bytes)
        };
        let class = if is_empty { Class::Nothing } else { self.class() };
        self.derived(made, class, self.inner.extent.resized(0, bytes)?)
    }

    /// The same data with another lower bound and another extent, in bytes.
    ///
    /// # Errors
    /// They reach too far.
    pub fn resized(&self, lower: i64, extent: i64) -> Result<Datatype, TypeError> {
        let set = self.inner.extent.resized(lower, extent)?;
        self.derived(|one| one.clone().resized(extent), self.class(), set)
    }

    fn instances(&self, count: i64) -> Result<i64, Malformed> {
        near(i128::from(count) * i128::from(self.extent()))
    }

    /// A type of this one: `made` says how its data are made of those of one instance.
    fn derived(
        &self,
        made: impl Fn(&Descriptor) -> Result<Descriptor, Malformed>,
        class: Class,
        extent: Extent,
    ) -> Result<Datatype, TypeError> {
        let data = made(&self.inner.data)?;
        let padded = self.has_padding().then(|| made(&self.inner.padded)).transpose()?;
        Ok(Datatype::new(data, padded, class, extent))
    }

    fn has_padding(&self) -> bool {
        !std::sync::Arc::ptr_eq(&self.inner.data, &self.inner.padded)
    }
}

fn joined(blocks: &[Block<'_>], is_struct: bool) -> Result<Datatype, TypeError> {
    let extents = blocks.iter().map(|it| (i128::from(it.at), it.count, &it.of.inner.extent));
    let mut extent = Extent::joined(extents)?;
    if is_struct {
        extent = extent.aligned()?;
    }
    let full = || blocks.iter().filter(|it| it.count > 0 && it.of.size() > 0);
    let class = full().map(|it| it.of.class()).reduce(|a, b| if a == b { a } else { Class::Mixed });
    let class = class.unwrap_or(Class::Nothing);
    // The instances of a block lie as far apart as those of its type: every descriptor has the extent of its type.
    let made = |of: fn(&Datatype) -> &Descriptor| -> Result<Descriptor, Malformed> {
        Descriptor::blocks(full().map(|it| (it.at, it.count, of(it.of))))?.resized(extent.bytes())
    };
    let data = made(|it| &it.inner.data)?;
    // Data of several types are never accumulated: nobody asks for their padding.
    let is_padded = class != Class::Mixed && full().any(|it| it.of.has_padding());
    let padded = is_padded.then(|| made(|it| &it.inner.padded)).transpose()?;
    Ok(Datatype::new(data, padded, class, extent))
}
