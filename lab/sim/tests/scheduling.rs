//! Toy tasks under the simulated scheduler: timers, blocking work, death, pauses.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::disk::{File, Open};
use ropewalk_base::task::yield_now;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Kill, Node, Simulation, run_seed_twice, run_seeds};

const MILLI: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_secs(10);

fn disk() -> VirtualDisk {
    VirtualDisk::new(0)
}

#[test]
fn timers_of_all_nodes_fire_in_virtual_time() {
    run_seed_twice(1, |simulation| {
        let log = Rc::new(RefCell::new(Vec::new()));
        for (name, millis) in [("a", 30), ("b", 10), ("c", 20)] {
            let log = log.clone();
            simulation.add_node(name, Arc::new(disk()), move |node| {
                let (world, log) = (node.world().clone(), log.clone());
                node.world().spawn(async move {
                    for _ in 0..2 {
                        let before = world.unix_nanos();
                        world.sleep(millis * MILLI).await;
                        let slept = world.unix_nanos() - before;
                        assert_eq!(slept, i64::from(millis) * 1_000_000);
                        log.borrow_mut().push((world.now().0 / 1_000_000, name));
                    }
                });
            });
        }
        simulation.run_for(30 * MILLI);
        assert_eq!(simulation.now().0, 30_000_000);
        let mut seen = log.borrow().clone();
        seen.sort_unstable();
        assert_eq!(seen, [(10, "b"), (20, "b"), (20, "c"), (30, "a")]);
        simulation.run_for(LIMIT);
        assert_eq!(log.borrow().last(), Some(&(60, "a")));
        let end = simulation.now().0;
        assert_eq!(end, 10_030_000_000, "time passes where nothing happens, too");
        assert!(!simulation.run_steps(1), "nothing will ever happen by itself");
    });
}

/// The order in which tasks of two nodes took their turns.
fn interleaving(seed: u64) -> (Vec<u8>, u64) {
    let mut simulation = Simulation::new(seed);
    let log = Rc::new(RefCell::new(Vec::new()));
    for number in 0..2 {
        let log = log.clone();
        simulation.add_node(&format!("node{number}"), Arc::new(disk()), move |node| {
            for task in 0..2 {
                let log = log.clone();
                node.world().spawn(async move {
                    for _ in 0..4 {
                        log.borrow_mut().push(number * 2 + task);
                        yield_now().await;
                    }
                });
            }
        });
    }
    simulation.run_for(MILLI);
    let order = log.borrow().clone();
    assert_eq!(order.len(), 16);
    (order, simulation.trace_hash())
}

#[test]
fn the_seed_alone_decides_who_runs_next() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let first = interleaving(seed);
        assert_eq!(first, interleaving(seed));
        orders.insert(first.0);
    }
    assert!(orders.len() > 45, "50 seeds gave {} interleavings", orders.len());
}

/// A server that appends one record after the other, each acknowledged after its sync.
fn boot_log_server(node: &Node, acknowledged: Rc<Cell<u64>>) {
    let world = node.world().clone();
    node.world().spawn(async move {
        let disk = world.disk();
        let opened = world.offload(move || {
            let file = disk.open(Path::new("/log"), Open::Create)?;
            disk.sync_directory(Path::new("/"))?;
            std::io::Result::Ok(file)
        });
        let file = opened.await.expect("the work is done").expect("the disk works");
        for record in 1u64.. {
            let file = file.clone();
            let write = world.offload(move || {
                file.write_at((record - 1) * 8, &record.to_le_bytes())?;
                file.sync_data()
            });
            write.await.expect("the work is done").expect("the disk works");
            acknowledged.set(record);
        }
    });
}

/// Records in the log from its beginning.
fn records(disk: &VirtualDisk) -> u64 {
    let bytes = disk.bytes(Path::new("/log")).unwrap_or_default();
    let whole = bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    (1u64..).zip(whole).take_while(|(expected, record)| expected == record).count() as u64
}

/// Runs the log server to a random step and cuts the power: records acknowledged and found.
fn power_cut(simulation: &mut Simulation, disk: &VirtualDisk) -> (u64, u64) {
    let acknowledged = Rc::new(Cell::new(0));
    let counter = acknowledged.clone();
    simulation.add_virtual_node("server", disk.clone(), move |node| {
        boot_log_server(node, counter.clone());
    });
    let steps = simulation.fork_random().below(60);
    assert!(simulation.run_steps(steps));
    simulation.kill("server", Kill::Power);
    let (promised, found) = (acknowledged.get(), records(disk));
    assert!(found >= promised, "{promised} records acknowledged, {found} found");
    simulation.run_for(LIMIT);
    assert_eq!(records(disk), found, "work went on after the death");
    assert_eq!(acknowledged.get(), promised);
    (promised, found)
}

#[test]
fn what_was_acknowledged_survives_a_power_cut_at_any_step() {
    run_seeds(0..60, |simulation| {
        let (promised, found) = power_cut(simulation, &disk());
        assert!(found <= promised + 1, "{promised} records acknowledged, {found} found");
    });
}

#[test]
#[should_panic(expected = "records acknowledged")]
fn a_disk_that_lies_about_its_syncs_is_found_out() {
    for seed in 0..20 {
        let disk = disk();
        disk.skip_sync(true);
        power_cut(&mut Simulation::new(seed), &disk);
    }
}

