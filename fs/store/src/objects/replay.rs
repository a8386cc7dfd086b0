//! Replay: the log's records since the last checkpoint are brought into the objects' files.
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

use super::block::{BLOCK_BYTES, Block, BlockSet, UNKNOWN, entry};
use super::cache::{FileState, begin_file, repair_object};
use super::error::{is_for_now, is_unreadable};
use super::layout::Layout;
use super::marks::Marks;
use super::object::Object;
use super::punch::free_range;
use super::read::read_filled;
use super::record::{Head, Record, entry_pair};
use super::remove::unlink_inode;
use super::resolve::{Crash, Event, Resolved, resolve};
use super::roll::{Changes, Roll};
use super::scan::{Entry, Scan};
use super::table::{Place, Tails};
use super::{GroupTag, Grouped, ObjectError, ObjectId};

/// Damaged blocks that a report names.
const DAMAGED_NAMED_MAX: usize = 1000;

/// By so much the roll's stamp exceeds that of any file whose head a start could not read.
const STAMP_LEAP: u32 = 1 << 20;

/// The findings and repairs of a store's opening.
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
    /// Damage that was found, and its outcome, in words.
    pub damage: Vec<String>,
}

/// The log's records of one object.
#[derive(Default)]
struct History {
    blocks: BTreeMap<u32, Vec<Event>>,
    mark: u64,
    suspects: BlockSet,
    /// A record is missing of which only the object is known.
    doubted: bool,
    group: GroupTag,
}

