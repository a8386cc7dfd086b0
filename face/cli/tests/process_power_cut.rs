//! Power cuts of real file systems under real servers: synced data is there afterwards.
//!
//! Each server's directory lies on a file system of its own in a file. The kernel is told to stop it in the
//! middle of work without writing back anything: unsynced data is lost, as with a power cut. Then the server is
//! killed, the file system mounted again, and the server started again.

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::disk::{PowerDisk, power_usable};
use support::library::Library;
use support::model::{Found, Loss, Model, Syncs};
use support::operation::{Operation, Random, bytes};
use support::servers::Servers;
use support::worker::{Ended, Worker};
use support::{PROGRAM, Process, mounts_usable};

/// Not a test of its own: the work of the worker's process.
#[test]
fn worker() {
    support::worker::work();
}

/// The servers whose power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    All,
    Meta,
    Data,
}

/// The behaviour of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It dies with the servers.
    Dies,
    /// It lives on another machine, and goes on.
    Lives,
}

const PARTS: [&str; 3] = ["meta", "data0", "data1"];

struct Site {
    servers: Servers,
    disks: Vec<PowerDisk>,
    path: PathBuf,
    mounted: Option<Process>,
}

impl Site {
    fn new(kind: &str, place: &Path) -> Site {
        let path = place.join("mount");
        std::fs::create_dir(&path).unwrap();
        let servers = Servers::new(&place.join("cluster"), 2, "1");
        let disks = PARTS.map(|part| {
            let disk = PowerDisk::new(kind, place, &format!("disk-{part}")).unwrap();
            // A directory of the server alone: the file system has entries of its own.
            std::fs::create_dir(disk.place().join("store")).unwrap();
            servers.keep(part, &disk.place().join("store"));
            disk
        });
        for disk in &disks {
            // The directory was there before anything began.
            File::open(disk.place()).and_then(|place| place.sync_all()).unwrap();
        }
        let mut site = Site { servers, disks: disks.into(), path, mounted: None };
        site.servers.start();
        site.mounted = site.servers.mount(&site.path, None);
        site
    }

    fn cut(&mut self, cut: Cut, client: Client) {
        let parts = match cut {
            Cut::All => 0..3,
            Cut::Meta => 0..1,
            Cut::Data => 1..3,
        };
        // The client first: it must not tell a surviving server what it would tell if it lived.
        if client == Client::Dies {
            self.mounted = None;
        }
        for part in parts.clone() {
            self.disks[part].cut();
        }
        for part in parts.clone() {
            if part == 0 {
                self.servers.meta = None;
            } else {
                self.servers.data[part - 1] = None;
            }
        }
        for part in parts {
            self.disks[part].restore();
        }
        self.servers.start();
    }

    fn mount_again(&mut self) {
        if self.mounted.is_none() {
            self.mounted = self.servers.mount(&self.path, None);
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.mounted = None;
        let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(&self.path).output();
        // Disks are unmounted when nobody uses them.
        self.servers.kill_servers();
    }
}

fn round(site: &mut Site, number: usize, (cut, client): (Cut, Client)) -> (String, Model) {
    let directory = format!("round{number}");
    let mut model = Model::new(&directory, (number as u64) << 32);
    let mut random = Random::new(number as u64);
    let mut worker = Worker::start(&format!("mount {}", site.path.display()), None);
    worker.must(&Operation::Directory(directory.clone()));
    let begun = AtomicBool::new(false);
    let pause = Duration::from_millis(20 + random.below(150));
    let mut history = Vec::new();
    let under_way = std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            std::thread::sleep(pause);
            begun.store(true, Ordering::SeqCst);
            site.cut(cut, client);
        });
        let under_way = worker.work_until(&begun, &mut model, &mut random, &mut history);
        cutter.join().expect("power comes back");
        under_way
    });
    if let Some(operation) = &under_way {
        match client {
            Client::Dies => model.maybe(operation),
            Client::Lives => model.maybe_after_loss(operation),
        }
    }
    let mut syncs = Syncs::default();
    if client == Client::Lives {
        // A sync that reports success is right. If it reports a failure, the program was told.
        for path in model.paths(under_way.as_ref()) {
            let sync = Operation::Sync(path.clone());
            let ended = worker.perform(&sync);
            history.push(format!("{sync}: {ended:?}, at the end"));
            let told = if ended == Ended::Done { &mut syncs.well } else { &mut syncs.failed };
            told.push(path);
        }
    }
    drop(worker);
    let mut witness = Library::connect(&site.servers.address());
    let found = match witness.look(&directory) {
        // The directory itself was not synced.
        Err(error) if error.contains("ENOENT") => Found::new(),
        found => found.unwrap(),
    };
    let settled = model.settle(&found, Loss::Power, under_way.as_ref(), &syncs);
    settled.unwrap_or_else(|error| {
        let history = history.join("\n");
        panic!(
            "round {number}, {cut:?}, {client:?}, {under_way:?}: {error}; what was done:\n{history}"
        );
    });
    // The next cut must not take what this one left.
    witness.sync(&found).unwrap();
    witness.leave();
    site.mount_again();
    (directory, model)
}

fn rounds() -> usize {
    if std::env::var_os("ROPEWALK_SEEDS").is_some() { 120 } else { 6 }
}

