//! The shard on the store that a server has: rows in journal and index on the host's disk.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{create, make, unlink};
use ropewalk_base::executor::Executor;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Batch, Call, Config, Moment, Outcome, Rows, Shard, StoreRows, VolatileRows};
use ropewalk_store::superblock::{Expect, Identity, Role, claim};
use ropewalk_store::{HostDisk, JournaledConfig, JournaledStore, MetaStore, Position};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::value::{Bytes, Timestamp};

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }

    fn unix_nanos(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.expect("the calendar is past 1970").as_nanos() as i64
    }
}

/// One helper thread. It is waited for at the end, lest it write beside the store that is opened next.
struct Helper {
    queue: Option<mpsc::Sender<Work>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Helper {
    fn start() -> Helper {
        let (sender, receiver) = mpsc::channel::<Work>();
        let thread = std::thread::spawn(move || receiver.iter().for_each(|work| work()));
        Helper { queue: Some(sender), thread: Some(thread) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the helper does not panic");
        }
    }
}

impl Offload for Helper {
    fn offload(&self, work: Work) {
        let queue = self.queue.as_ref().expect("open until the end");
        queue.send(work).expect("the helper lives as long as the test");
    }
}

/// Runs a future and its tasks to the end of the future.
fn run<T: 'static, F: Future<Output = T> + 'static>(make: impl FnOnce(World) -> F) -> T {
    let driver = std::thread::current();
    let executor = Executor::new(Box::new(move || driver.unpark()));
    let (clock, helper) = (Rc::new(RealClock(Instant::now())), Rc::new(Helper::start()));
    let random = Random::from_seed(1);
    let world = World::new(executor.clone(), clock, HostDisk::shared(), helper, random);
    let result = Rc::new(RefCell::new(None));
    let (out, future) = (result.clone(), make(world.clone()));
    executor.spawn(async move {
        let value = future.await;
        *out.borrow_mut() = Some(value);
    });
    loop {
        executor.run();
        if let Some(value) = result.borrow_mut().take() {
            executor.clear();
            return value;
        }
        if executor.park() {
            let deadline = executor.next_deadline().unwrap_or(Time::NEVER);
            let wait = deadline.since(world.now()).min(Duration::from_millis(100));
            std::thread::park_timeout(wait);
        }
        executor.unparked();
        executor.fire_timers(world.now());
    }
}

async fn open_store(world: &World, path: &Path) -> JournaledStore {
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Metadata };
    let directory = claim(&HostDisk, path, identity, Expect::Any, (5, 6)).expect("claimed");
    let config = JournaledConfig { overlay_bytes: 16 * 1024, ..JournaledConfig::default() };
    let opened = JournaledStore::open(world, &directory.path, directory.boot, config, false).await;
    // The claim ends with this function; the test has one store at a time.
    opened.expect("opened")
}

fn moment(world: &World) -> Moment {
    Moment { time: world.now(), calendar: Timestamp::from_unix_nanos(world.unix_nanos()) }
}

struct Server {
    world: World,
    shard: Shard<StoreRows<JournaledStore>>,
    session: u64,
    sequence: u64,
}

impl Server {
    async fn start(world: World, path: &Path, client: u128) -> Server {
        let store = open_store(&world, path).await;
        let (rows, random) = (StoreRows::new(store), Random::from_seed(client as u64));
        let mut shard = Shard::open(rows, Config::default(), random, moment(&world)).expect("open");
        let durable = Position(shard.position());
        shard.rows().store().wait_durable(durable).await.expect("the disk works");
        let opening = shard
            .open_session(client, SessionOwner::default(), moment(&world))
            .expect("the disk works");
        let mut server = Server { world, shard, session: opening.session, sequence: 0 };
        let request = MetaRequest::Heartbeat(Heartbeat {
            server: 1,
            boot: 1,
            era: 1,
            store: 7,
            history: 0,
            met: 0,
            known_by: 0,
            replace: false,
            admit: true,
            room: Room {
                total_bytes: 1 << 40,
                free_bytes: 1 << 40,
                available_bytes: 1 << 40,
                file_system: 0,
            },
            address: Bytes(b"tcp://one"),
            domain: Bytes(b""),
        });
        server.execute(0, request);
        server
    }

