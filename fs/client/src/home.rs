//! The places of bytes that are not durable yet.

use ropewalk_wire::fs::group::Group;

/// The place of bytes that are not durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    /// Of the first format: they are lost with the server's era.
    Server(u32),
    /// They are lost when its last member has lost them: the map counts that.
    Group(Group),
}
