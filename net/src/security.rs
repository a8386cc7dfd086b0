//! Who may talk to an endpoint: nobody is asked, or each peer has to prove that it has a key of the cluster.
//!
//! Key files are read here: a file that others than its owner may read is refused, and so is one of another user.

use std::fmt;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_auth::{FILE_BYTES_MAX, FileError, Guard, Keyring, Secret, World};
use ropewalk_base::cipher_random::CipherRandom;
use ropewalk_core::Core;
use thiserror::Error;
use zeroize::Zeroizing;

/// Who may talk to an endpoint.
#[derive(Clone, Default)]
pub enum Security {
    /// Whoever reaches it.
    #[default]
    None,
    /// Peers that prove themselves to this guard.
    Keys(Arc<Guard>),
}

/// A key file cannot be used.
#[derive(Debug, Error)]
pub enum KeyFileError {
    #[error("the key file {0} cannot be read: {1}")]
    Unreadable(PathBuf, std::io::Error),
    #[error(
        "others than its owner may read the key file {0}: run `chmod 600 {0}`, and make a new key if they might have read it"
    )]
    Open(PathBuf),
    #[error("the key file {0} belongs to user {1}: start this as that user, or `chown` the file")]
    Foreign(PathBuf, u32),
    #[error("the key file {0} is no regular file: name the file itself")]
    NoFile(PathBuf),
    #[error("the key file {0} cannot be used: {1}")]
    Unsound(PathBuf, FileError),
    #[error(
        "the key file {0} is for signing alone: sign a node's key by `ropewalk key sign`, and use that file"
    )]
    Signs(PathBuf),
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Security::None => "None",
            Security::Keys(_) => "Keys(..)",
        })
    }
}

impl Security {
    /// Peers have to prove that they have keys of this ring's cluster; with the host's clock and chance.
    pub fn with(ring: Keyring) -> Security {
        Security::Keys(Arc::new(Guard::new(ring, Box::new(HostWorld))))
    }

    /// A core that asks peers for what this demands. `addresses`: the text of its greeting.
    pub(crate) fn applied_to(&self, core: Core, addresses: &str) -> Core {
        match self {
            Security::None => core,
            Security::Keys(guard) => core.with_guard(guard.clone(), addresses.as_bytes().to_vec()),
        }
    }

    /// The same with the keys of a file that opens endpoints.
    pub fn from_file(path: &Path) -> Result<Security, KeyFileError> {
        let ring = read_key_file(path)?;
        match ring.opens() {
            true => Ok(Security::with(ring)),
            false => Err(KeyFileError::Signs(path.into())),
        }
    }
}

/// Reads a key file, if it belongs to the user of this process and nobody else may read it.
pub fn read_key_file(path: &Path) -> Result<Keyring, KeyFileError> {
    use rustix::fs::{FileType, Mode, OFlags};
    let unreadable = |error: std::io::Error| KeyFileError::Unreadable(path.into(), error);
    // Without waiting: the name may be that of a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|it| unreadable(it.into()))?;
    let stat = rustix::fs::fstat(file.as_fd()).map_err(|it| unreadable(it.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(KeyFileError::NoFile(path.into()));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(KeyFileError::Open(path.into()));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::Foreign(path.into(), stat.st_uid));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
    let file = std::fs::File::from(file);
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| FileError::NoTitle);
    let ring = text.and_then(Keyring::parse);
    ring.map_err(|error| KeyFileError::Unsound(path.into(), error))
}

/// 32 bytes of the kernel's randomness.
pub fn random_secret() -> Secret {
    Secret::new(*random_key())
}

/// A core whose nonces and secrets the kernel's randomness determines; in virtual time its seed does.
pub(crate) fn with_chance(core: Core, virtual_time: bool) -> Core {
    match virtual_time {
        true => core,
        false => core.with_random(CipherRandom::from_key(*random_key())),
    }
}

fn random_key() -> Zeroizing<[u8; 32]> {
    let mut bytes = Zeroizing::new([0u8; 32]);
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the kernel has randomness for a key");
    bytes
}

/// The host's clock and chance.
struct HostWorld;

impl World for HostWorld {
    fn chance(&self) -> Secret {
        random_secret()
    }

    fn unix_seconds(&self) -> u64 {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        unix.map_or(0, |unix| unix.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use ropewalk_auth::{Authority, PskKeys};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ropewalk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn write(path: &Path, ring: &Keyring, mode: u32) {
        std::fs::write(path, ring.to_text().as_bytes()).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_key_file_is_its_owner_s_alone() {
        let folder = folder("key-file");
        let path = folder.join("key");
        let ring = Keyring::Cluster(PskKeys::new(random_secret(), None));
        write(&path, &ring, 0o600);
        assert_eq!(read_key_file(&path).unwrap(), ring);
        assert!(matches!(Security::from_file(&path), Ok(Security::Keys(_))));
        for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
            write(&path, &ring, mode);
            let error = read_key_file(&path).unwrap_err();
            assert!(matches!(error, KeyFileError::Open(_)), "{mode:o}: {error}");
            assert!(error.to_string().contains("chmod 600"));
        }
        let link = folder.join("link");
        symlink(&path, &link).unwrap();
        assert!(read_key_file(&link).is_err(), "the mode of the file counts, not that of the link");
        assert!(matches!(read_key_file(&folder), Err(KeyFileError::NoFile(_))));
        let missing = read_key_file(&folder.join("missing"));
        assert!(matches!(missing, Err(KeyFileError::Unreadable(..))));
        write(&path, &Keyring::Authority(Authority::new(random_secret())), 0o600);
        assert!(matches!(Security::from_file(&path), Err(KeyFileError::Signs(_))));
        std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX + 10]).unwrap();
        assert!(matches!(read_key_file(&path), Err(KeyFileError::Unsound(_, FileError::TooLong))));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn secrets_differ() {
        assert!(random_secret() != random_secret());
    }
}
