//! Small values that requests and replies share.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Borrowed bytes: a name, a link target, file content. Encoded as a length and the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes<'a>, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = Bytes<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes inside the message")
            }
            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Bytes<'de>, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_bytes(Borrowed)
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.get(..64).unwrap_or(self.0).escape_ascii())
    }
}

/// A point in time as inodes keep it; the whole range of `timespec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// From nanoseconds since 1970.
    pub fn from_unix_nanos(nanos: i64) -> Timestamp {
        Timestamp {
            seconds: nanos.div_euclid(1_000_000_000),
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        }
    }
}

/// The outcome of a request that is not success: an errno of Linux.
///
/// POSIX errors are part of the protocol: the program sees the error that the server decided on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident = $number:literal,)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "` of Linux.")] pub const $name: Errno = Errno($number);)*

            /// Its symbolic name, as in the manual pages.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EAGAIN = 11,
    ENOMEM = 12, EACCES = 13, EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20,
    EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24, ENOTTY = 25, ETXTBSY = 26, EFBIG = 27, ENOSPC = 28,
    EROFS = 30, EMLINK = 31, EPIPE = 32, ERANGE = 34, EDEADLK = 35, ENAMETOOLONG = 36,
    ENOLCK = 37, ENOSYS = 38, ENOTEMPTY = 39, ELOOP = 40, ENODATA = 61, EPROTO = 71,
    EOVERFLOW = 75, EUSERS = 87, EOPNOTSUPP = 95, ETIMEDOUT = 110, ESTALE = 116, EDQUOT = 122,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Errno {}
