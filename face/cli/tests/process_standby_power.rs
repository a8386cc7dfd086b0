//! Power cuts of two metadata servers with real disks: one alone costs nothing that was acknowledged, both at once nothing
//! that was synced.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::disk::power_usable;
use support::library::Library;
use support::model::{Found, Loss, Model, Syncs};
use support::operation::{Operation, Random};
use support::pair::Pair;
use support::worker::{Ended, Worker};

/// Operations around the cut of one server's power.
const OPERATIONS: usize = 120;

/// Not a test of its own: the work of the worker's process.
#[test]
fn worker() {
    support::worker::work();
}

/// A client that works, and the state that it may leave.
struct Scene {
    directory: String,
    worker: Worker,
    model: Model,
    random: Random,
    history: Vec<String>,
}

impl Scene {
    fn new(pair: &Pair, number: usize) -> Scene {
        let directory = format!("round{number}");
        let mut worker = Worker::start(&format!("library {}", pair.address), None);
        worker.must(&Operation::Directory(directory.clone()));
        let model = Model::new(&directory, (number as u64) << 32);
        Scene { directory, worker, model, random: Random::new(number as u64), history: Vec::new() }
    }

    /// Compares what another client finds with what may be.
    fn settle(mut self, pair: &Pair, loss: Loss, (under_way, syncs): (Option<&Operation>, &Syncs)) {
        self.worker.leave();
        let mut witness = Library::connect(&pair.address);
        let found = match witness.look(&self.directory) {
            // The directory itself was not synced.
            Err(error) if error.contains("ENOENT") && loss == Loss::Power => Found::new(),
            found => found.unwrap(),
        };
        let settled = self.model.settle(&found, loss, under_way, syncs);
        settled.unwrap_or_else(|error| {
            let history = self.history.join("\n");
            panic!("{}, {under_way:?}: {error}; what was done:\n{history}", self.directory)
        });
        witness.sync(&found).unwrap();
        witness.leave();
    }
}

/// One of both loses power: the client does not notice more than a pause.
fn cut_one(pair: &mut Pair, number: usize, server: usize) {
    pair.wait_for_standby();
    let mut scene = Scene::new(pair, number);
    let pause = Duration::from_millis(20 + scene.random.below(150));
    std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            std::thread::sleep(pause);
            pair.cut_power(&[server]);
        });
        let mut left = OPERATIONS;
        while left > 0 || !cutter.is_finished() {
            let operation = scene.model.choose(&mut scene.random);
            let ended = scene.worker.perform(&operation);
            scene.history.push(format!("{operation}: {ended:?}"));
            let told = || scene.history.join("\n");
            assert_eq!(ended, Ended::Done, "round {number}, server {server}: {}", told());
            scene.model.done(&operation);
            left = left.saturating_sub(1);
        }
        cutter.join().expect("power comes back");
    });
    // Servers cannot lose bytes that are still in the client's memory.
    for path in scene.model.paths(None) {
        scene.worker.must(&Operation::Sync(path));
    }
    scene.settle(pair, Loss::Nothing, (None, &Syncs::default()));
}

/// Both lose power in one moment: the client hears of what is lost.
fn cut_both(pair: &mut Pair, number: usize) {
    pair.wait_for_standby();
    let mut scene = Scene::new(pair, number);
    let pause = Duration::from_millis(20 + scene.random.below(150));
    let begun = AtomicBool::new(false);
    let under_way = std::thread::scope(|scope| {
        let cutter = scope.spawn(|| {
            std::thread::sleep(pause);
            begun.store(true, Ordering::SeqCst);
            pair.cut_power(&[0, 1]);
        });
        let Scene { worker, model, random, history, .. } = &mut scene;
        let under_way = worker.work_until(&begun, model, random, history);
        cutter.join().expect("power comes back");
        under_way
    });
    if let Some(operation) = &under_way {
        scene.model.maybe_after_loss(operation);
    }
    let mut syncs = Syncs::default();
    for path in scene.model.paths(under_way.as_ref()) {
        let sync = Operation::Sync(path.clone());
        let ended = scene.worker.perform(&sync);
        scene.history.push(format!("{sync}: {ended:?}, at the end"));
        let told = if ended == Ended::Done { &mut syncs.well } else { &mut syncs.failed };
        told.push(path);
    }
    scene.settle(pair, Loss::Power, (under_way.as_ref(), &syncs));
}

fn rounds() -> usize {
    if std::env::var_os("ROPEWALK_SEEDS").is_some() { 12 } else { 1 }
}

#[test]
fn power_cuts_of_one_server_lose_nothing_and_of_both_nothing_that_was_synced() {
    let place = tempfile::tempdir().unwrap();
    if !power_usable("ext4", place.path()) {
        return;
    }
    let mut pair = Pair::with_disks("ext4");
    for round in 0..rounds() {
        // The one that is cut first serves, and follows the second time.
        for (number, server) in [0, 0, 1].into_iter().enumerate() {
            cut_one(&mut pair, 5 * round + number, server);
        }
        cut_both(&mut pair, 5 * round + 3);
        cut_both(&mut pair, 5 * round + 4);
    }
}
