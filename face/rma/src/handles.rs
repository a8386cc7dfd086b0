//! What callers name by numbers: predefined types, operators, assertions, kinds of locks. The numbers are those of the
//! header, and never change.

use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use ropewalk_rma::{Asserts, Datatype, Element, LockKind, Operator};

use crate::codes::{
    ERR_ARG, ERR_ASSERT, ERR_COUNT, ERR_LOCKTYPE, ERR_OP, ERR_RANK, Failure, failure,
};

/// A handle of a window, type or request: a number in the clothes of a pointer, so that C tells them apart.
pub type Handle = *mut c_void;

/// The handle with a number.
pub fn handle(number: u64) -> Handle {
    std::ptr::without_provenance_mut(number as usize)
}

/// The number of a handle.
pub fn number(handle: Handle) -> u64 {
    handle.addr() as u64
}

static PREDEFINED: LazyLock<Vec<Datatype>> =
    LazyLock::new(|| Element::ALL.iter().map(|element| Datatype::of(*element)).collect());

/// The predefined type with this number.
pub fn predefined(number: u64) -> Option<&'static Datatype> {
    PREDEFINED.get(usize::try_from(number.checked_sub(1)?).ok()?)
}

pub fn operator(number: c_int) -> Result<Operator, Failure> {
    let operator = u8::try_from(number).ok().and_then(Operator::numbered);
    operator.ok_or_else(|| failure(ERR_OP, format!("{number} is no operator")))
}

pub fn lock_kind(number: c_int) -> Result<LockKind, Failure> {
    match number {
        1 => Ok(LockKind::Exclusive),
        2 => Ok(LockKind::Shared),
        _ => Err(failure(ERR_LOCKTYPE, format!("{number} is no kind of lock"))),
    }
}

const ASSERTS: [Asserts; 5] = [
    Asserts::NO_CHECK,
    Asserts::NO_STORE,
    Asserts::NO_PUT,
    Asserts::NO_PRECEDE,
    Asserts::NO_SUCCEED,
];

pub fn asserts(bits: c_int) -> Result<Asserts, Failure> {
    if bits < 0 || bits >> ASSERTS.len() != 0 {
        return Err(failure(ERR_ASSERT, format!("{bits:#x} are no assertions")));
    }
    let set = (0..ASSERTS.len()).filter(|at| bits >> at & 1 == 1);
    Ok(set.fold(Asserts::NONE, |all, at| all | ASSERTS[at]))
}

/// A rank that has to be one.
pub fn rank(number: c_int) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| failure(ERR_RANK, format!("{number} is no rank")))
}

/// The call that made a window (RW_WIN_FLAVOR_...).
pub const FLAVOR_CREATE: c_int = 1;
pub const FLAVOR_ALLOCATE: c_int = 2;
pub const FLAVOR_DYNAMIC: c_int = 3;
pub const FLAVOR_SHARED: c_int = 4;
/// The model of all windows (RW_WIN_UNIFIED).
pub const MODEL_UNIFIED: c_int = 2;

/// Attributes of a window (RW_WIN_BASE and so on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    Base = 1,
    Size,
    DisplacementUnit,
    CreateFlavor,
    Model,
}

pub fn attribute(number: c_int) -> Result<Attribute, Failure> {
    Ok(match number {
        1 => Attribute::Base,
        2 => Attribute::Size,
        3 => Attribute::DisplacementUnit,
        4 => Attribute::CreateFlavor,
        5 => Attribute::Model,
        _ => return Err(failure(ERR_ARG, format!("a window has no attribute {number}"))),
    })
}

/// Bytes of a name, its zero included (RW_MAX_OBJECT_NAME).
pub const NAME_BYTES_MAX: usize = 128;

/// The number of the rank that is nobody (RW_PROC_NULL).
pub const PROC_NULL: c_int = -1;

/// The rank of a target: an operation on nobody is one on `None`.
pub fn target_rank(number: c_int) -> Result<Option<u32>, Failure> {
    if number == PROC_NULL { Ok(None) } else { rank(number).map(Some) }
}

