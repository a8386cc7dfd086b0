//! The copy itself: trees and files from one end to the other.
//!
//! * What is to be copied is listed before anything is made, so a tree can be copied into itself's
//!   parent, and a progress bar knows its end.
//! * Directories are made first and dressed last, since filling one changes its times, and its mode
//!   may forbid it. Files go several at a time, large ones in several pieces at a time.
//! * Further names of an inode are made last, when the first one is there.
//! * The first failure ends the copy, or is told and leaves the rest its turn, as the copy was asked;
//!   what was copied stays. What the target refuses to keep is no failure, but is remembered and told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::task::{Semaphore, join_all, yield_now};
use ropewalk_client::InodeKind;

use super::end::{Dress, End, Listing, Made, Meta};
use crate::remote::join;
use crate::stop::Stop;

/// Files that are copied at a time.
const FILES_AT_ONCE: usize = 16;
/// Bytes of one read or write: a piece of several stripes keeps several servers at work.
const CHUNK_BYTES: u64 = 4 << 20;
/// Pieces of one file that are under way at a time.
const CHUNKS_OF_A_FILE: usize = 4;
/// Pieces of all files that are under way at a time: bounds the memory.
const CHUNKS_AT_ONCE: usize = 16;

/// An entry to copy: its source and its target.
#[derive(Debug, Clone)]
pub struct Job {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}

/// The files and bytes that were moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    pub files: u64,
    pub bytes: u64,
}

/// An entry that is to be copied.
pub(super) struct Item {
    pub job: Job,
    pub meta: Meta,
    /// The entry before this one that is another name of the same inode.
    pub link: Option<usize>,
    /// The directory that holds it, if that is copied, too.
    pub parent: Option<usize>,
    /// Whether it could not be copied, or not whole.
    pub failed: Cell<bool>,
}

impl Item {
    fn new(job: Job, meta: Meta, parent: Option<usize>) -> Item {
        Item { job, meta, link: None, parent, failed: Cell::new(false) }
    }
}

/// The entries to be copied, parents before their children.
pub struct Plan {
    pub(super) items: Vec<Item>,
    /// Sources that could not even be looked at.
    pub(super) missed: u64,
}

impl Plan {
    /// Entries of all kinds.
    pub fn entries(&self) -> u64 {
        self.items.len() as u64
    }

    /// Files and their bytes; further names of a file are none.
    pub fn moved(&self) -> Moved {
        let own = |item: &&Item| item.meta.kind == InodeKind::File && item.link.is_none();
        let files = || self.items.iter().filter(own);
        Moved { files: files().count() as u64, bytes: files().map(|item| item.meta.size).sum() }
    }

    /// Finds the entries that are names of one inode.
    fn find_links(&mut self) {
        let mut first = HashMap::new();
        for (index, item) in self.items.iter_mut().enumerate() {
            let Meta { kind, links, volume, inode, .. } = item.meta;
            if kind != InodeKind::Directory && links > 1 {
                let first = *first.entry((volume, inode)).or_insert(index);
                item.link = (first != index).then_some(first);
            }
        }
    }
}

/// The properties that could not be kept, each with its copies.
pub type Lost = BTreeMap<String, BTreeSet<Vec<u8>>>;

pub(super) const OWNER: &str = "owner and group";
pub(super) const NODE: &str = "device node";
pub(super) const LINK: &str = "hard link";

/// The properties that could not be kept, for people; `None`: all were kept.
pub fn lost_line(lost: &Lost) -> Option<String> {
    let count = |(what, of): (&String, &BTreeSet<Vec<u8>>)| match of.len() {
        1 => format!("{what} of 1 entry"),
        count => format!("{what} of {count} entries"),
    };
    let parts: Vec<String> = lost.iter().map(count).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The properties of the source that are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Modes, owners, times, attributes of users and hard links; else modes as far as the umask lets
    /// them through.
    pub attributes: bool,
    pub umask: u16,
}

impl Keep {
    /// The attributes to set of an entry after it was made.
    fn dress(self, meta: &Meta) -> Dress {
        if self.attributes {
            let times = Some((meta.accessed, meta.modified));
            return Dress { mode: Some(meta.mode), owner: Some((meta.user, meta.group)), times };
        }
        // A new directory is made writable to be filled, so its mode comes last.
        let mode = (meta.kind == InodeKind::Directory).then_some(self.mode(meta));
        Dress { mode, owner: None, times: None }
    }

