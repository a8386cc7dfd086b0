//! Operations on names, done alike to a tree of the local file system and to one that two mounts show.
//!
//! Each side has the same descriptors open: of files, of directories (as working directories), and of paths
//! only. The answer of an operation is a text that has to be the same on both sides. Inode numbers are not
//! compared; the names that lead to one inode are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::operation::Random;

/// Descriptors that are held open at a time.
pub const HELD: usize = 6;

/// The start of a path: the root of the tree, or a descriptor that is held.
pub type Base = Option<usize>;

/// A path and where it begins.
#[derive(Debug, Clone)]
pub struct At(pub Base, pub String);

/// One operation.
#[derive(Debug, Clone)]
pub enum Operation {
    MakeDirectory(At),
    /// Creates, or opens what is there, and writes; exclusively or not.
    Create(At, bool, u8),
    Fifo(At),
    Symlink(At, String),
    Link(At, At),
    Unlink(At),
    RemoveDirectory(At),
    Rename(At, At, RenameFlags),
    Status(At, bool),
    ReadLink(At),
    Read(At),
    List(At),
    Mode(At, u32),
    Access(At),
    /// Opens and keeps the descriptor in this place, instead of what was there.
    Hold(usize, At, Kept),
    HeldStatus(usize),
    HeldList(usize),
    HeldRead(usize),
    HeldWrite(usize, u8),
    /// Gives the file of a descriptor a name.
    HeldLink(usize, At),
}

/// The kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    File,
    Directory,
    Path,
    /// A file without a name.
    Temporary,
}

/// One side: a tree, and what is open in it.
pub struct Side {
    roots: Vec<OwnedFd>,
    held: Vec<Option<(OwnedFd, usize)>>,
}

type Outcome = rustix::io::Result<String>;

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

impl Side {
    /// A tree that these directories show.
    pub fn new(roots: &[&Path]) -> Side {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open =
            |path: &&Path| rustix::fs::open(*path, flags, Mode::empty()).expect("it is there");
        Side { roots: roots.iter().map(open).collect(), held: (0..HELD).map(|_| None).collect() }
    }

    /// The root through which a descriptor was opened.
    pub fn opened_through(&self, held: usize) -> Option<usize> {
        self.held[held].as_ref().map(|(_, root)| *root)
    }

