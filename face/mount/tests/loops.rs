//! Several loops on one mount, and a loop without buffers.

mod support;

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::task::{Either, Notify, race, yield_now};
use ropewalk_mount::decode::{ReadHeader, Release, SetAttributes, WriteHeader};
use ropewalk_mount::filesystem::Answer;
use ropewalk_mount::reply::{
    Attributes, AttributesReply, Data, DirectoryReply, Entry, Opened, StatFs,
};
use ropewalk_mount::{Connection, Context, Errno, Filesystem, Mount, MountOptions, Settings};
use support::{Driver, Served, Watchdog, usable, wait_until};

const FILE_BYTES: u64 = 1 << 20;
const HANG: u64 = 7_777;
const SLOW: u64 = 8_888;

/// Files `2` to `9999`, each of its own number's low byte; 7777 is never read to an end. Writes,
/// and opens of 8888, wait until they are let go.
#[derive(Default)]
struct Numbers {
    held: RefCell<Vec<PoolBuffer>>,
    go: Notify,
    /// Writes that came to their end, and of those the ones whose callers were gone.
    written: Cell<usize>,
    abandoned: Cell<usize>,
    /// Opens of the slow file, and releases.
    opening: Cell<usize>,
    released: Cell<usize>,
}

fn attributes(node: u64) -> Attributes {
    let directory = node == 1;
    Attributes {
        node,
        size: if directory { 0 } else { FILE_BYTES },
        mode: if directory { libc::S_IFDIR | 0o777 } else { libc::S_IFREG | 0o666 },
        links: 1,
        ..Attributes::default()
    }
}

impl Numbers {
    fn held(&self) -> usize {
        self.held.borrow().len()
    }

    fn let_go(&self) {
        self.held.borrow_mut().clear();
        self.go.notify_all();
    }
}

impl Filesystem for Numbers {
    async fn lookup(&self, _: &Context, _: u64, name: &[u8]) -> Answer<Entry> {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        let node = number.filter(|node| (2..10_000).contains(node)).ok_or(Errno::ENOENT)?;
        Ok(Entry { attributes: attributes(node), ..Entry::default() })
    }

    async fn getattr(&self, _: &Context, node: u64, _: Option<u64>) -> Answer<AttributesReply> {
        Ok(AttributesReply { attributes: attributes(node), valid: Duration::ZERO })
    }

    async fn setattr(&self, _: &Context, node: u64, _: &SetAttributes) -> Answer<AttributesReply> {
        Ok(AttributesReply { attributes: attributes(node), valid: Duration::ZERO })
    }

    async fn open(&self, context: &Context, node: u64, _: u32, _: bool) -> Answer<Opened> {
        // The groups of a living caller can be asked for.
        let _ = context.groups();
        if node == SLOW {
            self.opening.set(self.opening.get() + 1);
            self.go.notified().await;
        }
        Ok(Opened { direct: true, parallel_direct_writes: true, ..Opened::default() })
    }

    async fn release(&self, _: &Context, node: u64, _: &Release) -> Answer<()> {
        self.released.set(self.released.get() + usize::from(node == SLOW));
        Ok(())
    }

    async fn read(&self, context: &Context, node: u64, header: &ReadHeader) -> Answer<Data> {
        if node == HANG {
            // By its own choice, at any signal.
            context.interrupted().await;
            return Err(Errno::EINTR);
        }
        let len = FILE_BYTES.saturating_sub(header.offset).min(header.size.into());
        let mut data = Data::new();
        data.push_bytes(vec![node as u8; len as usize]);
        Ok(data)
    }

    async fn write(
        &self,
        _: &Context,
        _: u64,
        header: &WriteHeader,
        data: PoolBuffer,
    ) -> Answer<u32> {
        assert_eq!(data.segment().address() % 4096, 0, "data is page-aligned");
        let go = self.go.notified();
        self.held.borrow_mut().push(data);
        let abandoned = Abandoned::current().expect("every request that changes something has one");
        let left = race(go, abandoned.wait()).await;
        if matches!(left, Either::Right(())) {
            self.abandoned.set(self.abandoned.get() + 1);
            yield_now().await;
        }
        self.written.set(self.written.get() + 1);
        Ok(header.size)
    }

    async fn opendir(&self, _: &Context, _: u64, _: u32) -> Answer<Opened> {
        Ok(Opened::default())
    }

    async fn readdir(
        &self,
        _: &Context,
        _: u64,
        _: &ReadHeader,
        _: &mut DirectoryReply,
    ) -> Answer<()> {
        Ok(())
    }

    async fn statfs(&self, _: &Context, _: u64) -> Answer<StatFs> {
        Ok(StatFs::default())
    }
}

