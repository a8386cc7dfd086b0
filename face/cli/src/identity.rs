//! The file `cluster`: the cluster to which a directory belongs, and the secret by which its servers know each
//! other.
//!
//! Invariants: every reader of the file is a member of the cluster, so it is made for its owner only, and a
//! file that others can read is refused; it is written after the metadata, and says that they were made.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ropewalk_base::disk::Disk;
use ropewalk_base::ids::ClusterId;
use ropewalk_rpc::Secret;
use ropewalk_store::HostDisk;

use crate::beside;
use crate::cluster::known_below;

/// The file's name in a cluster's directory.
pub const IDENTITY: &str = "cluster";
/// A file that is longer is none of ours.
const BYTES_MAX: u64 = 4096;
/// The word before the secret.
const SECRET: &str = "secret ";

/// A cluster, and what its members know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub id: ClusterId,
    pub secret: Secret,
}

impl Identity {
    /// One that no other cluster has.
    pub fn new() -> Identity {
        let mut id = [0; 16];
        fill(&mut id);
        Identity::of(ClusterId(u128::from_le_bytes(id)))
    }

    /// A cluster with a new secret.
    pub fn of(id: ClusterId) -> Identity {
        let mut secret = [0; 32];
        fill(&mut secret);
        Identity { id, secret: Secret::new(secret) }
    }
}

/// Fills with randomness of the operating system.
fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&ropewalk_net::host::random_seed().to_ne_bytes()[..chunk.len()]);
    }
}

/// The contents of an identity file.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub id: ClusterId,
    /// None in files of earlier versions.
    pub secret: Option<Secret>,
}

/// A cluster's identity as people write it.
pub fn parse_id(text: &str) -> Result<ClusterId, String> {
    let text = text.trim();
    let parsed = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    parsed.map(ClusterId).ok_or_else(|| {
        "the identity of a cluster has 32 hexadecimal digits, as 'ropewalk format' prints it"
            .to_string()
    })
}

fn parse_secret(text: &str) -> Option<Secret> {
    let text = text.trim().as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(Secret::new(bytes))
}

/// The contents of the file that a user named; none if there is no file. The user may have named a link.
pub fn read_file(path: &Path) -> anyhow::Result<Option<Said>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        file => said_in(file, path).map(Some),
    }
}

/// As `read_file`, for a server: the owner of the file decides about membership.
fn read_for_server(path: &Path) -> anyhow::Result<Option<Said>> {
    let cannot = || format!("cannot read {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(cannot)?,
    };
    if let Some(owner) = beside::stranger(&file.metadata().with_context(cannot)?) {
        bail!(
            "{} belongs to user {owner}, who can change the secret in it: make a copy that belongs \
             to the user who runs the server (chown, mode 600)",
            path.display()
        );
    }
    said_in(Ok(file), path).map(Some)
}

fn said_in(file: std::io::Result<File>, path: &Path) -> anyhow::Result<Said> {
    let cannot = || format!("cannot read {}", path.display());
    let file = file.with_context(cannot)?;
    let mode = file.metadata().with_context(cannot)?.permissions().mode() & 0o777;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).with_context(cannot)?;
    let damaged = |what: &str| damaged(path, what);
    let text = String::from_utf8(bytes)
        .map_err(|_| damaged("its first line is not the identity of a cluster"))?;
    let mut lines = text.lines();
    let id = parse_id(lines.next().unwrap_or_default())
        .map_err(|_| damaged("its first line is not the identity of a cluster"))?;
    let secret = match lines.next() {
        None => None,
        Some(line) => {
            let secret = line.strip_prefix(SECRET).and_then(parse_secret);
            Some(secret.ok_or_else(|| damaged("its second line is not a valid secret"))?)
        }
    };
    if secret.is_some() && mode & 0o077 != 0 {
        bail!(
            "{0} has the cluster's secret, but other users of this host can access it (mode \
             {mode:03o}): close it by 'chmod 600 {0}'. If somebody may have read it, also delete \
             its second line, restart the metadata server, which adds a new secret, and copy the \
             file to the other hosts again",
            path.display()
        );
    }
    Ok(Said { id, secret })
}

/// The error for a damaged file.
fn damaged(path: &Path, what: &str) -> anyhow::Error {
    let error = format!("{} is damaged: {what}", path.display());
    // The stores beside it know whose it is, too.
    match path.parent().and_then(known_below) {
        Some(id) => anyhow::anyhow!(
            "{error}. The data beside it belongs to cluster {id}: restore that file from a backup, \
             or write a new one (mode 600) with the single line {id}; the metadata server then \
             adds a new secret at its next start, and the other hosts need new copies of the file"
        ),
        None => anyhow::anyhow!(
            "{error}. Restore it from a backup; it has a line of 32 hexadecimal digits, and a line \
             with the secret"
        ),
    }
}

