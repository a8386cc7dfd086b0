//! Error codes of the BMI interface: PVFS's own numbers with bits that say who made them.
//!
//! A code that is not negative is no error; errors are returned negated (specs of the interface:
//! `docs/spec/bmi.md`).

use std::ffi::CStr;

use ropewalk_net::Fault;

/// The type of an error in the C interface.
pub type ErrorCode = i32;

const CODE: i32 = 1 << 30;
const NO_ERRNO: i32 = 1 << 29;
const BMI: i32 = 1 << 7;

const fn errno(number: i32) -> i32 {
    CODE | BMI | number
}

const fn other(number: i32) -> i32 {
    CODE | NO_ERRNO | BMI | number
}

pub const EIO: i32 = errno(4);
pub const EAGAIN: i32 = errno(7);
pub const ENOMEM: i32 = errno(8);
pub const EFAULT: i32 = errno(9);
pub const EBUSY: i32 = errno(10);
pub const ENODEV: i32 = errno(12);
pub const EINVAL: i32 = errno(15);
pub const EMFILE: i32 = errno(16);
pub const ENAMETOOLONG: i32 = errno(23);
pub const ENOSYS: i32 = errno(25);
pub const EPROTO: i32 = errno(38);
pub const EBADMSG: i32 = errno(39);
pub const EMSGSIZE: i32 = errno(42);
pub const ENOPROTOOPT: i32 = errno(44);
pub const EADDRINUSE: i32 = errno(47);
pub const EADDRNOTAVAIL: i32 = errno(48);
pub const ENETDOWN: i32 = errno(49);
pub const EHOSTUNREACH: i32 = errno(56);
pub const EACCES: i32 = errno(58);
pub const ECONNRESET: i32 = errno(59);
pub const ECANCEL: i32 = other(1);
pub const EHOSTNTFD: i32 = other(4);

/// The interface's number of an error of this system, and what it is called. Those that are missing are
/// synonyms, or no network has them.
const TABLE: &[(i32, i32, &CStr)] = &[
    (1, 1, c"EPERM"),
    (2, 2, c"ENOENT"),
    (4, 3, c"EINTR"),
    (5, 4, c"EIO"),
    (6, 5, c"ENXIO"),
    (9, 6, c"EBADF"),
    (11, 7, c"EAGAIN"),
    (12, 8, c"ENOMEM"),
    (14, 9, c"EFAULT"),
    (16, 10, c"EBUSY"),
    (17, 11, c"EEXIST"),
    (19, 12, c"ENODEV"),
    (20, 13, c"ENOTDIR"),
    (21, 14, c"EISDIR"),
    (22, 15, c"EINVAL"),
    (24, 16, c"EMFILE"),
    (27, 17, c"EFBIG"),
    (28, 18, c"ENOSPC"),
    (30, 19, c"EROFS"),
    (31, 20, c"EMLINK"),
    (32, 21, c"EPIPE"),
    (35, 22, c"EDEADLK"),
    (36, 23, c"ENAMETOOLONG"),
    (37, 24, c"ENOLCK"),
    (38, 25, c"ENOSYS"),
    (39, 26, c"ENOTEMPTY"),
    (40, 27, c"ELOOP"),
    (42, 29, c"ENOMSG"),
    (61, 33, c"ENODATA"),
    (62, 34, c"ETIME"),
    (66, 36, c"EREMOTE"),
    (71, 38, c"EPROTO"),
    (74, 39, c"EBADMSG"),
    (75, 40, c"EOVERFLOW"),
    (90, 42, c"EMSGSIZE"),
    (91, 43, c"EPROTOTYPE"),
    (92, 44, c"ENOPROTOOPT"),
    (93, 45, c"EPROTONOSUPPORT"),
    (95, 46, c"EOPNOTSUPP"),
    (98, 47, c"EADDRINUSE"),
    (99, 48, c"EADDRNOTAVAIL"),
    (100, 49, c"ENETDOWN"),
    (101, 50, c"ENETUNREACH"),
    (102, 51, c"ENETRESET"),
    (105, 52, c"ENOBUFS"),
    (110, 53, c"ETIMEDOUT"),
    (111, 54, c"ECONNREFUSED"),
    (112, 55, c"EHOSTDOWN"),
    (113, 56, c"EHOSTUNREACH"),
    (114, 57, c"EALREADY"),
    (13, 58, c"EACCES"),
    (104, 59, c"ECONNRESET"),
];

