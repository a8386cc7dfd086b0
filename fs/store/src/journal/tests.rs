use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::HostDisk;
use crate::testing::run;

const CONFIG: JournalConfig =
    JournalConfig { segment_bytes: 16 * 1024, sync_interval: Duration::from_secs(3600) };

type Records = BTreeMap<u64, Vec<u8>>;

/// A journal's directory, with a place for its mark beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.path()).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("journal")
    }
}

fn open(directory: &Path, open: OpenJournal) -> Result<(RecoveredJournal, Records), StoreError> {
    let mut records = Records::new();
    let found = recover(&HostDisk, directory, CONFIG, open, &mut |position, payload| {
        assert_eq!(records.insert(position, payload.to_vec()), None);
        Ok(())
    })?;
    Ok((found.begin(&HostDisk, false)?, records))
}

fn boot(epoch: u64) -> OpenJournal {
    OpenJournal { epoch, ..OpenJournal::default() }
}

fn payload(position: u64) -> Vec<u8> {
    vec![position as u8; 100 + (position % 50) as usize]
}

/// Appends so many records; every one is durable before the next is written.
fn append(directory: &Path, how: OpenJournal, count: u64) {
    let recovered = open(directory, how).unwrap().0;
    run(HostDisk::shared(), move |world| async move {
        let journal = Journal::start(&world, recovered);
        for _ in 0..count {
            let next = journal.position().0 + 1;
            let position = journal.append(&payload(next)).unwrap();
            assert_eq!(position.0, next);
            journal.wait_durable(position).await.unwrap();
        }
    });
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == "journal"));
    paths.sort();
    paths
}

/// Offsets of the records in a segment.
fn records_of(path: &Path) -> Vec<(u64, usize)> {
    let bytes = std::fs::read(path).unwrap();
    let mut at = SEGMENT_HEADER_BYTES as usize;
    let mut records = Vec::new();
    while let Some(header) = record::RecordHeader::decode(&bytes[at..])
        && header.payload(record::seed_of(0), &bytes[at..]).is_some()
        && header.position > 0
    {
        records.push((header.position, at));
        at += record::record_bytes(header.len);
    }
    records
}

fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

fn assert_records(records: &Records, range: std::ops::RangeInclusive<u64>) {
    assert_eq!(records.keys().copied().collect::<Vec<_>>(), range.collect::<Vec<_>>());
    assert!(records.iter().all(|(position, bytes)| *bytes == payload(*position)));
}

#[test]
fn records_come_back_over_segments_and_epochs() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 300);
    append(&directory.path(), boot(2), 5);
    append(&directory.path(), boot(3), 300);
    let (recovered, records) = open(&directory.path(), boot(4)).unwrap();
    assert_eq!(recovered.recovery.last, Position(605));
    assert_records(&records, 1..=605);
    assert!(segments(&directory.path()).len() > 5);
    let checkpoint = OpenJournal { checkpoint: Position(400), ..boot(5) };
    assert_records(&open(&directory.path(), checkpoint).unwrap().1, 401..=605);
    // A superblock that counts too few starts is overruled.
    let older = OpenJournal { checkpoint: Position(400), ..boot(2) };
    let (again, records) = open(&directory.path(), older).unwrap();
    assert_eq!(again.open.epoch, 6);
    assert_records(&records, 401..=605);
}

#[test]
fn a_torn_tail_ends_the_log_and_new_records_never_touch_it() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 20);
    let segment = segments(&directory.path())[0].clone();
    let (last, at) = *records_of(&segment).last().unwrap();
    assert_eq!(last, 20);
    damage(&segment, at + 40);
    // It was under way when the power failed, and nobody was told of it.
    std::fs::remove_file(directory.path().with_added_extension("mark")).unwrap();
    let before = std::fs::read(&segment).unwrap();
    append(&directory.path(), boot(2), 3);
    assert_eq!(std::fs::read(&segment).unwrap(), before);
    let (recovered, records) = open(&directory.path(), boot(3)).unwrap();
    assert_eq!(recovered.recovery.last, Position(22));
    assert_records(&records, 1..=22);
}

#[test]
fn a_hole_before_records_that_call_it_durable_is_a_loss() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 200);
    let segment = segments(&directory.path())[0].clone();
    let (position, at) = records_of(&segment)[10];
    damage(&segment, at + 33);
    let error = open(&directory.path(), boot(2)).err().unwrap();
    assert!(matches!(error, StoreError::Lost { from, through: 200, .. } if from == position));
    assert_eq!(error.class(), ropewalk_base::error::Class::Data);
    // The index has it already: nothing is lost.
    let covered = OpenJournal { checkpoint: Position(250), ..boot(2) };
    assert!(open(&directory.path(), covered).is_ok());
}

