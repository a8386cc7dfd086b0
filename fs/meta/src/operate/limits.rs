//! The requests that are allowed to a *bound* session: one with the rights of one user, or with an export of its own.
//!
//! Most sessions are not bound: they act for everybody on their host, and the kernel there has checked the
//! user of each request. Requests that name no user are checked here against the session's open files, and
//! against the rights to the inode of its user, or of all users for whom its export lets it act.
//!
//! Invariant: of a file's bytes, in the inode row or on data servers, such a session reads and changes only
//! those that its users may read and write, or could when they opened the file.

use ropewalk_wire::fs::meta::{Access, MetaReply, MetaRequest, Who};
use ropewalk_wire::fs::trust::{CAPABILITY_SECONDS, Capability};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step, Stop};
use crate::demands::{Asks, asks, gives_up, inodes_mut};
use crate::exports::{Export, Rights};
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::permission::{self, READ, WRITE};
use crate::rows::Rows;

impl<R: Rows> Operation<'_, R> {
    /// Refuses (`EACCES`) what the session's users may not have.
    pub fn check_standing(&mut self, request: &MetaRequest<'_>) -> Step<()> {
        if !self.shard.sessions.is_bound(self.session) {
            return Ok(());
        }
        self.check_subtree(request)?;
        let (inode, needed) = match asks(request) {
            Asks::Nothing => return Ok(()),
            Asks::Either(inode) => {
                let (reads, writes) = self.rights(inode)?;
                return if reads || writes { Ok(()) } else { Err(Errno::EACCES.into()) };
            }
            Asks::Content(inode, needed) => (inode, needed),
            Asks::More(inode, open) => {
                let before = self.opened(inode);
                let (read, write) = (open.read && !before.read, open.write && !before.write);
                (inode, Access { read, write })
            }
        };
        if needed == Access::default() {
            return Ok(());
        }
        let (reads, writes) = self.rights(inode)?;
        let allowed = (reads || !needed.read) && (writes || !needed.write);
        if allowed { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// Refuses (`ESTALE`) inodes that are not below the root of the session's export, whichever way their numbers came.
    /// Files that the session has open stay reachable, as by a descriptor.
    fn check_subtree(&mut self, request: &MetaRequest<'_>) -> Step<()> {
        let standing = self.shard.standing(self.session).ok_or(Errno::EACCES)?;
        let (root, mut request) = (standing.export.root, *request);
        if !standing.export.is_subtree() || gives_up(&request) {
            return Ok(());
        }
        let releases = matches!(request, MetaRequest::Release { .. });
        for inode in inodes_mut(&mut request).into_iter().flatten() {
            let held = self.shard.leases.holder(*inode, self.session).is_some();
            let within = releases && held || self.is_in_subtree(*inode, root)?;
            if !within {
                return Err(Errno::ESTALE.into());
            }
        }
        Ok(())
    }

    fn is_in_subtree(&mut self, number: u64, root: u64) -> Step<bool> {
        if number == root {
            return Ok(true);
        }
        let (is_directory, parent) = match self.inode(number) {
            Ok(inode) => (inode.is_directory(), inode.parent),
            // There is nothing to reach.
            Err(Stop::Errno(Errno::ESTALE)) => return Ok(true),
            Err(stop) => return Err(stop),
        };
        if is_directory {
            return self.is_below(number, root);
        }
        if self.shard.leases.holder(number, self.session).is_some() {
            return Ok(true);
        }
        let mut parents = vec![parent];
        let prefix = keys::key(Table::BackPointer, &[number]);
        self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
            parents.extend(keys::number(key, 1));
            true
        })?;
        for parent in parents {
            // A file without a name has none here either.
            if parent != 0 && self.is_below(parent, root)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn opened(&self, number: u64) -> Access {
        let holder = self.shard.leases.holder(number, self.session);
        holder.and_then(|holder| holder.open).unwrap_or_default()
    }

    /// Whether the session may read, and whether it may write, an inode's content: its user may, or has
    /// it open like that, or owns it and could allow himself everything. A session that acts for several users
    /// may do what one of them may.
    pub fn rights(&mut self, number: u64) -> Step<(bool, bool)> {
        if !self.shard.sessions.is_bound(self.session) {
            return Ok((true, true));
        }
        let (inode, open) = (self.inode(number)?.clone(), self.opened(number));
        if inode.is_directory() {
            // The entries of a directory are listed on somebody's behalf.
            return Ok((true, false));
        }
        let standing = self.shard.standing(self.session).ok_or(Errno::EACCES)?;
        let mut groups = Vec::new();
        let (reads, writes) = match standing.only_caller(&mut groups) {
            Some(who) => {
                let may = |bits| permission::owns(&inode, &who) || allows(&inode, &who, bits);
                (may(READ), may(WRITE))
            }
            None => {
                let may = |bits| somebody_may(standing.export, &inode, bits);
                (may(READ), may(WRITE))
            }
        };
        let changes = standing.export.rights != Rights::ReadOnly;
        Ok((open.read || reads, changes && (open.write || writes)))
    }

    /// The capability that data servers are shown for a file; none where the session needs none.
    pub fn capability(&mut self, number: u64) -> Step<Option<Capability>> {
        if !self.shard.sessions.is_bound(self.session) {
            return Ok(None);
        }
        let rights = self.rights(number)?;
        let file = (number, self.inode(number)?.generation);
        let expires = self.shard.seconds(self.now).saturating_add(CAPABILITY_SECONDS);
        let grantor = self.shard.grantor.as_ref();
        Ok(grantor.map(|grantor| grantor.capability(self.session, file, rights, expires)))
    }

    /// Gives the session another capability for a file.
    pub fn allow(&mut self, number: u64) -> Step<()> {
        let capability = self.capability(number)?;
        let generation = self.inode(number)?.generation;
        self.answer(&MetaReply::Allowed { capability, generation })
    }
}

/// Whether one of an export's callers may do this with an inode's content, or could allow it to himself.
fn somebody_may(export: &Export, inode: &Inode, bits: u16) -> bool {
    let users = export.user_ids();
    users.may_name(0)
        || users.may_name(inode.user)
        || (export.group_ids().may_name(inode.group) && (inode.mode >> 3) & bits == bits)
        || inode.mode & bits == bits
}

fn allows(inode: &Inode, who: &Who<'_>, bits: u16) -> bool {
    permission::check(inode, who, bits).is_ok()
}
