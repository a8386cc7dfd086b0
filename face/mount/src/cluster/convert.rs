//! The client's values as the kernel wants them, and back.

use std::time::Duration;

use ropewalk_client::{self as client, InodeKind};

use super::ClusterFileSystem;
use crate::caller::Capability;
use crate::decode::{self, SetTime};
use crate::errno::Errno;
use crate::filesystem::Context;
use crate::reply::{Attributes, AttributesReply, Entry, EntryKind};

const BLOCK_BYTES: u32 = 1 << 20;

pub(super) fn errno(errno: client::Errno) -> Errno {
    Errno::new(i32::from(errno.0))
}

/// The error of what was done to a name in a directory. A directory that is gone was removed: whoever
/// stands in it, or has it open, finds nothing there.
pub(super) fn errno_in(error: client::Errno) -> Errno {
    if error == client::Errno::ESTALE { Errno::ENOENT } else { errno(error) }
}

fn kind_bits(kind: InodeKind) -> u32 {
    match kind {
        InodeKind::File => libc::S_IFREG,
        InodeKind::Directory => libc::S_IFDIR,
        InodeKind::Symlink => libc::S_IFLNK,
        InodeKind::Fifo => libc::S_IFIFO,
        InodeKind::Socket => libc::S_IFSOCK,
        InodeKind::CharacterDevice => libc::S_IFCHR,
        InodeKind::BlockDevice => libc::S_IFBLK,
    }
}

pub(super) fn entry_kind(kind: InodeKind) -> EntryKind {
    EntryKind::of_mode(kind_bits(kind))
}

fn time(time: client::Timestamp) -> decode::Timestamp {
    decode::Timestamp { seconds: time.seconds, nanos: time.nanos }
}

pub(super) fn time_change(time: Option<SetTime>) -> client::TimeChange {
    match time {
        None => client::TimeChange::Keep,
        Some(SetTime::Now) => client::TimeChange::Now,
        Some(SetTime::At(time)) => {
            client::TimeChange::At(client::Timestamp { seconds: time.seconds, nanos: time.nanos })
        }
    }
}

pub(super) fn attributes(from: &client::Attributes) -> Attributes {
    Attributes {
        node: from.inode,
        size: if from.kind == InodeKind::Directory { 4096 } else { from.size },
        blocks: from.blocks,
        atime: time(from.accessed),
        mtime: time(from.modified),
        ctime: time(from.changed),
        mode: kind_bits(from.kind) | u32::from(from.mode),
        links: from.link_count,
        uid: from.user,
        gid: from.group,
        device: from.device,
        block_bytes: BLOCK_BYTES,
    }
}

impl ClusterFileSystem {
    /// The caller, whom the kernel has judged by the attributes that it has (`default_permissions`).
    pub(super) fn caller(&self, context: &Context) -> client::Caller {
        self.caller_keeping(context, context.uid == 0)
    }

    /// As [`ClusterFileSystem::caller`], if the kernel says whether setuid and setgid stay.
    pub(super) fn caller_keeping(&self, context: &Context, keeps: bool) -> client::Caller {
        // Root may do everything; its groups decide nothing.
        let groups = if context.uid == 0 { [].into() } else { context.groups() };
        client::Caller::new(context.uid, context.gid, &groups).judged_by_kernel(keeps)
    }

    /// The caller that makes an inode of this mode.
    pub(super) fn maker(&self, context: &Context, mode: u32) -> client::Caller {
        // Only setgid is asked about, and who makes such files is rare.
        let keeps = mode & libc::S_ISGID == 0 || context.has_capability(Capability::SetIds);
        self.caller_keeping(context, keeps)
    }

    /// As long as a lease lasts: its end is told explicitly, and where nothing can be told, because this
    /// process stands still, the session ends.
    fn inode_validity(&self, inode: u64) -> Duration {
        // The kernel does not apply a change through one of several numbers to the others.
        let alone = self.places.borrow().others(inode).is_empty();
        if alone { self.client.cached_for(inode) } else { Duration::ZERO }
    }

    pub(super) fn attributes_reply(&self, from: &client::Attributes) -> AttributesReply {
        AttributesReply { attributes: attributes(from), valid: self.inode_validity(from.inode) }
    }

    /// The entry at a name; `parent` is the kernel's number of the directory.
    pub(super) async fn entry_at(
        &self,
        parent: u64,
        name: &[u8],
        from: &client::Attributes,
    ) -> Entry {
        if from.kind != InodeKind::Directory {
            self.places.borrow_mut().removed(parent, name);
            return self.entry(from);
        }
        let (number, first) = self.places.borrow_mut().found(parent, name, from.inode);
        if first {
            // The kernel's attributes of the inode under its other numbers are valid no longer than until now.
            self.forget_attributes(from.inode).await;
        }
        Entry { number, ..self.entry(from) }
    }

    /// The kernel asks for the attributes again, under whatever number.
    async fn forget_attributes(&self, inode: u64) {
        let others = self.places.borrow().others(inode).to_vec();
        for node in others.into_iter().chain([inode]) {
            // If the kernel's side is gone, no cached attributes are believed any more.
            if let Ok(told) = self.notifier.invalidate_inode(node, -1, 0) {
                let _ = told.await;
            }
        }
    }

    /// As `entry_at`, for what is no directory.
    pub(super) fn entry(&self, from: &client::Attributes) -> Entry {
        Entry {
            attributes: attributes(from),
            number: 0,
            // Inode numbers are never used again.
            generation: 0,
            attributes_valid: self.inode_validity(from.inode),
            // Each look-up is asked, and mostly answered by the client from its own memory: see
            // `Invalidate` for why the kernel cannot be told in time to forget an entry.
            entry_valid: Duration::ZERO,
        }
    }
}
