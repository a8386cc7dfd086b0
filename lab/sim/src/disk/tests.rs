use super::*;

fn random(seed: u64) -> Random {
    Random::from_seed(seed)
}

fn content(disk: &VirtualDisk, path: &str) -> Option<Vec<u8>> {
    disk.bytes(Path::new(path))
}

/// A disk with a durable file `/d/f` of `len` bytes of value 1.
fn with_file(seed: u64, len: usize) -> (VirtualDisk, Arc<dyn File>) {
    let disk = VirtualDisk::new(seed);
    disk.create_directory(Path::new("/d")).unwrap();
    let file = disk.open(Path::new("/d/f"), Open::CreateNew).unwrap();
    file.write_at(0, &vec![1; len]).unwrap();
    file.sync_data().unwrap();
    disk.sync_directory(Path::new("/")).unwrap();
    disk.sync_directory(Path::new("/d")).unwrap();
    (disk, file)
}

#[test]
fn synced_bytes_survive_every_power_cut_and_unsynced_ones_some() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let (disk, file) = with_file(seed, 4096);
        file.write_at(0, &[2; 2048]).unwrap();
        disk.crash(&mut random(seed));
        let bytes = content(&disk, "/d/f").unwrap();
        assert_eq!(bytes.len(), 4096);
        assert!(bytes[2048..].iter().all(|byte| *byte == 1));
        for sector in bytes[..2048].chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector");
        }
        match bytes[..2048].iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            2048 => kept += 1,
            _ => torn += 1,
        }
        assert!(file.read_at(0, &mut [0]).is_err(), "a handle outlived the power cut");
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
}

#[test]
fn process_death_keeps_all_and_releases_locks() {
    let (disk, file) = with_file(1, 100);
    file.lock().unwrap();
    let second = disk.open(Path::new("/d/f"), Open::Write).unwrap();
    assert_eq!(second.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    file.write_at(50, &[3; 100]).unwrap();
    disk.survive_process_death();
    assert!(file.write_at(0, &[0]).is_err());
    let file = disk.open(Path::new("/d/f"), Open::Write).unwrap();
    file.lock().unwrap();
    let mut bytes = [0; 200];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 150);
    assert_eq!((bytes[49], bytes[50], bytes[149]), (1, 3, 3));
    drop(file);
    disk.open(Path::new("/d/f"), Open::Read).unwrap().lock().unwrap();
}

#[test]
fn unsynced_names_are_lost_or_kept_and_renames_are_atomic() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let (disk, _) = with_file(seed, 10);
        let new = disk.open(Path::new("/d/new"), Open::CreateNew).unwrap();
        new.write_at(0, &[9; 10]).unwrap();
        new.sync_data().unwrap();
        disk.rename(Path::new("/d/new"), Path::new("/d/f")).unwrap();
        if seed % 2 == 0 {
            disk.sync_directory(Path::new("/d")).unwrap();
        }
        disk.crash(&mut random(seed));
        let bytes = content(&disk, "/d/f").expect("the target of a rename never disappears");
        assert!(bytes == [1; 10] || bytes == [9; 10]);
        if seed % 2 == 0 {
            assert_eq!((bytes[0], content(&disk, "/d/new")), (9, None));
        } else {
            seen.insert((bytes[0], content(&disk, "/d/new").is_some()));
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, false), (1, true), (9, false)]);
}

#[test]
fn a_full_disk_answers_enospc_and_freed_room_is_room_again() {
    let (disk, file) = with_file(1, 4096);
    disk.set_capacity(3 * 4096);
    file.allocate(4096, 4096).unwrap();
    assert_eq!(file.write_at(8192, &[0; 4097]).unwrap_err().raw_os_error(), Some(ENOSPC));
    let space = disk.space(Path::new("/")).unwrap();
    assert_eq!(space, Space { total: 12288, free: 4096, available: 4096, identity: 0 });
    file.punch(0, 4096).unwrap();
    file.write_at(8192, &[7; 4097]).unwrap();
    drop(file);
    disk.remove_file(Path::new("/d/f")).unwrap();
    assert_eq!(disk.space(Path::new("/")).unwrap().available, 12288);
}