    fn execute(&mut self, session: u64, request: MetaRequest<'_>) -> Vec<u8> {
        let (sequence, now) = (self.sequence, moment(&self.world));
        let call = Call { session, slot: 0, sequence, request, now };
        match self.shard.execute(call) {
            Outcome::Reply(reply) => reply.bytes,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    async fn call(&mut self, request: MetaRequest<'_>) -> Vec<u8> {
        self.shard.rows().store().ready().await.expect("the disk works");
        self.sequence += 1;
        self.execute(self.session, request)
    }
}

fn name(number: u32) -> Vec<u8> {
    format!("entry {number}").into_bytes()
}

#[test]
fn a_shard_on_the_embedded_store_finds_everything_again() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path: Arc<Path> = directory.path().into();
    let written = path.clone();
    let session = run(move |world| async move {
        let mut server = Server::start(world, &written, 1).await;
        for number in 0..800 {
            let node = if number % 5 == 0 { Node::Directory } else { Node::Fifo };
            let reply = server.call(make(ROOT, &name(number), node)).await;
            assert!(decode::<MetaResult<'_>>(&reply).expect("decodes").is_ok());
        }
        server.call(create(ROOT, b"file")).await;
        for number in (1..800).filter(|number| number % 5 != 0).step_by(3) {
            let reply = server.call(unlink(ROOT, &name(number))).await;
            assert!(decode::<MetaResult<'_>>(&reply).expect("decodes").is_ok());
        }
        let position = Position(server.shard.position());
        server.shard.rows().store().wait_durable(position).await.expect("the disk works");
        server.session
    });
    run(move |world| async move {
        let mut server = Server::start(world, &path, 2).await;
        // The first session did not come back: it is fenced, then others are served.
        let moment = Moment { time: Time(u64::MAX / 2), ..moment(&server.world) };
        let new = server.session;
        server.shard.renew_session(new, moment);
        server.shard.tick(moment);
        assert_eq!(server.shard.poll_fence(), Some((session, 2)));
        server.shard.handle_fenced(session, moment);
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (who, inode) = (Who::ROOT, ROOT);
            let (bytes_max, attributes) = (20_000, true);
            let request = MetaRequest::ReadDirectory { who, inode, cookie, bytes_max, attributes };
            let reply = server.call(request).await;
            let Ok(Ok(MetaReply::Directory { entries, end, .. })) =
                decode::<MetaResult<'_>>(&reply)
            else {
                panic!("no listing")
            };
            for entry in entries {
                cookie = entry.cookie;
                names.push(entry.name.0.to_vec());
            }
            if end {
                break;
            }
        }
        let gone: Vec<u32> = (1..800).filter(|number| number % 5 != 0).step_by(3).collect();
        let mut wanted: Vec<Vec<u8>> =
            (0..800).filter(|number| !gone.contains(number)).map(name).collect();
        wanted.push(b"file".to_vec());
        names.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
    });
}

fn scan(rows: &impl Rows, from: &[u8], to: &[u8], most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        found.len() < most
    };
    rows.scan(from, to, visit).expect("the disk works");
    found
}

#[test]
fn the_store_and_rows_in_memory_say_the_same() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path: Arc<Path> = directory.path().into();
    run(move |world| async move {
        let mut random = Random::from_seed(3);
        let mut rows = StoreRows::new(open_store(&world, &path).await);
        let mut plain = VolatileRows::default();
        for round in 0..300 {
            let mut batch = Batch::default();
            for _ in 0..1 + random.below(8) {
                let key = (random.below(2000) as u16).to_be_bytes().to_vec();
                match random.chance(800_000) {
                    true => batch.put(key, vec![round as u8; random.below(9) as usize]),
                    false => batch.remove(key),
                }
            }
            rows.store().ready().await.expect("the disk works");
            rows.commit(batch.clone()).expect("the disk works");
            plain.commit(batch).expect("memory works");
            let mut ends = [random.below(2200) as u16, random.below(2200) as u16];
            ends.sort_unstable();
            let (from, to) = (ends[0].to_be_bytes(), ends[1].to_be_bytes());
            let most = random.below(700) as usize;
            assert_eq!(scan(&rows, &from, &to, most), scan(&plain, &from, &to, most));
            assert_eq!(rows.get(&from), plain.get(&from));
        }
        assert!(plain.iter().count() > 500, "several pages are read");
    });
}