/// Numbers that no error of this system is mapped to.
const UNMAPPED: &[(i32, &CStr)] = &[
    (28, c"EWOULDBLOCK"),
    (30, c"EUNATCH"),
    (31, c"EBADR"),
    (32, c"EDEADLOCK"),
    (35, c"ENONET"),
    (37, c"ECOMM"),
    (41, c"ERESTART"),
];

/// Codes that stand for no error of a system.
const OTHERS: &[(i32, &CStr)] = &[
    (1, c"ECANCEL"),
    (2, c"EDEVINIT"),
    (3, c"EDETAIL"),
    (4, c"EHOSTNTFD"),
    (5, c"EADDRNTFD"),
    (6, c"ENORECVR"),
    (7, c"ETRYAGAIN"),
];

/// The interface's code of a system's error, of the same sign; others come back as they are.
pub fn from_errno(value: i32) -> ErrorCode {
    let magnitude = value.unsigned_abs();
    match TABLE.iter().find(|(system, ..)| system.unsigned_abs() == magnitude) {
        Some((_, number, _)) => errno(*number) * value.signum(),
        None => value,
    }
}

fn named(names: &[(i32, &'static CStr)], number: i32) -> Option<&'static CStr> {
    names.iter().find(|(other, _)| *other == number).map(|(_, name)| *name)
}

/// The text for an error code.
pub fn name(code: ErrorCode) -> &'static CStr {
    let code = code.unsigned_abs() as i32;
    let (number, mine) = (code & 0x7f, code & CODE != 0);
    if code == 0 {
        return c"no error";
    }
    let found = match (mine, code & NO_ERRNO != 0) {
        (true, true) => named(OTHERS, number),
        (true, false) => {
            let mapped = TABLE.iter().find(|(_, other, _)| *other == number);
            mapped.map(|(.., name)| *name).or_else(|| named(UNMAPPED, number))
        }
        (false, _) => TABLE.iter().find(|(system, ..)| *system == code).map(|(.., name)| *name),
    };
    found.unwrap_or(c"unknown error")
}

/// The code, negated, for an operation that ended so.
pub fn of_fault(fault: Fault) -> ErrorCode {
    -match fault {
        Fault::PeerReset => ECONNRESET,
        Fault::Unreachable => EHOSTUNREACH,
        Fault::OtherCluster | Fault::Protocol | Fault::Oversize | Fault::Truncated => EPROTO,
        Fault::Invalid => EPROTO,
        Fault::Cancelled => ECANCEL,
        Fault::Corrupt => EBADMSG,
        Fault::Busy => EAGAIN,
        Fault::Closed => ENETDOWN,
        Fault::NotPermitted => EACCES,
        _ => EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_mapped_with_their_sign_and_strangers_left_alone() {
        assert_eq!(from_errno(22), EINVAL);
        assert_eq!(from_errno(-22), -EINVAL);
        assert_eq!(from_errno(0), 0);
        assert_eq!(from_errno(-4095), -4095);
        assert_eq!(from_errno(i32::MIN), i32::MIN);
        for (skipped, _) in UNMAPPED {
            assert!(TABLE.iter().all(|(_, number, _)| number != skipped), "{skipped}");
        }
        assert_eq!(TABLE.len() + UNMAPPED.len(), 59);
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(name(-ECANCEL), c"ECANCEL");
        assert_eq!(name(EPROTO), c"EPROTO");
        assert_eq!(name(-111), c"ECONNREFUSED");
        assert_eq!(name(-errno(41)), c"ERESTART");
        for code in (1..=59).map(errno).chain((1..=7).map(other)) {
            assert!(name(-code).to_bytes().starts_with(b"E"), "{code:#x}");
        }
        for stranger in [12345, errno(60), other(8)] {
            assert_eq!(name(stranger), c"unknown error");
        }
    }
}
