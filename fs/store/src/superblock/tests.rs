use super::*;
use crate::HostDisk;

const SELF: Identity =
    Identity { cluster: ClusterId(7), server: ServerId(2), role: Role::Metadata };

fn take(path: &Path, identity: Identity, expect: Expect) -> Result<ClaimedDirectory, ClaimError> {
    claim(&HostDisk, path, identity, expect, (99, 5))
}

#[test]
fn boots_are_counted_and_two_servers_never_share() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let first = take(&path, SELF, Expect::Any).unwrap();
    assert_eq!(first.boot, Boot { counter: 1, id: 99, era: 99, store: 5 });
    assert!(matches!(take(&path, SELF, Expect::Any), Err(ClaimError::InUse { .. })));
    drop(first);
    let second = claim(&HostDisk, &path, SELF, Expect::Existing, (100, 6)).unwrap();
    // The kernel, and with it all that was written, is still the same.
    assert_eq!(second.boot, Boot { counter: 2, id: 100, era: 99, store: 5 });
    drop(second);
    // Another directory, if only a copy, may be an older one.
    let copy = directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(path.join("superblock"), copy.join("superblock")).unwrap();
    let third = claim(&HostDisk, &copy, SELF, Expect::Existing, (101, 6)).unwrap();
    assert_eq!(third.boot, Boot { counter: 3, id: 101, era: 101, store: 5 });
}

#[test]
fn strangers_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(take(path, SELF, Expect::Any).unwrap());
    let cluster = Identity { cluster: ClusterId(8), ..SELF };
    let server = Identity { server: ServerId(3), ..SELF };
    let role = Identity { role: Role::Data, ..SELF };
    assert!(matches!(take(path, cluster, Expect::Any), Err(ClaimError::OtherCluster { .. })));
    assert!(matches!(take(path, server, Expect::Any), Err(ClaimError::OtherServer { .. })));
    let error = take(path, role, Expect::Any).err().unwrap().to_string();
    assert!(error.contains("metadata") && error.contains(&path.display().to_string()), "{error}");
}

#[test]
fn an_emptied_store_of_a_known_server_needs_an_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert!(matches!(take(path, SELF, Expect::Existing), Err(ClaimError::Emptied { .. })));
    assert!(take(path, SELF, Expect::Replace).is_ok());
}

#[test]
fn data_without_superblock_damage_and_later_formats_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(take(path, SELF, Expect::Any).unwrap());
    std::fs::create_dir(path.join("journal")).unwrap();
    let superblock = path.join(NAME);
    let good = std::fs::read(&superblock).unwrap();
    for byte in [0, 13, 20, 300] {
        let mut bad = good.clone();
        bad[byte] ^= 1;
        std::fs::write(&superblock, &bad).unwrap();
        assert!(matches!(take(path, SELF, Expect::Any), Err(ClaimError::Damaged { .. })));
    }
    std::fs::write(&superblock, &good[..100]).unwrap();
    assert!(matches!(take(path, SELF, Expect::Any), Err(ClaimError::Damaged { .. })));
    let mut newer = good.clone();
    newer[8] = 9;
    let crc = crc_of(&newer);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&superblock, &newer).unwrap();
    assert!(matches!(take(path, SELF, Expect::Any), Err(ClaimError::Newer { found: 9, .. })));
    std::fs::remove_file(&superblock).unwrap();
    let error = take(path, SELF, Expect::Replace).err().unwrap();
    assert!(matches!(&error, ClaimError::NotEmpty { found, .. } if found == "journal"), "{error}");
}