#[test]
fn a_failed_sync_is_not_mended_by_a_second_one() {
    let lost = (0..50).any(|seed| {
        let (disk, file) = with_file(seed, 512);
        file.write_at(0, &[2; 512]).unwrap();
        disk.fail_sync(1);
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(EIO));
        file.sync_data().unwrap();
        disk.crash(&mut random(seed));
        content(&disk, "/d/f").unwrap()[0] == 1
    });
    assert!(lost);
}

#[test]
fn faults_come_at_the_asked_call() {
    let (disk, file) = with_file(1, 512);
    disk.fail_write(2);
    disk.fail_read(2);
    file.write_at(0, &[5; 512]).unwrap();
    assert_eq!(file.write_at(0, &[6; 512]).unwrap_err().raw_os_error(), Some(EIO));
    file.read_at(0, &mut [0]).unwrap();
    assert_eq!(file.read_at(0, &mut [0]).unwrap_err().raw_os_error(), Some(EIO));
    file.write_at(0, &[5; 512]).unwrap();
    disk.flip_bit(Path::new("/d/f"), 3, 1);
    assert_eq!(content(&disk, "/d/f").unwrap()[3], 7);
    disk.halt_after(2);
    file.write_at(0, &[8; 512]).unwrap();
    assert!(file.sync_data().is_err());
    assert!(disk.is_halted());
    assert!(file.read_at(0, &mut [0]).is_err());
    assert!(disk.open(Path::new("/d/f"), Open::Read).is_err());
    disk.survive_process_death();
    assert_eq!(content(&disk, "/d/f").unwrap(), [8; 512]);
    let counts = disk.counts();
    assert_eq!((counts.writes, counts.reads, counts.bytes_written), (5, 2, 5 * 512));
}

#[test]
fn the_planted_bug_loses_synced_bytes() {
    let lost = (0..50).any(|seed| {
        let (disk, file) = with_file(seed, 512);
        disk.skip_sync(true);
        file.write_at(0, &[2; 512]).unwrap();
        file.sync_data().unwrap();
        disk.crash(&mut random(seed));
        content(&disk, "/d/f").unwrap()[0] == 1
    });
    assert!(lost);
}

#[test]
fn directories_refuse_what_posix_refuses() {
    let (disk, _) = with_file(1, 10);
    assert_eq!(
        disk.open(Path::new("/no/f"), Open::Create).err().unwrap().kind(),
        io::ErrorKind::NotFound
    );
    assert!(disk.open(Path::new("/d/f"), Open::CreateNew).is_err());
    assert!(disk.open(Path::new("/d"), Open::Read).is_err());
    assert!(disk.remove_directory(Path::new("/d")).is_err());
    assert!(disk.create_directory(Path::new("/d/f/g")).is_err());
    disk.create_directory(Path::new("/d/e/e2")).unwrap();
    disk.open(Path::new("/d/e/x"), Open::Create).unwrap();
    let names: Vec<_> = disk.list(Path::new("/d")).unwrap();
    assert_eq!(names, [("e".into(), Kind::Directory), ("f".into(), Kind::File)]);
    assert_eq!(disk.kind(Path::new("/d/e/x")).unwrap(), Some(Kind::File));
    assert_eq!(disk.kind(Path::new("/d/zz")).unwrap(), None);
    let read_only = disk.open(Path::new("/d/f"), Open::Read).unwrap();
    assert_eq!(read_only.write_at(0, &[1]).unwrap_err().raw_os_error(), Some(EBADF));
}

#[test]
fn a_spoiled_page_cannot_be_read_in_any_life_until_it_is_written_whole() {
    let (disk, file) = with_file(1, 3 * 4096);
    disk.spoil(Path::new("/d/f"), 5000);
    drop(file);
    let disk = disk.copy();
    let file = disk.open(Path::new("/d/f"), Open::Write).unwrap();
    let read = |from: u64, len: usize| file.read_at(from, &mut vec![0; len]);
    assert!(read(4095, 1).is_ok() && read(8192, 9000).is_ok());
    assert!(read(4095, 2).is_err() && read(8191, 1).is_err() && read(0, 9000).is_err());
    assert!(file.write_at(4095, &[2; 2]).is_err());
    assert!(read(4096, 1).is_err());
    file.write_at(4096, &[2; 4096]).unwrap();
    assert_eq!(read(0, 9000).unwrap(), 9000);
}
