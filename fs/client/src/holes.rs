//! Holes: finding them, making them, and room that is asked for beforehand.

use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::task::join_all;
use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::data::{DataReply, DataRequest, ObjectRange, PIECES_MAX};
use ropewalk_wire::fs::layout::{Layout, Piece};
use ropewalk_wire::fs::meta::{LeaseMode, MetaRequest, REPORT_RUNS_MAX, Report};
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::call::unexpected;
use crate::client::Client;
use crate::file::File;
use crate::home::Home;
use crate::inode::{Inode, Resizing, Use};
use crate::lease::For;
use crate::locks::Actor;
use crate::write::{How, has_set_ids};

/// Zeros of one write.
const ZERO_BYTES: u64 = 1 << 20;
/// Stripes that are punched before others may use the file again.
const STRIPES_AT_ONCE: usize = 4096;

impl Client {
    /// `fallocate(2)`: with `zero` the range reads as zeros from now on, with `keep` the size stays.
    ///
    /// Room is not reserved: a full data server is met at the write, as with every striped file
    /// system whose stripes appear at first write. `keeps_privileges` is asked where there are any.
    pub async fn allocate(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        (keep, zero): (bool, bool),
        keeps_privileges: impl FnOnce() -> bool,
        actor: &Actor,
    ) -> Result<(), Errno> {
        if !file.options().access.write {
            return Err(Errno::EBADF);
        }
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let found = self.attributes(file.number()).await?;
        // The kernel leaves it to us, as it does with writes, and does not say so here.
        let set_ids = has_set_ids(found.mode) && !keeps_privileges();
        if set_ids || found.capable {
            self.kill_privileges(&file.inode, set_ids).await?;
        }
        if zero {
            self.zero(file, offset, end.min(found.size), actor).await?;
        }
        self.reach(file, if keep { 0 } else { end }, actor).await
    }

    /// Makes the file reach to `end` at least, as a write there would. Bytes that others add meanwhile stay.
    /// It counts as changed in any case.
    async fn reach(&self, file: &File, end: u64, actor: &Actor) -> Result<(), Errno> {
        let inode = &file.inode;
        let mut patience = self.patience();
        while patience.lasts().await {
            let lease = self.lease(inode, For::Writing).await?;
            self.check_locks(file, actor)?;
            let most = inode.state.borrow().layout.map_or(0, |layout| layout.size_max());
            if end > most {
                return Err(Errno::EFBIG);
            }
            inode.appends_below(end).await;
            self.wrote(inode, end, &Runs::default())?;
            // Told at once: appends to inline bytes go by the size that the server knows.
            match self.try_report(inode).await {
                Err(Errno::ESTALE) => {
                    drop(lease);
                    inode.refresh();
                }
                reported => return reported,
            }
        }
        Err(Errno::EIO)
    }

