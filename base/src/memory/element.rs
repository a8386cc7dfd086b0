//! Elements and operators of accumulates: which there are, which go together, and how one is combined with another.
//!
//! They are those of MPI's predefined types and operators. Pairs and `long double`s have padding in memory; padding is neither
//! sent nor written.
//!
//! Rules where MPI leaves a choice, made so that no result depends on the order of accumulates:
//! * sums and products of integers wrap;
//! * the least and the greatest of two numbers is NaN where one of them is, and -0.0 is less than 0.0;
//! * of equal values in pairs the lower index stays.

use std::cmp::Ordering;

/// The type of an element; its number in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Element {
    I8 = 1,
    U8 = 2,
    I16 = 3,
    U16 = 4,
    I32 = 5,
    U32 = 6,
    I64 = 7,
    U64 = 8,
    F32 = 9,
    F64 = 10,
    /// Two `f32`: the real part, the imaginary one.
    Complex32 = 11,
    /// Two `f64`.
    Complex64 = 12,
    /// A byte: 0 is false, everything else true.
    Bool = 13,
    /// Eight bits.
    Byte = 14,
    /// Pairs of a value and an `i32`, in memory as C lays them out.
    F32Index = 15,
    F64Index = 16,
    I64Index = 17,
    I32Index = 18,
    I16Index = 19,
    /// `long double` of C: 16 bytes, of which x86-64 uses 10. Elsewhere it takes no operator but [`Operator::Replace`] and
    /// [`Operator::Nothing`].
    LongDouble = 20,
    /// The same and an `i32`.
    LongDoubleIndex = 21,
}

/// How an element is combined with the one in memory; its number in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operator {
    Sum = 1,
    Product = 2,
    Min = 3,
    Max = 4,
    LogicalAnd = 5,
    LogicalOr = 6,
    LogicalXor = 7,
    BitAnd = 8,
    BitOr = 9,
    BitXor = 10,
    /// Of two pairs the one with the least value.
    MinIndex = 11,
    /// Of two pairs the one with the greatest value.
    MaxIndex = 12,
    Replace = 13,
    /// Memory stays as it is: with a result, a read.
    Nothing = 14,
}

/// Where the parts of an element lie in memory: offset and bytes of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes from one element to the next in memory.
    pub extent: usize,
    /// Bytes of the value, which lies first.
    pub value: usize,
    /// Bytes from the element's begin to its index, where it has one. The index has 4.
    pub index_at: Option<usize>,
}

impl Shape {
    const fn plain(bytes: usize) -> Shape {
        Shape { extent: bytes, value: bytes, index_at: None }
    }

    const fn pair(extent: usize, value: usize, index_at: usize) -> Shape {
        Shape { extent, value, index_at: Some(index_at) }
    }

    /// Whether all of its bytes are its value.
    pub(super) const fn is_plain(self) -> bool {
        self.value == self.extent
    }

    /// Bytes of an element without padding, as it is sent.
    pub const fn sent(self) -> usize {
        self.value + if self.index_at.is_some() { INDEX } else { 0 }
    }
}

/// Bytes of a `long double` that are its value; the rest of 16 is padding.
const LONG_VALUE: usize = if cfg!(target_arch = "x86_64") { 10 } else { 16 };
/// Whether this processor has its arithmetic.
const IS_LONG_CALCULATED: bool = cfg!(all(target_arch = "x86_64", not(miri)));
/// Bytes of an index.
pub(super) const INDEX: usize = size_of::<i32>();

impl Element {
    pub const ALL: [Element; 21] = [
        Element::I8,
        Element::U8,
        Element::I16,
        Element::U16,
        Element::I32,
        Element::U32,
        Element::I64,
        Element::U64,
        Element::F32,
        Element::F64,
        Element::Complex32,
        Element::Complex64,
        Element::Bool,
        Element::Byte,
        Element::F32Index,
        Element::F64Index,
        Element::I64Index,
        Element::I32Index,
        Element::I16Index,
        Element::LongDouble,
        Element::LongDoubleIndex,
    ];

    /// The type with a number of a frame; `None` for one that is not known here.
    pub fn numbered(number: u8) -> Option<Element> {
        Element::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }

    /// How it lies in memory.
    pub const fn shape(self) -> Shape {
        match self {
            Element::I8 | Element::U8 | Element::Bool | Element::Byte => Shape::plain(1),
            Element::I16 | Element::U16 => Shape::plain(2),
            Element::I32 | Element::U32 | Element::F32 => Shape::plain(4),
            Element::I64 | Element::U64 | Element::F64 | Element::Complex32 => Shape::plain(8),
            Element::Complex64 => Shape::plain(16),
            Element::F32Index | Element::I32Index => Shape::pair(8, 4, 4),
            Element::F64Index | Element::I64Index => Shape::pair(16, 8, 8),
            Element::I16Index => Shape::pair(8, 2, 4),
            Element::LongDouble => Shape { extent: 16, value: LONG_VALUE, index_at: None },
            Element::LongDoubleIndex => Shape::pair(32, LONG_VALUE, 16),
        }
    }

    fn is_integer(self) -> bool {
        (Element::I8 as u8..=Element::U64 as u8).contains(&(self as u8))
    }

