//! Policies of directories, which people see and set as an extended attribute.

use ropewalk_wire::fs::meta::{MetaReply, ROOT, Who};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step};
use crate::inode::Inode;
use crate::leases::Need;
use crate::permission;
use crate::rows::Rows;
use ropewalk_wire::fs::policy::Policy;

impl<R: Rows> Operation<'_, R> {
    /// The policy of a directory, or the copies of a file.
    pub fn get_policy(&mut self, inode: &Inode) -> Step<()> {
        let copies = |version| self.shard.pools.get(version).map_or(1, |pool| pool.copies);
        let policy = match inode.layout {
            Some(layout) => Policy::Copies(copies(layout.pool_version)),
            None if inode.is_directory() => inode.policy,
            None => return Err(Errno::ENODATA.into()),
        };
        self.answer(&MetaReply::Content { bytes: Bytes(policy.text().as_bytes()) })
    }

    /// New files and directories in a directory get the policy of the directory above.
    pub fn remove_policy(&mut self, who: &Who<'_>, number: u64) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if !inode.is_directory() {
            return Err(Errno::ENODATA.into());
        }
        let above = match number {
            ROOT => Policy::default(),
            _ => self.inode(inode.parent)?.policy,
        };
        self.set_policy(who, number, above)
    }

    /// New files and directories in a directory get this policy. `EPERM`: somebody else owns the directory, or
    /// the root directory where no other directory has so many copies yet. `ENODEV`: there are too few failure domains, or none of
    /// their data servers has room. `EOPNOTSUPP`: the store has the first format.
    pub fn set_policy(&mut self, who: &Who<'_>, number: u64, policy: Policy) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        // The kernel of a mount knows nothing of policies, and has judged nothing.
        let who = who.unjudged();
        let begun = self.shard.pools.kinds().contains(&policy.copies());
        let owner = permission::owns(&inode, &who);
        // The first directory of a number of copies changes the cluster: all data servers get bands for it.
        if !owner || !begun && !permission::owns(&self.inode(ROOT)?.clone(), &who) {
            return Err(Errno::EPERM.into());
        }
        if policy.copies() > 1 && !self.shard.pools.has_bands() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        self.check_growth()?;
        self.need(number, Need::Quiet);
        self.settle()?;
        self.touch(number)?.policy = policy;
        // Nothing fails from here on: the map in memory is that of the rows.
        let rows = self.shard.pools.begin_copies(policy.copies(), self.now.time);
        self.change_map(rows.ok_or(Errno::ENODEV)?);
        self.renew_pool();
        self.answer(&MetaReply::Done)
    }
}