#[test]
fn two_loops_share_a_mount_and_pass_interrupts_on() {
    if !usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = Mount::new(folder.path(), &MountOptions::default()).unwrap();
    let _watchdog = Watchdog::new(mount.unmounter());
    let connection = Connection::new();
    let devices = [mount.device().unwrap(), mount.clone_device().unwrap()];
    let threads = devices.map(|device| {
        let connection = connection.clone();
        std::thread::spawn(move || {
            let (driver, settings) = (Driver::new(), Settings::default());
            let (pool, numbers) = (Pool::with_budget(64 << 20), Rc::new(Numbers::default()));
            support::serve(device, connection, settings, pool, numbers, &driver, |_, _| ())
        })
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = folder.path();
            scope.spawn(move || {
                for number in 2..100 {
                    let name = (thread * 100 + number).to_string();
                    let bytes = fs::read(path.join(name)).unwrap();
                    assert_eq!(bytes.len() as u64, FILE_BYTES);
                    assert!(bytes.iter().all(|byte| *byte == (thread * 100 + number) as u8));
                }
            });
        }
    });
    assert!(connection.agreement().is_some());
    // The kernel decides which loop reads the READ, and which loop reads its INTERRUPT.
    for _ in 0..24 {
        let mut command = Command::new("cat");
        command.arg(folder.path().join(HANG.to_string())).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        child.kill().unwrap();
        wait_until("the reader is gone", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    mount.unmount().map_err(|(_, error)| error).unwrap();
    let [first, second] = threads.map(|thread| thread.join().unwrap());
    assert!(first.requests > 0 && second.requests > 0, "{first:?} {second:?}");
    assert!(first.interrupts + second.interrupts >= 8, "{first:?} {second:?}");
}

#[test]
fn a_write_whose_caller_is_killed_goes_on_to_its_end_without_it() {
    if !usable() {
        return;
    }
    let pool = Pool::with_budget(16 << 20);
    let make = |_| Numbers::default();
    let served = Served::with(MountOptions::default(), Settings::default(), pool, make);
    let output = format!("of={}", served.path().join("5").display());
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", &output, "bs=1M", "count=1", "conv=notrunc", "status=none"]);
    let mut child = command.spawn().unwrap();
    wait_until("the write is here", || served.run(Numbers::held) == 1);
    child.kill().unwrap();
    wait_until("the writer is gone", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let ends = |numbers: &Numbers| (numbers.written.get(), numbers.abandoned.get());
    wait_until("the write has ended", || served.run(ends) == (1, 1));
    served.stop();
}

#[test]
fn a_handle_that_nobody_was_told_of_is_released() {
    if !usable() {
        return;
    }
    let pool = Pool::with_budget(16 << 20);
    let make = |_| Numbers::default();
    let served = Served::with(MountOptions::default(), Settings::default(), pool, make);
    let mut command = Command::new("cat");
    command.arg(served.path().join(SLOW.to_string())).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_until("the open is here", || served.run(|numbers| numbers.opening.get()) == 1);
    child.kill().unwrap();
    wait_until("the reader is gone", || child.try_wait().unwrap().is_some());
    assert_eq!(served.run(|numbers| numbers.released.get()), 0);
    served.run(Numbers::let_go);
    wait_until("the handle is closed", || served.run(|numbers| numbers.released.get()) == 1);
    served.stop();
}

#[test]
fn writes_beyond_the_budget_wait_in_the_kernel_and_nothing_is_lost() {
    if !usable() {
        return;
    }
    const WRITERS: usize = 12;
    // Room for four requests of 1 MiB, one of which is what the next is read into.
    let pool = Pool::with_budget(4 << 20);
    let make = |_| Numbers::default();
    let served = Served::with(MountOptions::default(), Settings::default(), pool, make);
    let path = served.path().to_owned();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let path = path.join((writer + 2).to_string());
                scope.spawn(move || {
                    let file = File::options().write(true).open(path).unwrap();
                    file.write_at(&vec![1; 1 << 20], 0).unwrap()
                })
            })
            .collect();
        wait_until("the budget is used up", || served.run(Numbers::held) >= 3);
        std::thread::sleep(Duration::from_millis(100));
        assert!(served.run(Numbers::held) <= 4);
        while !writers.iter().all(|writer| writer.is_finished()) {
            served.run(Numbers::let_go);
            std::thread::sleep(Duration::from_millis(1));
        }
        for writer in writers {
            assert_eq!(writer.join().unwrap(), 1 << 20);
        }
    });
    let counters = served.stop();
    assert!(counters.starved > 0, "{counters:?}");
}
