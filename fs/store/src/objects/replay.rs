//! Replay: what the log says of objects since the last checkpoint is brought into their files.
//!
//! Invariants
//! * replay is repeated from the start after a crash in its midst, with the same result: the log
//!   is made durable before anything is mended, and let go only when everything it said is durable
//!   elsewhere;
//! * memory is bounded by the log; records that make no sense are left out, never trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::ObjectId;
use super::block::{BLOCK_BYTES, Block, BlockSet, entry};
use super::cache::{FileState, begin_file, open_object};
use super::checkpoint::write_table;
use super::layout::Layout;
use super::log::Scan;
use super::marks::Marks;
use super::object::Object;
use super::punch::free_range;
use super::read::read_filled;
use super::record::{Record, entry_pair};
use super::remove::unlink_inode;
use super::resolve::{Crash, Event, Resolved, resolve};

/// Damaged blocks that a report names.
const DAMAGED_NAMED_MAX: usize = 1000;

/// What opening a store found and mended.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// Log records that were replayed.
    pub records: u64,
    /// Objects that they concerned.
    pub objects: u64,
    /// Blocks written again from the log.
    pub restored_blocks: u64,
    /// Blocks whose bytes match nothing that was written; reading them is an error.
    pub damaged_blocks: u64,
    /// The first thousand of them.
    pub damaged: Vec<(ObjectId, u32)>,
    /// Only the process had died, the machine had not.
    pub process_only: bool,
}

/// What the log says of one object.
#[derive(Default)]
struct History {
    blocks: BTreeMap<u32, Vec<Event>>,
    mark: u64,
    suspects: BlockSet,
}

impl History {
    fn push(&mut self, block: u32, event: Event) {
        self.suspects.remove(block);
        let events = self.blocks.entry(block).or_default();
        // An image or a hole needs nothing of what came before it.
        if !matches!(event, Event::Write { .. }) {
            events.clear();
        }
        events.push(event);
    }