impl History {
    fn push(&mut self, block: u32, event: Event) {
        self.suspects.remove(block);
        let events = self.blocks.entry(block).or_default();
        // An image or a hole needs no event before it.
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

    /// Whether some write was done, after which the object had a file.
    fn had_file(&self, last_batch: u64) -> bool {
        self.blocks.values().any(|events| match events.last() {
            Some(Event::Write { new, batch, .. }) => *new != 0 && *batch != last_batch,
            Some(Event::Image(_) | Event::Lost) => true,
            Some(Event::Hole) | None => false,
        })
    }

    /// A record is missing: only later records are known.
    fn doubt(&mut self) {
        self.doubted = true;
        self.blocks.values_mut().for_each(|events| *events = vec![Event::Lost]);
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
        scan.visit(|entry| match entry {
            Entry::Record(position, batch, record) => {
                story.records += 1;
                story.last_batch = batch;
                story.take(position, batch, record, blocks_max, marks);
            }
            Entry::Lost(batch, head) => {
                story.last_batch = batch;
                story.lose(head, blocks_max);
            }
            Entry::Missing(object) => story.history(object).doubt(),
        });
        story
    }

    fn history(&mut self, object: ObjectId) -> &mut History {
        self.histories.entry(object).or_default()
    }

    /// A record's body is damaged: its blocks may have become anything.
    fn lose(&mut self, head: Head, blocks_max: u32) {
        let (first, count) = head.blocks();
        let end = first.saturating_add(count).min(blocks_max);
        let history = self.history(head.object());
        (first..end).for_each(|block| history.push(block, Event::Lost));
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
            Record::Write { object, group, first, entries } => {
                let count = entries.len() / 8;
                if !fits(first, count as u32) {
                    return;
                }
                let history = self.history(object);
                history.group = history.group.or(group);
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

/// The inputs of a replay.
pub(super) struct Replay<'a> {
    pub(super) disk: &'a Arc<dyn Disk>,
    pub(super) layout: &'a Layout,
    pub(super) scan: &'a Scan,
    pub(super) roll: &'a mut Roll,
    /// Bytes that are read may come from the page cache of before.
    pub(super) page_cache: bool,
}

/// Replays the log into the object files and makes the result durable. Blocks.
pub(super) fn replay(replay: Replay<'_>, marks: &mut Marks) -> io::Result<Recovery> {
    let Replay { disk, layout, scan, roll, page_cache } = replay;
    scan.sync(&**disk, &layout.log())?;
    let story = Story::read(scan, layout, marks);
    let process_only = scan.process_only;
    // Only the batch that was under way may be incomplete.
    let last_batch = if process_only && scan.last_done { u64::MAX } else { story.last_batch };
    let crash = Crash { process_only, page_cache, last_batch };
    let mut report = Recovery { records: story.records, process_only, ..Recovery::default() };
    report.damage.extend(scan.damage.iter().chain(&scan.unread).cloned());
    // The next life's log begins there, when all of this is durable.
    let tails = Tails { durable: scan.tail, next: scan.next_sequence * scan.segment_bytes };
    let (mut directories, mut changes) = (BTreeSet::new(), Changes::new());
    for (object, history) in &story.histories {
        report.objects += 1;
        directories.insert(Layout::directory_of(object.inode));
        let place = Place { layout, object: *object };
        // After a power loss nobody knows: an earlier sync may have failed, and a later one then
        // proves nothing.
        let stamp = roll.stamp(*object);
        let existed = stamp.is_some()
            || process_only
                && (history.had_file(crash.last_batch) || scan.existed.contains(object));
        let report = &mut report;
        let mender = Mender { disk, place, history, crash, tails, existed, stamp, report };
        if let Some(stamp) = mender.mend()? {
            changes.insert(*object, Some(stamp));
        }
    }
    for (inode, generation) in &story.buried {
        directories.insert(Layout::directory_of(*inode));
        let removed = unlink_inode(disk, layout, *inode, *generation);
        if let Some(source) = removed.left {
            if is_for_now(&source) {
                return Err(source);
            }
            // Nobody can use them: that is no reason not to start.
            report.damage.push(ObjectError::Left { inode: *inode, source }.to_string());
        }
        changes.extend(removed.objects.into_iter().map(|object| (object, None)));
    }
    for directory in directories {
        match disk.sync_directory(&layout.directory_path(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            result => result?,
        }
    }
    disk.sync_directory(&layout.objects())?;
    // Files and names are durable.
    roll.write(&changes);
    marks.number += 1;
    marks.clean = 0;
    if scan.slots_in_use().next().is_some() {
        marks.durable = scan.end;
    }
    // Else the end is where the next life's first segment will lie, and nothing is durable there yet:
    // a death before that segment exists must not look like the loss of its end.
    marks.save(disk, layout.root(), layout.store())?;
    Ok(report)
}

/// An object's file, its content, and whether that is all to be doubted.
type Opened = (Option<Arc<dyn File>>, Object, bool);

/// Brings one object's file to where its history ends.
struct Mender<'a> {
    disk: &'a Arc<dyn Disk>,
    place: Place<'a>,
    history: &'a History,
    crash: Crash,
    tails: Tails,
    /// It has a file, whatever is found.
    existed: bool,
    /// The stamp that its file has at least.
    stamp: Option<u32>,
    report: &'a mut Recovery,
}

impl<'a> Mender<'a> {
    /// The stamp that the object's file has afterwards, durably but for its name.
    fn mend(mut self) -> io::Result<Option<u32>> {
        let Some((file, mut known, doubted)) = self.open()? else { return Ok(self.give_up()) };
        let is_older = file.is_some() && self.stamp.is_some_and(|stamp| known.front.stamp < stamp);
        let is_gone = file.is_none() && self.stamp.is_some();
        if (is_older || is_gone) && self.history.blocks.is_empty() {
            // The log has no byte of it: reading says what is wrong, until the file is put back.
            let (object, how) =
                (self.place.object, if is_gone { "gone" } else { "no longer the last" });
            self.report.damage.push(format!("object {object}: its file is {how}"));
            return Ok(None);
        }
        known.front.group = known.front.group.or(self.history.group);
        // Writes from now on are later than everything that was there before.
        known.front.stamp = known.front.stamp.max(self.stamp.unwrap_or(0));
        known.change_whole_table();
        let mut restored: Vec<(u32, &Block)> = Vec::new();
        let mut holes = Vec::new();
        let mut content = Box::new([0; BLOCK_BYTES]);
        let history = self.history;
        for (&block, events) in &history.blocks {
            let entry = match self.resolve(block, events, file.as_ref(), &mut content)? {
                Resolved::InPlace(entry) => entry,
                Resolved::Restore(bytes) => {
                    restored.push((block, bytes));
                    entry(bytes)
                }
                Resolved::Hole => {
                    holes.push(block);
                    0
                }
                Resolved::Damaged => {
                    // One that was lost before is no news.
                    if !matches!(events.last(), Some(Event::Write { new: UNKNOWN, .. })) {
                        self.note_damaged(block);
                    }
                    UNKNOWN
                }
                Resolved::Unread(entry) => {
                    self.note_damaged(block);
                    entry
                }
            };
            known.set_entry(block, entry);
            // Also where the file is too short to show an entry that a crash has left behind.
            known.change_table(block);
        }
        match &file {
            Some(_) if is_older => self.lose_file(&mut known, "is an older copy"),
            Some(file) if doubted => self.doubt(&mut known, &**file)?,
            None if self.existed => self.lose_file(&mut known, "is gone"),
            _ => (),
        }
        if let Some(file) = file.as_ref().filter(|_| self.crash.page_cache) {
            // The head may have been lost with the first sync, also where no block was: without it
            // the file would be taken for a creation that was cut short.
            file.write_at(0, &self.place.head(known.front))?;
        }
        self.write(known, file, &restored, &holes)
    }

    /// Nothing here could mend the object's file, and reading it will say what is wrong. The log's records of
    /// it go with the log. So the stamp that the roll asks for from now on is one that the file does not
    /// have, should it be put back, or be readable again.
    fn give_up(&mut self) -> Option<u32> {
        if self.history.blocks.is_empty() && !self.history.doubted {
            return None;
        }
        let object = self.place.object;
        self.report.damage.push(format!(
            "object {object}: the head of its file is damaged; its last changes are lost, too"
        ));
        Some(self.stamp.unwrap_or(0).saturating_add(STAMP_LEAP))
    }

    /// `None` where reading the object will say what is wrong, and nothing here could mend it.
    fn open(&mut self) -> io::Result<Option<Opened>> {
        let Place { layout, object } = self.place;
        let path = layout.path(object);
        let nothing = Object::default;
        let doubted = self.history.doubted;
        Ok(match repair_object(&**self.disk, layout, object, self.tails.durable)? {
            FileState::Present(file, front, entries) => {
                Some((Some(file), Object { front, entries, ..nothing() }, doubted))
            }
            FileState::Absent => Some((None, nothing(), doubted)),
            // Its head was there: the data behind the table still are.
            FileState::Unfinished | FileState::Headless if self.existed => {
                let entries = vec![UNKNOWN; layout.blocks_max() as usize];
                let file = self.disk.open(&path, Open::Write)?;
                Some((Some(file), Object { entries, ..nothing() }, false))
            }
            FileState::Unfinished | FileState::Headless => {
                // Emptied durably: other bytes that came into it must not be seen once it has a head.
                let file = self.disk.open(&path, Open::Write)?;
                file.set_len(0)?;
                file.sync_data()?;
                Some((None, nothing(), doubted))
            }
            FileState::Damaged => None,
            FileState::Unreadable(error) => {
                self.report.damage.push(format!("object {object}: {error}"));
                None
            }
        })
    }

    fn resolve(
        &self,
        block: u32,
        events: &'a [Event],
        file: Option<&Arc<dyn File>>,
        content: &mut Block,
    ) -> io::Result<Resolved<'a>> {
        let (mut failure, mut unread) = (None, false);
        let offset = self.place.layout.block_offset(block);
        let resolved = resolve(events, self.crash, self.history.mark, || {
            match file.map(|file| read_filled(&**file, offset, &mut content[..])) {
                Some(Ok(())) => entry(&content[..]),
                Some(Err(error)) if is_unreadable(&error) => {
                    unread = true;
                    0
                }
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
        if let (true, Resolved::Damaged, Some(Event::Write { new, .. })) =
            (unread, &resolved, events.last())
        {
            // Perhaps the device gives them back another day: then this tells whether they are right.
            return Ok(Resolved::Unread(*new));
        }
        if let Resolved::InPlace(_) = resolved {
            let marked = matches!(events.last(), Some(Event::Write { position, .. })
                if *position < self.history.mark);
            if let Some(file) = file.filter(|_| self.crash.page_cache && !marked) {
                // A sync of the earlier life may have failed, and the page cache believes since that
                // the device has these bytes. Written again, they are synced.
                file.write_at(offset, &content[..])?;
            }
        }
        Ok(resolved)
    }

    fn note_damaged(&mut self, block: u32) {
        self.report.damaged_blocks += 1;
        if self.report.damaged.len() < DAMAGED_NAMED_MAX {
            self.report.damaged.push((self.place.object, block));
        }
    }

    /// A record of the object is missing. Later records are known. Of the rest only this is known: a write
    /// into a hole has put bytes into the file, and a punched block has none.
    fn doubt(&mut self, known: &mut Object, file: &dyn File) -> io::Result<()> {
        let layout = self.place.layout;
        let data = file.len()?.saturating_sub(layout.data_offset());
        let blocks = data.div_ceil(BLOCK_BYTES as u64).min(u64::from(layout.blocks_max())) as u32;
        let mut content = Box::new([0; BLOCK_BYTES]);
        for block in 0..blocks.max(known.entries.len() as u32) {
            if self.history.blocks.contains_key(&block) {
                continue;
            }
            match read_filled(file, layout.block_offset(block), &mut content[..]) {
                Err(error) if is_unreadable(&error) => content.fill(1),
                result => result?,
            }
            if known.entry(block) != 0 || content.iter().any(|byte| *byte != 0) {
                self.note_damaged(block);
                known.set_entry(block, UNKNOWN);
            }
        }
        Ok(())
    }

    /// The file is not the one that it was: nobody knows its bytes beside those in the log.
    fn lose_file(&mut self, known: &mut Object, how: &str) {
        for block in 0..self.place.layout.blocks_max() {
            if !self.history.blocks.contains_key(&block) {
                known.set_entry(block, UNKNOWN);
            }
        }
        let object = self.place.object;
        self.report.damage.push(format!(
            "object {object}: its file {how}; what it had beside the last changes is lost"
        ));
    }

    fn write(
        &mut self,
        mut known: Object,
        file: Option<Arc<dyn File>>,
        restored: &[(u32, &Block)],
        holes: &[u32],
    ) -> io::Result<Option<u32>> {
        let layout = self.place.layout;
        let file = match file {
            Some(file) => file,
            None if known.is_blank() => return Ok(None),
            None => self.create(known.front.group)?,
        };
        for (block, bytes) in restored {
            file.write_at(layout.block_offset(*block), &bytes[..])?;
        }
        self.report.restored_blocks += restored.len() as u64;
        self.write_suspects_again(&known, &*file)?;
        for run in holes.chunk_by(|a, b| a + 1 == *b) {
            let end = run[run.len() - 1] + 1;
            // Room only: the table says that these are holes.
            let _ = free_range(&*file, layout.block_offset(run[0]), layout.block_offset(end));
        }
        self.place.write_table(&mut known, &*file, &BTreeMap::new(), self.tails)?;
        file.sync_data()?;
        Ok(Some(known.front.stamp))
    }

    /// A sync of these blocks failed: the page cache has them, and believes the device does. Blocks that
    /// still match are written once more, so that the sync that follows means something.
    fn write_suspects_again(&self, known: &Object, file: &dyn File) -> io::Result<()> {
        if self.history.suspects.is_empty() {
            return Ok(());
        }
        file.write_at(0, &self.place.head(known.front))?;
        let mut content = Box::new([0; BLOCK_BYTES]);
        for block in self.history.suspects.iter() {
            let offset = self.place.layout.block_offset(block);
            match read_filled(file, offset, &mut content[..]) {
                Err(error) if is_unreadable(&error) => continue,
                result => result?,
            }
            if known.entry(block) == entry(&content[..]) {
                file.write_at(offset, &content[..])?;
            }
        }
        Ok(())
    }

    fn create(&self, group: GroupTag) -> io::Result<Arc<dyn File>> {
        let object = self.place.object;
        let path = self.place.layout.path(object);
        if let Some(parent) = path.parent() {
            self.disk.create_directory(parent)?;
        }
        let file = self.disk.open(&path, Open::Create)?;
        begin_file(&*file, self.place.layout, Grouped { object, group })?;
        Ok(file)
    }
}
