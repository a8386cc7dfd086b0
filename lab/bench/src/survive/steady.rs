//! A client that reads and writes blocks of large files until it is told to stop, and notes when each was acknowledged and
//! how long it took.
//!
//! Invariant: a block has the number that was written last. Reads compare it, and at the end all written blocks are read.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use ropewalk_base::task::join_all;
use ropewalk_client::{Errno, File};

use crate::Options;
use crate::host::monotonic_nanos;
use crate::order::Order;
use crate::survive::client::Shared;
use crate::survive::names::Kind;
use crate::work_files::LARGE;
use crate::work_library::{BOTH, Session, failed};

/// Bytes of a block.
pub const BLOCK: usize = 64 << 10;
/// Reads and writes that each client has under way.
pub const LANES: usize = 2;
/// Files that are filled at a time.
const FILLING: usize = 4;
/// The interval at which a client looks whether it may begin.
const LOOK: Duration = Duration::from_millis(1);
/// Blocks are taken in steps, so that the next one is of another stripe.
pub const STEP: u64 = 17;

/// Blocks of each file of a client: so many that its stripes are on all servers.
pub fn blocks(options: &Options) -> u64 {
    options.amount(192, 96).max(96)
}

/// The order of such a client: `blocks` in each of two files, and a rest between two operations of a lane.
pub fn order(order: Order, blocks: u64, rest: Duration) -> Order {
    order.with("blocks", blocks).with("rest_us", rest.as_micros())
}

/// Blocks of which a write is under way.
struct Busy(Vec<bool>);

impl Busy {
    fn replace(&mut self, block: usize, is_busy: bool) -> bool {
        std::mem::replace(&mut self.0[block], is_busy)
    }
}

/// The work of one client.
struct Lanes<'a> {
    session: &'a Session,
    shared: Arc<Shared>,
    blocks: u64,
    rest: Duration,
    /// Reads and writes that were begun, and those that were acknowledged.
    begun: [Cell<u64>; 2],
    done: [Cell<u64>; 2],
    /// Of each block of the written file the number that was acknowledged last, and whether another one is under way.
    written: RefCell<Vec<u64>>,
    busy: RefCell<Busy>,
    events: RefCell<Vec<(Kind, u64, u64)>>,
}

/// Plays the part of such a client.
pub fn client(session: &Session, order: &Order) -> anyhow::Result<()> {
    let shared = Arc::new(Shared::default());
    let blocks = order.get("blocks")?;
    let lanes = Lanes {
        session,
        shared: shared.clone(),
        blocks,
        rest: Duration::from_micros(order.get("rest_us")?),
        begun: Default::default(),
        done: Default::default(),
        written: RefCell::new(vec![0; blocks as usize]),
        busy: RefCell::new(Busy(vec![false; blocks as usize])),
        events: RefCell::default(),
    };
    let [read, written] = lanes.prepare(session.folder(order)?.inode)?;
    println!("ready");
    let listener = shared.clone();
    std::thread::spawn(move || listener.listen());
    let world = session.client.world();
    session.reactor.block_on(async {
        while !shared.goes.load(Ordering::Relaxed) {
            world.sleep(LOOK).await;
        }
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for _ in 0..LANES {
            all.push(Box::pin(lanes.lane(Kind::Read, &read)));
            all.push(Box::pin(lanes.lane(Kind::Write, &written)));
        }
        join_all(all).await
    });
    session.reactor.block_on(lanes.verify(&written));
    let mut text = String::new();
    for (kind, nanos, spent) in lanes.events.borrow().iter() {
        let _ = writeln!(text, "{} {nanos} {spent}", *kind as u8);
    }
    std::fs::write(order.text("times")?, text)?;
    println!("{}", shared.answer("done"));
    Ok(())
}