/// The contents of the file in a directory; none if there is no file.
pub fn read(directory: &Path) -> anyhow::Result<Option<Said>> {
    let path = directory.join(IDENTITY);
    match beside::open_own(OpenOptions::new().read(true), &path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        file => said_in(file, &path).map(Some),
    }
}

/// The identity in a directory whose metadata are served here: one without a secret gets one.
pub fn complete(directory: &Path, said: Said) -> anyhow::Result<Identity> {
    let Said { id, secret } = said;
    if let Some(secret) = secret {
        return Ok(Identity { id, secret });
    }
    let identity = Identity::of(id);
    write(directory, &identity)?;
    Ok(identity)
}

/// Gives `directory` an identity, durably: from then on its servers are known to have data.
pub fn write(directory: &Path, identity: &Identity) -> anyhow::Result<()> {
    let Identity { id, secret } = identity;
    if read(directory)?.is_some_and(|said| said.id == *id && said.secret.as_ref() == Some(secret)) {
        return keep_name(&directory.join(IDENTITY));
    }
    HostDisk.create_directory(directory)?;
    let digits =
        secret.bytes().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    write_line(&directory.join(IDENTITY), &format!("{id}\n{SECRET}{digits}"))
}

/// Makes the name of a file that was found durable: its writer may have been killed before its last sync.
pub fn keep_name(path: &Path) -> anyhow::Result<()> {
    match HostDisk.sync_directory(path.parent().unwrap_or(Path::new("."))) {
        // A process that may not even open the directory has not written the file either.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        result => result.with_context(|| format!("cannot write {} to disk", path.display())),
    }
}

/// Replaces a file by one with this line, durably.
pub fn write_line(path: &Path, line: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let write = || {
        // The leftover of an earlier start may have wider permissions, or another owner.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The identity for a server whose metadata may be elsewhere: of the file that was named, else of the first
/// of these directories that has one.
pub fn find(
    named: Option<&Path>,
    directories: &[&Path],
    expected: Option<ClusterId>,
) -> anyhow::Result<Option<(PathBuf, Said)>> {
    let found = match named {
        Some(path) => {
            let said = read_for_server(path)?;
            Some((
                path.to_path_buf(),
                said.with_context(|| {
                    format!("the cluster file {} (--cluster-file) does not exist", path.display())
                })?,
            ))
        }
        None => {
            let mut found = None;
            for directory in directories {
                if let Some(said) = read(directory)? {
                    found = Some((directory.join(IDENTITY), said));
                    break;
                }
            }
            found
        }
    };
    if let (Some((path, said)), Some(expected)) = (&found, expected)
        && said.id != expected
    {
        bail!(
            "{} belongs to cluster {}, not to {expected}: give the right file by --cluster-file",
            path.display(),
            said.id
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_written_and_only_its_owner_reads_it() {
        let place = tempfile::tempdir().expect("a directory");
        let (directory, file) = (place.path(), place.path().join(IDENTITY));
        assert_eq!(read(directory).expect("it can be read"), None);
        let identity = Identity::new();
        write(directory, &identity).expect("written");
        // One that is there may be of a writer that was killed: its name is not durable yet.
        let syncs = HostDisk::syncs();
        write(directory, &identity).expect("it is there");
        assert!(HostDisk::syncs() > syncs, "the directory was not synced");
        let said = read(directory).expect("it can be read").expect("it is there");
        assert_eq!((said.id, said.secret), (identity.id, Some(identity.secret)));
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("ours");
        let error = read(directory).expect_err("others can read it").to_string();
        assert!(error.contains("chmod 600") && error.contains("(mode 640)"), "{error}");
    }

    #[test]
    fn files_of_earlier_versions_get_a_secret_and_damaged_ones_are_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let (directory, file) = (place.path(), place.path().join(IDENTITY));
        let id = Identity::new().id;
        std::fs::write(&file, format!("{id}\n")).expect("written");
        let said = read(directory).expect("it can be read").expect("it is there");
        assert_eq!(said.secret, None);
        let identity = complete(directory, said).expect("completed");
        let again = read(directory).expect("it can be read").expect("it is there");
        assert_eq!((again.id, again.secret), (id, Some(identity.secret)));
        for bad in [&b"\xff\xfe\x00"[..], b"", b"abc\n", format!("{id}\nsecret 12\n").as_bytes()] {
            std::fs::write(&file, bad).expect("written");
            let error = read(directory).expect_err("it is damaged").to_string();
            assert!(error.contains("is damaged: "), "{error}");
        }
    }
}