    fn base(&self, base: Base, root: usize) -> BorrowedFd<'_> {
        match base.and_then(|held| self.held[held].as_ref()) {
            Some((descriptor, _)) => descriptor.as_fd(),
            None => self.roots[root.min(self.roots.len() - 1)].as_fd(),
        }
    }

    fn kept(&self, held: usize) -> rustix::io::Result<BorrowedFd<'_>> {
        self.held[held].as_ref().map(|(descriptor, _)| descriptor.as_fd()).ok_or(Errno::BADF)
    }

    /// Does an operation through one of the roots; returns its result as a text.
    pub fn perform(&mut self, operation: &Operation, root: usize) -> String {
        match self.try_perform(operation, root) {
            Ok(text) => text,
            Err(errno) => wrong(errno),
        }
    }

    fn try_perform(&mut self, operation: &Operation, root: usize) -> Outcome {
        use Operation as O;
        let of = |at: &At| (self.base(at.0, root), at.1.clone());
        let done = |result: rustix::io::Result<()>| result.map(|()| "done".into());
        match operation {
            O::MakeDirectory(at) => {
                let (base, path) = of(at);
                done(rustix::fs::mkdirat(base, path, mode(0o755)))
            }
            O::Create(at, exclusive, byte) => {
                let (base, path) = of(at);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK;
                let flags = if *exclusive { flags | OFlags::EXCL } else { flags };
                let file = rustix::fs::openat(base, path, flags | OFlags::CLOEXEC, mode(0o644))?;
                rustix::io::write(&file, &[*byte]).map(|_| "written".into())
            }
            O::Fifo(at) => {
                let (base, path) = of(at);
                done(rustix::fs::mknodat(base, path, FileType::Fifo, mode(0o600), 0))
            }
            O::Symlink(at, target) => {
                let (base, path) = of(at);
                done(rustix::fs::symlinkat(target, base, path))
            }
            O::Link(from, to) => {
                let ((one, from), (two, to)) = (of(from), of(to));
                done(rustix::fs::linkat(one, from, two, to, AtFlags::empty()))
            }
            O::Unlink(at) => {
                let (base, path) = of(at);
                done(rustix::fs::unlinkat(base, path, AtFlags::empty()))
            }
            O::RemoveDirectory(at) => {
                let (base, path) = of(at);
                done(rustix::fs::unlinkat(base, path, AtFlags::REMOVEDIR))
            }
            O::Rename(from, to, flags) => {
                let ((one, from), (two, to)) = (of(from), of(to));
                done(rustix::fs::renameat_with(one, from, two, to, *flags))
            }
            _ => self.look(operation, root),
        }
    }

    /// Operations that look at what a path leads to, or change its mode.
    fn look(&mut self, operation: &Operation, root: usize) -> Outcome {
        use Operation as O;
        let of = |at: &At| (self.base(at.0, root), at.1.clone());
        let done = |result: rustix::io::Result<()>| result.map(|()| "done".into());
        match operation {
            O::Status(at, follow) => {
                let (base, path) = of(at);
                let flags = if *follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                rustix::fs::statat(base, path, flags).map(|status| describe(&status))
            }
            O::ReadLink(at) => {
                let (base, path) = of(at);
                let target = rustix::fs::readlinkat(base, path, Vec::new())?;
                Ok(target.to_string_lossy().into_owned())
            }
            O::Mode(at, bits) => {
                let (base, path) = of(at);
                done(rustix::fs::chmodat(base, path, mode(*bits), AtFlags::empty()))
            }
            O::Access(at) => {
                let (base, path) = of(at);
                done(rustix::fs::accessat(base, path, rustix::fs::Access::EXISTS, AtFlags::empty()))
            }
            O::Read(at) => {
                let (base, path) = of(at);
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                read(
                    rustix::fs::openat(base, path, flags | OFlags::CLOEXEC, Mode::empty())?.as_fd(),
                )
            }
            O::List(at) => {
                let (base, path) = of(at);
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                list(
                    rustix::fs::openat(base, path, flags | OFlags::CLOEXEC, Mode::empty())?.as_fd(),
                )
            }
            _ => self.perform_held(operation, root),
        }
    }

    fn perform_held(&mut self, operation: &Operation, root: usize) -> Outcome {
        use Operation as O;
        match operation {
            O::Hold(place, at, kept) => {
                let flags = match kept {
                    Kept::File => OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW,
                    Kept::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
                    Kept::Path => OFlags::PATH | OFlags::NOFOLLOW,
                    Kept::Temporary => OFlags::RDWR | OFlags::TMPFILE,
                };
                let (base, path) = (self.base(at.0, root), &at.1);
                let opened = rustix::fs::openat(base, path, flags | OFlags::CLOEXEC, mode(0o640))?;
                if *kept == Kept::File && is(&rustix::fs::fstat(&opened)?, FileType::Fifo) {
                    // A fifo connects those who open it through one mount.
                    return Ok("a fifo".into());
                }
                self.held[*place] = Some((opened, root));
                Ok("held".into())
            }
            O::HeldStatus(place) => {
                let status = rustix::fs::fstat(self.kept(*place)?)?;
                if status.st_nlink == 0 && !is(&status, FileType::RegularFile) {
                    // Its other properties may be those of the time when this mount last heard of it.
                    return Ok(format!("{:?} removed", kind(&status)));
                }
                Ok(describe(&status))
            }
            O::HeldList(place) => {
                let held = self.kept(*place)?;
                list(held)
            }
            O::HeldRead(place) => read(self.kept(*place)?),
            O::HeldWrite(place, byte) => {
                rustix::io::pwrite(self.kept(*place)?, &[*byte], 0).map(|_| "written".into())
            }
            O::HeldLink(place, at) => {
                let number = std::os::fd::AsRawFd::as_raw_fd(&self.kept(*place)?);
                let from = format!("/proc/self/fd/{number}");
                let to = self.base(at.0, root);
                rustix::fs::linkat(CWD, from, to, &at.1, AtFlags::SYMLINK_FOLLOW)?;
                Ok("linked".into())
            }
            _ => unreachable!("the others need no descriptor"),
        }
    }

    /// The whole tree through one of the roots.
    pub fn tree(&self, root: usize) -> String {
        let mut tree = String::new();
        let mut inodes = BTreeMap::new();
        self.walk(self.roots[root].as_fd(), "", &mut inodes, &mut tree);
        tree
    }

    fn walk(
        &self,
        directory: BorrowedFd<'_>,
        path: &str,
        inodes: &mut BTreeMap<u64, usize>,
        tree: &mut String,
    ) {
        for name in names(directory).unwrap_or_else(|errno| vec![wrong(errno)]) {
            let path = format!("{path}/{name}");
            let status = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) => status,
                Err(errno) => {
                    writeln!(tree, "{path} {}", wrong(errno)).expect("memory");
                    continue;
                }
            };
            let next = inodes.len();
            let number = *inodes.entry(status.st_ino).or_insert(next);
            let content = match kind(&status) {
                FileType::Symlink => rustix::fs::readlinkat(directory, &name, Vec::new())
                    .map(|target| target.to_string_lossy().into_owned()),
                FileType::RegularFile => {
                    rustix::fs::openat(directory, &name, OFlags::RDONLY, Mode::empty())
                        .and_then(|file| read(file.as_fd()))
                }
                _ => Ok(String::new()),
            };
            writeln!(tree, "{path} inode {number} {} {content:?}", describe(&status))
                .expect("memory");
            if is(&status, FileType::Directory) {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                match rustix::fs::openat(directory, &name, flags, Mode::empty()) {
                    Ok(opened) => self.walk(opened.as_fd(), &path, inodes, tree),
                    Err(errno) => writeln!(tree, "{path} {}", wrong(errno)).expect("memory"),
                }
            }
        }
    }
}

