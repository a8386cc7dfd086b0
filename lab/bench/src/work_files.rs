//! Work through a mount, or on any other directory: plain system calls of one process.
//!
//! Every kind is named by the first word of its order; `folder` and `name` say where.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use ropewalk_base::random::Random;
use rustix::fs::OFlags;

use crate::order::Order;
use crate::worker::{Work, serve};

/// Bytes of a large transfer.
pub const LARGE: usize = 1 << 20;
/// Bytes of a small one, which is also the alignment of direct I/O.
pub const SMALL: usize = 4096;

/// Does what `order` says, as a worker. `None`: it is not of this kind.
pub fn work(order: &Order) -> Option<anyhow::Result<()>> {
    Some(match order.kind.as_str() {
        "create" => create(order),
        "read" => each(order, read_whole),
        "stat" => each(order, |path, _| fs::symlink_metadata(path).map(|_| ())),
        "open" => each(order, |path, _| File::open(path).map(|_| ())),
        "unlink" => each(order, |path, _| fs::remove_file(path)),
        "write large" => write_large(order),
        "read large" => read_large(order),
        "direct" => direct(order),
        "synced" => synced(order),
        _ => return None,
    })
}

fn paths(order: &Order) -> anyhow::Result<Vec<PathBuf>> {
    let (folder, name) = (PathBuf::from(order.text("folder")?), order.text("name")?);
    Ok((0..order.get::<u64>("count")?).map(|n| folder.join(format!("{name}{n}"))).collect())
}

/// The same for each file: opened, asked for, or removed.
fn each(
    order: &Order,
    act: impl Fn(&PathBuf, &mut [u8]) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let paths = paths(order)?;
    let bytes = order.get::<usize>("bytes").unwrap_or(0);
    // One byte more: a file that is too long shows.
    let mut buffer = vec![0; bytes + 1];
    serve(|| {
        let mut work = Work::begin();
        for path in &paths {
            let begin = Instant::now();
            act(path, &mut buffer[..]).with_context(|| path.display().to_string())?;
            work.note(begin, bytes);
        }
        work.end();
        Ok(work)
    })
}

fn read_whole(path: &PathBuf, buffer: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read;
    let found = File::open(path)?.read(buffer)?;
    if found + 1 != buffer.len() || buffer[..found].iter().any(|byte| *byte != FILL) {
        return Err(std::io::Error::other(format!("{found} bytes that were not written so")));
    }
    Ok(())
}

/// The value of every byte of a small file.
const FILL: u8 = 0x5a;

fn create(order: &Order) -> anyhow::Result<()> {
    use std::io::Write;
    let paths = paths(order)?;
    let content = vec![FILL; order.get("bytes")?];
    serve(|| {
        let mut work = Work::begin();
        for path in &paths {
            let begin = Instant::now();
            let mut file =
                File::create_new(path).with_context(|| format!("create {}", path.display()))?;
            if !content.is_empty() {
                file.write_all(&content).with_context(|| format!("write {}", path.display()))?;
            }
            drop(file);
            work.note(begin, content.len());
        }
        work.end();
        Ok(work)
    })
}

/// Marks a block, so that a reader knows whether it is the right one.
pub fn stamp(block: &mut [u8], number: u64) {
    block[..8].copy_from_slice(&number.to_le_bytes());
}

/// Whether a block is the one that it should be.
pub fn check_stamp(block: &[u8], number: u64) -> anyhow::Result<()> {
    ensure!(block[..8] == number.to_le_bytes(), "block {number} is not what was written");
    Ok(())
}

fn write_large(order: &Order) -> anyhow::Result<()> {
    let path = PathBuf::from(order.text("folder")?).join(order.text("name")?);
    let count = order.get::<u64>("count")?;
    let (existing, sync) = (order.has("existing"), order.has("sync"));
    let mut block = vec![FILL; LARGE];
    serve(|| {
        let mut work = Work::begin();
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(!existing).open(&path)?;
        for number in 0..count {
            let begin = Instant::now();
            stamp(&mut block, number);
            file.write_all_at(&block, number * LARGE as u64)?;
            work.note(begin, LARGE);
        }
        if sync {
            file.sync_all()?;
        }
        drop(file);
        work.end();
        Ok(work)
    })
}

