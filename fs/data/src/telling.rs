//! Objects of the first format learn their group, once the file system has left that format (docs/design/128-upgrade.md).
//!
//! Invariants:
//! * the file `told` is written when all objects that can be read have the group that the metadata server says, durably;
//! * a pass that was cut off anywhere begins again;
//! * a group moves nowhere while an object here does not know its group (`mirror/settle.rs`).

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::yield_now;
use ropewalk_store::objects::{GroupTag, ObjectError, ObjectId};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::upgrade::{NEEDED_VERSION, OBJECTS_ASKED_MAX, Telling, UNKNOWN_GROUP};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::failure::Failure;
use crate::membership::Herald;
use crate::server::Inner;
use crate::told;

/// The pause after a pass that failed.
const PAUSE: Duration = Duration::from_secs(10);
/// Objects that are looked at in one go.
const BETWEEN_YIELDS: usize = 64;

impl Inner {
    /// Begins a pass, if the metadata server of this term does not know yet that all objects here know their group.
    pub(crate) fn begin_telling(&self, herald: &Rc<Herald>, term: Term) {
        let progress = &self.telling;
        let idle = progress.running.get() || progress.reported.get() == term;
        let left = self.groups.borrow().has_left_first_format();
        let early = self.world.now() < progress.not_before.get();
        if idle || !left || early || !herald.speaks(NEEDED_VERSION) {
            return;
        }
        let this = self.this();
        progress.running.set(true);
        let herald = herald.clone();
        self.world.spawn(async move {
            match this.tell_all(&herald).await {
                Ok(()) => this.telling.reported.set(term),
                // Why is told where it fails; later heartbeats try again.
                Err(_) => {
                    this.telling.not_before.set(this.world.now() + PAUSE);
                }
            }
            this.telling.running.set(false);
        });
    }

    async fn tell_all(&self, herald: &Herald) -> Result<(), Failure> {
        let (_, step) = self.ask_groups(herald, false, &[]).await?;
        let (disk, directory) = (self.world.disk(), self.telling.directory.clone());
        let noted = self.world.offload(move || told::read(&*disk, &directory)).await;
        if noted != Some(Some(step)) {
            self.tell_each(herald, step).await?;
            // A head has its group with the next checkpoint, and not before.
            let kept = self.store.checkpoint().await;
            kept.map_err(|error| self.failed("note the groups of objects", &error))?;
            self.note_told(step).await?;
        }
        self.ask_groups(herald, true, &[]).await.map(drop)
    }

    /// Tells all objects that may not know it their group. After an upgrade that is each of them: groups may have had
    /// other numbers before, where the metadata were restored from a dump.
    async fn tell_each(&self, herald: &Herald, step: u64) -> Result<(), Failure> {
        let (mut some, mut complete) = (Vec::new(), true);
        let listing = self.store.list(None).map_err(|error| self.failed("list", &error))?;
        for (number, info) in listing.enumerate() {
            if number % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                yield_now().await;
            }
            let info = match info {
                Ok(info) => info,
                // Damage is told where somebody needs the object.
                Err(ObjectError::Header { .. } | ObjectError::Older { .. }) => continue,
                Err(error) => return Err(self.failed("list", &error)),
            };
            let group = info.group.get().map(Group::from_number);
            if step == 0 && group.is_some_and(|group| group.server().is_none()) {
                continue;
            }
            some.push((info.object, info.group));
            if some.len() == OBJECTS_ASKED_MAX {
                complete &= self.tell_some(herald, &std::mem::take(&mut some)).await?;
            }
        }
        complete &= self.tell_some(herald, &some).await?;
        if complete { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    /// Tells these objects their groups; whether those of all are known.
    async fn tell_some(
        &self,
        herald: &Herald,
        some: &[(ObjectId, GroupTag)],
    ) -> Result<bool, Failure> {
        let objects: Vec<ObjectId> = some.iter().map(|(object, _)| *object).collect();
        let (groups, _) = self.ask_groups(herald, false, &objects).await?;
        let mut complete = true;
        for ((object, before), number) in some.iter().zip(groups) {
            let group = GroupTag::new(number);
            if number == UNKNOWN_GROUP {
                self.lines.say(&format!(
                    "the metadata server cannot say which group object {object} belongs to: 'ropewalk \
                     check' names the damage. No group moves from here before it is mended"
                ));
                complete = false;
            }
            if number == UNKNOWN_GROUP || *before == group {
                continue;
            }
            self.room().await?;
            match self.store.regroup(*object, group) {
                Ok(known) => self.telling.told.update(|told| told + u64::from(known)),
                Err(ObjectError::Header { .. } | ObjectError::Older { .. }) => {}
                Err(error) => return Err(self.failed("note the group of an object", &error)),
            }
        }
        Ok(complete)
    }

    /// The groups of these objects, and the number of the upgrade by which they have them.
    async fn ask_groups(
        &self,
        herald: &Herald,
        done: bool,
        objects: &[ObjectId],
    ) -> Result<(Vec<u64>, u64), Failure> {
        if self.stopping.get() {
            return Err(Errno::EAGAIN.into());
        }
        let bytes = |it: &ObjectId| Telling::bytes(it.inode, it.generation, it.stripe);
        let named: Vec<u8> = objects.iter().flat_map(bytes).collect();
        let told = self.telling.told.get();
        let telling = Telling { server: self.server, told, done, objects: Bytes(&named) };
        let answer = herald.groups(telling).await.ok_or(Errno::EAGAIN)?;
        let answer = answer.inspect_err(|errno| {
            self.lines.say(&format!(
                "the metadata server does not tell the groups of objects: {errno}; this server keeps trying"
            ));
        })?;
        if answer.0.len() == objects.len() { Ok(answer) } else { Err(Errno::EPROTO.into()) }
    }

    async fn note_told(&self, step: u64) -> Result<(), Failure> {
        let (disk, directory) = (self.world.disk(), self.telling.directory.clone());
        let written = self.world.offload(move || told::write(&*disk, &directory, step)).await;
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(cause)) => {
                let path = self.telling.directory.join("told");
                self.lines.say(&format!("cannot write {}: {cause}", path.display()));
                Err(Errno::EIO.into())
            }
            None => Err(Errno::EAGAIN.into()),
        }
    }
}
