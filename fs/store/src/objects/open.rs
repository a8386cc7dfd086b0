//! Opening a store: lock, description, replay, a fresh log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

use super::board::{Board, Stand};
use super::layout::{DESCRIPTION_BYTES, DIRECTORIES, Description, Layout};
use super::log::{Beginning, Log};
use super::marks::Marks;
use super::replay::{Recovery, Replay, replay};
use super::roll::{self, Roll};
use super::scan::{Reading, Scan};
use super::write::Scratch;
use super::{Config, DirectoryState, Inner, ObjectError, ObjectStore, State};

/// The file in the log's directory by which somebody gives up records that are lost.
pub(super) const GIVE_UP: &str = "give-up";
/// Slots on the board for each object that may be in memory, and for others.
const SLOTS_EACH: usize = 4;
const SLOTS_MORE: usize = 64;

/// The result of opening, for the executor's thread.
struct Opened {
    description: Description,
    log: Log,
    marks: Marks,
    roll: Roll,
    recovery: Recovery,
    lock: Arc<dyn File>,
}

/// Opens on the thread that runs blocking work.
struct Opener {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    config: Config,
    /// The identity of a store that has to be made.
    new_store: u128,
}

impl ObjectStore {
    /// Opens the store in `directory`, which is made where it is missing or empty, and replays what
    /// a crash has left in the log. One process at a time: the directory is locked.
    pub async fn open(
        directory: &Path,
        config: Config,
        world: &World,
    ) -> Result<(ObjectStore, Recovery), ObjectError> {
        if let Err(reason) = config.check() {
            return Err(ObjectError::Format { directory: directory.display().to_string(), reason });
        }
        let boot = world.random_u64().max(1);
        // If the caller knows no era, each start begins a new one.
        let era = if config.era == 0 { boot } else { config.era };
        let opener = Opener {
            disk: world.disk(),
            directory: directory.to_path_buf(),
            config: config.clone(),
            new_store: world.random_u128(),
        };
        let opened = world.offload(move || opener.open()).await.ok_or(ObjectError::Closed)??;
        let Opened { description, log, marks, roll, recovery, lock } = opened;
        let state = State {
            log,
            log_syncing: false,
            marks,
            marks_changed: false,
            roll,
            objects: BTreeMap::new(),
            clock: VecDeque::new(),
            directories: vec![DirectoryState::Unknown; DIRECTORIES as usize],
            removing: BTreeSet::new(),
            removed_from: BTreeSet::new(),
            image_floor: 0,
            overlay_blocks: 0,
            checkpointing: false,
            checkpoints_ended: 0,
            checkpoint_error: None,
            failed: None,
            corrupt_blocks: recovery.damaged_blocks,
            checkpoints: 0,
            scratch: Scratch::default(),
        };
        let inner = Inner {
            world: world.clone(),
            disk: world.disk(),
            layout: Layout::new(directory, description.object_bytes, description.store),
            config,
            store: description.store,
            boot,
            era,
            state: state.into(),
            settled: Notify::new(),
            _lock: lock,
        };
        Ok((ObjectStore { inner: Rc::new(inner) }, recovery))
    }
}

impl Opener {
    fn failed(&self, doing: &'static str) -> impl Fn(io::Error) -> ObjectError {
        let directory = self.directory.display().to_string();
        move |source| ObjectError::Store { directory: directory.clone(), doing, source }
    }

    fn format(&self, reason: impl Into<String>) -> ObjectError {
        let directory = self.directory.display().to_string();
        ObjectError::Format { directory, reason: reason.into() }
    }

