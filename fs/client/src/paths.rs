//! Paths, for programs that use the library without a mount.

use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::task::yield_now;
use ropewalk_wire::fs::attributes::{Attributes, InodeKind};
use ropewalk_wire::fs::meta::{Node, ROOT};
use ropewalk_wire::fs::value::Errno;

use crate::client::{Caller, Client};
use crate::file::{File, OpenOptions};

/// Bytes of one read or write of a whole file: several stripes keep several servers at work.
const CHUNK_BYTES: usize = 4 << 20;

/// Symbolic links that one path may lead through.
const LINKS_MAX: u32 = 40;

impl Client {
    /// The inode that an absolute path names, symbolic links followed; the last one only with
    /// `follow`.
    pub async fn resolve(
        &self,
        caller: &Caller,
        path: &[u8],
        follow: bool,
    ) -> Result<Attributes, Errno> {
        let mut links = 0;
        let mut parents: Vec<u64> = Vec::new();
        let mut at = self.attributes(ROOT).await?;
        let mut rest: Vec<Vec<u8>> = components(path);
        while let Some(name) = rest.pop() {
            match &name[..] {
                b"." => continue,
                b".." => {
                    if let Some(parent) = parents.pop() {
                        at = self.attributes(parent).await?;
                    }
                    continue;
                }
                _ => {}
            }
            if at.kind != InodeKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            let found = self.lookup(caller, at.inode, &name).await?;
            if found.kind == InodeKind::Symlink && (follow || !rest.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = self.read_link(found.inode).await?;
                if target.starts_with(b"/") {
                    parents.clear();
                    at = self.attributes(ROOT).await?;
                }
                rest.extend(components(&target));
                continue;
            }
            parents.push(at.inode);
            at = found;
        }
        Ok(at)
    }

    /// The directory in which a path's last name lies, and that name.
    pub async fn resolve_parent<'a>(
        &self,
        caller: &Caller,
        path: &'a [u8],
    ) -> Result<(Attributes, &'a [u8]), Errno> {
        let end = path.iter().rposition(|byte| *byte != b'/').ok_or(Errno::EEXIST)? + 1;
        let begin = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let parent = self.resolve(caller, &path[..begin], true).await?;
        Ok((parent, &path[begin..end]))
    }

    /// Opens the file that a path names; symbolic links are followed.
    pub async fn open_path(
        &self,
        caller: &Caller,
        path: &[u8],
        options: OpenOptions,
    ) -> Result<File, Errno> {
        let found = self.resolve(caller, path, true).await?;
        self.open(caller, found.inode, options).await
    }

    /// Reads a whole file.
    pub async fn read_file(&self, caller: &Caller, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let file = self.open_path(caller, path, OpenOptions::READ).await?;
        let mut bytes = Vec::new();
        loop {
            let buffer = self.buffer(CHUNK_BYTES).await;
            let (buffer, read) = self.read(&file, bytes.len() as u64, buffer).await?;
            if read == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&buffer[..read]);
        }
    }

    /// Writes a whole file: a new one of this mode, or the new content of the one that is there. It survives
    /// this client and the death of any server, and after [`Client::sync`] of the returned file a loss of
    /// power.
    pub async fn write_file(
        &self,
        caller: &Caller,
        path: &[u8],
        mode: u16,
        bytes: &[u8],
    ) -> Result<File, Errno> {
        let options = OpenOptions { truncate: true, ..OpenOptions::WRITE };
        let (parent, name) = self.resolve_parent(caller, path).await?;
        let created = self.create(caller, parent.inode, name, mode, false, options).await;
        let file = match created {
            Ok((_, file, _)) => file,
            // A symbolic link lies there, and is followed.
            Err(Errno::ELOOP) => self.open_path(caller, path, options).await?,
            Err(errno) => return Err(errno),
        };
        for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let mut buffer = self.buffer(chunk.len()).await;
            buffer.copy_from_slice(chunk);
            self.write(&file, (number * CHUNK_BYTES) as u64, buffer, 0..chunk.len()).await?;
        }
        self.flush(&file).await?;
        Ok(file)
    }

    /// Memory for reading and writing; waits while all of it is lent.
    pub async fn buffer(&self, len: usize) -> PoolBuffer {
        loop {
            match self.pool().take(len) {
                Some(buffer) => return buffer,
                // Transfers that are under way give theirs back.
                None => yield_now().await,
            }
        }
    }

    /// Makes a directory and its missing parents; existing ones are fine.
    pub async fn make_directories(
        &self,
        caller: &Caller,
        path: &[u8],
        mode: u16,
    ) -> Result<Attributes, Errno> {
        let mut at = self.attributes(ROOT).await?;
        let mut rest = components(path);
        while let Some(name) = rest.pop() {
            at = match self.make(caller, at.inode, &name, mode, Node::Directory).await {
                Err(Errno::EEXIST) => self.lookup(caller, at.inode, &name).await?,
                made => made?,
            };
        }
        Ok(at)
    }
}

/// The names of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.reverse();
    names
}
