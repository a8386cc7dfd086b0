//! Callers: a session's proven identity, and the one door at which what a request claims becomes what counts.
//!
//! A request of a session says on whose behalf it is ([`Who`]), in the ids of its client. [`Standing::admit`] makes of it
//! a [`Mapped`] request, in the ids of the rows; operations take nothing else, and nothing else makes one.
//! [`Standing::show`] is the way back, for the ids in replies. Design: `docs/design/113-callers.md`.
//!
//! Invariants:
//! * a session with the identity of one user acts for that user only, and no kernel judges for it;
//! * under an export with squash or maps no kernel judges either: it would judge by other ids;
//! * a request goes through the door once. A call that waits is kept as a mapped one, and so is its reply.

use ropewalk_wire::fs::attributes::Attributes;
use ropewalk_wire::fs::meta::{Callback, Judge, MetaReply, MetaRequest, Who};
use ropewalk_wire::fs::trust::Role;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::demands::{changes, inodes_mut};
use crate::exports::{Export, Ids, Rights};

/// A user to whose rights a session is limited, and the groups that he is in, his own first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub user: u32,
    pub groups: Vec<u32>,
}

/// The proof that the server had of a session's owner when it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Identity {
    /// None: a client on another host, whose ids are believed as its host says them.
    #[default]
    Unproven,
    /// The kernel names a process of this host: a plain user's.
    User(Limit),
    /// The kernel names a process of this host: root's, or of the server's own user.
    Own,
    /// The secret of the cluster, with a number.
    Member { role: Role, number: u32 },
}

impl Identity {
    /// The user to whose rights its sessions are limited.
    pub fn limit(&self) -> Option<&Limit> {
        match self {
            Identity::User(limit) => Some(limit),
            Identity::Unproven | Identity::Own | Identity::Member { .. } => None,
        }
    }

    /// Whether a process of the other identity may go on with a session of this one: both are limited to the rights of
    /// one user, or neither is. The user's groups stay as they were.
    pub fn admits(&self, other: &Identity) -> bool {
        let user = |identity: &Identity| identity.limit().map(|limit| limit.user);
        user(self) == user(other)
    }
}

impl Limit {
    /// A caller with this user's rights, whatever is claimed beyond them.
    fn claim(&self) -> (u32, u32, Vec<u8>) {
        let groups = self.groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        (self.user, self.groups.first().copied().unwrap_or(u32::MAX), groups)
    }

    /// The rights that a caller who claims to be `who` gets: the same user, and those of his claimed groups
    /// that are known to be his. None: somebody else.
    fn admit<'a>(&self, who: &Who<'_>, groups: &'a mut Vec<u8>) -> Option<Who<'a>> {
        let own = |group: &u32| self.groups.contains(group);
        groups.clear();
        groups.extend(numbers(who).filter(own).flat_map(u32::to_le_bytes));
        let first = self.groups.first().copied().unwrap_or(u32::MAX);
        let group = if own(&who.group) { who.group } else { first };
        // His kernel may be no judge of his: a program of his may speak for it.
        let judge = Judge::Server;
        let known = Who { user: who.user, group, groups: Bytes(groups), judge };
        (who.user == self.user).then_some(known)
    }
}

fn numbers(who: &Who<'_>) -> impl Iterator<Item = u32> {
    let numbers = who.groups.0.chunks_exact(4);
    numbers.map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

/// A request whose ids and inodes are those of the rows, and whose caller has the rights that he is shown with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped<'a>(MetaRequest<'a>);

impl<'a> Mapped<'a> {
    pub fn request(&self) -> &MetaRequest<'a> {
        &self.0
    }

    /// The same request, to be kept for later.
    pub fn keep(&self) -> Kept {
        let mut bytes = Vec::new();
        encode(&self.0, &mut bytes);
        Kept(bytes)
    }
}

/// A mapped request that waits, encoded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Kept(Vec<u8>);

impl Kept {
    /// The request. It is not mapped again.
    pub fn request(&self) -> Option<Mapped<'_>> {
        decode(&self.0).ok().map(Mapped)
    }
}

/// The terms on which a session's requests are taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing<'s> {
    pub limit: Option<&'s Limit>,
    pub export: &'s Export,
}

/// Turns the inode of a callback into the one that the client knows.
pub(crate) fn show_callback(export: &Export, callback: &mut Callback) {
    let (Callback::Recall { inode, .. }
    | Callback::LockGranted { inode, .. }
    | Callback::TellUnlocked { inode, .. }
    | Callback::Grown { inode, .. }) = callback;
    *inode = export.shown_inode(*inode);
}

