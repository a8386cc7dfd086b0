//! Extended attributes.

use ropewalk_wire::fs::attributes::Attributes;
use ropewalk_wire::fs::meta::{MetaRequest, NAME_BYTES_MAX};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::client::{Caller, Client};
use crate::names::content_of;

/// The extended attribute that holds a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

impl Client {
    /// The value of an extended attribute.
    pub async fn get_xattr(
        &self,
        caller: &Caller,
        number: u64,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        if let Some(attributes) = self.inode(number).cached()
            && let Some(answer) = absent_xattr(&attributes, name)
        {
            return Err(answer);
        }
        let who = caller.who();
        let request = MetaRequest::GetXattr { who, inode: number, name: Bytes(name) };
        self.ask(&request, content_of).await
    }

    /// The names of extended attributes, each ended by a zero byte.
    pub async fn list_xattr(&self, caller: &Caller, number: u64) -> Result<Vec<u8>, Errno> {
        if self.inode(number).cached().is_some_and(|attributes| !attributes.has_xattrs) {
            return Ok(Vec::new());
        }
        let request = MetaRequest::ListXattr { who: caller.who(), inode: number };
        self.ask(&request, content_of).await
    }

    /// Sets an extended attribute. `create`: it must be new; `replace`: it must exist.
    pub async fn set_xattr(
        &self,
        caller: &Caller,
        number: u64,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
    ) -> Result<(), Errno> {
        let request = MetaRequest::SetXattr {
            who: caller.who(),
            inode: number,
            name: Bytes(name),
            value: Bytes(value),
            create,
            replace,
        };
        self.ask(&request, |_| Ok(())).await?;
        let inode = self.inode(number);
        self.note_change(&inode);
        if name == CAPABILITY
            && let Some(known) = &mut inode.state.borrow_mut().attributes
        {
            // Others lost their leases for that; our own writes must know, too.
            known.capable = true;
        }
        self.stale(number);
        Ok(())
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(
        &self,
        caller: &Caller,
        number: u64,
        name: &[u8],
    ) -> Result<(), Errno> {
        let who = caller.who();
        let request = MetaRequest::RemoveXattr { who, inode: number, name: Bytes(name) };
        self.ask(&request, |_| Ok(())).await?;
        self.note_change(&self.inode(number));
        self.stale(number);
        Ok(())
    }
}

/// The answer for an extended attribute of an inode that has none, as the server would judge it, where
/// rights do not matter: kernel and programs ask for such names again and again, `exec` and `ls` for
/// each file.
fn absent_xattr(attributes: &Attributes, name: &[u8]) -> Option<Errno> {
    let absent = !attributes.has_xattrs && name.len() <= NAME_BYTES_MAX;
    let asked = |space: &[u8]| name.len() > space.len() && name.starts_with(space);
    if absent && (asked(b"security.") || asked(b"trusted.")) {
        return Some(Errno::ENODATA);
    }
    asked(b"system.").then_some(Errno::EOPNOTSUPP)
}