#[test]
fn an_accepted_loss_goes_on_before_the_hole_for_good() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 300);
    let segment = segments(&directory.path())[1].clone();
    let (position, at) = records_of(&segment)[3];
    damage(&segment, at);
    let accept = OpenJournal { accept_loss: true, ..boot(2) };
    append(&directory.path(), accept, 10);
    let (recovered, records) = open(&directory.path(), boot(3)).unwrap();
    assert_eq!(recovered.recovery.last, Position(position + 9));
    assert_eq!(recovered.recovery.lost, None);
    assert_records(&records, 1..=position + 9);
}

#[test]
fn missing_segments_are_losses_and_headers_are_made_anew() {
    for (victim, records) in [(0, false), (1, false), (1, true), (0, true), (9, true)] {
        let directory = Place::new();
        append(&directory.path(), boot(1), 300);
        let segments = segments(&directory.path());
        let used = segments.iter().rfind(|path| !records_of(path).is_empty()).unwrap();
        let path = segments.get(victim).unwrap_or(used);
        // Its records say what its header said.
        let good = std::fs::read(path).unwrap();
        damage(path, 20);
        assert_records(&open(&directory.path(), boot(2)).unwrap().1, 1..=300);
        std::fs::write(path, &good).unwrap();
        if records {
            damage(path, 20);
            damage(path, 540);
        } else {
            std::fs::remove_file(path).unwrap();
        }
        let error = open(&directory.path(), boot(2)).err().unwrap();
        assert!(matches!(error, StoreError::Lost { .. }), "{victim} {records}: {error}");
    }
    // A journal that is gone as a whole.
    let directory = Place::new();
    let gone = OpenJournal { must_exist: true, checkpoint: Position(7), ..boot(2) };
    assert!(matches!(open(&directory.path(), gone), Err(StoreError::Lost { from: 8, .. })));
}

#[test]
fn the_last_records_are_missed_too_and_what_the_index_has_is_passed_over() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 90);
    let segment = segments(&directory.path())[0].clone();
    let good = std::fs::read(&segment).unwrap();
    let (last, at) = *records_of(&segment).last().unwrap();
    damage(&segment, at + 40);
    let error = open(&directory.path(), boot(2)).err().unwrap();
    assert!(
        matches!(error, StoreError::Lost { from, through, .. } if (from, through) == (last, last)),
        "{error}"
    );
    std::fs::write(&segment, &good[..at]).unwrap();
    assert!(matches!(open(&directory.path(), boot(2)), Err(StoreError::Lost { .. })));
    // After a power loss what was only written may be gone, what was durable may not.
    let later = OpenJournal { era: 7, ..boot(2) };
    assert!(matches!(open(&directory.path(), later), Err(StoreError::Lost { .. })));
    std::fs::write(&segment, &good).unwrap();
    damage(&segment, records_of(&segment)[30].1 + 40);
    let covered = OpenJournal { checkpoint: Position(60), ..boot(2) };
    assert_records(&open(&directory.path(), covered).unwrap().1, 61..=90);
}

#[test]
fn segments_of_another_store_are_refused_and_exchanged_names_do_no_harm() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 300);
    let other = Place::new();
    append(&other.path(), OpenJournal { store: 5, ..boot(1) }, 300);
    let (own, foreign) = (segments(&directory.path()), segments(&other.path()));
    let good = std::fs::read(&own[1]).unwrap();
    std::fs::copy(&foreign[1], &own[1]).unwrap();
    let error = open(&directory.path(), boot(2)).err().unwrap().to_string();
    assert!(
        error.contains("journal of another server") && error.contains(own[1].to_str().unwrap()),
        "{error}"
    );
    std::fs::write(&own[1], std::fs::read(&own[0]).unwrap()).unwrap();
    std::fs::write(&own[0], good).unwrap();
    assert_records(&open(&directory.path(), boot(2)).unwrap().1, 1..=300);
}

