//! The table of mounts of this process's name space.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The kernel's number for it, unique while it is mounted.
    pub(super) id: u64,
    /// The number of its device, as `MAJOR:MINOR`.
    pub(super) device: String,
    /// The user for whom a FUSE mount was made.
    pub(super) user: Option<u32>,
    path: OsString,
    kind: String,
}

/// The FUSE mount on top of `path`, if there is one. Touches no mount.
pub(super) fn fuse_mount_at(path: &Path) -> Option<Mounted> {
    mount_at(path).filter(|one| one.kind == "fuse" || one.kind.starts_with("fuse."))
}

/// The type of what is mounted on `path`, on top of all else there. Touches no mount.
pub(super) fn kind_at(path: &Path) -> Option<String> {
    mount_at(path).map(|one| one.kind)
}

fn mount_at(path: &Path) -> Option<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut lines = table.rsplit(|byte| *byte == b'\n').filter_map(parse);
    // The latest mount stands last, and hides the others.
    lines.find(|one| one.path == path)
}

/// A line: number, parent, device, root, mount point, options, optional fields, a dash, type, ...
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?.to_string();
    let path = OsString::from_vec(unescape(fields.nth(1)?));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let options = rest.nth(1).unwrap_or_default();
    let user = options.split(|byte| *byte == b',').find_map(|option| {
        std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok()
    });
    Some(Mounted { id, device, user, path, kind })
}

/// Undoes the table's octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 4;
            }
            None => {
                bytes.push(field[at]);
                at += 1;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart_with_their_escapes() {
        let line = b"36 35 98:0 / /a\\040b\\134 rw,nosuid shared:1 master:2 - fuse.x name rw";
        let mounted = parse(line).unwrap();
        assert_eq!((mounted.id, mounted.kind.as_str()), (36, "fuse.x"));
        assert_eq!((mounted.path.to_str(), mounted.device.as_str()), (Some("/a b\\"), "98:0"));
        assert_eq!(parse(b"36 35 98:0 / /a rw no dash"), None);
        assert_eq!(parse(b""), None);
        assert!(fuse_mount_at(Path::new("/proc")).is_none());
    }
}
