//! Error numbers as a type of their own.

use std::fmt;

/// An error number as the kernel hands it to applications. Always positive and below 4096.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Errno = Errno(libc::$name);)*
        }

        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if self.0 == libc::$name { return f.write_str(stringify!($name)); })*
                write!(f, "Errno({})", self.0)
            }
        }
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENODEV
    ENOTDIR EISDIR EINVAL EMFILE ENOTTY EFBIG ENOSPC EROFS EMLINK ERANGE EDEADLK ENAMETOOLONG
    ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EPROTO EOVERFLOW EOPNOTSUPP ETIMEDOUT EHOSTDOWN
    ESTALE EDQUOT ECONNABORTED ENOTCONN
}

impl Errno {
    /// The error with this number; anything outside 1..4096 becomes EIO, which the kernel would
    /// otherwise take for a broken reply.
    pub fn new(number: i32) -> Errno {
        if (1..4096).contains(&number) { Errno(number) } else { Errno::EIO }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno::new(error.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_error_has_become_eio() {
        assert_eq!(Errno::new(2), Errno::ENOENT);
        assert_eq!(format!("{:?}", Errno::new(libc::ENOTEMPTY)), "ENOTEMPTY");
        for odd in [0, -5, 4096, i32::MIN] {
            assert_eq!(Errno::new(odd), Errno::EIO);
        }
    }
}