fn what_was_synced_survives(kind: &str) {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() || !power_usable(kind, place.path()) {
        return;
    }
    let begin = Instant::now();
    let mut site = Site::new(kind, place.path());
    let mut settled = Vec::new();
    for number in 0..rounds() {
        let cut = [Cut::All, Cut::Meta, Cut::Data][number % 3];
        let client = if number % 6 < 3 { Client::Dies } else { Client::Lives };
        settled.push(round(&mut site, number, (cut, client)));
    }
    let (mut operations, mut refused) = (0, 0);
    let mut witness = Library::connect(&site.servers.address());
    for (directory, model) in &mut settled {
        operations += model.operations() & 0xffff_ffff;
        refused += model.refused();
        if let Ok(found) = witness.look(directory) {
            let same = model.settle(&found, Loss::Nothing, None, &Syncs::default());
            same.unwrap_or_else(|error| panic!("at the end: {directory}: {error}"));
        }
    }
    witness.leave();
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{kind}: {} cuts under {operations} operations, {refused} files that were not synced cannot \
         be read, in {seconds:.1} s",
        settled.len()
    );
}

/// Whether the model lets a file `d/f0` have this content after a loss of power.
fn may_have(model: &Model, content: &[u8], under_way: Option<&Operation>) -> bool {
    let found = Found::from([("d/f0".to_string(), (7, Some(content.to_vec())))]);
    model.clone().settle(&found, Loss::Power, under_way, &Syncs::default()).is_ok()
}

#[test]
fn an_append_after_a_loss_has_its_place_in_what_was_left() {
    let path = || "d/f0".to_string();
    let append = |len, number| Operation::Append(path(), len, number);
    let mut model = Model::new("d", 0);
    let done = [Operation::Create(path()), Operation::Sync(path()), append(100, 1), append(50, 2)];
    done.iter().for_each(|operation| model.done(operation));
    let last = append(9, 3);
    let [one, two, three] = [(1, 100), (2, 50), (3, 9)].map(|(number, len)| bytes(number, len));
    let left = [&one[..], &three].concat();
    let mut dead = model.clone();
    dead.maybe(&last);
    assert!(!may_have(&dead, &left, Some(&last)), "whoever dies appends nothing later");
    model.maybe_after_loss(&last);
    for content in [left, one.clone(), [&one[..], &two].concat(), [&one[..], &two, &three].concat()]
    {
        assert!(may_have(&model, &content, Some(&last)), "{} bytes", content.len());
    }
    assert!(!may_have(&model, &[&one[..], &bytes(4, 9)].concat(), Some(&last)));
    assert!(!may_have(&model, &[&two[..], &three].concat(), Some(&last)));
}

#[test]
fn a_name_of_two_files_may_lead_to_either_after_a_loss() {
    let [old, new] = ["d/f0", "d/f1"].map(String::from);
    let mut model = Model::new("d", 0);
    let done = [
        Operation::Create(old.clone()),
        Operation::Append(old.clone(), 100, 1),
        Operation::Sync(old.clone()),
        Operation::Create(new.clone()),
        Operation::Append(new.clone(), 30, 2),
        Operation::Rename(new, old),
    ];
    done.iter().for_each(|operation| model.done(operation));
    assert!(may_have(&model, &bytes(1, 100), None), "the rename is lost");
    assert!(may_have(&model, &bytes(2, 30), None));
    assert!(!may_have(&model, &bytes(1, 30), None));
}

/// Checks that a client that outlives a cut of the metadata server's power learns of a loss when it syncs, even
/// after it did more. True if the cut took something.
fn is_told(site: &mut Site, number: usize) -> bool {
    use std::os::unix::fs::FileExt;
    let directory = site.path.join(format!("told{number}"));
    std::fs::create_dir(&directory).unwrap();
    let log = File::create(directory.join("log")).unwrap();
    log.write_all_at(&[1; 100], 0).unwrap();
    std::fs::write(directory.join("old"), "old").unwrap();
    log.sync_all().unwrap();
    let names = File::open(&directory).unwrap();
    names.sync_all().unwrap();
    log.write_all_at(&[2; 100], 100).unwrap();
    std::fs::rename(directory.join("old"), directory.join("new")).unwrap();
    site.cut(Cut::Meta, Client::Lives);
    log.write_all_at(&[3; 100], 200).unwrap();
    std::fs::write(directory.join("later"), "later").unwrap();
    let (content, entries) = (log.sync_all(), names.sync_all());
    drop((log, names));
    let fresh = site.path.with_extension("fresh");
    std::fs::create_dir_all(&fresh).unwrap();
    let mut second = site.servers.mount(&fresh, None).unwrap();
    let seen = fresh.join(format!("told{number}"));
    let found = std::fs::read(seen.join("log")).unwrap();
    let whole = found == [[1; 100], [2; 100], [3; 100]].concat();
    let renamed = seen.join("new").exists() && !seen.join("old").exists();
    second.stop();
    assert!(
        whole || content.is_err(),
        "the file is synced well, and lacks what was written before"
    );
    assert!(renamed || entries.is_err(), "the directory is synced well, and a rename is lost");
    assert!(found.len() == 300 && found[..100] == [1; 100] && found[200..] == [3; 100]);
    !whole || !renamed
}

#[test]
fn a_client_that_outlives_a_power_cut_is_told_what_is_lost_whatever_it_did_since() {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() || !power_usable("ext4", place.path()) {
        return;
    }
    let mut site = Site::new("ext4", place.path());
    // The journal is synced by itself now and then: not each cut takes something.
    let lost = (0..20).filter(|number| is_told(&mut site, *number)).take(2).count();
    assert!(lost > 0, "no cut came before its sync");
}

#[test]
fn what_was_synced_survives_a_power_cut_of_ext4() {
    what_was_synced_survives("ext4");
}

#[test]
fn what_was_synced_survives_a_power_cut_of_xfs() {
    what_was_synced_survives("xfs");
}
