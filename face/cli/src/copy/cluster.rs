//! A cluster's files as an end of a copy, through the client library.

use std::ops::Range;
use std::rc::Rc;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_client::{
    Access, AttributeChange, Attributes, Errno, File, InodeKind, Node, OpenOptions, TimeChange,
};

use super::end::{Dress, End, Extended, Listing, Made, Meta};
use crate::remote::{Session, join, of, shown};

/// The files of a cluster.
pub struct Cluster {
    session: Rc<Session>,
}

/// An open file and its path, for what goes wrong later.
pub struct ClusterFile {
    file: File,
    path: Vec<u8>,
}

impl ClusterFile {
    fn failed(&self) -> impl Fn(Errno) -> anyhow::Error + '_ {
        of(&self.path)
    }
}

/// The options of a handle for writing: a sparse file's size is set through it.
const WRITE: OpenOptions =
    OpenOptions { access: Access { read: false, write: true }, truncate: true, append: false };

fn meta(a: &Attributes) -> Meta {
    Meta {
        kind: a.kind,
        mode: a.mode,
        user: a.user,
        group: a.group,
        size: if a.kind == InodeKind::File { a.size } else { 0 },
        sparse: a.kind == InodeKind::File && a.blocks.saturating_mul(512) < a.size,
        device: a.device,
        accessed: a.accessed,
        modified: a.modified,
        volume: 0,
        inode: a.inode,
        links: a.link_count,
    }
}

impl Cluster {
    pub fn new(session: &Rc<Session>) -> Cluster {
        Cluster { session: session.clone() }
    }
}

impl End for Cluster {
    type File = ClusterFile;

    fn shown(&self, path: &[u8]) -> String {
        shown(path)
    }

