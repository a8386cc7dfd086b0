//! Writing: inline while a file is small, to stripe objects from then on.

use std::collections::BTreeSet;
use std::rc::Rc;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::task::join_all;
use ropewalk_base::verb::RemoteKey;
use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::data::{
    Bulk, DataReply, DataRequest, EMBEDDED_BYTES_MAX, ObjectRange, Source,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::{Layout, Piece};
use ropewalk_wire::fs::meta::{
    AttributeChange, INLINE_BYTES_MAX, LeaseMode, MetaReply, MetaRequest, Report, TimeChange,
};
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::value::{Bytes, Errno, Timestamp};

use crate::append::Append;
use crate::call::unexpected;
use crate::client::{Caller, Client};
use crate::data::checksums;
use crate::file::File;
use crate::guards::{Exposed, Unsynced};
use crate::home::Home;
use crate::inode::{Inode, Use};
use crate::lease::For;
use crate::locks::{Actor, Path};
use crate::places::Places;

/// Bits of a mode that give a program the rights of its owner, or those of its group.
const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// Longest transfer of one request to a data server.
const REQUEST_BYTES_MAX: u32 = 4 << 20;

/// The kernel's options for a write.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// At the end of the file.
    pub append: bool,
    /// Setuid and setgid fall.
    pub kill_privileges: bool,
    pub actor: Actor,
}

/// Consecutive bytes for one server.
pub(crate) struct Part {
    pub server: u32,
    pub pieces: Vec<ObjectRange>,
    /// The part's offset from the first byte of the transfer.
    pub begin: usize,
    pub len: usize,
}

/// Splits a transfer into parts: neighbours on one server travel together.
pub(crate) fn parts(
    pieces: impl Iterator<Item = Piece>,
    places: &Places,
    offset: u64,
) -> Vec<Part> {
    let ranges = pieces.map(|piece| {
        let Piece { stripe, offset: within, len, .. } = piece;
        let range = ObjectRange { stripe, group: places.group(stripe), offset: within, len };
        ((piece.file_offset - offset) as usize, range)
    });
    parts_by(ranges, |group| places.server_of(group))
}

/// As [`parts`], of ranges that begin so many bytes from the first one of the transfer. `server` chooses.
pub(crate) fn parts_by(
    ranges: impl Iterator<Item = (usize, ObjectRange)>,
    server: impl Fn(Group) -> u32,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (begin, range) in ranges {
        let (server, len) = (server(range.group), range.len as usize);
        match parts.last_mut() {
            Some(last)
                if last.server == server
                    && last.begin + last.len == begin
                    && last.len + len <= REQUEST_BYTES_MAX as usize =>
            {
                last.pieces.push(range);
                last.len += len;
            }
            _ => parts.push(Part { server, pieces: vec![range], begin, len }),
        }
    }
    parts
}

impl Client {
    /// Writes the bytes of `data` in `range` at `offset`, or at the end of the file where it was
    /// opened to append. Returns where they went.
    pub async fn write(
        &self,
        file: &File,
        offset: u64,
        data: PoolBuffer,
        range: std::ops::Range<usize>,
    ) -> Result<u64, Errno> {
        if !file.options().access.write {
            return Err(Errno::EBADF);
        }
        let how = How { append: file.options().append, kill_privileges: false, actor: Actor::OWN };
        self.write_for_kernel(file, offset, data, range, how).await
    }

    /// Writes as the kernel asks for it: its callers are checked, and how it is done is its to say.
    pub async fn write_for_kernel(
        &self,
        file: &File,
        offset: u64,
        data: PoolBuffer,
        range: std::ops::Range<usize>,
        how: How,
    ) -> Result<u64, Errno> {
        assert!(range.end <= data.len(), "what is written lies in its buffer");
        let inode = &file.inode;
        let end = offset.checked_add(range.len() as u64).ok_or(Errno::EFBIG)?;
        if end > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        if range.is_empty() {
            return Ok(offset);
        }
        let pages = (inode.page_reads.get(), inode.pages_coming.get());
        let written = self.write_until_done(file, offset, data, range, how).await?;
        match how.actor.path {
            // Pages were read while the write was on its way: from before it, perhaps.
            Path::Direct if pages != (inode.page_reads.get(), 0) => {
                self.invalidate().pages(inode.number, written, written + (end - offset)).await;
            }
            // The kernel keeps the written pages at its own idea of the file's end.
            Path::Pages if written != offset => {
                self.drop_pages(inode, offset, end);
                self.drop_pages(inode, written, written + (end - offset));
            }
            // The kernel keeps the written pages, and others write, too.
            Path::Pages if inode.mode() < LeaseMode::Read => self.drop_pages(inode, offset, end),
            _ => {}
        }
        Ok(written)
    }