    /// The mode with which a file is made.
    fn mode(self, meta: &Meta) -> u16 {
        // Attributes are set before the mode that may forbid it.
        let more = if self.attributes && meta.kind == InodeKind::File { 0o200 } else { 0 };
        meta.mode & 0o777 & !self.umask | more
    }
}

/// A copy from one end to the other.
pub struct Copy<A, B> {
    pub from: A,
    pub to: B,
    pool: Pool,
    pub keep: Keep,
    /// Directories are copied with all that they hold; else they are an error.
    pub recursive: bool,
    /// Both ends are the same file system.
    pub same: bool,
    /// Entries of the source that are left out, with all that they hold.
    pub except: Vec<Vec<u8>>,
    /// A failure of one entry is told, and the rest is copied; else the first failure ends all.
    pub goes_on: bool,
    pub bar: ProgressBar,
    /// Looked at between two entries.
    pub stop: Stop,
    lost: RefCell<Lost>,
    chunks: Semaphore,
}

impl<A: End, B: End> Copy<A, B> {
    pub fn new(from: A, to: B, pool: &Pool, keep: Keep, recursive: bool) -> Copy<A, B> {
        Copy {
            from,
            to,
            pool: pool.clone(),
            keep,
            recursive,
            same: false,
            except: Vec::new(),
            goes_on: false,
            bar: ProgressBar::hidden(),
            stop: Stop::default(),
            lost: RefCell::default(),
            chunks: Semaphore::new(CHUNKS_AT_ONCE),
        }
    }

    /// Lists what is to be copied.
    pub async fn plan(&self, jobs: &[Job]) -> anyhow::Result<Plan> {
        let mut plan = Plan { items: Vec::new(), missed: 0 };
        for job in jobs {
            let listed = self.list(job, &mut plan, jobs.len() == 1).await;
            plan.missed += u64::from(!self.bear(jobs.len() == 1, listed)?);
        }
        if self.keep.attributes {
            plan.find_links();
        }
        Ok(plan)
    }

    /// Copies the entries of the plan, and returns the amount that was moved.
    pub async fn run(&self, plan: &Plan) -> anyhow::Result<Moved> {
        self.bar.set_length(plan.moved().bytes);
        let mut made = Vec::new();
        for item in plan.items.iter().filter(|item| item.meta.kind == InodeKind::Directory) {
            self.stop.check()?;
            let mut new = false;
            let make = async {
                new = self.make_directory(item).await?;
                Ok(())
            };
            let is_made = self.attempt(plan, item, make).await?;
            if is_made && (new || self.keep.attributes) {
                made.push(item);
            }
        }
        self.each(plan, async |item| match item.link {
            None => self.attempt(plan, item, self.one(item)).await.map(drop),
            Some(_) => Ok(()),
        })
        .await?;
        self.each(plan, async |item| match item.link {
            None => Ok(()),
            Some(first) => {
                self.attempt(plan, item, self.link(&plan.items[first], item)).await.map(drop)
            }
        })
        .await?;
        for item in made.into_iter().rev() {
            self.stop.check()?;
            self.attempt(plan, item, self.dress(item)).await?;
        }
        Ok(plan.moved())
    }

    /// The properties that could not be kept so far.
    pub fn lost(&self) -> Lost {
        self.lost.borrow().clone()
    }

    fn lose(&self, what: &str, of: &Item) {
        let mut lost = self.lost.borrow_mut();
        lost.entry(what.to_string()).or_default().insert(of.job.to.clone());
    }

    pub(super) fn has_lost(&self, what: &str, of: &Item) -> bool {
        self.lost.borrow().get(what).is_some_and(|all| all.contains(&of.job.to))
    }

