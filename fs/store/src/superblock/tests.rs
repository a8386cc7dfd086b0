use super::*;
use crate::HostDisk;

const SELF: Identity =
    Identity { cluster: ClusterId(7), server: ServerId(2), role: Role::Metadata };

fn take(path: &Path, identity: Identity, expect: Expect) -> Result<ClaimedDirectory, ClaimError> {
    claim(&HostDisk, path, identity, expect, (99 << 32, 5))
}

#[test]
fn boots_are_counted_and_two_servers_never_share() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let first = take(&path, SELF, Expect::Any).unwrap();
    assert_eq!(
        first.boot,
        Boot { counter: 1, id: 1 << 32 | 99, era: 1 << 32 | 99, store: 5, history: 5 }
    );
    assert!(matches!(take(&path, SELF, Expect::Any), Err(ClaimError::InUse { .. })));
    drop(first);
    let second = claim(&HostDisk, &path, SELF, Expect::Existing, (100 << 32, 6)).unwrap();
    // The kernel, and with it all that was written, is still the same.
    assert_eq!(
        second.boot,
        Boot { counter: 2, id: 2 << 32 | 100, era: 1 << 32 | 99, store: 5, history: 5 }
    );
    drop(second);
    // Another directory, if only a copy, may be an older one.
    let copy = directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(path.join("superblock"), copy.join("superblock")).unwrap();
    let third = claim(&HostDisk, &copy, SELF, Expect::Existing, (101 << 32, 6)).unwrap();
    assert_eq!(
        third.boot,
        Boot { counter: 3, id: 3 << 32 | 101, era: 3 << 32 | 101, store: 5, history: 5 }
    );
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
fn data_without_superblock_and_later_formats_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(take(path, SELF, Expect::Any).unwrap());
    std::fs::create_dir(path.join("journal")).unwrap();
    let superblock = path.join(NAME);
    let mut newer = std::fs::read(&superblock).unwrap();
    newer[8] = 9;
    let crc = crc_of(&newer);
    newer[12..16].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&superblock, &newer).unwrap();
    assert!(matches!(take(path, SELF, Expect::Any), Err(ClaimError::Newer { found: 9, .. })));
    std::fs::remove_file(&superblock).unwrap();
    std::fs::remove_file(path.join(SECOND_NAME)).unwrap();
    let error = take(path, SELF, Expect::Replace).err().unwrap();
    assert!(matches!(&error, ClaimError::NotEmpty { found, .. } if found == "journal"), "{error}");
}

/// The ways in which a file of one sector is damaged.
fn damages(good: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut damages: Vec<Option<Vec<u8>>> = (0..BYTES)
        .step_by(23)
        .map(|byte| {
            let mut bad = good.to_vec();
            bad[byte] ^= 1 << (byte % 8);
            Some(bad)
        })
        .collect();
    damages.extend([None, Some(Vec::new()), Some(good[..100].to_vec()), Some(vec![0; BYTES])]);
    damages
}

#[test]
fn each_copy_is_mended_from_the_other_one_and_both_damaged_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    drop(take(path, SELF, Expect::Any).unwrap());
    std::fs::create_dir(path.join("journal")).unwrap();
    let put = |name: &str, bytes: &Option<Vec<u8>>| match bytes {
        Some(bytes) => std::fs::write(path.join(name), bytes).unwrap(),
        None => std::fs::remove_file(path.join(name)).unwrap(),
    };
    let good = std::fs::read(path.join(NAME)).unwrap();
    for bit in 0..BYTES * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&bad).is_err(), "bit {bit}");
    }
    let mut boots = 1;
    for name in [NAME, SECOND_NAME] {
        for bytes in damages(&std::fs::read(path.join(name)).unwrap()) {
            put(name, &bytes);
            let claimed = take(path, SELF, Expect::Existing).unwrap();
            boots += 1;
            assert_eq!((claimed.boot.counter, claimed.boot.store), (boots, 5));
            assert_eq!(claimed.mended, Some(path.join(name)));
            drop(claimed);
            assert_eq!(
                std::fs::read(path.join(NAME)).unwrap(),
                std::fs::read(path.join(SECOND_NAME)).unwrap()
            );
        }
    }
    // An older copy of one of them is overruled by the newer one.
    let older = std::fs::read(path.join(NAME)).unwrap();
    drop(take(path, SELF, Expect::Existing).unwrap());
    std::fs::write(path.join(NAME), &older).unwrap();
    assert_eq!(take(path, SELF, Expect::Existing).unwrap().boot.counter, boots + 2);
    // One of another store of the same server is not.
    let other = tempfile::tempdir().unwrap();
    drop(claim(&HostDisk, other.path(), SELF, Expect::Any, (9, 77)).unwrap());
    std::fs::copy(other.path().join(NAME), path.join(SECOND_NAME)).unwrap();
    let error = take(path, SELF, Expect::Existing).err().unwrap();
    assert!(matches!(error, ClaimError::Disagree { .. }), "{error}");
    let bad = Some(vec![7; BYTES]);
    put(NAME, &bad);
    put(SECOND_NAME, &bad);
    let error = take(path, SELF, Expect::Existing).err().unwrap();
    assert!(matches!(error, ClaimError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn a_directory_may_hold_the_history_of_another_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let first = take(path, SELF, Expect::Any).unwrap();
    assert_eq!(first.boot.history, first.boot.store);
    let format = |path: &Path| std::fs::read(path.join(NAME)).unwrap()[8];
    assert_eq!(format(path), 2, "programs that know of no histories read it");
    let mut keeper = first.keeper();
    keeper.boot.history = 1 << 127 | 3;
    keeper.begin(&HostDisk).unwrap();
    drop(first);
    assert_eq!(format(path), 3);
    let second = take(path, SELF, Expect::Existing).unwrap();
    assert_eq!((second.boot.store, second.boot.history), (5, 1 << 127 | 3));
    assert_eq!(format(path), 3);
    assert_eq!(second.boot.counter, 2);
}