fn read_large(order: &Order) -> anyhow::Result<()> {
    let path = PathBuf::from(order.text("folder")?).join(order.text("name")?);
    let count = order.get::<u64>("count")?;
    let mut block = vec![0; LARGE];
    serve(|| {
        let mut work = Work::begin();
        let file = File::open(&path)?;
        for number in 0..count {
            let begin = Instant::now();
            file.read_exact_at(&mut block, number * LARGE as u64)?;
            check_stamp(&block, number)?;
            work.note(begin, LARGE);
        }
        drop(file);
        work.end();
        Ok(work)
    })
}

/// Room for a block at an address that direct input and output can use.
pub struct Aligned {
    room: Vec<u8>,
    begin: usize,
}

impl Aligned {
    /// Room for so many bytes.
    pub fn new(bytes: usize) -> Aligned {
        let room = vec![FILL; bytes + SMALL];
        let begin = room.as_ptr().align_offset(SMALL);
        Aligned { room, begin }
    }

    /// The block.
    pub fn block(&mut self) -> &mut [u8] {
        let bytes = self.room.len() - SMALL;
        &mut self.room[self.begin..self.begin + bytes]
    }
}

/// 4 KiB at random places past the page cache, on so many threads as the depth says.
fn direct(order: &Order) -> anyhow::Result<()> {
    let path = PathBuf::from(order.text("folder")?).join(order.text("name")?);
    let (count, depth) = (order.get::<u64>("count")?, order.get::<u64>("depth")?);
    let blocks = order.get::<u64>("file_bytes")? / SMALL as u64;
    let writes = match order.text("what")? {
        "write" => true,
        "read" => false,
        other => bail!("nobody can '{other}'"),
    };
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
    serve(|| {
        let mut work = Work::begin();
        let one = |seed: u64| -> anyhow::Result<Work> {
            let mut part = Work::default();
            let (mut random, mut aligned) = (Random::from_seed(seed), Aligned::new(SMALL));
            for _ in 0..count / depth {
                let offset = random.below(blocks) * SMALL as u64;
                let begin = Instant::now();
                match writes {
                    true => file.write_all_at(aligned.block(), offset)?,
                    false => file.read_exact_at(aligned.block(), offset)?,
                }
                part.note(begin, SMALL);
            }
            Ok(part)
        };
        let parts: Vec<anyhow::Result<Work>> = if depth == 1 {
            vec![one(1)]
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..depth).map(|number| scope.spawn(move || one(number + 1))).collect();
                threads.into_iter().map(|thread| thread.join().expect("it fails by Err")).collect()
            })
        };
        for part in parts {
            let part = part?;
            work.times.merge(&part.times);
            work.operations += part.operations;
            work.bytes += part.bytes;
        }
        work.lanes = depth;
        work.end();
        Ok(work)
    })
}

/// 4 KiB and a sync, one after the other: over blocks that exist, or at the end of the file.
fn synced(order: &Order) -> anyhow::Result<()> {
    let path = PathBuf::from(order.text("folder")?).join(order.text("name")?);
    let count = order.get::<u64>("count")?;
    let existing = order.has("existing");
    let mut block = vec![FILL; SMALL];
    let file = OpenOptions::new().write(true).create(true).truncate(!existing).open(&path)?;
    if existing {
        file.write_all_at(&vec![FILL; SMALL * count as usize], 0)?;
    }
    file.sync_all()?;
    serve(|| {
        let mut work = Work::begin();
        for number in 0..count {
            let begin = Instant::now();
            stamp(&mut block, number);
            file.write_all_at(&block, number * SMALL as u64)?;
            file.sync_all()?;
            work.note(begin, SMALL);
        }
        work.end();
        Ok(work)
    })
}
