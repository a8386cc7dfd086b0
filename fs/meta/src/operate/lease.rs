//! Giving leases back, and taking them up again after a restart.

use ropewalk_wire::fs::meta::{Access, LeaseMode, MetaReply};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step, Stop};
use crate::parking::WaitOn;
use crate::rows::Rows;

impl<R: Rows> Operation<'_, R> {
    /// Never waits: others wait for it.
    pub fn release(
        &mut self,
        number: u64,
        grant: u64,
        keep: LeaseMode,
        open: Option<Access>,
    ) -> Step<()> {
        let epoch = match self.inode(number) {
            Ok(inode) => Some(inode.epoch),
            Err(Stop::Errno(Errno::ESTALE)) => None,
            Err(stop) => return Err(stop),
        };
        let recalled = |operation: &Self| {
            let holder = operation.shard.leases.holder(number, operation.session);
            holder.is_some_and(|holder| holder.is_recalled())
        };
        if recalled(self) && keep == LeaseMode::None {
            // It may have answered its kernel under the lease just now.
            self.note_told(number);
        }
        if self.shard.leases.release(number, self.session, grant, keep, open) {
            self.shard.parking.wake(WaitOn::Inode(number));
        }
        let Some(epoch) = epoch else {
            return self.answer(&MetaReply::Done);
        };
        self.collect(number)?;
        let grant = self.present_grant(number, epoch);
        match self.inode(number) {
            Ok(inode) => {
                let attributes = inode.attributes();
                let attributes = self.shown(attributes);
                self.answer(&MetaReply::Attributes { attributes, grant })
            }
            Err(Stop::Errno(Errno::ESTALE)) => self.answer(&MetaReply::Done),
            Err(stop) => Err(stop),
        }
    }

    pub fn reclaim(&mut self, number: u64, mode: LeaseMode, open: Option<Access>) -> Step<()> {
        let session = self.session;
        let reclaiming = self.shard.sessions.get(session).is_some_and(|s| s.reclaiming);
        if !reclaiming {
            return Err(Errno::ESTALE.into());
        }
        if !self.may_reclaim(number) {
            return Err(Errno::ENFILE.into());
        }
        let inode = self.inode(number)?;
        let (attributes, epoch, file) = (inode.attributes(), inode.epoch, inode.is_file());
        let legal = self.shard.leases.is_compatible(number, session, mode)
            && (file || mode == LeaseMode::Read);
        if let Some(access) = open {
            self.shard.leases.open(number, session, access);
        }
        let grant = (legal && mode != LeaseMode::None)
            .then(|| self.shard.leases.grant(number, session, mode, epoch));
        self.answer(&MetaReply::Attributes { attributes, grant })
    }

    pub fn reclaim_done(&mut self) -> Step<()> {
        if let Some(session) = self.shard.sessions.get_mut(self.session) {
            session.reclaiming = false;
        }
        self.answer(&MetaReply::Done)
    }
}