    fn open(self) -> Result<Opened, ObjectError> {
        let disk = &self.disk;
        disk.create_directory(&self.directory).map_err(self.failed("make the directory"))?;
        // It may be on a disk of its own.
        disk.hold(&self.directory).map_err(self.failed("use the directory"))?;
        let lock = disk
            .open(&self.directory.join("lock"), Open::Create)
            .map_err(self.failed("open the lock file"))?;
        lock.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => self.format("another process has it open"),
            _ => self.failed("lock the directory")(error),
        })?;
        let unmade = Layout::new(&self.directory, self.config.object_bytes, 0);
        let description = match self.read_description(&unmade)? {
            Some(description) => {
                // An earlier start may have been killed between the making of a name here and the sync
                // of the directory. Without the description's the next start would make a new store.
                let synced = disk.sync_directory(&self.directory);
                synced.map_err(self.failed("make its names durable"))?;
                description
            }
            None => self.make(&unmade).map_err(self.failed("make a new store"))?,
        };
        if description.segment_bytes < self.config.segment_bytes
            || description.object_bytes > self.config.object_bytes
        {
            // The log of the store must be able to take the amount that the configuration promises.
            let config = Config {
                segment_bytes: description.segment_bytes,
                object_bytes: description.object_bytes,
                ..self.config.clone()
            };
            config.check().map_err(|reason| self.format(reason))?;
        }
        let layout = Layout::new(&self.directory, description.object_bytes, description.store);
        self.check_folders(&layout)?;
        let (scan, mut marks, notes) = self.read_log(&layout, description)?;
        let page_cache = scan.process_only || self.config.era == 0;
        let (mut roll, unwatched) = self.open_roll(&layout)?;
        let task = Replay { disk, layout: &layout, scan: &scan, roll: &mut roll, page_cache };
        let replayed = replay(task, &mut marks);
        let mut recovery = replayed.map_err(self.failed("replay the intent log"))?;
        recovery.damage.extend(notes.into_iter().chain(unwatched));
        let log = self.begin_log(&layout, scan, &marks);
        let log = log.map_err(self.failed("begin a new intent log"))?;
        Ok(Opened { description, log, marks, roll, recovery, lock })
    }

    /// The folders that were made before the description are there.
    fn check_folders(&self, layout: &Layout) -> Result<(), ObjectError> {
        let is_gone = |path: &Path| {
            let kind = self.disk.kind(path).map_err(self.failed("look for its folders"))?;
            Ok::<bool, ObjectError>(kind.is_none())
        };
        let (log, objects) = (layout.log(), layout.objects());
        if is_gone(&log)? {
            return Err(self.format(format!(
                "its intent log is gone (there is no folder {}): restore it, or, to give up what it held, \
                 make the folder with the empty file {} in it, and start again",
                log.display(),
                log.join(GIVE_UP).display()
            )));
        }
        if is_gone(&objects)? {
            return Err(self.format(format!(
                "the folder {} is gone: mount the right disk, or restore it; to give up the \
                 server's data, move its directory away and use --replace (every stripe on it is \
                 then lost)",
                objects.display()
            )));
        }
        Ok(())
    }

    /// The log and the marks, after each was judged by the other.
    fn read_log(
        &self,
        layout: &Layout,
        description: Description,
    ) -> Result<(Scan, Marks, Option<String>), ObjectError> {
        let (disk, directory) = (&*self.disk, layout.log());
        let reading_log = self.failed("read the intent log");
        let stand = Stand::read(disk, layout.root(), description.store).map_err(&reading_log)?;
        let give_up = disk.kind(&directory.join(GIVE_UP)).map_err(&reading_log)?.is_some();
        let load = |least| {
            Marks::load(disk, layout.root(), description.store, least)
                .map_err(self.failed("read marks"))
        };
        // As far as they can be read: their statements on the log are needed to judge it.
        let (durable, clean) = match load(0)? {
            Ok((marks, _)) => (marks.durable, marks.clean),
            Err(_) => (0, 0),
        };
        let reading = Reading {
            segment_bytes: description.segment_bytes,
            salt: layout.salt(),
            era: self.config.era,
            durable,
            clean,
            give_up,
        };
        let scan = Scan::read(disk, &directory, reading, stand.as_ref())
            .map_err(&reading_log)?
            .map_err(|reason| self.format(reason))?;
        let (marks, note) = load(scan.marks)?.map_err(|reason| self.format(reason))?;
        let untouched = scan.found == 0 && scan.damage.is_empty() && clean == 0;
        if untouched && !give_up && self.has_objects(layout)? {
            return Err(self.format(format!(
                "its intent log is gone ({} has no segment of this store): restore it, or, to give up \
                 what it held, make the empty file {} and start again",
                directory.display(),
                directory.join(GIVE_UP).display()
            )));
        }
        Ok((scan, marks, note))
    }

    /// The roll; with it a line where none could be made, or one was made for objects that were there
    /// before.
    fn open_roll(&self, layout: &Layout) -> Result<(Roll, Option<String>), ObjectError> {
        let root = layout.root();
        let (roll, is_new) = Roll::open(&*self.disk, root, layout.salt())
            .map_err(self.failed("open the roll of its objects"))?;
        let state = match (roll.is_kept(), is_new && self.has_objects(layout)?) {
            (false, _) => {
                "cannot be made, since the device is full: until a start with room for it"
            }
            (true, true) => "was not there and is made anew: until an object is next used",
            (true, false) => return Ok((roll, None)),
        };
        let path = root.join(roll::NAME);
        let path = path.display();
        let told = format!(
            "{path} {state}, the server does not notice if an object's file is missing or an older \
             copy"
        );
        Ok((roll, Some(told)))
    }

    fn has_objects(&self, layout: &Layout) -> Result<bool, ObjectError> {
        let listed = self.disk.list(&layout.objects());
        Ok(!listed.map_err(self.failed("list the objects"))?.is_empty())
    }

    fn begin_log(&self, layout: &Layout, scan: Scan, marks: &Marks) -> io::Result<Log> {
        let disk = &self.disk;
        let slots = SLOTS_EACH * self.config.objects_cached + SLOTS_MORE;
        let board = Board::open(&**disk, layout.root(), layout.store(), slots as u32)?;
        let (era, salt) = (self.config.era, layout.salt());
        let beginning = Beginning { era, marks: marks.number, salt };
        let log = Log::begin(disk.clone(), layout.log(), scan, board, beginning)?;
        match disk.remove_file(&layout.log().join(GIVE_UP)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(log),
        }
    }

    fn read_description(&self, layout: &Layout) -> Result<Option<Description>, ObjectError> {
        let path = layout.description();
        let present = self.disk.kind(&path).map_err(self.failed("look for its description"))?;
        if present.is_none() {
            // The description is the last thing that is made: without it there was never a store.
            let used = self.disk.list(&layout.objects()).map(|names| !names.is_empty());
            if used.unwrap_or(false) {
                return Err(self.format("it holds objects but no description; restore `store`"));
            }
            return Ok(None);
        }
        let failed = self.failed("read its description");
        let file = self.disk.open(&path, Open::Read).map_err(&failed)?;
        let mut bytes = [0; DESCRIPTION_BYTES + 1];
        let read = file.read_at(0, &mut bytes).map_err(&failed)?;
        match Description::decode(&bytes[..read]) {
            Ok(description) => Ok(Some(description)),
            Err(reason) => Err(self.format(reason)),
        }
    }

    /// Makes an empty store: the description gets its name when all else is durable.
    fn make(&self, layout: &Layout) -> io::Result<Description> {
        let description = Description {
            store: self.new_store,
            object_bytes: self.config.object_bytes,
            segment_bytes: self.config.segment_bytes,
        };
        self.disk.create_directory(&layout.log())?;
        self.disk.create_directory(&layout.objects())?;
        self.disk.sync_directory(&self.directory)?;
        // Later they are found where the device has no place for one more file.
        Marks::default().save(&self.disk, &self.directory, self.new_store)?;
        let new = self.directory.join("store.new");
        let file = self.disk.open(&new, Open::Create)?;
        file.set_len(0)?;
        file.write_at(0, &description.encode())?;
        file.sync_data()?;
        // The directory and its parents may be as new as the store, also from an earlier try.
        for parent in self.directory.ancestors().skip(1).filter(|path| *path != Path::new("")) {
            match self.disk.sync_directory(parent) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                result => result?,
            }
        }
        self.disk.rename(&new, &layout.description())?;
        self.disk.sync_directory(&self.directory)?;
        Ok(description)
    }
}