#[test]
fn groups_share_writes_and_syncs_and_readers_follow() {
    let directory = Place::new();
    let recovered = open(&directory.path(), boot(1)).unwrap().0;
    run(HostDisk::shared(), move |world| async move {
        let journal = Journal::start(&world, recovered);
        let mut reader = journal.read_from(Position(1));
        assert_eq!(reader.next_record().unwrap(), None);
        for _ in 0..30 {
            let next = journal.position().0 + 1;
            journal.append(&payload(next)).unwrap();
        }
        assert_eq!((journal.written(), journal.position()), (Position(0), Position(30)));
        journal.wait_written(Position(30)).await.unwrap();
        assert_eq!(journal.durable(), Position(0));
        for _ in 0..270 {
            let next = journal.position().0 + 1;
            journal.append(&payload(next)).unwrap();
        }
        journal.wait_durable(Position(300)).await.unwrap();
        let mut seen = Records::new();
        while let Some((position, bytes)) = reader.next_record().unwrap() {
            seen.insert(position.0, bytes);
        }
        assert_records(&seen, 1..=300);
        let mut late = journal.read_from(Position(177));
        assert_eq!(late.next_record().unwrap().unwrap().0, Position(177));
        let third = journal.read_from(Position(3));
        journal.cut(Position(250));
        assert_eq!(journal.oldest(), Position(1), "a reader has not come further");
        drop((late, third));
        journal.cut(Position(250));
        let oldest = journal.oldest();
        assert!(oldest > Position(100) && oldest <= Position(251), "{oldest}");
        let mut cut = journal.read_from(Position(5));
        assert!(matches!(cut.next_record(), Err(StoreError::Cut { asked: 5, .. })));
        let mut rest = journal.read_from(Position(251));
        assert_eq!(rest.next_record().unwrap().unwrap().1, payload(251));
    });
}

#[test]
fn a_reader_that_falls_behind_what_is_in_memory_goes_on_in_the_files() {
    let directory = Place::new();
    let recovered = open(&directory.path(), boot(1)).unwrap().0;
    run(HostDisk::shared(), move |world| async move {
        let journal = Journal::start(&world, recovered);
        let mut reader = journal.read_from(Position(1));
        let append = async |count: u64| {
            for _ in 0..count {
                let next = journal.position().0 + 1;
                journal.append(&payload(next)).unwrap();
            }
            journal.wait_own_written(journal.position()).await.unwrap();
        };
        append(10).await;
        let mut seen = Records::new();
        let read = |reader: &mut JournalReader, seen: &mut Records, count: usize| {
            for _ in 0..count {
                let (position, bytes) = reader.next_record().unwrap().unwrap();
                seen.insert(position.0, bytes);
            }
        };
        read(&mut reader, &mut seen, 7);
        append(11_990).await;
        {
            let state = journal.shared.state.borrow();
            assert!(state.recent.bytes <= RECENT_BYTES_MAX && state.recent.first > 2_000);
        }
        read(&mut reader, &mut seen, 1);
        let place = reader.place.as_ref().expect("it reads a file");
        assert_eq!(
            (place.position, reader.position()),
            (9, Position(9)),
            "without a look at others"
        );
        read(&mut reader, &mut seen, 11_992);
        assert!(reader.place.is_none(), "the last ones come from memory");
        assert_eq!(reader.next_record().unwrap(), None);
        assert_records(&seen, 1..=12_000);
        drop(reader);
        append(1).await;
        assert!(journal.shared.state.borrow().recent.records.is_empty(), "nobody reads");
    });
}

#[test]
fn old_segments_are_used_again_and_stale_bytes_never_read() {
    let directory = Place::new();
    let recovered = open(&directory.path(), boot(1)).unwrap().0;
    run(HostDisk::shared(), move |world| async move {
        let journal = Journal::start(&world, recovered);
        for round in 1..=40u64 {
            for _ in 0..50 {
                let next = journal.position().0 + 1;
                journal.append(&payload(next)).unwrap();
            }
            journal.wait_durable(Position(50 * round)).await.unwrap();
            if round < 40 {
                journal.cut(Position(50 * round - 10));
            }
        }
    });
    assert!(segments(&directory.path()).len() < 8, "{:?}", segments(&directory.path()));
    let checkpoint = OpenJournal { checkpoint: Position(1940), ..boot(2) };
    assert_records(&open(&directory.path(), checkpoint).unwrap().1, 1941..=2000);
}

#[test]
fn an_older_copy_of_the_whole_directory_is_a_loss() {
    let directory = Place::new();
    append(&directory.path(), boot(1), 20);
    let older = directory.0.path().join("older");
    std::fs::create_dir(&older).unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), older.join(entry.file_name())).unwrap();
    }
    append(&directory.path(), boot(2), 5);
    std::fs::remove_dir_all(directory.path()).unwrap();
    std::fs::rename(&older, directory.path()).unwrap();
    let error = open(&directory.path(), boot(3)).err().unwrap();
    assert!(matches!(error, StoreError::Lost { from: 21, through: 25, .. }), "{error}");
}

#[test]
fn a_segment_that_is_a_link_is_refused_by_name() {
    let place = Place::new();
    let directory = place.path();
    append(&directory, boot(1), 5);
    let path = segments(&directory)[0].clone();
    let elsewhere = place.0.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    for accept_loss in [false, true] {
        let how = OpenJournal { accept_loss, ..boot(2) };
        let error = open(&directory, how).err().expect("it is refused").to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("link"), "{error}");
    }
    std::fs::rename(&elsewhere, &path).unwrap();
    assert_eq!(open(&directory, boot(2)).unwrap().1.len(), 5);
}
