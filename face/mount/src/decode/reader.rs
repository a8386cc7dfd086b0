//! Takes a request's bytes apart, piece by piece, never beyond their end.
//!
//! Invariant: every method either consumes what it returns or fails without a panic; nothing is
//! allocated.

use zerocopy::FromBytes;

use super::DecodeError;

/// The unread rest of a request's body.
///
/// The first fixed structure may lie apart from the rest: if the write loop reads a request in two pieces, and
/// in the kernel's io_uring queues.
pub(super) struct Reader<'a> {
    fixed: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(fixed: Option<&'a [u8]>, rest: &'a [u8]) -> Reader<'a> {
        Reader { fixed, rest }
    }

    /// The next fixed structure.
    #[inline]
    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T, DecodeError> {
        if let Some(fixed) = self.fixed.take() {
            let (value, _) = T::read_from_prefix(fixed).map_err(|_| DecodeError::Short)?;
            return Ok(value);
        }
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| DecodeError::Short)?;
        self.rest = rest;
        Ok(value)
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A string up to its terminator, of at most `longest` bytes.
    pub(super) fn string(&mut self, longest: usize) -> Result<&'a [u8], DecodeError> {
        let window = &self.rest[..self.rest.len().min(longest + 1)];
        let end = window.iter().position(|byte| *byte == 0);
        let end = end.ok_or(DecodeError::Unterminated)?;
        let bytes = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(bytes)
    }

    /// The name of a directory entry: not empty, without a slash.
    pub(super) fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        let name = self.string(crate::abi::NAME_BYTES_MAX)?;
        if name.is_empty() || name.contains(&b'/') {
            return Err(DecodeError::BadName);
        }
        Ok(name)
    }
}
