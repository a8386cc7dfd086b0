//! The places of bytes that are not durable yet.

use ropewalk_wire::fs::group::Group;

/// The place of bytes that are not durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    /// They are lost with the server's era.
    Server(u32),
    /// They are lost when all members of the group have lost theirs.
    Group(Group),
}
