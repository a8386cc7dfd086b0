//! Listing directories. A listing also spares later requests: names are remembered under the directory's
//! lease, and attributes of many entries come in one message.

use ropewalk_wire::fs::attributes::{Attributes, InodeKind};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::{LISTING_BYTES, unexpected};
use crate::client::{Caller, Client};

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: InodeKind,
    /// The cookie at which reading goes on after this entry.
    pub cookie: u64,
    pub attributes: Option<Attributes>,
}

impl Client {
    /// Entries of a directory after `cookie` (0: from the beginning), and whether these were the
    /// last. `attributes`: with the attributes of each.
    pub async fn read_directory(
        &self,
        caller: &Caller,
        number: u64,
        cookie: u64,
        attributes: bool,
    ) -> Result<(Vec<Listed>, bool), Errno> {
        let request = MetaRequest::ReadDirectory {
            who: caller.who(),
            inode: number,
            cookie,
            bytes_max: LISTING_BYTES as u32,
            attributes,
        };
        let before = self.history_of(number);
        let listed = self.ask(&request, |reply| match reply {
            MetaReply::Directory { entries, end, grant } => {
                let directory = self.inode(number);
                directory.granted(grant);
                let held = grant.is_some_and(|grant| grant.number > before.0);
                let gapless = held && self.history_of(number) == before;
                let mut listed = Vec::with_capacity(entries.len());
                for entry in entries {
                    if gapless {
                        self.remember(number, entry.name.0, Some(entry.inode));
                    }
                    let attributes = entry.attributes.map(|attributes| {
                        let inode = self.inode(entry.inode);
                        inode.granted(entry.grant);
                        self.learned(&inode, attributes);
                        inode.seen(attributes)
                    });
                    listed.push(Listed {
                        name: entry.name.0.to_vec(),
                        inode: entry.inode,
                        kind: entry.kind,
                        cookie: entry.cookie,
                        attributes,
                    });
                }
                let to = listed.last().map_or(cookie, |last: &Listed| last.cookie);
                self.inner.entries.borrow_mut().listed(number, cookie, to, (end, gapless));
                Ok((listed, end))
            }
            _ => unexpected(),
        });
        let listed = listed.await?;
        self.trim();
        Ok(listed)
    }

    /// Attributes of an inode as they are now, where a lease covers them. Asks nobody.
    pub fn covered(&self, number: u64) -> Option<Attributes> {
        self.inner.inodes.borrow().get(&number)?.cached()
    }

    /// Somebody looks at one entry of a directory after another: the attributes of more of them come
    /// in one message.
    pub(crate) fn read_ahead(&self, caller: &Caller, parent: u64) {
        let most = self.inner.config.inodes_max;
        let Some(from) = self.inner.entries.borrow_mut().missed(parent, most) else { return };
        let (client, caller) = (self.clone(), caller.clone());
        self.inner.world.spawn(async move {
            let read = client.read_directory(&caller, parent, from, true).await;
            // A caller that may look names up may not always list them.
            let to = read
                .ok()
                .and_then(|(listed, end)| listed.last().filter(|_| !end).map(|last| last.cookie));
            client.inner.entries.borrow_mut().read_ahead(parent, to);
        });
    }
}
