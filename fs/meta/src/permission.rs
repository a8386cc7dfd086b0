//! The permission rules of POSIX on an inode's owner, group and mode.
//!
//! Pure functions. The superuser (user 0) passes all checks but those that concern execution, which clients
//! decide from the attributes. A caller that its kernel has already checked ([`Who::passes`]) passes in the
//! same way.

use ropewalk_wire::fs::meta::{NAME_BYTES_MAX, Who};
use ropewalk_wire::fs::value::Errno;

use crate::inode::Inode;

pub const READ: u16 = 4;
pub const WRITE: u16 = 2;
pub const SEARCH: u16 = 1;
/// The same bit, of a file.
pub const EXECUTE: u16 = SEARCH;

pub const SET_USER: u16 = 0o4000;
pub const SET_GROUP: u16 = 0o2000;
pub const STICKY: u16 = 0o1000;
pub const GROUP_EXECUTE: u16 = 0o010;

/// Whether `who` has all of `bits` (READ, WRITE, SEARCH) on the inode: `EACCES` otherwise. Exactly
/// one class of bits counts: owner, or else group, or else others.
pub fn check(inode: &Inode, who: &Who<'_>, bits: u16) -> Result<(), Errno> {
    let class = if who.user == inode.user {
        inode.mode >> 6
    } else if who.is_in(inode.group) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    if who.passes() || class & bits == bits { Ok(()) } else { Err(Errno::EACCES) }
}

/// Whether `who` owns the inode, or may do all that its owner may.
pub fn owns(inode: &Inode, who: &Who<'_>) -> bool {
    who.passes() || who.user == inode.user
}

/// Whether an entry that points to `inode` may be taken out of `directory`: write and search
/// permission (`EACCES`), and in a sticky directory the ownership of either (`EPERM`).
pub fn check_removal(directory: &Inode, inode: &Inode, who: &Who<'_>) -> Result<(), Errno> {
    check(directory, who, WRITE | SEARCH)?;
    if directory.mode & STICKY != 0 && !owns(directory, who) && !owns(inode, who) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Whether `name` can be an entry at all; `.` and `..` can, their meaning is the caller's affair.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Whether the name is `.` or `..`.
pub fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// The mode that is left when a file is written or given away by somebody without the right to keep
/// it: setuid falls, and setgid where it means execution as the group.
pub fn without_privileges(mode: u16) -> u16 {
    let mut left = mode & !SET_USER;
    if mode & GROUP_EXECUTE != 0 {
        left &= !SET_GROUP;
    }
    left
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::attributes::InodeKind;
    use ropewalk_wire::fs::meta::Judge;
    use ropewalk_wire::fs::value::{Bytes, Timestamp};

    use super::*;
    use crate::runs::Runs;

    fn inode(mode: u16, user: u32, group: u32) -> Inode {
        let never = Timestamp::default();
        Inode {
            number: 2,
            kind: InodeKind::Directory,
            mode,
            links: 2,
            user,
            group,
            device: 0,
            size: 0,
            accessed: never,
            modified: never,
            changed: never,
            created: never,
            version: 0,
            generation: 0,
            epoch: 0,
            parent: 1,
            cookie: 256,
            temporary: false,
            striped: false,
            layout: None,
            written: Runs::default(),
            inline_bytes: 0,
            xattr_bytes: 0,
            capable: false,
            policy: ropewalk_wire::fs::policy::Policy::default(),
        }
    }

    #[test]
    fn one_class_of_bits_counts_and_root_passes() {
        let groups = 30u32.to_le_bytes();
        let who = |user, group| Who { user, group, groups: Bytes(&groups), judge: Judge::Server };
        let closed_to_owner = inode(0o077, 10, 20);
        assert_eq!(check(&closed_to_owner, &who(10, 20), READ), Err(Errno::EACCES));
        assert_eq!(check(&closed_to_owner, &who(11, 20), READ | WRITE), Ok(()));
        let for_group = inode(0o070, 10, 30);
        assert_eq!(check(&for_group, &who(11, 1), SEARCH), Ok(()));
        assert_eq!(check(&inode(0o707, 10, 30), &who(11, 1), SEARCH), Err(Errno::EACCES));
        assert_eq!(check(&inode(0, 10, 20), &Who::ROOT, READ | WRITE | SEARCH), Ok(()));
        let judge = Judge::Kernel { keeps_privileges: false };
        let judged = Who { judge, ..who(11, 1) };
        assert_eq!(check(&inode(0, 10, 20), &judged, READ | WRITE | SEARCH), Ok(()));
        assert_eq!(check(&inode(0, 10, 20), &judged.unjudged(), READ), Err(Errno::EACCES));
        assert!(owns(&inode(0, 10, 20), &judged) && !judged.keeps_privileges());
    }

    #[test]
    fn sticky_directories_protect_entries_of_others() {
        let who = |user| Who { user, group: 1, groups: Bytes(&[]), judge: Judge::Server };
        let (directory, file) = (inode(0o1777, 10, 20), inode(0o644, 11, 20));
        assert_eq!(check_removal(&directory, &file, &who(12)), Err(Errno::EPERM));
        assert_eq!(check_removal(&directory, &file, &who(11)), Ok(()));
        assert_eq!(check_removal(&directory, &file, &who(10)), Ok(()));
        assert_eq!(check_removal(&inode(0o755, 10, 20), &file, &who(11)), Err(Errno::EACCES));
    }

    #[test]
    fn names_have_limits() {
        assert_eq!(check_name(&[b'x'; 255]), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_name(b""), Err(Errno::ENOENT));
        assert_eq!(check_name(b"a/b"), Err(Errno::EINVAL));
        assert_eq!(without_privileges(0o6755), 0o755);
        assert_eq!(without_privileges(0o6745), 0o2745);
    }
}