impl Standing<'_> {
    /// Of calls outside of sessions, which say no user.
    pub const OUTSIDE: Standing<'static> = Standing { limit: None, export: &Export::WHOLE };

    /// The door: the request as it counts, or why the session may not make it. `groups` takes the groups of a
    /// caller who does not get those that he says.
    pub fn admit<'a>(
        &self,
        request: &MetaRequest<'a>,
        groups: &'a mut Vec<u8>,
    ) -> Result<Mapped<'a>, Errno> {
        let mut request = *request;
        if self.export.rights == Rights::ReadOnly {
            if changes(&request) {
                return Err(Errno::EROFS);
            }
            if let MetaRequest::Report { report, .. } = &mut request {
                report.accessed = None;
            }
        }
        if let MetaRequest::SetAttributes { change, .. } = &mut request {
            // An id for which the rows have none; the kernel answers the same in a name space of users.
            let inner = |id: Option<u32>, ids: Ids<'_>| match id {
                Some(outer) => ids.inner(outer).ok_or(Errno::EINVAL).map(Some),
                None => Ok(None),
            };
            change.user = inner(change.user, self.export.user_ids())?;
            change.group = inner(change.group, self.export.group_ids())?;
        }
        if let MetaRequest::Open { execute, .. } = &mut request
            && self.limit.is_some()
        {
            // Only a kernel can tell that what is read will run, and be read by nobody.
            *execute = false;
        }
        if self.export.is_subtree() {
            let inodes = inodes_mut(&mut request).into_iter().flatten();
            inodes.for_each(|inode| *inode = self.export.inner_inode(*inode));
        }
        if let Some(who) = request.who_mut() {
            *who = self.caller(*who, groups)?;
        }
        Ok(Mapped(request))
    }

    /// The caller that counts, of one that is claimed.
    fn caller<'a>(&self, who: Who<'a>, groups: &'a mut Vec<u8>) -> Result<Who<'a>, Errno> {
        if self.export.is_plain() {
            return match self.limit {
                None => Ok(who),
                Some(limit) => limit.admit(&who, groups).ok_or(Errno::EPERM),
            };
        }
        let mut known = Vec::new();
        let who = match self.limit {
            None => who,
            Some(limit) => limit.admit(&who, &mut known).ok_or(Errno::EPERM)?,
        };
        Ok(self.inner(&who, groups))
    }

    fn inner<'a>(&self, who: &Who<'_>, groups: &'a mut Vec<u8>) -> Who<'a> {
        let ids = self.export.group_ids();
        groups.clear();
        groups.extend(numbers(who).flat_map(|group| ids.of_caller(group).to_le_bytes()));
        Who {
            user: self.export.user_ids().of_caller(who.user),
            group: ids.of_caller(who.group),
            groups: Bytes(groups),
            judge: Judge::Server,
        }
    }

    /// The only caller of a session with the rights of one user.
    pub fn only_caller<'a>(&self, groups: &'a mut Vec<u8>) -> Option<Who<'a>> {
        let (user, group, claimed) = self.limit?.claim();
        let who = Who { user, group, groups: Bytes(&claimed), judge: Judge::Server };
        Some(self.inner(&who, groups))
    }

    /// Turns the numbers of a reply into those of the session's client.
    pub fn show(&self, reply: &mut MetaReply<'_>) {
        use MetaReply as R;
        if self.export.is_plain() && !self.export.is_subtree() {
            return;
        }
        let show = |attributes: &mut Attributes| {
            attributes.inode = self.export.shown_inode(attributes.inode);
            attributes.user = self.export.user_ids().shown(attributes.user);
            attributes.group = self.export.group_ids().shown(attributes.group);
        };
        match reply {
            R::Entry(entry) | R::Opened { entry, .. } => show(&mut entry.attributes),
            R::Attributes { attributes, .. } | R::Removed { attributes, .. } => show(attributes),
            R::Directory { entries, .. } => {
                entries.iter_mut().filter_map(|entry| entry.attributes.as_mut()).for_each(show);
            }
            R::Inodes { inodes, .. } => {
                inodes.iter_mut().for_each(|inode| show(&mut inode.attributes));
            }
            R::Fates { fates } => {
                let inodes = fates.iter_mut().filter_map(|fate| fate.inode.as_mut());
                inodes.for_each(|inode| show(&mut inode.attributes));
            }
            R::Done
            | R::Missing { .. }
            | R::Content { .. }
            | R::Inline { .. }
            | R::Written { .. }
            | R::Queued
            | R::Refused
            | R::Lock { .. }
            | R::FileSystem { .. }
            | R::Registered(_)
            | R::Pool { .. }
            | R::Map { .. }
            | R::Status(_)
            | R::Sessions { .. }
            | R::Servers { .. }
            | R::Discarded { .. }
            | R::Orders { .. }
            | R::Exports { .. }
            | R::Allowed { .. }
            | R::Vouched { .. }
            | R::Inspected { .. }
            | R::Upgrade(_)
            | R::Groups { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