    async fn write_until_done(
        &self,
        file: &File,
        offset: u64,
        data: PoolBuffer,
        range: std::ops::Range<usize>,
        How { append, kill_privileges, actor }: How,
    ) -> Result<u64, Errno> {
        let inode = &file.inode;
        let len = range.len() as u64;
        let mut data = Some(data);
        let mut appending = append.then(Append::default);
        let mut patience = self.patience();
        let locked = (actor.path == Path::Pages).then_some((offset, offset + len));
        let (orphans, emptied) = (inode.orphans.get(), inode.emptied.get());
        let purpose = if actor.path == Path::WriteBack { For::WriteBack } else { For::Writing };
        while patience.lasts().await {
            let lease = self.lease_over(inode, purpose, locked).await?;
            // With the lease, which says that the session lives.
            self.check_locks(file, &actor)?;
            if actor.path == Path::WriteBack {
                self.refuse_orphans(inode, orphans, (offset, len))?;
                if emptied != inode.emptied.get() {
                    // Changed before an open truncated the file: the kernel drops these pages, too.
                    return Ok(offset);
                }
            }
            // Inline bytes and privileges change in one request.
            if !self.is_inline(inode) && privileges_fall(inode, kill_privileges) {
                drop(lease);
                self.kill_privileges(inode, kill_privileges).await?;
                continue;
            }
            if self.is_inline(inode) {
                let bytes = &data.as_ref().map_or(&[][..], |data| &data[..])[range.clone()];
                let at = if append { self.size_hint(inode) } else { offset };
                let outcome = if at + len <= INLINE_BYTES_MAX {
                    self.write_inline(inode, offset, bytes, append, kill_privileges).await
                } else {
                    Err(Errno::E2BIG)
                };
                drop(lease);
                match outcome {
                    // The move takes the lease anew: it must not be waited for with the lease in hand.
                    Err(Errno::E2BIG) => {
                        self.leave_inline(inode).await?;
                        continue;
                    }
                    Err(Errno::ESTALE) => {
                        inode.refresh();
                        continue;
                    }
                    outcome => {
                        self.count(|counts| counts.bytes_written += len);
                        return outcome;
                    }
                }
            }
            let Some(buffer) = data.take() else { return Err(Errno::EIO) };
            let (outcome, buffer) =
                self.write_striped(inode, offset, appending.as_mut(), buffer, range.clone()).await;
            match outcome {
                Err(Errno::ESTALE) => {
                    let Some(buffer) = buffer else { return Err(Errno::EIO) };
                    data = Some(buffer);
                    appending.iter_mut().for_each(Append::leave_lease);
                    drop(lease);
                    inode.refresh();
                }
                outcome => {
                    self.count(|counts| counts.bytes_written += len);
                    return outcome;
                }
            }
        }
        Err(Errno::EIO)
    }

    /// `EIO` for pages that programs changed under a lease that went with its session: others may have
    /// written the file since. `before`: the inode's `orphans` when they came.
    fn refuse_orphans(
        &self,
        inode: &Inode,
        before: (u64, u32),
        (offset, len): (u64, u64),
    ) -> Result<(), Errno> {
        if before.1 == 0 && before == inode.orphans.get() {
            return Ok(());
        }
        self.inner.lines.say(&format!(
            "inode {}: bytes {offset} to {} were changed in mapped memory, but the client lost its \
             lease on the file; they are not written",
            inode.number,
            offset + len - 1
        ));
        Err(Errno::EIO)
    }

    /// Takes capabilities from a file whose bytes are about to change; with `set_ids` setuid and
    /// setgid, too, where somebody without the right to keep them changes it.
    pub(crate) async fn kill_privileges(
        &self,
        inode: &Rc<Inode>,
        set_ids: bool,
    ) -> Result<(), Errno> {
        let change = AttributeChange {
            accessed: TimeChange::Keep,
            modified: TimeChange::Keep,
            kill_privileges: set_ids,
            kill_capability: true,
            through_handle: true,
            ..AttributeChange::default()
        };
        // The right to do so is the writer's, who is asked for none by this.
        self.set_attributes(&Caller::new(0, 0, &[]), inode.number, change).await.map(|_| ())
    }