fn wrong(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno.raw_os_error()).kind().to_string()
        + &format!(" ({})", errno.raw_os_error())
}

fn kind(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

fn is(status: &Stat, of: FileType) -> bool {
    kind(status) == of
}

/// The properties that have to be the same wherever the inode is.
fn describe(status: &Stat) -> String {
    let size = if is(status, FileType::Directory) { 0 } else { status.st_size };
    format!("{:o} links {} size {size}", status.st_mode, status.st_nlink)
}

fn read(file: BorrowedFd<'_>) -> Outcome {
    let mut bytes = [0; 64];
    let len = rustix::io::pread(file, &mut bytes, 0)?;
    Ok(format!("{:?}", &bytes[..len]))
}

fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<String>> {
    // A descriptor of its own reads from the beginning; a listing that was read once is over.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let again = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(again)? {
        let entry = entry?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok(names)
}

/// Lists from the beginning through this very descriptor.
fn list(directory: BorrowedFd<'_>) -> Outcome {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = Vec::new();
    let mut raw = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        entries.push(format!("{}:{:?}", entry.file_name().to_string_lossy(), entry.file_type()));
    }
    entries.sort();
    Ok(entries.join(" "))
}

/// Chooses operations: few names, so that they meet, in few directories.
pub struct Chooser {
    random: Random,
    count: u8,
}

impl Chooser {
    pub fn new(seed: u64) -> Chooser {
        Chooser { random: Random::new(seed), count: 0 }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn path(&mut self) -> String {
        let depth = [1, 1, 1, 2, 2, 2, 2, 3][self.below(8) as usize];
        let name = |chooser: &mut Self| ["a", "b", "c"][chooser.below(3) as usize];
        let mut path: Vec<&str> = (0..depth).map(|_| name(self)).collect();
        if self.below(12) == 0 {
            // Down and up again: the way up is from where one has just come.
            path.insert(path.len() - 1, "..");
            path.insert(path.len() - 2, name(self));
        }
        let slash = if self.below(24) == 0 { "/" } else { "" };
        path.join("/") + slash
    }

    fn at(&mut self) -> At {
        let base = (self.below(4) == 0).then(|| self.below(HELD as u64) as usize);
        At(base, self.path())
    }

    /// Another place with the same base.
    fn beside(&mut self, at: &At) -> At {
        At(at.0, self.path())
    }

    /// The next operation.
    pub fn next(&mut self) -> Operation {
        use Operation as O;
        self.count = self.count.wrapping_add(1);
        let (at, byte, held) = (self.at(), self.count, self.below(HELD as u64) as usize);
        match self.below(46) {
            0..=5 => O::MakeDirectory(at),
            6..=7 => O::Create(at, false, byte),
            8 => O::Create(at, true, byte),
            9 => O::Fifo(at),
            10..=11 => {
                let target = ["a", "b", "c", "a/b", "b/a", "c/c"][self.below(6) as usize];
                O::Symlink(at, target.into())
            }
            12..=13 => O::Link(at.clone(), self.beside(&at)),
            14..=15 => O::Unlink(at),
            16 => O::RemoveDirectory(at),
            17..=22 => O::Rename(at.clone(), self.beside(&at), RenameFlags::empty()),
            23 => O::Rename(at.clone(), self.beside(&at), RenameFlags::NOREPLACE),
            24..=25 => O::Rename(at.clone(), self.beside(&at), RenameFlags::EXCHANGE),
            26..=27 => O::Status(at, self.below(2) == 0),
            28 => O::ReadLink(at),
            29 => O::Read(at),
            30..=31 => O::List(at),
            32 => O::Mode(at, 0o700 | self.below(0o100) as u32),
            33 => O::Access(at),
            34 => O::Hold(held, at, Kept::File),
            35..=37 => O::Hold(held, at, Kept::Directory),
            38 => O::Hold(held, at, Kept::Path),
            39 => O::Hold(held, at, Kept::Temporary),
            40..=41 => O::HeldStatus(held),
            42 => O::HeldList(held),
            43 => O::HeldRead(held),
            44 => O::HeldWrite(held, byte),
            _ => O::HeldLink(held, At(None, at.1)),
        }
    }
}

impl Operation {
    /// The descriptor at which a path of it begins, or which it is about.
    pub fn held(&self) -> Base {
        use Operation as O;
        match self {
            O::HeldStatus(held) | O::HeldList(held) | O::HeldRead(held) | O::HeldWrite(held, _) => {
                Some(*held)
            }
            O::HeldLink(held, _) => Some(*held),
            O::MakeDirectory(at)
            | O::Create(at, ..)
            | O::Fifo(at)
            | O::Symlink(at, _)
            | O::Link(at, _)
            | O::Unlink(at)
            | O::RemoveDirectory(at)
            | O::Rename(at, ..)
            | O::Status(at, _)
            | O::ReadLink(at)
            | O::Read(at)
            | O::List(at)
            | O::Mode(at, _)
            | O::Access(at)
            | O::Hold(_, at, _) => at.0,
        }
    }
}