#[test]
fn offloaded_work_takes_time_and_dies_with_its_node() {
    run_seed_twice(3, |simulation| {
        let done = Arc::new(AtomicU64::new(0));
        let counter = done.clone();
        simulation.set_offload_delay(5 * MILLI, Duration::ZERO);
        simulation.add_node("a", Arc::new(disk()), move |node| {
            for _ in 0..3 {
                let counter = counter.clone();
                drop(node.world().offload(move || counter.fetch_add(1, Ordering::SeqCst)));
            }
        });
        simulation.run_for(4 * MILLI);
        assert_eq!(done.load(Ordering::SeqCst), 0);
        simulation.run_for(MILLI);
        assert_eq!(done.load(Ordering::SeqCst), 3, "also where nobody waits for the result");
        simulation.kill("a", Kill::Process(Duration::ZERO));
        simulation.restart("a");
        simulation.run_for(3 * MILLI);
        simulation.kill("a", Kill::Process(Duration::ZERO));
        simulation.run_for(LIMIT);
        assert_eq!(done.load(Ordering::SeqCst), 3, "the second life's work was done after all");
    });
}

/// Writes to a file when it is dropped, as a careless server might.
struct Farewell(Arc<dyn File>, Rc<Cell<u32>>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.1.set(self.1.get() + 1);
        assert!(self.0.write_at(0, b"farewell").is_err(), "a dead process wrote");
    }
}

#[test]
fn a_killed_node_stops_and_its_destructors_cannot_touch_the_disk() {
    run_seed_twice(4, |simulation| {
        let (disk, dropped) = (disk(), Rc::new(Cell::new(0)));
        let farewells = dropped.clone();
        simulation.add_virtual_node("a", disk.clone(), move |node| {
            let file = node.world().disk().open(Path::new("/file"), Open::Create).unwrap();
            let farewell = Farewell(file, farewells.clone());
            node.world().spawn(async move {
                let _farewell = farewell;
                std::future::pending::<()>().await;
            });
        });
        simulation.run_for(10 * MILLI);
        simulation.kill("a", Kill::Process(Duration::ZERO));
        assert!(!simulation.is_alive("a"));
        assert_eq!(dropped.get(), 1);
        assert_eq!(disk.bytes(Path::new("/file")).unwrap_or_default(), b"");
        simulation.restart("a");
        simulation.kill("a", Kill::Power);
        assert_eq!(dropped.get(), 2, "also a task that never ran is dropped");
    });
}

#[test]
fn lives_begin_anew_and_pauses_stop_the_clock_of_nobody_else() {
    run_seed_twice(5, |simulation| {
        let ticks = Rc::new(Cell::new(0));
        let ticker = ticks.clone();
        simulation.add_node("a", Arc::new(disk()), move |node| {
            let (world, ticks, life) = (node.world().clone(), ticker.clone(), node.life());
            node.world().spawn(async move {
                loop {
                    world.sleep(MILLI).await;
                    ticks.set(ticks.get() + life);
                }
            });
        });
        simulation.run_for(10 * MILLI);
        assert_eq!(ticks.get(), 10);
        simulation.kill("a", Kill::Power);
        simulation.run_for(10 * MILLI);
        assert_eq!(ticks.get(), 10);
        simulation.restart("a");
        simulation.run_for(10 * MILLI);
        assert_eq!(ticks.get(), 10 + 2 * 10, "the second life counts by two");
        simulation.pause("a");
        simulation.run_for(10 * MILLI + MILLI / 2);
        assert_eq!(ticks.get(), 30, "a paused node does nothing");
        simulation.resume("a");
        simulation.run_for(4 * MILLI);
        // The overdue tick comes at once, then time goes on at its pace.
        assert_eq!(ticks.get(), 30 + 2 * 5);
        assert_eq!(simulation.block_on("a", LIMIT, async { 42 }), Some(42));
        assert_eq!(simulation.block_on("a", LIMIT, std::future::pending::<()>()), None);
    });
}

#[test]
#[should_panic(expected = "livelock")]
fn nodes_that_keep_each_other_busy_without_end_are_found_out() {
    let mut simulation = Simulation::new(1);
    simulation.add_node("a", Arc::new(disk()), |node| {
        node.world().spawn(async {
            loop {
                yield_now().await;
            }
        });
    });
    simulation.run_for(MILLI);
}

#[test]
fn randomness_differs_between_nodes_and_lives_but_not_between_runs() {
    let draw = |seed| {
        let mut simulation = Simulation::new(seed);
        simulation.add_node("a", Arc::new(disk()), |_| ());
        simulation.add_node("b", Arc::new(disk()), |_| ());
        let mut numbers = vec![simulation.node("a").world().random_u64()];
        numbers.push(simulation.node("b").world().random_u64());
        simulation.kill("a", Kill::Power);
        simulation.restart("a");
        numbers.push(simulation.node("a").world().random_u64());
        numbers.push(simulation.fork_random().next_u64());
        numbers
    };
    let mut numbers = draw(5);
    assert_eq!(numbers, draw(5));
    numbers.extend(draw(6));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 8);
}