    pub(crate) fn is_inline(&self, inode: &Inode) -> bool {
        matches!(inode.state.borrow().content, Some(Content::Inline))
    }

    fn size_hint(&self, inode: &Inode) -> u64 {
        inode.state.borrow().attributes.map_or(0, |attributes| attributes.size)
    }

    fn now(&self) -> Timestamp {
        self.inner.server_clock.now(self.inner.world.now())
    }

    async fn write_inline(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        bytes: &[u8],
        append: bool,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        let epoch = inode.state.borrow().epoch;
        let request = MetaRequest::WriteInline {
            inode: inode.number,
            epoch,
            offset,
            data: Bytes(bytes),
            append,
            kill_privileges,
        };
        let (offset, size, version, modified) = self
            .ask_under_lease(&request, |reply| match reply {
                MetaReply::Written { offset, size, version, modified } => {
                    Ok((offset, size, version, modified))
                }
                _ => unexpected(),
            })
            .await?;
        self.note_change(inode);
        self.inner.server_clock.saw(self.inner.world.now(), modified);
        let mut state = inode.state.borrow_mut();
        // An older one after a restart says that this write was lost.
        state.version = state.version.max(version);
        let end = offset as usize + bytes.len();
        state.write_inline(offset as usize, bytes, version);
        if state.mode < LeaseMode::Read {
            state.inline = None;
        }
        // The bits that fell away, and how many zeros it keeps, are known to the server only.
        state.outdated |= kill_privileges
            || bytes.iter().all(|byte| *byte == 0)
            || state.attributes.is_some_and(|known| known.capable);
        state.note_written((size, end as u64), version, modified);
        Ok(offset)
    }

    /// Moves a file's content from its row to stripe objects.
    async fn leave_inline(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        let _change = inode.change.acquire().await;
        let served = !For::Writing.is_blocked(inode) && For::Writing.is_served(inode, inode.mode());
        if !self.is_inline(inode) || !served {
            return Ok(());
        }
        let _use = Use::new(inode);
        let session = self.inner.meta.session();
        match self.move_out(inode, session).await {
            Err(Errno::ESTALE) => {
                // Somebody was faster; the present content is learned with the next lease.
                inode.state.borrow_mut().content = None;
                Ok(())
            }
            moved => moved,
        }
    }

    async fn move_out(&self, inode: &Rc<Inode>, session: u64) -> Result<(), Errno> {
        let request = MetaRequest::GetAttributes { inode: inode.number };
        let attributes = self.ask_attributes(inode, &request).await?;
        let (layout, epoch) = {
            let state = inode.state.borrow();
            (state.layout.ok_or(Errno::EIO)?, state.epoch)
        };
        let mut written = Runs::default();
        if attributes.size > 0 {
            let bytes = self.inline_bytes(inode).await?;
            if !bytes.is_empty() {
                let buffer = self.inner.pool.copy_of(&bytes).ok_or(Errno::ENOMEM)?;
                let earlier = Unsynced::take(inode);
                let (outcome, _) =
                    self.transfer_out(inode, session, &layout, 0, buffer, 0..bytes.len()).await;
                let kept = match outcome {
                    Ok(runs) if inode.promised.get() => {
                        self.keep_durable(inode, &layout, &runs).await.map(|()| runs)
                    }
                    outcome => outcome,
                };
                drop(earlier);
                written = kept?;
            }
        }
        let report_runs = written.to_report();
        let report = Report {
            epoch,
            size: None,
            modified: None,
            accessed: None,
            written: Bytes(&report_runs),
            punched: Bytes(&[]),
        };
        let request =
            MetaRequest::LeaveInline { inode: inode.number, version: attributes.version, report };
        self.learn_under_lease(inode, &request).await?;
        self.note_change(inode);
        let mut state = inode.state.borrow_mut();
        state.content = Some(Content::Striped(layout));
        state.inline = None;
        state.written = written;
        if state.epoch == epoch {
            // The epoch grew with the transaction.
            state.epoch += 1;
        }
        Ok(())
    }