    /// Makes a range read as zeros and gives its room back; holes stay holes.
    async fn zero(&self, file: &File, offset: u64, end: u64, actor: &Actor) -> Result<(), Errno> {
        let inode = &file.inode;
        let (mut at, mut patience) = (offset, self.patience());
        while at < end {
            if !patience.lasts().await {
                return Err(Errno::EIO);
            }
            // Among several writers only the server knows which stripes there are.
            inode.doubt_stripes();
            let lease = self.lease(inode, For::Writing).await?;
            if self.is_inline(inode) {
                drop(lease);
                return self.write_zeros(file, at, end, actor).await;
            }
            drop(lease);
            match self.punch(file, at, end, actor).await {
                Ok(done) => (at, patience) = (done, self.patience()),
                Err(Errno::ESTALE) => inode.refresh(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes zeros over a range of a small file. Of those at its end the inode keeps none.
    async fn write_zeros(
        &self,
        file: &File,
        offset: u64,
        end: u64,
        actor: &Actor,
    ) -> Result<(), Errno> {
        let mut at = offset;
        while at < end {
            let len = (end - at).min(ZERO_BYTES) as usize;
            let mut zeros = self.inner.pool.take(len).ok_or(Errno::ENOMEM)?;
            zeros.fill(0);
            let how = How { append: false, kill_privileges: false, actor: *actor };
            self.write_for_kernel(file, at, zeros, 0..len, how).await?;
            at += len as u64;
        }
        Ok(())
    }

    /// Punches the first stripes of a range, and returns the end of them. `ESTALE` if the lease is not, or no
    /// longer, in the mode that this needs.
    async fn punch(&self, file: &File, offset: u64, end: u64, actor: &Actor) -> Result<u64, Errno> {
        let inode = &file.inode;
        // Nothing of ours is written beside it: a write into a stripe that is about to leave the map
        // would be lost to sight.
        let _resizing = Resizing::new(inode);
        loop {
            let idle = inode.idle.notified();
            if inode.users.get() == 0 {
                break;
            }
            idle.await;
        }
        // A request that waits on its way does not leave in the name of a later session.
        let session = self.inner.meta.session();
        let (layout, tenure) = {
            let state = inode.state.borrow();
            let writes = matches!(state.mode, LeaseMode::Write | LeaseMode::Shared);
            match &state.content {
                Some(Content::Striped(layout)) if writes && !state.closing => {
                    (*layout, state.tenure)
                }
                _ => return Err(Errno::ESTALE),
            }
        };
        if inode.in_doubt.get() {
            // Late bytes could come after the punch.
            return Err(Errno::ESTALE);
        }
        let _lease = Use::new(inode);
        // With the lease, which says that the session lives.
        self.check_locks(file, actor)?;
        // Writes before the punch count before it.
        self.try_report(inode).await?;
        let window = Window::new(inode, &layout, offset, end);
        let gone = self.punch_stripes(inode, session, &layout, &window).await?;
        let alone = {
            let state = inode.state.borrow();
            if state.tenure != tenure {
                return Err(Errno::ESTALE);
            }
            state.mode == LeaseMode::Write
        };
        if alone {
            self.forget_stripes(inode, &layout, &window, gone).await?;
        }
        Ok(window.end)
    }

    /// Lets data servers throw the bytes of a window away. Stripes of which nothing is left, each with
    /// its place and the era, or the losses, of when that was so.
    async fn punch_stripes(
        &self,
        inode: &Rc<Inode>,
        session: u64,
        layout: &Layout,
        window: &Window,
    ) -> Result<BTreeMap<u32, (Home, u64)>, Errno> {
        let places = self.places(layout).await?;
        let file = self.file_id(inode);
        let mut pieces: BTreeMap<u32, Vec<ObjectRange>> = BTreeMap::new();
        for piece in &window.pieces {
            let Piece { stripe, offset, len, .. } = *piece;
            let group = places.group(stripe);
            let range = ObjectRange { stripe, group, offset, len };
            pieces.entry(places.server_of(group)).or_default().push(range);
        }
        let requests = pieces.iter().flat_map(|(server, pieces)| {
            pieces.chunks(PIECES_MAX).map(|pieces| (*server, pieces.to_vec()))
        });
        let places = &places;
        let punched = join_all(requests.map(|(server, pieces)| async move {
            let covered: Vec<u32> = window.covered(&pieces).collect();
            let punched = pieces.clone();
            let request = DataRequest::Punch { file, pieces };
            let (empty, era) = self
                .change_data(inode, session, server, &request, |reply| match reply {
                    DataReply::Punched { empty } => Ok(empty),
                    _ => unexpected(),
                })
                .await?;
            places.note_unsynced(inode, &punched, era);
            // Of an object that is lost nothing is wanted any more where all of it was punched.
            let gone = covered.into_iter().chain(empty).map(|stripe| {
                let (home, losses) = places.home(places.group(stripe));
                (stripe, (home, losses.unwrap_or(era)))
            });
            Ok(gone.collect::<Vec<_>>())
        }))
        .await;
        let punched = punched.into_iter().collect::<Result<Vec<_>, Errno>>()?;
        Ok(punched.into_iter().flatten().collect())
    }

    /// Takes stripes without bytes out of the map. By the only writer, with nothing of its own under way.
    async fn forget_stripes(
        &self,
        inode: &Rc<Inode>,
        layout: &Layout,
        window: &Window,
        gone: BTreeMap<u32, (Home, u64)>,
    ) -> Result<(), Errno> {
        let mut left = inode.state.borrow().written.clone();
        let mut runs = Runs::default();
        let mut homes: BTreeMap<Home, u64> = BTreeMap::new();
        for (stripe, (home, era)) in gone {
            // A map with too many runs keeps the stripe, whose zeros are at its server.
            if left.contains(stripe) && runs.admits(stripe, 1) && left.remove(stripe, 1) {
                let _ = runs.add(stripe, 1);
                homes.insert(home, era);
            }
        }
        if runs.is_empty() {
            return Ok(());
        }
        debug_assert!(runs.as_slice().len() <= window.pieces.len(), "only what was punched goes");
        // A power loss must not bring bytes back of which the map says that there are none: they would
        // come to light with the next byte that is written beside them.
        let file = self.file_id(inode);
        for (home, now) in self.sync_homes(file, homes.keys().copied()).await {
            if now? != homes[&home] {
                return Err(Errno::ESTALE);
            }
        }
        let _reporting = inode.reporting.acquire().await;
        for some in runs.as_slice().chunks(REPORT_RUNS_MAX) {
            let punched = Runs::from_slice(some);
            self.report_punched(inode, &punched).await?;
            let mut state = inode.state.borrow_mut();
            for (first, count) in punched.as_slice() {
                let removed = state.written.remove(*first, *count);
                debug_assert!(removed, "it was tried before");
            }
            let size = state.attributes.map_or(0, |known| known.size);
            let bytes = state.written.bytes(layout.stripe_bytes, size);
            if let Some(known) = &mut state.attributes {
                known.blocks = bytes.div_ceil(512);
            }
        }
        Ok(())
    }

    async fn report_punched(&self, inode: &Rc<Inode>, punched: &Runs) -> Result<(), Errno> {
        let runs = punched.to_report();
        let report = Report {
            epoch: inode.state.borrow().epoch,
            size: None,
            modified: None,
            accessed: None,
            written: Bytes(&[]),
            punched: Bytes(&runs),
        };
        let request = MetaRequest::Report { inode: inode.number, report };
        self.ask_attributes(inode, &request).await?;
        self.note_change(inode);
        Ok(())
    }

    /// The next byte at or behind `offset` that was written, or with `hole` that was not; `ENXIO`
    /// behind the end. As fine as stripes are.
    pub async fn seek(&self, file: &File, offset: u64, hole: bool) -> Result<u64, Errno> {
        let inode = &file.inode;
        if inode.is_mapped() {
            // Pages that programs changed in memory are no hole: the kernel writes them back.
            self.forget_in_kernel(inode).await;
        }
        inode.doubt_stripes();
        let _lease = self.lease(inode, For::Reading).await?;
        let size = self.attributes(inode.number).await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        if self.is_inline(inode) {
            // The inode has the bytes up to the last written one; zeros follow up to the size.
            let written = self.inline_bytes(inode).await?.len() as u64;
            return match (offset < written, hole) {
                (true, false) | (false, true) => Ok(offset),
                (true, true) => Ok(written.min(size)),
                (false, false) => Err(Errno::ENXIO),
            };
        }
        let state = inode.state.borrow();
        let layout = match &state.content {
            Some(Content::Striped(layout)) => *layout,
            _ => return Ok(if hole { size } else { offset }),
        };
        let stripe_bytes = u64::from(layout.stripe_bytes);
        let mut stripe = offset / stripe_bytes;
        let mut at = offset;
        while at < size {
            let written = u32::try_from(stripe).is_ok_and(|stripe| state.written.contains(stripe));
            if written != hole {
                return Ok(at);
            }
            stripe += 1;
            at = stripe * stripe_bytes;
        }
        if hole { Ok(size) } else { Err(Errno::ENXIO) }
    }
}

/// Stripes of a range that one round punches.
struct Window {
    /// The punched range of each of them.
    pieces: Vec<Piece>,
    /// Up to where the range is done with them.
    end: u64,
    stripe_bytes: u64,
}

impl Window {
    /// The first written stripes of the range.
    fn new(inode: &Inode, layout: &Layout, offset: u64, end: u64) -> Window {
        let state = inode.state.borrow();
        let stripe_bytes = u64::from(layout.stripe_bytes);
        // Among several writers somebody may have written behind the end that is known here.
        let size = match (state.mode, &state.attributes) {
            (LeaseMode::Write, Some(known)) => known.size,
            _ => u64::MAX,
        };
        let mut window = Window { pieces: Vec::new(), end, stripe_bytes };
        let (from, to) = (offset / stripe_bytes, end.div_ceil(stripe_bytes));
        for &(first, count) in state.written.as_slice() {
            let run = u64::from(first)..u64::from(first) + u64::from(count);
            for stripe in run.start.max(from)..run.end.min(to) {
                let begin = stripe * stripe_bytes;
                if window.pieces.len() == STRIPES_AT_ONCE {
                    window.end = begin;
                    return window;
                }
                let first = offset.max(begin) - begin;
                let last = end.min(begin + stripe_bytes) - begin;
                // The bytes of the stripe behind the end of the file go along.
                let last = if begin + last >= size { stripe_bytes } else { last };
                window.pieces.push(Piece {
                    stripe: stripe as u32,
                    offset: first as u32,
                    len: (last - first) as u32,
                    file_offset: begin + first,
                });
            }
        }
        window
    }

    /// Stripes of which all was punched.
    fn covered(&self, pieces: &[ObjectRange]) -> impl Iterator<Item = u32> {
        let whole = self.stripe_bytes;
        let covered =
            pieces.iter().filter(move |piece| piece.offset == 0 && u64::from(piece.len) == whole);
        covered.map(|piece| piece.stripe).collect::<Vec<_>>().into_iter()
    }
}