    async fn look(&self, path: &[u8], follow: bool) -> anyhow::Result<Option<Meta>> {
        let Session { client, caller, .. } = &*self.session;
        match client.resolve(caller, path, follow).await {
            Ok(found) => Ok(Some(meta(&found))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(of(path)(errno)),
        }
    }

    fn is_silent(&self) -> bool {
        self.session.client.unanswered() > 0
    }

    async fn list(&self, path: &[u8]) -> anyhow::Result<Listing> {
        let Session { client, caller, .. } = &*self.session;
        let directory = self.session.find(path, true).await?.inode;
        let (mut listing, mut cookie) = (Listing::default(), 0);
        loop {
            let read = client.read_directory(caller, directory, cookie, true).await;
            let (entries, end) = match read.map_err(of(path)) {
                Ok(read) => read,
                Err(error) if listing.entries.is_empty() => return Err(error),
                Err(error) => {
                    listing.failures.push(error);
                    return Ok(listing);
                }
            };
            let Some(last) = entries.last() else { return Ok(listing) };
            cookie = last.cookie;
            for entry in entries {
                let attributes = match entry.attributes {
                    Some(attributes) => Ok(attributes),
                    None => client.attributes(entry.inode).await,
                };
                match attributes {
                    Ok(attributes) => listing.entries.push((entry.name, meta(&attributes))),
                    // Removed since.
                    Err(Errno::ENOENT | Errno::ESTALE) => {}
                    Err(errno) => listing.failures.push(of(&join(path, &entry.name))(errno)),
                }
            }
            if end {
                return Ok(listing);
            }
        }
    }

    async fn read_link(&self, path: &[u8]) -> anyhow::Result<Vec<u8>> {
        let inode = self.session.find(path, false).await?.inode;
        self.session.client.read_link(inode).await.map_err(of(path))
    }

    async fn open(&self, path: &[u8]) -> anyhow::Result<ClusterFile> {
        let Session { client, caller, .. } = &*self.session;
        let inode = self.session.find(path, true).await?.inode;
        let file = client.open(caller, inode, OpenOptions::READ).await.map_err(of(path))?;
        Ok(ClusterFile { file, path: path.to_vec() })
    }

    async fn create(&self, path: &[u8], mode: u16) -> anyhow::Result<ClusterFile> {
        let Session { client, caller, .. } = &*self.session;
        let created = async {
            let (parent, name) = client.resolve_parent(caller, path).await?;
            match client.create(caller, parent.inode, name, mode, false, WRITE).await {
                Ok((_, file, _)) => Ok(file),
                // A link that is there is followed.
                Err(Errno::ELOOP) => {
                    let found = client.resolve(caller, path, true).await?;
                    client.open(caller, found.inode, WRITE).await
                }
                Err(errno) => Err(errno),
            }
        };
        let file = created.await.map_err(of(path))?;
        Ok(ClusterFile { file, path: path.to_vec() })
    }

    async fn make(&self, path: &[u8], made: Made<'_>, mode: u16) -> anyhow::Result<bool> {
        let Session { client, caller, .. } = &*self.session;
        let node = match made {
            Made::Directory => Node::Directory,
            Made::Link(target) => Node::symlink(target),
            Made::Special(InodeKind::Socket, _) => Node::Socket,
            Made::Special(InodeKind::CharacterDevice, device) => Node::CharacterDevice(device),
            Made::Special(InodeKind::BlockDevice, device) => Node::BlockDevice(device),
            Made::Special(..) => Node::Fifo,
        };
        let (parent, name) = client.resolve_parent(caller, path).await.map_err(of(path))?;
        match client.make(caller, parent.inode, name, mode, node).await {
            Ok(_) => Ok(true),
            Err(Errno::EPERM) if matches!(made, Made::Special(..)) => Ok(false),
            Err(errno) => Err(of(path)(errno)),
        }
    }

    async fn link(&self, original: &[u8], path: &[u8]) -> anyhow::Result<bool> {
        let Session { client, caller, .. } = &*self.session;
        let inode = self.session.find(original, false).await?.inode;
        let (parent, name) = client.resolve_parent(caller, path).await.map_err(of(path))?;
        client.link(caller, inode, parent.inode, name).await.map_err(of(path))?;
        Ok(true)
    }

    async fn extended(&self, path: &[u8]) -> anyhow::Result<Extended> {
        let Session { client, caller, .. } = &*self.session;
        let inode = self.session.find(path, false).await?.inode;
        let names = client.list_xattr(caller, inode).await.map_err(of(path))?;
        let mut extended = Extended::default();
        for name in extended.sort(&names) {
            let value = client.get_xattr(caller, inode, &name).await.map_err(of(path))?;
            extended.users.push((name, value));
        }
        Ok(extended)
    }

    async fn set_extended(&self, path: &[u8], name: &[u8], value: &[u8]) -> anyhow::Result<bool> {
        let Session { client, caller, .. } = &*self.session;
        let inode = self.session.find(path, false).await?.inode;
        match client.set_xattr(caller, inode, name, value, (false, false)).await {
            Ok(()) => Ok(true),
            Err(Errno::EPERM | Errno::E2BIG | Errno::EOPNOTSUPP | Errno::ENOSPC) => Ok(false),
            Err(errno) => Err(of(path)(errno)),
        }
    }

    async fn data(&self, file: &ClusterFile, offset: u64) -> anyhow::Result<Option<Range<u64>>> {
        let client = &self.session.client;
        match client.seek(&file.file, offset, false).await {
            Ok(begin) => {
                let end = client.seek(&file.file, begin, true).await.map_err(file.failed())?;
                Ok(Some(begin..end))
            }
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(file.failed()(errno)),
        }
    }

    async fn read(
        &self,
        file: &ClusterFile,
        offset: u64,
        buffer: PoolBuffer,
    ) -> anyhow::Result<(PoolBuffer, usize)> {
        self.session.client.read(&file.file, offset, buffer).await.map_err(file.failed())
    }

    async fn write(
        &self,
        file: &ClusterFile,
        offset: u64,
        buffer: PoolBuffer,
        len: usize,
    ) -> anyhow::Result<()> {
        let written = self.session.client.write(&file.file, offset, buffer, 0..len).await;
        written.map(|_| ()).map_err(file.failed())
    }

    async fn finish(&self, file: &ClusterFile, size: u64) -> anyhow::Result<()> {
        let Session { client, caller, .. } = &*self.session;
        let number = file.file.number();
        let known = client.attributes(number).await.map_err(file.failed())?;
        if known.size < size {
            // Only a hole at its end leaves a file shorter than it shall be.
            let change = AttributeChange {
                size: Some(size),
                through_handle: true,
                ..AttributeChange::default()
            };
            client.set_attributes(caller, number, change).await.map_err(file.failed())?;
        }
        client.flush(&file.file).await.map_err(file.failed())
    }

    async fn dress(&self, path: &[u8], kind: InodeKind, dress: Dress) -> anyhow::Result<bool> {
        let Session { client, caller, .. } = &*self.session;
        // A file may have been written through a link that was there.
        let inode = self.session.find(path, kind != InodeKind::Symlink).await?.inode;
        let mut given = true;
        if let Some((user, group)) = dress.owner {
            let change = AttributeChange {
                user: Some(user),
                group: Some(group),
                ..AttributeChange::default()
            };
            match client.set_attributes(caller, inode, change).await {
                // A user that may not give files away keeps them, as with cp.
                Ok(_) => {}
                Err(Errno::EPERM) => given = false,
                Err(errno) => return Err(of(path)(errno).context("owner")),
            }
        }
        let (accessed, modified) = match dress.times {
            Some((accessed, modified)) => (TimeChange::At(accessed), TimeChange::At(modified)),
            None => (TimeChange::Keep, TimeChange::Keep),
        };
        let mode = dress.mode.filter(|_| kind != InodeKind::Symlink);
        if mode.is_none() && dress.times.is_none() {
            return Ok(given);
        }
        let change = AttributeChange { mode, accessed, modified, ..AttributeChange::default() };
        client.set_attributes(caller, inode, change).await.map(|_| given).map_err(of(path))
    }
}