    /// Lists a job's entry and all that it holds, parents first. `alone`: there is no other job, for
    /// which one goes on.
    async fn list(&self, job: &Job, plan: &mut Plan, alone: bool) -> anyhow::Result<()> {
        // Without -r a link stands for what it leads to, as with cp.
        let meta = self.from.look(&job.from, !self.recursive).await?;
        let missing = || format!("{}: No such file or directory", self.from.shown(&job.from));
        let meta = meta.with_context(missing)?;
        let begin = plan.items.len();
        let mut left = vec![Item::new(job.clone(), meta, None)];
        while let Some(item) = left.pop() {
            self.stop.check()?;
            if item.meta.kind == InodeKind::Directory {
                self.check_directory(&item.job)?;
                let listed = self.from.list(&item.job.from).await;
                let Listing { mut entries, failures } = match listed {
                    Ok(listing) => listing,
                    Err(error) => {
                        self.bear(alone && plan.items.len() == begin, Err(error))?;
                        // The copy has the directory without what it holds, as with cp.
                        item.failed.set(true);
                        Listing::default()
                    }
                };
                for error in failures {
                    self.bear(false, Err(error))?;
                    plan.missed += 1;
                }
                entries.sort_by(|a, b| b.0.cmp(&a.0));
                let parent = Some(plan.items.len());
                let below = entries.into_iter().map(|(name, meta)| {
                    let (from, to) = (join(&item.job.from, &name), join(&item.job.to, &name));
                    Item::new(Job { from, to }, meta, parent)
                });
                left.extend(below.filter(|item| !self.except.contains(&item.job.from)));
            }
            plan.items.push(item);
        }
        Ok(())
    }

    fn check_directory(&self, job: &Job) -> anyhow::Result<()> {
        let name = self.from.shown(&job.from);
        if !self.recursive {
            bail!("{name} is a directory: use -r to copy it with everything in it");
        }
        let inside = job.to.starts_with(&join(&job.from, b"")) || job.to == job.from;
        if self.same && inside {
            bail!("{name} cannot be copied into itself");
        }
        Ok(())
    }

    /// Makes a directory where there is none; whether it is new.
    async fn make_directory(&self, item: &Item) -> anyhow::Result<bool> {
        let to = &item.job.to;
        match self.to.look(to, true).await? {
            Some(meta) if meta.kind == InodeKind::Directory => Ok(false),
            Some(_) => bail!("{} exists and is not a directory", self.to.shown(to)),
            None => {
                self.to.make(to, Made::Directory, self.keep.mode(&item.meta) | 0o700).await?;
                Ok(true)
            }
        }
    }

    /// Does something with each entry, several at a time, until one fails.
    pub(super) async fn each(
        &self,
        plan: &Plan,
        act: impl AsyncFn(&Item) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let next = Cell::new(0);
        let failed = RefCell::new(None);
        join_all((0..FILES_AT_ONCE).map(|_| async {
            while failed.borrow().is_none() && !self.stop.is_asked() {
                let Some(item) = plan.items.get(next.get()) else { return };
                next.set(next.get() + 1);
                if let Err(error) = act(item).await {
                    failed.borrow_mut().get_or_insert(error);
                }
            }
        }))
        .await;
        self.stop.check()?;
        failed.into_inner().map_or(Ok(()), Err)
    }

    async fn one(&self, item: &Item) -> anyhow::Result<()> {
        let Item { job, meta, .. } = item;
        match meta.kind {
            InodeKind::Directory => return Ok(()),
            InodeKind::File => self.file(job, meta).await?,
            InodeKind::Symlink => {
                let target = self.from.read_link(&job.from).await?;
                self.make(job, Made::Link(&target), meta).await?;
            }
            kind => {
                if !self.make(job, Made::Special(kind, meta.device), meta).await? {
                    if !self.keep.attributes {
                        bail!("{}: only root can create device nodes", self.to.shown(&job.to));
                    }
                    self.lose(NODE, item);
                    return Ok(());
                }
            }
        }
        self.dress(item).await
    }

    /// Sets what is kept of an entry that was made.
    async fn dress(&self, item: &Item) -> anyhow::Result<()> {
        let Item { job, meta, .. } = item;
        if self.keep.attributes {
            let extended = self.from.extended(&job.from).await?;
            for name in &extended.others {
                self.lose(&format!("the attribute {}", name.escape_ascii()), item);
            }
            for (name, value) in &extended.users {
                if !self.to.set_extended(&job.to, name, value).await? {
                    self.lose(&format!("the attribute {}", name.escape_ascii()), item);
                }
            }
        }
        let dress = self.keep.dress(meta);
        if !dress.is_empty() && !self.to.dress(&job.to, meta.kind, dress).await? {
            self.lose(OWNER, item);
        }
        Ok(())
    }

