//! Orders about exports.

use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::exports::{
    EXPORTS_MAX, ExportInfo, ExportOrder, ExportTerms, ROOT_BYTES_MAX,
};
use ropewalk_wire::fs::meta::{MetaReply, ROOT};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step, Stop};
use crate::exports::Export;
use crate::keys::{self, Table};
use crate::rows::Rows;

/// Bytes of an export in a reply, beside its terms and its path.
const EXPORT_BYTES: usize = 64;

impl<R: Rows> Operation<'_, R> {
    /// Takes an order about exports, or tells of them.
    pub fn export(&mut self, order: ExportOrder<'_>) -> Step<()> {
        match order {
            ExportOrder::Set { terms, root } => self.set_export(terms.0, root.0),
            ExportOrder::Remove { name, opens } => self.remove_export(name.0, opens),
            ExportOrder::List { from, bytes_max } => self.list_exports(from, bytes_max),
        }
    }

    fn set_export(&mut self, terms: &[u8], root: &[u8]) -> Step<()> {
        let terms: ExportTerms = decode(terms).map_err(|_| Errno::EINVAL)?;
        if terms.check().is_err() {
            return Err(Errno::EINVAL.into());
        }
        if !self.shard.pools.has_bands() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if self.shard.exports.rival(&terms.name, &terms.clients) {
            return Err(Errno::EEXIST.into());
        }
        let known = self.shard.exports.named(&terms.name);
        let (number, before) = known.map(|(number, export)| (number, export.root)).unzip();
        let root = match (root, before) {
            ([], Some(before)) => before,
            (path, before) => {
                let found = self.directory_at(path)?;
                let moves = before.is_some_and(|before| before != found);
                if moves && number.is_some_and(|number| self.sessions_of(number) > 0) {
                    // They know the root by its number.
                    return Err(Errno::EBUSY.into());
                }
                found
            }
        };
        let number = match number {
            Some(number) => number,
            None => self.new_export()?,
        };
        let export = Export::new(root, terms);
        self.batch.put(keys::key(Table::Export, &[u64::from(number)]), export.encode());
        self.durable = true;
        self.shard.note_export(number, Some(export));
        self.answer(&MetaReply::Done)
    }

    /// A number that neither an export nor a session of a former one has.
    fn new_export(&mut self) -> Result<u32, Errno> {
        if self.shard.exports.len() >= EXPORTS_MAX {
            return Err(Errno::ENOSPC);
        }
        let used: Vec<u32> =
            self.shard.sessions.iter().map(|(_, it)| it.row.owner.export).collect();
        let is_free =
            |number: &u32| self.shard.exports.get(*number).is_none() && !used.contains(number);
        (1..=u32::MAX).find(is_free).ok_or(Errno::ENOSPC)
    }

    fn sessions_of(&self, number: u32) -> u32 {
        let his = self.shard.sessions.iter().filter(|(_, it)| it.row.owner.export == number);
        u32::try_from(his.count()).unwrap_or(u32::MAX)
    }

    /// The directory at a path from the root of everything.
    fn directory_at(&mut self, path: &[u8]) -> Step<u64> {
        if path.len() > ROOT_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let mut at = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            self.directory(at)?;
            at = self.find(at, name)?.dentry.ok_or(Errno::ENOENT)?.inode;
        }
        self.directory(at)?;
        Ok(at)
    }

    fn remove_export(&mut self, name: &[u8], opens: bool) -> Step<()> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let (number, _) = self.shard.exports.named(name).ok_or(Errno::ENOENT)?;
        if self.shard.exports.len() == 1 && !opens {
            return Err(Errno::EBUSY.into());
        }
        self.batch.remove(keys::key(Table::Export, &[u64::from(number)]));
        self.durable = true;
        self.shard.note_export(number, None);
        self.answer(&MetaReply::Done)
    }

    fn list_exports(&mut self, from: u32, bytes_max: u32) -> Step<()> {
        let all: Vec<(u32, Export)> =
            self.shard.exports.from(from).map(|(number, it)| (number, it.clone())).collect();
        let (mut room, count) = (super::listing::budget(bytes_max), all.len());
        let mut listed: Vec<(u32, Export, Vec<u8>)> = Vec::new();
        for (number, export) in all {
            let path = match self.path_of(export.root) {
                Ok(path) => path,
                Err(Stop::Errno(_)) => Vec::new(),
                Err(stop) => return Err(stop),
            };
            let takes = EXPORT_BYTES + export.encode().len() + path.len();
            if takes > room && !listed.is_empty() {
                break;
            }
            room = room.saturating_sub(takes);
            listed.push((number, export, path));
        }
        let exports = listed.iter().map(|(number, export, path)| ExportInfo {
            number: *number,
            inode: export.root,
            root: Bytes(path),
            sessions: self.sessions_of(*number),
            terms: export.terms(),
        });
        let exports: Vec<ExportInfo<'_>> = exports.collect();
        let end = exports.len() == count;
        self.answer(&MetaReply::Exports { exports, end })
    }
}