/// A count that is none where it is negative.
pub fn count(number: i64) -> Result<u64, Failure> {
    u64::try_from(number).map_err(|_| failure(ERR_COUNT, format!("a count of {number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the header defines as these numbers, by name.
    fn defined(name: &str) -> i64 {
        let header = include_str!("../include/ropewalk_rma.h");
        let begin = format!("#define {name} ");
        let line = header.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("{name} is not defined"));
        let number = line.rsplit([' ', '(']).next().unwrap().trim_end_matches(')');
        number.parse().unwrap_or_else(|_| panic!("{line}"))
    }

    #[test]
    fn types_and_operators_have_the_numbers_of_the_header() {
        let types = [
            ("INT8", Element::I8),
            ("UINT8", Element::U8),
            ("INT16", Element::I16),
            ("UINT16", Element::U16),
            ("INT32", Element::I32),
            ("UINT32", Element::U32),
            ("INT64", Element::I64),
            ("UINT64", Element::U64),
            ("FLOAT", Element::F32),
            ("DOUBLE", Element::F64),
            ("FLOAT_COMPLEX", Element::Complex32),
            ("DOUBLE_COMPLEX", Element::Complex64),
            ("BOOL", Element::Bool),
            ("BYTE", Element::Byte),
            ("FLOAT_INT", Element::F32Index),
            ("DOUBLE_INT", Element::F64Index),
            ("LONG_INT", Element::I64Index),
            ("2INT", Element::I32Index),
            ("SHORT_INT", Element::I16Index),
            ("LONG_DOUBLE", Element::LongDouble),
            ("LONG_DOUBLE_INT", Element::LongDoubleIndex),
        ];
        assert_eq!(types.map(|(_, element)| element), Element::ALL);
        for (name, element) in types {
            let number = defined(&format!("RW_{name}"));
            assert_eq!(number, element as i64, "{name}");
            let found = predefined(number as u64).expect("it is there");
            assert_eq!(found.class(), ropewalk_rma::types::Class::One(element));
        }
        assert!(predefined(0).is_none() && predefined(22).is_none());
        let names = [
            "SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC",
            "MAXLOC", "REPLACE", "NO_OP",
        ];
        for (name, wanted) in names.iter().zip(Operator::ALL) {
            let number = defined(&format!("RW_{name}"));
            assert_eq!(operator(number as c_int), Ok(wanted), "{name}");
        }
        assert!(operator(0).is_err() && operator(15).is_err() && operator(-1).is_err());
        assert!(operator(257).is_err());
    }

    #[test]
    fn assertions_locks_and_codes_have_the_numbers_of_the_header() {
        let names = ["NOCHECK", "NOSTORE", "NOPUT", "NOPRECEDE", "NOSUCCEED"];
        for (name, wanted) in names.iter().zip(ASSERTS) {
            let bits = defined(&format!("RW_MODE_{name}"));
            assert_eq!(asserts(bits as c_int), Ok(wanted), "{name}");
        }
        assert_eq!(asserts(5), Ok(Asserts::NO_CHECK | Asserts::NO_PUT));
        assert!(asserts(32).is_err() && asserts(-1).is_err());
        assert_eq!(lock_kind(defined("RW_LOCK_EXCLUSIVE") as c_int), Ok(LockKind::Exclusive));
        assert_eq!(lock_kind(defined("RW_LOCK_SHARED") as c_int), Ok(LockKind::Shared));
        assert_eq!(defined("RW_PROC_NULL"), i64::from(PROC_NULL));
        assert_eq!(defined("RW_MAX_OBJECT_NAME"), NAME_BYTES_MAX as i64);
        let attributes = [
            ("BASE", Attribute::Base),
            ("SIZE", Attribute::Size),
            ("DISP_UNIT", Attribute::DisplacementUnit),
            ("CREATE_FLAVOR", Attribute::CreateFlavor),
            ("MODEL", Attribute::Model),
        ];
        for (name, wanted) in attributes {
            let number = defined(&format!("RW_WIN_{name}")) as c_int;
            assert_eq!(attribute(number), Ok(wanted), "{name}");
        }
        assert!(attribute(0).is_err() && attribute(6).is_err());
        for (name, wanted) in [
            ("FLAVOR_CREATE", FLAVOR_CREATE),
            ("FLAVOR_ALLOCATE", FLAVOR_ALLOCATE),
            ("FLAVOR_DYNAMIC", FLAVOR_DYNAMIC),
            ("FLAVOR_SHARED", FLAVOR_SHARED),
            ("UNIFIED", MODEL_UNIFIED),
        ] {
            assert_eq!(defined(&format!("RW_WIN_{name}")), i64::from(wanted), "{name}");
        }
        for (name, code) in crate::codes::ALL {
            assert_eq!(defined(name), i64::from(*code), "{name}");
        }
    }
}