    /// Makes a further name of an inode that was copied.
    async fn link(&self, first: &Item, item: &Item) -> anyhow::Result<()> {
        if self.has_lost(NODE, first) {
            self.lose(NODE, item);
            return Ok(());
        }
        if first.failed.get() {
            // Its other names may be readable.
            self.one(item).await?;
            self.lose(LINK, item);
            return Ok(());
        }
        let (original, path) = (&first.job.to, &item.job.to);
        let there = self.to.look(path, false).await?;
        if there.is_none() && self.to.link(original, path).await? {
            return Ok(());
        }
        let original = self.to.look(original, false).await?.map(|meta| meta.inode);
        if there.is_some_and(|meta| Some(meta.inode) == original) {
            return Ok(());
        }
        self.lose(LINK, item);
        self.one(item).await
    }

    /// Makes what has no content.
    async fn make(&self, job: &Job, made: Made<'_>, meta: &Meta) -> anyhow::Result<bool> {
        if self.to.look(&job.to, false).await?.is_some() {
            bail!("{} already exists: remove it first", self.to.shown(&job.to));
        }
        self.to.make(&job.to, made, self.keep.mode(meta)).await
    }

    async fn file(&self, job: &Job, meta: &Meta) -> anyhow::Result<()> {
        if self.same && self.to.look(&job.to, true).await?.is_some_and(|to| to.inode == meta.inode)
        {
            bail!("{} is the same file as its source", self.to.shown(&job.to));
        }
        let from = self.from.open(&job.from).await?;
        let to = self.to.create(&job.to, self.keep.mode(meta)).await?;
        let chunks = self.chunks_of(&from, meta).await?;
        let next = Cell::new(0);
        let workers = CHUNKS_OF_A_FILE.min(chunks.len());
        let done = join_all((0..workers).map(|_| async {
            while let Some(chunk) = chunks.get(next.get()) {
                next.set(next.get() + 1);
                if self.chunk(&from, &to, chunk.clone()).await? < chunk.end - chunk.start {
                    bail!("{} became shorter while it was copied", self.from.shown(&job.from));
                }
            }
            Ok(())
        }));
        done.await.into_iter().collect::<anyhow::Result<()>>()?;
        // A file may have grown since it was listed, and some do not tell their size at all.
        let mut end = meta.size;
        loop {
            let copied = self.chunk(&from, &to, end..end + CHUNK_BYTES).await?;
            end += copied;
            if copied < CHUNK_BYTES {
                break;
            }
        }
        self.to.finish(&to, end).await
    }

    /// Memory; waits while all of it is lent.
    pub(super) async fn buffer(&self, len: usize) -> PoolBuffer {
        loop {
            match self.pool.take(len) {
                Some(buffer) => return buffer,
                // Transfers that are under way give theirs back.
                None => yield_now().await,
            }
        }
    }

    /// The pieces of a file in which bytes are.
    async fn chunks_of(&self, file: &A::File, meta: &Meta) -> anyhow::Result<Vec<Range<u64>>> {
        let mut chunks = Vec::new();
        let mut add = |range: Range<u64>| {
            let mut begin = range.start;
            while begin < range.end {
                let end = range.end.min((begin / CHUNK_BYTES + 1) * CHUNK_BYTES);
                chunks.push(begin..end);
                begin = end;
            }
        };
        if !meta.sparse {
            add(0..meta.size);
            return Ok(chunks);
        }
        let mut at = 0;
        while at < meta.size {
            let Some(data) = self.from.data(file, at).await? else { break };
            at = data.end.min(meta.size);
            add(data.start..at);
        }
        Ok(chunks)
    }

    /// Copies a range, and returns the number of its bytes that were there.
    async fn chunk(&self, from: &A::File, to: &B::File, range: Range<u64>) -> anyhow::Result<u64> {
        let _permit = self.chunks.acquire().await;
        let buffer = self.buffer((range.end - range.start) as usize).await;
        let (buffer, bytes) = self.from.read(from, range.start, buffer).await?;
        if bytes > 0 {
            self.to.write(to, range.start, buffer, bytes).await?;
            self.bar.inc(bytes as u64);
        }
        Ok(bytes as u64)
    }
}
