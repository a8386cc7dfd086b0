//! The requests that are allowed to a session with the rights of one user only.
//!
//! Most sessions are not limited: they act for everybody on their host, and the kernel there has checked the
//! user of each request. The client of a limited session is a program of that user. Requests that name no
//! user are checked here against the session's open files, and against the user's rights to the inode.
//!
//! Invariant: of a file's bytes, in the inode row or on data servers, such a session reads and changes only
//! those that its user may read and write, or could when he opened the file.

use ropewalk_wire::fs::meta::{Access, Judge, LeaseMode, MetaRequest, Report, Who};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step};
use crate::inode::Inode;
use crate::permission::{self, READ, WRITE};
use crate::rows::Rows;
use crate::sessions::Limit;

const READS: Access = Access { read: true, write: false };
const WRITES: Access = Access { read: false, write: true };

impl Limit {
    /// A caller with this user's rights, whatever is claimed beyond them.
    pub fn caller<'a>(&self, groups: &'a mut Vec<u8>) -> Who<'a> {
        groups.clear();
        groups.extend(self.groups.iter().flat_map(|group| group.to_le_bytes()));
        let group = self.groups.first().copied().unwrap_or(u32::MAX);
        let judge = Judge::Server;
        Who { user: self.user, group, groups: Bytes(groups), judge }
    }

    /// The rights that a caller who claims to be `who` gets: the same user, and those of his claimed groups
    /// that are known to be his. None: somebody else.
    pub fn admit<'a>(&self, who: &Who<'_>, groups: &'a mut Vec<u8>) -> Option<Who<'a>> {
        let own = |group: &u32| self.groups.contains(group);
        groups.clear();
        for bytes in who.groups.0.chunks_exact(4) {
            let group = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            if own(&group) {
                groups.extend_from_slice(bytes);
            }
        }
        let first = self.groups.first().copied().unwrap_or(u32::MAX);
        let group = if own(&who.group) { who.group } else { first };
        // His kernel may be no judge of his: a program of his may speak for it.
        let judge = Judge::Server;
        let known = Who { user: who.user, group, groups: Bytes(groups), judge };
        (who.user == self.user).then_some(known)
    }
}

impl<R: Rows> Operation<'_, R> {
    /// Refuses (`EACCES`) what the session's user may not have. Requests that say on whose behalf they
    /// are were looked at before.
    pub fn check_limit(&mut self, request: &MetaRequest<'_>) -> Step<()> {
        use MetaRequest as M;
        if self.shard.sessions.limit(self.session).is_none() {
            return Ok(());
        }
        let leased = |mode: LeaseMode| match mode {
            LeaseMode::None => Access::default(),
            LeaseMode::Read => READS,
            LeaseMode::Shared | LeaseMode::Write => WRITES,
        };
        let (inode, needed) = match *request {
            M::Acquire { inode, mode, .. } => (inode, leased(mode)),
            M::Reclaim { inode, mode, open } => {
                let (open, leased) = (open.unwrap_or_default(), leased(mode));
                // Readers share a lease with writers.
                let write = open.write || (leased.write && mode == LeaseMode::Write);
                (inode, Access { read: open.read || leased.read, write })
            }
            M::ReadInline { inode } => (inode, READS),
            M::WriteInline { inode, .. }
            | M::LeaveInline { inode, .. }
            | M::ReserveAppend { inode, .. }
            | M::RenewEpoch { inode } => (inode, WRITES),
            M::Report { inode, report } if tells_of_writes(&report) => (inode, WRITES),
            M::SetAttributes { inode, change, .. } if change.through_handle => (inode, WRITES),
            M::Release { inode, open: Some(open), .. } => {
                let before = self.opened(inode);
                let (read, write) = (open.read && !before.read, open.write && !before.write);
                (inode, Access { read, write })
            }
            M::Report { inode, .. } | M::SetLock { inode, .. } | M::TestLock { inode, .. } => {
                let (reads, writes) = self.rights(inode)?;
                return if reads || writes { Ok(()) } else { Err(Errno::EACCES.into()) };
            }
            _ => return Ok(()),
        };
        if needed == Access::default() {
            return Ok(());
        }
        let (reads, writes) = self.rights(inode)?;
        let allowed = (reads || !needed.read) && (writes || !needed.write);
        if allowed { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    fn opened(&self, number: u64) -> Access {
        let holder = self.shard.leases.holder(number, self.session);
        holder.and_then(|holder| holder.open).unwrap_or_default()
    }

    /// Whether the session may read, and whether it may write, an inode's content: its user may, or has
    /// it open like that, or owns it and could allow himself everything.
    pub fn rights(&mut self, number: u64) -> Step<(bool, bool)> {
        let Some(limit) = self.shard.sessions.limit(self.session).cloned() else {
            return Ok((true, true));
        };
        let (inode, open) = (self.inode(number)?.clone(), self.opened(number));
        if inode.is_directory() {
            // The entries of a directory are listed on somebody's behalf.
            return Ok((true, false));
        }
        let mut groups = Vec::new();
        let who = limit.caller(&mut groups);
        let may = |bits| permission::owns(&inode, &who) || allows(&inode, &who, bits);
        Ok((open.read || may(READ), open.write || may(WRITE)))
    }

    /// The right that data servers are shown for a file; 0 where the session needs none.
    pub fn right(&mut self, number: u64) -> Step<u64> {
        if self.shard.sessions.limit(self.session).is_none() {
            return Ok(0);
        }
        let rights = self.rights(number)?;
        let grantor = self.shard.grantor.as_ref();
        Ok(grantor.map_or(0, |grantor| grantor.right(self.session, number, rights)))
    }
}

fn allows(inode: &Inode, who: &Who<'_>, bits: u16) -> bool {
    permission::check(inode, who, bits).is_ok()
}

fn tells_of_writes(report: &Report<'_>) -> bool {
    report.size.is_some()
        || report.modified.is_some()
        || !report.written.0.is_empty()
        || !report.punched.0.is_empty()
}
