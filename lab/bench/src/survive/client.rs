//! A client of a site as a process: it works until it is told to stop, and notes when each operation was acknowledged.
//!
//! Invariants
//! * Each name is made once in the life of the site, by a create that fails where it is there already; it is renamed and
//!   removed once at most. So an operation that took effect twice shows as an error.
//! * What is there at the end follows from the number of creates alone ([`name_of`]).

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_base::task::join_all;
use ropewalk_client::{Errno, File, RenameMode};

use crate::host::monotonic_nanos;
use crate::order::Order;
use crate::process::next_line;
use crate::survive::names::{Kind, name_of};
use crate::work_files::{LARGE, SMALL};
use crate::work_library::{BOTH, Session, failed};

/// The rest between two operations of a lane: the figure is a gap, so clients leave the processors to others.
const REST: Duration = Duration::from_millis(2);
/// The interval at which a client looks whether it may begin.
const LOOK: Duration = Duration::from_millis(1);
/// Names that are looked up in turn, and the inodes that a client remembers: fewer, so that it asks the server.
const STATS: u64 = 256;
pub const INODES_MAX: usize = 32;
/// Blocks of the files that are read and written.
const BLOCKS: u64 = (LARGE / SMALL) as u64;

/// What lanes and the thread that listens have in common.
#[derive(Default)]
pub struct Shared {
    pub goes: AtomicBool,
    pub stop: AtomicBool,
    /// Operations that were acknowledged.
    pub count: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Shared {
    pub fn fail(&self, text: String) {
        let mut failure = self.failure.lock().expect("replaced whole");
        failure.get_or_insert(text);
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn answer(&self, word: &str) -> String {
        match &*self.failure.lock().expect("replaced whole") {
            Some(text) => format!("failed {text}"),
            None => format!("{word} {}", self.count.load(Ordering::Relaxed)),
        }
    }

    /// Hears what the bench says, until it says that it is enough.
    pub fn listen(&self) {
        while let Ok(Some(line)) = next_line() {
            match line.as_str() {
                "go" => self.goes.store(true, Ordering::Relaxed),
                "stop" => break,
                _ => println!("{}", self.answer("count")),
            }
        }
        self.stop.store(true, Ordering::Relaxed);
        self.goes.store(true, Ordering::Relaxed);
    }
}

/// The work of one client.
struct Lanes<'a> {
    session: &'a Session,
    shared: Arc<Shared>,
    /// The directories of names that are made, and of those that are looked up.
    made: u64,
    known: u64,
    next: Cell<u64>,
    /// Of each block of the written file the number that was acknowledged last.
    written: RefCell<Vec<u64>>,
    events: RefCell<Vec<(Kind, u64)>>,
}

/// Plays the part of a client.
pub fn client(session: &Session, order: &Order) -> anyhow::Result<()> {
    let folder = order.text("folder")?.to_string();
    let directory = |name: &str| -> anyhow::Result<u64> {
        let order = Order::new("folder").with("folder", format!("{folder}/{name}"));
        Ok(session.folder(&order)?.inode)
    };
    let shared = Arc::new(Shared::default());
    let lanes = Lanes {
        session,
        shared: shared.clone(),
        made: directory("f")?,
        known: directory("s")?,
        next: Cell::new(0),
        written: RefCell::new(vec![0; BLOCKS as usize]),
        events: RefCell::default(),
    };
    let mixes = order.has("mix");
    let files = if mixes { Some(lanes.prepare()?) } else { None };
    println!("ready");
    let listener = shared.clone();
    std::thread::spawn(move || listener.listen());
    let creators: usize = order.get("creators")?;
    let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for _ in 0..creators {
        all.push(Box::pin(lanes.create()));
    }
    if let Some([read, written]) = &files {
        all.push(Box::pin(lanes.stat()));
        all.push(Box::pin(lanes.read(read)));
        all.push(Box::pin(lanes.write(written)));
    }
    // It answers recalls while it waits: other clients may want its leases.
    let world = session.client.world();
    session.reactor.block_on(async {
        while !shared.goes.load(Ordering::Relaxed) {
            world.sleep(LOOK).await;
        }
        join_all(all).await
    });
    if let Some([_, written]) = &files {
        session.reactor.block_on(lanes.verify(written));
    }
    let mut text = String::new();
    for (kind, nanos) in lanes.events.borrow().iter() {
        let _ = writeln!(text, "{} {nanos}", *kind as u8);
    }
    std::fs::write(order.text("times")?, text)?;
    println!("{}", shared.answer("done"));
    Ok(())
}

impl Lanes<'_> {
    fn goes_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn note(&self, kind: Kind) {
        self.events.borrow_mut().push((kind, monotonic_nanos()));
    }

    async fn rest(&self) {
        self.session.client.world().sleep(REST).await;
    }

    /// Says what failed; each name is used once, so these errors mean that it was done before.
    fn failed(&self, what: &str, name: &str, errno: Errno) {
        let twice = matches!(
            (what, errno),
            ("create", Errno::EEXIST) | ("rename" | "unlink", Errno::ENOENT)
        );
        let word = if twice { "twice" } else { "error" };
        self.shared.fail(format!("{word} {what} of {name}: {errno}"));
    }