impl Lanes<'_> {
    async fn lane(&self, kind: Kind, file: &File) {
        let side = usize::from(kind == Kind::Write);
        while !self.shared.stop.load(Ordering::Relaxed) {
            let turn = self.begun[side].replace(self.begun[side].get() + 1);
            let block = turn * STEP % self.blocks;
            if kind == Kind::Write && self.busy.borrow_mut().replace(block as usize, true) {
                // The other lane waits for this one still.
                self.session.client.world().sleep(LOOK).await;
                continue;
            }
            let begin = monotonic_nanos();
            let acted = match kind {
                Kind::Write => self.put(file, block, turn + 1).await.map(|()| Some(turn + 1)),
                _ => self.get(file, block).await,
            };
            let end = monotonic_nanos();
            match acted {
                Ok(Some(number)) if kind == Kind::Write => {
                    self.written.borrow_mut()[block as usize] = number;
                    self.busy.borrow_mut().replace(block as usize, false);
                }
                Ok(Some(number)) if number == block + 1 => {}
                Ok(number) => {
                    let text = format!("error read of block {block}: {number:?} is there");
                    return self.shared.fail(text);
                }
                Err(errno) => {
                    let text = format!("error {} of block {block}: {errno}", kind.name());
                    return self.shared.fail(text);
                }
            }
            self.events.borrow_mut().push((kind, end, end - begin));
            self.done[side].set(self.done[side].get() + 1);
            // The kind that is behind counts.
            let least = self.done[0].get().min(self.done[1].get());
            self.shared.count.store(least, Ordering::Relaxed);
            if !self.rest.is_zero() {
                self.session.client.world().sleep(self.rest).await;
            }
        }
    }

    /// A block whose words are all this number.
    async fn put(&self, file: &File, block: u64, number: u64) -> Result<(), Errno> {
        let mut buffer = self.session.client.buffer(BLOCK).await;
        for word in buffer[..BLOCK].chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        self.session.client.write(file, block * BLOCK as u64, buffer, 0..BLOCK).await.map(drop)
    }

    /// The number of all words of a block; `None` if they differ.
    async fn get(&self, file: &File, block: u64) -> Result<Option<u64>, Errno> {
        let buffer = self.session.client.buffer(BLOCK).await;
        let (buffer, len) = self.session.client.read(file, block * BLOCK as u64, buffer).await?;
        let mut words =
            buffer[..len].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let first = words.next().filter(|_| len == BLOCK);
        Ok(first.filter(|first| words.all(|word| word == *first)))
    }

    /// The files to read and to write, with all of their blocks.
    fn prepare(&self, folder: u64) -> anyhow::Result<[File; 2]> {
        let Session { client, caller, reactor, .. } = self.session;
        let filled = reactor.block_on(async {
            let mut files = Vec::new();
            for name in ["read", "written"] {
                let made =
                    client.create(caller, folder, name.as_bytes(), 0o644, true, BOTH).await?;
                for block in 0..self.blocks {
                    let number = if files.is_empty() { block + 1 } else { 0 };
                    self.put(&made.1, block, number).await?;
                }
                client.sync(&made.1).await?;
                files.push(made.1);
            }
            Ok(files)
        });
        let files = filled.map_err(|errno| failed("prepare the files of a client", errno))?;
        files.try_into().ok().context("there are two files")
    }

    /// Each block has what was acknowledged last.
    async fn verify(&self, file: &File) {
        let written = self.written.borrow().clone();
        for (block, number) in written.into_iter().enumerate() {
            match self.get(file, block as u64).await {
                Ok(found) if found == Some(number) => {}
                Ok(found) => {
                    let text = format!("error write {number} of block {block} is lost: {found:?}");
                    self.shared.fail(text);
                }
                Err(errno) => {
                    self.shared.fail(format!("error read of written block {block}: {errno}"));
                }
            }
        }
    }
}

/// Fills a directory: `count` files of `bytes` each, which are durable at the end.
pub fn fill(session: &Session, order: &Order) -> anyhow::Result<()> {
    let folder = session.folder(order)?.inode;
    let (count, bytes): (u64, usize) = (order.get("count")?, order.get("bytes")?);
    let Session { client, caller, reactor, .. } = session;
    let next = Cell::new(0);
    let lane = async || {
        while next.get() < count {
            let number = next.replace(next.get() + 1);
            let name = format!("fill{number}");
            let made = client.create(caller, folder, name.as_bytes(), 0o644, true, BOTH).await?;
            let mut at = 0;
            while at < bytes {
                let len = LARGE.min(bytes - at);
                let mut buffer = client.buffer(len).await;
                buffer[..len].fill(number as u8);
                client.write(&made.1, at as u64, buffer, 0..len).await?;
                at += len;
            }
            if number + 1 == count {
                client.sync(&made.1).await?;
            }
        }
        Ok(())
    };
    let filled: Result<Vec<()>, Errno> =
        reactor.block_on(join_all((0..FILLING).map(|_| lane()))).into_iter().collect();
    filled.map_err(|errno| failed("fill the cluster", errno))?;
    println!("filled");
    Ok(())
}
