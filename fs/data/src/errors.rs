//! Failures of the store as clients see them.

use ropewalk_store::objects::ObjectError;
use ropewalk_wire::fs::value::Errno;

/// The errno of a failure.
pub(crate) fn errno(error: &ObjectError) -> Errno {
    match error {
        ObjectError::NoSpace { .. } => Errno::ENOSPC,
        ObjectError::Range { .. } => Errno::EINVAL,
        ObjectError::Removed { .. } | ObjectError::Fenced { .. } => Errno::ESTALE,
        _ => Errno::EIO,
    }
}

/// Whether people should hear of it: damage and trouble, not what clients do wrong.
pub(crate) fn is_trouble(error: &ObjectError) -> bool {
    !matches!(
        error,
        ObjectError::NoSpace { .. }
            | ObjectError::Range { .. }
            | ObjectError::Removed { .. }
            | ObjectError::Fenced { .. }
    )
}
