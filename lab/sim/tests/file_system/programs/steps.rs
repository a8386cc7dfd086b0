//! Steps of random programs: the operations and their outcomes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_client::{
    Actor, AttributeChange, Caller, Client, Errno, File, OpenOptions, RenameMode,
};

use super::model::Name;
use super::{BOTH, list_in, read, write};

/// One step of a program.
#[derive(Debug, Clone)]
pub enum Step {
    Create(Name),
    Write(usize, u64, Vec<u8>),
    Append(usize, Vec<u8>),
    Read(usize, u64, usize),
    Truncate(usize, u64),
    /// Zeros, with the room given back; the size stays where the last is true.
    Punch(usize, u64, usize, bool),
    Mode(usize, u16),
    /// By the inode, or by a name of it.
    Stat(usize, Option<Name>),
    Rename(Name, Name),
    Link(usize, Name),
    Unlink(Name),
    List(usize),
    Sync(usize),
    Close(usize),
}

impl Step {
    /// The step in few words.
    pub fn brief(&self) -> String {
        let mut text = format!("{self:?}");
        text.truncate(100);
        text
    }

    /// The file whose bytes it reads or changes.
    pub fn touches(&self) -> Option<usize> {
        match self {
            Step::Write(id, ..) | Step::Append(id, _) | Step::Read(id, ..) => Some(*id),
            Step::Truncate(id, _) | Step::Punch(id, ..) => Some(*id),
            _ => None,
        }
    }
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Inode(u64),
    At(u64),
    Bytes(Vec<u8>),
    Stat { size: u64, links: u32, mode: u16 },
    Names(Vec<Vec<u8>>),
    Failed(Errno),
}

/// The purpose of an open, which limits the use of the file. Few programs open a file for more than they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Reading,
    Writing,
    Appending,
}

/// Open files by their place in the model.
pub type Handles = Rc<RefCell<BTreeMap<(usize, Purpose), Rc<File>>>>;

/// The context of a step.
#[derive(Clone)]
pub struct Place {
    pub client: Client,
    /// The open files of this client.
    pub handles: Handles,
    pub directories: [u64; 2],
    /// Inodes of the files by their place in the model.
    pub inodes: Vec<u64>,
}

impl Place {
    async fn file(&self, id: usize, purpose: Purpose) -> Result<Rc<File>, Errno> {
        if let Some(file) = self.handles.borrow().get(&(id, purpose)) {
            return Ok(file.clone());
        }
        let options = match purpose {
            Purpose::Reading => OpenOptions::READ,
            Purpose::Writing => OpenOptions::WRITE,
            Purpose::Appending => OpenOptions { append: true, ..OpenOptions::WRITE },
        };
        let file = Rc::new(self.client.open(&Caller::root(), self.inodes[id], options).await?);
        self.handles.borrow_mut().insert((id, purpose), file.clone());
        Ok(file)
    }

    /// Does a step.
    pub async fn run(self, step: Step) -> Outcome {
        self.try_run(step).await.unwrap_or_else(Outcome::Failed)
    }

    async fn try_run(&self, step: Step) -> Result<Outcome, Errno> {
        let (client, root) = (&self.client, Caller::root());
        let at = |name: &Name| self.directories[name.0];
        match step {
            Step::Create(name) => {
                let (attributes, file, new) =
                    client.create(&root, at(&name), &name.1, 0o644, true, BOTH).await?;
                assert!(new, "an exclusive create makes a new file");
                let file = Rc::new(file);
                for purpose in [Purpose::Reading, Purpose::Writing] {
                    self.handles.borrow_mut().insert((self.inodes.len(), purpose), file.clone());
                }
                return Ok(Outcome::Inode(attributes.inode));
            }
            Step::Write(id, offset, bytes) => {
                let file = self.file(id, Purpose::Writing).await?;
                return Ok(Outcome::At(write(client, &file, offset, &bytes).await?));
            }
            Step::Append(id, bytes) => {
                let file = self.file(id, Purpose::Appending).await?;
                return Ok(Outcome::At(write(client, &file, 0, &bytes).await?));
            }
            Step::Read(id, offset, len) => {
                let file = self.file(id, Purpose::Reading).await?;
                return Ok(Outcome::Bytes(read(client, &file, offset, len).await?));
            }
            Step::Truncate(id, size) => {
                let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
                client.set_attributes(&root, self.inodes[id], change).await?;
            }
            Step::Punch(id, offset, len, keep) => {
                let file = self.file(id, Purpose::Writing).await?;
                client
                    .allocate(&file, offset, len as u64, (keep, true), || true, &Actor::OWN)
                    .await?;
            }
            Step::Mode(id, mode) => {
                let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
                client.set_attributes(&root, self.inodes[id], change).await?;
            }
            Step::Stat(id, name) => {
                let found = match name {
                    Some(name) => client.lookup(&root, at(&name), &name.1).await?,
                    None => client.attributes(self.inodes[id]).await?,
                };
                assert_eq!(found.inode, self.inodes[id], "a name leads to its file");
                let (size, links, mode) = (found.size, found.link_count, found.mode);
                return Ok(Outcome::Stat { size, links, mode });
            }
            Step::Rename(from, to) => {
                let mode = RenameMode::Replace;
                client.rename(&root, at(&from), &from.1, at(&to), &to.1, mode).await?;
            }
            Step::Link(id, name) => {
                client.link(&root, self.inodes[id], at(&name), &name.1).await?;
            }
            Step::Unlink(name) => client.unlink(&root, at(&name), &name.1).await?,
            Step::List(directory) => {
                return Ok(Outcome::Names(list_in(client, self.directories[directory]).await));
            }
            Step::Sync(id) => {
                let file = self.file(id, Purpose::Writing).await?;
                client.sync(&file).await?;
            }
            Step::Close(id) => {
                self.handles.borrow_mut().retain(|key, _| key.0 != id);
            }
        }
        Ok(Outcome::Done)
    }
}
