//! Paths, for programs that use the library without a mount.

use ropewalk_wire::fs::attributes::{Attributes, InodeKind};
use ropewalk_wire::fs::meta::{Node, ROOT};
use ropewalk_wire::fs::value::Errno;

use crate::client::{Caller, Client};

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