    fn patch(&mut self, block: u32, offset: usize, bytes: &[u8]) {
        if let Some(Event::Image(content)) =
            self.blocks.get_mut(&block).and_then(|events| events.last_mut())
        {
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// The log's story, sorted by object.
struct Story {
    histories: BTreeMap<ObjectId, History>,
    /// Inodes removed since the last checkpoint, and up to which generation.
    buried: BTreeMap<u64, u32>,
    records: u64,
    last_batch: u64,
}

impl Story {
    fn read(scan: &Scan, layout: &Layout, marks: &mut Marks) -> Story {
        let mut story = Story {
            histories: BTreeMap::new(),
            buried: BTreeMap::new(),
            records: 0,
            last_batch: 0,
        };
        let blocks_max = layout.blocks_max();
        scan.visit(|position, batch, record| {
            story.records += 1;
            story.last_batch = batch;
            story.take(position, batch, record, blocks_max, marks);
        });
        story
    }

    fn history(&mut self, object: ObjectId) -> &mut History {
        self.histories.entry(object).or_default()
    }

    fn take(
        &mut self,
        position: u64,
        batch: u64,
        record: Record<'_>,
        blocks_max: u32,
        marks: &mut Marks,
    ) {
        let fits = |first: u32, count: u32| first + count <= blocks_max;
        match record {
            Record::Write { object, first, entries } => {
                let count = entries.len() / 8;
                if !fits(first, count as u32) {
                    return;
                }
                let history = self.history(object);
                for index in 0..count {
                    let (old, new) = entry_pair(entries, index);
                    let event = Event::Write { old, new, position, batch };
                    history.push(first + index as u32, event);
                }
            }
            Record::Image { object, block, bytes } if fits(block, 1) => {
                let mut content = Box::new([0; BLOCK_BYTES]);
                content.copy_from_slice(bytes);
                self.history(object).push(block, Event::Image(content));
            }
            Record::Delta { object, block, offset, bytes } if fits(block, 1) => {
                self.history(object).patch(block, offset as usize, bytes);
            }
            Record::Hole { object, first, count } if fits(first, count) => {
                let history = self.history(object);
                (first..first + count).for_each(|block| history.push(block, Event::Hole));
            }
            Record::Suspect { object, first, count } if fits(first, count) => {
                let history = self.history(object);
                (first..first + count).for_each(|block| history.suspects.insert(block));
            }
            Record::Mark { object, position } => {
                let history = self.history(object);
                history.mark = history.mark.max(position);
            }
            Record::Tombstone { inode, generation, mark } => {
                marks.bury(inode, generation, mark);
                let gone = self.buried.entry(inode).or_default();
                *gone = (*gone).max(generation);
                self.histories
                    .retain(|object, _| object.inode != inode || object.generation > generation);
            }
            Record::Fence { session, epoch, mark } => marks.fence(session, epoch, mark),
            _ => (),
        }
    }
}

/// Replays the log into the object files and makes the result durable. Blocks.
pub(super) fn replay(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    scan: &Scan,
    process_only: bool,
    page_cache: bool,
    marks: &mut Marks,
) -> io::Result<Recovery> {
    scan.sync(&**disk, &layout.log())?;
    let story = Story::read(scan, layout, marks);
    let crash = Crash { process_only, page_cache, last_batch: story.last_batch };
    let mut report = Recovery { records: story.records, process_only, ..Recovery::default() };
    let mut directories = BTreeSet::new();
    for (object, history) in &story.histories {
        report.objects += 1;
        directories.insert(Layout::directory_of(object.inode));
        Mender { disk, layout, object: *object, history, crash, report: &mut report }.mend()?;
    }
    for (inode, generation) in &story.buried {
        directories.insert(Layout::directory_of(*inode));
        unlink_inode(disk, layout, *inode, *generation)?;
    }
    for directory in directories {
        match disk.sync_directory(&layout.directory_path(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            result => result?,
        }
    }
    disk.sync_directory(&layout.objects())?;
    marks.save(disk, layout.root())?;
    Ok(report)
}

/// Brings one object's file to where its history ends.
struct Mender<'a> {
    disk: &'a Arc<dyn Disk>,
    layout: &'a Layout,
    object: ObjectId,
    history: &'a History,
    crash: Crash,
    report: &'a mut Recovery,
}

impl Mender<'_> {
    fn mend(&mut self) -> io::Result<()> {
        let (file, entries) = match open_object(&**self.disk, self.layout, self.object)? {
            FileState::Present(file, entries) => (Some(file), entries),
            FileState::Absent => (None, Vec::new()),
            FileState::Unfinished => {
                // Emptied durably: what else came into it must not be seen once it has a header.
                let file = self.disk.open(&self.layout.path(self.object), Open::Write)?;
                file.set_len(0)?;
                file.sync_data()?;
                (None, Vec::new())
            }
            // Reading it says what is wrong; nothing here could mend it.
            FileState::Damaged => return Ok(()),
        };
        let mut known = Object { entries, ..Object::default() };
        known.table_changed =
            (!known.entries.is_empty()).then_some((0, known.entries.len() as u32));
        let mut restored: Vec<(u32, &Block)> = Vec::new();
        let mut holes = Vec::new();
        let mut content = Box::new([0; BLOCK_BYTES]);
        for (&block, events) in &self.history.blocks {
            let mut failure = None;
            let resolved = resolve(events, self.crash, self.history.mark, || {
                let offset = self.layout.block_offset(block);
                match file.as_ref().map(|file| read_filled(&**file, offset, &mut content[..])) {
                    Some(Ok(())) => entry(&content[..]),
                    Some(Err(error)) => {
                        failure = Some(error);
                        0
                    }
                    None => 0,
                }
            });
            if let Some(error) = failure {
                return Err(error);
            }
            let entry = match resolved {
                Resolved::InPlace(entry) => {
                    let marked = matches!(events.last(), Some(Event::Write { position, .. })
                        if *position < self.history.mark);
                    if let Some(file) = file.as_ref().filter(|_| self.crash.page_cache && !marked) {
                        // A sync of the earlier life may have failed, and the page cache believes
                        // since that the device has these bytes. Written again, they are synced.
                        file.write_at(self.layout.block_offset(block), &content[..])?;
                    }
                    entry
                }
                Resolved::Restore(bytes) => {
                    restored.push((block, bytes));
                    entry(bytes)
                }
                Resolved::Hole => {
                    holes.push(block);
                    0
                }
                Resolved::Damaged(entry) => {
                    self.report.damaged_blocks += 1;
                    if self.report.damaged.len() < DAMAGED_NAMED_MAX {
                        self.report.damaged.push((self.object, block));
                    }
                    entry
                }
            };
            known.set_entry(block, entry);
            // Also where the file is too short to show an entry that a crash has left behind.
            known.change_table(block);
        }
        if let Some(file) = file.as_ref().filter(|_| self.crash.page_cache) {
            // The header may have been lost with the first sync, also where no block was: without it
            // the file would be taken for a creation that was cut short.
            file.write_at(0, &self.layout.header(self.object))?;
        }
        self.write(known, file, &restored, &holes)
    }

    fn write(
        &mut self,
        mut known: Object,
        file: Option<Arc<dyn File>>,
        restored: &[(u32, &Block)],
        holes: &[u32],
    ) -> io::Result<()> {
        let file = match file {
            Some(file) => file,
            None if known.written_blocks() == 0 => return Ok(()),
            None => self.create()?,
        };
        for (block, bytes) in restored {
            file.write_at(self.layout.block_offset(*block), &bytes[..])?;
        }
        self.report.restored_blocks += restored.len() as u64;
        self.write_suspects_again(&known, &*file)?;
        for run in holes.chunk_by(|a, b| a + 1 == *b) {
            let end = run[run.len() - 1] + 1;
            // Room only: the table says that these are holes.
            let _ =
                free_range(&*file, self.layout.block_offset(run[0]), self.layout.block_offset(end));
        }
        // The file's length is what tells how long the table is.
        if let Some(last) = known.entries.iter().rposition(|entry| *entry != 0) {
            let needed = self.layout.block_offset(last as u32 + 1);
            if file.len()? < needed {
                file.set_len(needed)?;
            }
        }
        write_table(&mut known, &*file, &BTreeMap::new())?;
        file.sync_data()
    }

    /// A sync of these blocks failed: the page cache has them, and believes the device does. What
    /// still matches is written once more, so that the sync that follows means something.
    fn write_suspects_again(&self, known: &Object, file: &dyn File) -> io::Result<()> {
        if self.history.suspects.is_empty() {
            return Ok(());
        }
        file.write_at(0, &self.layout.header(self.object))?;
        let mut content = Box::new([0; BLOCK_BYTES]);
        for block in self.history.suspects.iter() {
            let offset = self.layout.block_offset(block);
            read_filled(file, offset, &mut content[..])?;
            if known.entry(block) == entry(&content[..]) {
                file.write_at(offset, &content[..])?;
            }
        }
        Ok(())
    }

    fn create(&self) -> io::Result<Arc<dyn File>> {
        let path = self.layout.path(self.object);
        if let Some(parent) = path.parent() {
            self.disk.create_directory(parent)?;
        }
        let file = self.disk.open(&path, Open::Create)?;
        begin_file(&*file, self.layout, self.object)?;
        Ok(file)
    }
}