    async fn create(&self) {
        let Session { client, caller, .. } = self.session;
        while self.goes_on() {
            let number = self.next.replace(self.next.get() + 1);
            let name = format!("f{number}");
            let made = client.create(caller, self.made, name.as_bytes(), 0o644, true, BOTH).await;
            match made {
                Ok(_) => self.note(Kind::Create),
                Err(errno) => return self.failed("create", &name, errno),
            }
            let (what, changed) = match name_of(number) {
                Some(new) if new != name => {
                    let (from, to, plain) = (name.as_bytes(), new.as_bytes(), RenameMode::Replace);
                    ("rename", client.rename(caller, self.made, from, self.made, to, plain).await)
                }
                Some(_) => ("", Ok(())),
                None => ("unlink", client.unlink(caller, self.made, name.as_bytes()).await),
            };
            if let Err(errno) = changed {
                return self.failed(what, &name, errno);
            }
            self.shared.count.fetch_add(1, Ordering::Relaxed);
            self.rest().await;
        }
    }

    async fn stat(&self) {
        let Session { client, caller, .. } = self.session;
        let mut number = 0;
        while self.goes_on() {
            let name = format!("s{}", number % STATS);
            match client.lookup(caller, self.known, name.as_bytes()).await {
                Ok(_) => self.note(Kind::Stat),
                Err(errno) => return self.failed("stat", &name, errno),
            }
            number += 1;
            self.rest().await;
        }
    }

    async fn write(&self, file: &File) {
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            let block = number % BLOCKS;
            match self.put(file, block, number).await {
                Ok(()) => self.note(Kind::Write),
                Err(errno) => return self.failed("write", &format!("block {block}"), errno),
            }
            self.written.borrow_mut()[block as usize] = number;
            self.rest().await;
        }
    }

    async fn read(&self, file: &File) {
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            let block = number % BLOCKS;
            match self.get(file, block).await {
                Ok(found) if found == Some(block + 1) => self.note(Kind::Read),
                Ok(_) => {
                    return self.shared.fail(format!("error read of block {block}: other bytes"));
                }
                Err(errno) => return self.failed("read", &format!("block {block}"), errno),
            }
            self.rest().await;
        }
    }

    /// A block whose words are all this number.
    async fn put(&self, file: &File, block: u64, number: u64) -> Result<(), Errno> {
        let mut buffer = self.session.client.buffer(SMALL).await;
        for word in buffer[..SMALL].chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        let at = block * SMALL as u64;
        self.session.client.write(file, at, buffer, 0..SMALL).await.map(drop)
    }

    /// The number of all words of a block; `None` if they differ.
    async fn get(&self, file: &File, block: u64) -> Result<Option<u64>, Errno> {
        let buffer = self.session.client.buffer(SMALL).await;
        let (buffer, len) = self.session.client.read(file, block * SMALL as u64, buffer).await?;
        let mut words =
            buffer[..len].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let first = words.next();
        Ok(first.filter(|first| len == SMALL && words.all(|word| word == *first)))
    }

    /// All names to look up, and the files to read and to write.
    fn prepare(&self) -> anyhow::Result<[File; 2]> {
        let Session { client, caller, reactor, .. } = self.session;
        let filled = reactor.block_on(async {
            for number in 0..STATS {
                let name = format!("s{number}");
                client.create(caller, self.known, name.as_bytes(), 0o644, true, BOTH).await?;
            }
            let mut files = Vec::new();
            for name in ["read", "written"] {
                let name = name.as_bytes();
                let made = client.create(caller, self.known, name, 0o644, true, BOTH).await?;
                for block in 0..BLOCKS {
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
                Ok(Some(found)) if found == number => {}
                Ok(found) => {
                    let text = format!("lost write {number} of block {block}: {found:?} is there");
                    self.shared.fail(text);
                }
                Err(errno) => self.failed("read", &format!("block {block}"), errno),
            }
        }
    }
}

/// Whether an answer says how many creates were acknowledged.
pub fn counted(answer: &str) -> anyhow::Result<u64> {
    match answer.split_once(' ') {
        Some(("count" | "done", number)) => Ok(number.parse()?),
        Some(("failed", text)) => match text.split_once(' ') {
            Some(("twice", what)) => bail!("an operation was done twice: {what}"),
            Some((_, what)) => bail!("an operation failed: {what}"),
            None => bail!("an operation failed: {text}"),
        },
        _ => bail!("a client said '{answer}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_was_done_twice_is_an_error_of_its_own() {
        assert_eq!((counted("count 12").unwrap(), counted("done 3").unwrap()), (12, 3));
        let said = |answer: &str| counted(answer).unwrap_err().to_string();
        assert!(said("failed twice create of f3: EEXIST").contains("done twice: create of f3"));
        assert!(said("failed error stat of s1: EIO").contains("failed: stat of s1"));
        assert!(said("nonsense").contains("nonsense"));
    }
}