    /// Makes stripes durable that take the place of bytes which are durable already.
    async fn keep_durable(
        &self,
        inode: &Rc<Inode>,
        layout: &Layout,
        written: &Runs,
    ) -> Result<(), Errno> {
        let places = self.places(layout).await?;
        let file = self.file_id(inode);
        let stripes = written.as_slice().iter().flat_map(|(first, count)| *first..*first + *count);
        let homes: BTreeSet<Home> =
            stripes.map(|stripe| places.home(places.group(stripe)).0).collect();
        for (home, now) in self.sync_homes(file, homes).await {
            let before = inode.unsynced.borrow().get(&home).copied();
            if before != Some(now?) {
                // Another era: they have to be written again.
                return Err(Errno::ESTALE);
            }
        }
        Ok(())
    }

    pub(crate) async fn inline_bytes(&self, inode: &Inode) -> Result<Vec<u8>, Errno> {
        let request = MetaRequest::ReadInline { inode: inode.number };
        self.ask(&request, |reply| match reply {
            MetaReply::Inline { bytes, .. } => Ok(bytes.0.to_vec()),
            _ => unexpected(),
        })
        .await
    }

    async fn write_striped(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        mut append: Option<&mut Append>,
        buffer: PoolBuffer,
        range: std::ops::Range<usize>,
    ) -> (Result<u64, Errno>, Option<PoolBuffer>) {
        // A request that waits on its way does not leave in the name of a later session, which has no lease.
        let session = self.inner.meta.session();
        let (layout, tenure) = {
            let state = inode.state.borrow();
            match &state.content {
                Some(Content::Striped(layout)) => (*layout, state.tenure),
                _ => return (Err(Errno::ESTALE), Some(buffer)),
            }
        };
        let len = range.len() as u64;
        let offset = match append.as_deref_mut() {
            Some(append) => match self.place(inode, append, (&layout, tenure), len).await {
                Ok(offset) => offset,
                Err(errno) => return (Err(errno), Some(buffer)),
            },
            None => offset,
        };
        if !has_room(inode, &layout, offset, len) {
            return (Err(Errno::EFBIG), Some(buffer));
        }
        let (outcome, buffer) =
            self.transfer_out(inode, session, &layout, offset, buffer, range).await;
        let written = match outcome {
            Ok(written) => written,
            Err(errno) => return (Err(errno), buffer),
        };
        match append {
            Some(_) => inode.appended_below(offset).await,
            None => inode.appends_below(offset + len).await,
        }
        // If the lease went under the transfer, the written bytes may be nobody's. A lease that became
        // another mode meanwhile was ours all the time.
        let gone = || inode.state.borrow().tenure != tenure;
        if gone() {
            return (Err(Errno::ESTALE), buffer);
        }
        if let Err(errno) = self.wrote(inode, offset + len, &written) {
            return (Err(errno), buffer);
        }
        append.into_iter().for_each(Append::leave_lease);
        let looked_at = {
            let state = inode.state.borrow();
            state.mode == LeaseMode::Shared || state.insisted
        };
        if looked_at {
            // Others have to see size and time before this write returns: by the time their kernels
            // notice that pages are old.
            if let Err(errno) = self.try_report(inode).await {
                return (Err(errno), buffer);
            }
            if gone() {
                return (Err(Errno::ESTALE), buffer);
            }
        }
        (Ok(offset), buffer)
    }

    /// Notes the changes of a write. `EFBIG` where the map has no room for its stripes.
    pub(crate) fn wrote(&self, inode: &Inode, end: u64, written: &Runs) -> Result<(), Errno> {
        let now = self.now();
        let mut state = inode.state.borrow_mut();
        for (first, count) in written.as_slice() {
            for stripe in *first..first.saturating_add(*count) {
                let fits = state.written.contains(stripe)
                    || state.written.admits(stripe, 1)
                        && state.dirty.written.add(stripe, 1)
                        && state.written.add(stripe, 1);
                if !fits {
                    return Err(Errno::EFBIG);
                }
            }
        }
        if let Some(attributes) = &mut state.attributes {
            attributes.size = attributes.size.max(end);
            attributes.modified = now;
            attributes.changed = now;
        }
        // Also where the size known here does not grow: an append took its range before, untold.
        state.dirty.size = state.dirty.size.max(Some(end));
        state.dirty.modified = Some(now);
        Ok(())
    }

