//! Rows that the metadata server cannot read: each is told of once, and the check goes on behind it.

use std::collections::BTreeSet;

use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};

use super::{Check, Fates, Finding, Problem};
use crate::operator::OperatorError;

impl Check<'_> {
    /// Has the metadata server read all rows that inodes need.
    pub(super) async fn rows(&self) -> Result<(), OperatorError> {
        let mut at = Some((0, 0));
        while let Some(from) = at {
            at = self.inspect(from, true).await?;
            self.pause().await;
        }
        Ok(())
    }

    /// Has rows read from an inode, and behind a cookie of it, on; from where to go on.
    pub(super) async fn inspect(
        &self,
        (from, cookie): (u64, u64),
        whole: bool,
    ) -> Result<Option<(u64, u64)>, OperatorError> {
        let request = MetaRequest::Inspect { from, cookie, whole };
        let page = self.operator.ask_meta(&request, |reply, _| match reply {
            MetaReply::Inspected { damaged, next } => Some((damaged, next)),
            _ => None,
        });
        let (damaged, next) = page.await?;
        self.damaged(&damaged).await?;
        Ok(next)
    }

    /// Tells of runs of inodes whose rows cannot be read, of each once.
    pub(super) async fn damaged(&self, runs: &[(u64, u64)]) -> Result<(), OperatorError> {
        for &(inode, count) in runs {
            let known = {
                let damaged = self.damaged.borrow();
                let before = damaged.range(..=inode).next_back();
                before.is_some_and(|(first, count)| inode - first < *count)
            };
            if known {
                continue;
            }
            self.damaged.borrow_mut().insert(inode, count);
            let problem = Problem::Metadata { inodes: count };
            let path = if count == 1 { self.operator.path_of(inode).await? } else { None };
            let (server, generation, stripe, bytes) = (0, 0, 0, 0);
            self.tell(&Finding { problem, server, inode, generation, stripe, bytes, path });
        }
        Ok(())
    }

    /// The fates of some inodes. Those that cannot be read are left out and noted.
    pub(super) async fn fates(&self, inodes: &BTreeSet<u64>) -> Result<Fates, OperatorError> {
        let fates = self.operator.fates(inodes).await?;
        let unread = inodes.iter().filter(|inode| !fates.contains_key(inode));
        self.unread.borrow_mut().extend(unread);
        Ok(fates)
    }
}
