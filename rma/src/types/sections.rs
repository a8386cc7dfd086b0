//! The descriptors that go to a target for a type: its own, or one section of it after the other where that is too long.
//!
//! The data of an origin never travel as a type, so only those of a target are cut. The cuts lie between nodes, and a node has
//! whole elements.

use std::sync::Arc;

use ropewalk_base::descriptor::{Descriptor, Section};

/// A section, with the numbers by which targets know its parts.
#[derive(Debug)]
pub(super) enum Cut {
    Part { number: u64, shape: Arc<Descriptor> },
    Loop { offset: i64, count: u64, stride: i64, turn: Vec<Cut> },
}

impl Cut {
    pub fn new(section: Section, number: &impl Fn() -> u64) -> Cut {
        match section {
            Section::Part(shape) => Cut::Part { number: number(), shape },
            Section::Loop { offset, count, stride, turn } => {
                let turn = turn.into_iter().map(|it| Cut::new(it, number)).collect();
                Cut::Loop { offset, count, stride, turn }
            }
        }
    }
}

/// Instances at a target that travel as one type.
#[derive(Debug)]
pub(crate) struct Travelling<'a> {
    pub shape: &'a Arc<Descriptor>,
    /// No other descriptor of this process has it.
    pub number: u64,
    /// Offsets count from here.
    pub address: i64,
    pub count: u64,
    /// Bytes of the operation's data before these, and how many these are, both as the descriptor has them.
    pub from: u64,
    pub bytes: u64,
}

/// Gives all parts of sections that begin at an address, in the order of their data.
pub(super) fn each<E>(
    cuts: &[Cut],
    address: i64,
    from: &mut u64,
    tell: &mut impl FnMut(Travelling<'_>) -> Result<(), E>,
) -> Result<(), E> {
    for cut in cuts {
        match cut {
            Cut::Part { number, shape } => {
                let bytes = shape.len();
                let before = *from;
                *from = before.wrapping_add(bytes);
                tell(Travelling {
                    shape,
                    number: *number,
                    address,
                    count: 1,
                    from: before,
                    bytes,
                })?;
            }
            Cut::Loop { offset, count, stride, turn } => {
                // The turns of one instance do not overflow, its address may: then it is refused.
                let first = address.wrapping_add(*offset);
                for number in 0..*count as i64 {
                    each(turn, first.wrapping_add(number * stride), from, tell)?;
                }
            }
        }
    }
    Ok(())
}