    /// Sends bytes to the stripe objects where they belong. Returns the stripes, and the buffer.
    async fn transfer_out(
        &self,
        inode: &Rc<Inode>,
        session: u64,
        layout: &Layout,
        offset: u64,
        buffer: PoolBuffer,
        range: std::ops::Range<usize>,
    ) -> (Result<Runs, Errno>, Option<PoolBuffer>) {
        let places = match self.places(layout).await {
            Ok(places) => places,
            Err(errno) => return (Err(errno), Some(buffer)),
        };
        let id = self.file_id(inode);
        let parts = parts(layout.pieces(offset, range.len() as u64), &places, offset);
        let mut sums = Vec::with_capacity(parts.len());
        for part in &parts {
            let mut at = range.start + part.begin;
            let mut out = Vec::with_capacity(part.len / 1024 + 8);
            for piece in &part.pieces {
                checksums(&buffer[at..at + piece.len as usize], piece.offset, &mut out);
                at += piece.len as usize;
            }
            sums.push(out);
        }
        let embedded = range.len() <= EMBEDDED_BYTES_MAX as usize;
        if embedded {
            let sent = join_all(parts.iter().zip(&sums).map(|(part, sums)| {
                let begin = range.start + part.begin;
                let source = Source::Embedded(Bytes(&buffer[begin..begin + part.len]));
                self.send_part(inode, session, (part, &places), sums, id, source)
            }))
            .await;
            let outcome = sent.into_iter().collect::<Result<Vec<()>, Errno>>();
            return (outcome.map(|_| stripes(&parts)), Some(buffer));
        }
        let (exposed, key) = match Exposed::new(&self.inner.endpoint, buffer, false) {
            Ok(exposed) => exposed,
            Err(buffer) => return (Err(Errno::ENOMEM), buffer),
        };
        let sent = join_all(parts.iter().zip(&sums).map(|(part, sums)| {
            let source = Source::Bulk(bulk(key, range.start + part.begin));
            self.send_part(inode, session, (part, &places), sums, id, source)
        }))
        .await;
        let buffer = exposed.end().await;
        let outcome = sent.into_iter().collect::<Result<Vec<()>, Errno>>();
        (outcome.map(|_| stripes(&parts)), buffer)
    }

    async fn send_part(
        &self,
        inode: &Rc<Inode>,
        session: u64,
        (part, places): (&Part, &Places),
        sums: &[u8],
        file: ropewalk_wire::fs::data::FileId,
        source: Source<'_>,
    ) -> Result<(), Errno> {
        let request = DataRequest::Write {
            file,
            pieces: part.pieces.clone(),
            source,
            checksums: Bytes(sums),
        };
        let ((), era) = self
            .change_data(inode, session, part.server, &request, |reply| match reply {
                DataReply::Written => Ok(()),
                _ => unexpected(),
            })
            .await?;
        places.note_unsynced(inode, &part.pieces, era);
        Ok(())
    }
}

/// Whether privileges fall with a change of the file's bytes: capabilities always, setuid and setgid with
/// `set_ids`. A client with a lease to write learned of them with the lease: the metadata server takes all
/// leases back before it gives a file any.
pub(crate) fn privileges_fall(inode: &Inode, set_ids: bool) -> bool {
    let state = inode.state.borrow();
    state.attributes.is_some_and(|known| known.capable || set_ids && has_set_ids(known.mode))
}

/// Whether a mode has bits that a write by another user takes away: setgid only where it means
/// execution as the group.
pub(crate) fn has_set_ids(mode: u16) -> bool {
    mode & SET_USER != 0 || mode & (SET_GROUP | GROUP_EXECUTE) == SET_GROUP | GROUP_EXECUTE
}

/// Whether a write stays within the file's largest size, and within the runs of stripes that an inode row
/// keeps, as far as they are known. Among several writers only the server knows them all, and refuses a
/// report that exceeds them.
fn has_room(inode: &Inode, layout: &Layout, offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len).filter(|end| *end <= layout.size_max()) else {
        return false;
    };
    let stripe = |at: u64| (at / u64::from(layout.stripe_bytes)) as u32;
    let (first, last) = (stripe(offset), stripe(end - 1));
    inode.state.borrow().written.admits(first, last - first + 1)
}

pub(crate) fn bulk(key: RemoteKey, offset: usize) -> Bulk {
    Bulk { key_slot: key.slot.to_u64(), key_secret: key.secret, offset: offset as u64 }
}

fn stripes(parts: &[Part]) -> Runs {
    let mut runs = Runs::default();
    for piece in parts.iter().flat_map(|part| &part.pieces) {
        // One transfer touches few stripes.
        let _ = runs.add(piece.stripe, 1);
    }
    runs
}