    /// Whether an operator is defined for it.
    pub fn takes(self, operator: Operator) -> bool {
        match operator {
            Operator::Replace | Operator::Nothing => true,
            _ if !self.is_calculated() => false,
            Operator::Sum | Operator::Product => {
                let is_complex = matches!(self, Element::Complex32 | Element::Complex64);
                is_complex || self.is_ordered()
            }
            Operator::Min | Operator::Max => self.is_ordered(),
            Operator::LogicalAnd | Operator::LogicalOr | Operator::LogicalXor => {
                self.is_integer() || self == Element::Bool
            }
            Operator::BitAnd | Operator::BitOr | Operator::BitXor => {
                self.is_integer() || self == Element::Byte
            }
            Operator::MinIndex | Operator::MaxIndex => self.shape().index_at.is_some(),
        }
    }

    /// Whether this processor calculates with it.
    pub fn is_calculated(self) -> bool {
        let is_long = matches!(self, Element::LongDouble | Element::LongDoubleIndex);
        !is_long || IS_LONG_CALCULATED
    }

    /// Integers and numbers with a fraction.
    fn is_ordered(self) -> bool {
        self.is_integer() || matches!(self, Element::F32 | Element::F64 | Element::LongDouble)
    }

    /// Whether equality of its bytes is equality: these can be compared and swapped.
    pub fn is_comparable(self) -> bool {
        self.is_integer() || matches!(self, Element::Bool | Element::Byte)
    }
}

impl Operator {
    pub const ALL: [Operator; 14] = [
        Operator::Sum,
        Operator::Product,
        Operator::Min,
        Operator::Max,
        Operator::LogicalAnd,
        Operator::LogicalOr,
        Operator::LogicalXor,
        Operator::BitAnd,
        Operator::BitOr,
        Operator::BitXor,
        Operator::MinIndex,
        Operator::MaxIndex,
        Operator::Replace,
        Operator::Nothing,
    ];

    /// The operator with a number of a frame; `None` for one that is not known here.
    pub fn numbered(number: u8) -> Option<Operator> {
        Operator::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }
}

/// Values with a sum and a product.
pub(super) trait Arithmetic: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

/// Values with an order.
pub(super) trait Ordered: Copy {
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// The order of pairs' values, in which NaN comes first or last.
    fn order(self, other: Self, nan_first: bool) -> Ordering;
}

/// Values with bits, each true or false.
pub(super) trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn is_true(self) -> bool;
    fn of_bool(value: bool) -> Self;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Arithmetic for $integer {
            #[inline]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }

        impl Ordered for $integer {
            #[inline]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline]
            fn order(self, other: Self, _: bool) -> Ordering {
                self.cmp(&other)
            }
        }

        impl Bits for $integer {
            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }

            #[inline]
            fn is_true(self) -> bool {
                self != 0
            }

            #[inline]
            fn of_bool(value: bool) -> Self {
                Self::from(value)
            }
        }
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Arithmetic for $number {
            #[inline]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn product(self, other: Self) -> Self {
                self * other
            }
        }

        impl Ordered for $number {
            #[inline]
            fn least(self, other: Self) -> Self {
                match self.partial_cmp(&other) {
                    Some(Ordering::Less) => self,
                    Some(Ordering::Greater) => other,
                    // Of two zeros the negative one.
                    Some(Ordering::Equal) => Self::from_bits(self.to_bits() | other.to_bits()),
                    None => Self::NAN,
                }
            }

            #[inline]
            fn greatest(self, other: Self) -> Self {
                match self.partial_cmp(&other) {
                    Some(Ordering::Less) => other,
                    Some(Ordering::Greater) => self,
                    Some(Ordering::Equal) => Self::from_bits(self.to_bits() & other.to_bits()),
                    None => Self::NAN,
                }
            }

            #[inline]
            fn order(self, other: Self, nan_first: bool) -> Ordering {
                order_of_values(self.partial_cmp(&other), [self.is_nan(), other.is_nan()], nan_first)
            }
        }
    )*};
}

numbers!(f32, f64);

/// The order of two values of pairs, by their comparison; NaN has none, and comes first or last.
#[inline]
pub(super) fn order_of_values(
    compared: Option<Ordering>,
    are_nan: [bool; 2],
    nan_first: bool,
) -> Ordering {
    let nan = if nan_first { Ordering::Less } else { Ordering::Greater };
    match are_nan {
        [true, true] => Ordering::Equal,
        [true, false] => nan,
        [false, true] => nan.reverse(),
        // Zeros of both signs are equal: the indices decide.
        [false, false] => compared.unwrap_or(Ordering::Equal),
    }
}

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct Complex<T> {
    pub real: T,
    pub imaginary: T,
}

macro_rules! complexes {
    ($($number:ty),*) => {$(
        impl Arithmetic for Complex<$number> {
            #[inline]
            fn sum(self, other: Self) -> Self {
                let (real, imaginary) = (self.real + other.real, self.imaginary + other.imaginary);
                Complex { real, imaginary }
            }

            #[inline]
            fn product(self, other: Self) -> Self {
                Complex {
                    real: self.real * other.real - self.imaginary * other.imaginary,
                    imaginary: self.real * other.imaginary + self.imaginary * other.real,
                }
            }
        }
    )*};
}

complexes!(f32, f64);
