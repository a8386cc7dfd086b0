//! Leases: taking them, giving them back when they are recalled, reporting the changes that they covered.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::task::{join_all, race};
use ropewalk_wire::fs::attributes::{Attributes, Content};
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{Entry, LeaseMode, MetaReply, MetaRequest, REPORT_RUNS_MAX, Report};
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::trust::Capability;
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::call::unexpected;
use crate::client::Client;
use crate::guards::{InDoubt, Reported};
use crate::inode::{Dirty, Inode, Use};
use crate::kernel::Waiting;

/// The time a recall waits for the reply that told of the lease. A reply that takes longer was lost on the
/// way, and comes once more without the lease.
const OPEN_PATIENCE: Duration = Duration::from_millis(500);
/// The interval between looks whether anything is being opened at all.
const OPEN_PAUSE: Duration = Duration::from_millis(10);

/// Leases of no use that are given back at the same time.
const TRIMMED_AT_ONCE: usize = 32;

/// The purpose of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Reading,
    Writing,
    /// To fill pages of the kernel, which programs use without a word.
    Pages,
    /// To take pages that programs changed. Taken also while the lease is given back.
    WriteBack,
}

impl For {
    pub(crate) fn is_served(self, inode: &Inode, mode: LeaseMode) -> bool {
        match self {
            For::Reading => mode != LeaseMode::None,
            For::Writing | For::WriteBack => {
                matches!(mode, LeaseMode::Write | LeaseMode::Shared)
            }
            For::Pages if inode.is_mapped() => mode == LeaseMode::Write,
            For::Pages => mode >= LeaseMode::Read,
        }
    }

    /// The mode to ask for, and whether anything less is of no use.
    fn wish(self, inode: &Inode) -> (LeaseMode, bool) {
        match self {
            For::Reading => (LeaseMode::Read, false),
            For::Writing | For::WriteBack => (LeaseMode::Write, false),
            For::Pages if inode.is_mapped() => (LeaseMode::Write, true),
            For::Pages => (LeaseMode::Read, true),
        }
    }

    pub(crate) fn is_blocked(self, inode: &Inode) -> bool {
        let state = inode.state.borrow();
        let passes = self == For::WriteBack && state.mode == LeaseMode::Write;
        state.closing && !passes || state.resizing > 0
    }
}

/// The facts about a file in the replies to `Open`, `Create` and `Acquire`.
pub(crate) struct Opened {
    pub entry: Entry,
    pub content: Content,
    pub inline: Option<Vec<u8>>,
    pub layout: Layout,
    pub written: Vec<(u32, u32)>,
    pub created: bool,
    pub capability: Option<Capability>,
}

/// The reply that opens a file.
pub(crate) fn opened(reply: MetaReply<'_>) -> Result<Opened, Errno> {
    match reply {
        MetaReply::Opened { entry, content, inline, layout, written, created, capability } => {
            let inline = inline.map(|inline| inline.0.to_vec());
            Ok(Opened { entry, content, inline, layout, written, created, capability })
        }
        _ => unexpected(),
    }
}

impl Client {
    /// The record of an inode.
    pub(crate) fn inode(&self, number: u64) -> Rc<Inode> {
        let clock = self.inner.clock.get() + 1;
        self.inner.clock.set(clock);
        let mut inodes = self.inner.inodes.borrow_mut();
        let inode = inodes.entry(number).or_insert_with(|| Rc::new(Inode::new(number)));
        inode.used.set(clock);
        inode.clone()
    }

    /// Notes a reply's facts about an inode.
    pub(crate) fn learn(&self, entry: &Entry) -> Rc<Inode> {
        let inode = self.inode(entry.attributes.inode);
        inode.granted(entry.grant);
        self.learned(&inode, entry.attributes);
        self.trim();
        inode
    }

    /// Notes the facts of an opening reply.
    pub(crate) fn learn_opened(&self, opened: &Opened) -> Rc<Inode> {
        let inode = self.learn(&opened.entry);
        inode.take_capability(opened.capability);
        let mut state = inode.state.borrow_mut();
        let striped = matches!(opened.content, Content::Striped(_));
        let same = striped && state.content.as_ref() == Some(&opened.content);
        let known = state.mode == LeaseMode::Write && state.content.is_some();
        if known && !same && !state.dirty.is_clean() {
            // Our writes since are newer than the reply.
            drop(state);
            return inode;
        }
        state.layout = Some(opened.layout);
        state.inline = None;
        match (&opened.content, &opened.inline) {
            (Content::Inline, Some(bytes)) => {
                state.take_inline(bytes, opened.entry.attributes.version);
            }
            (Content::Inline, None) => {}
            (Content::Striped(layout), _) => state.layout = Some(*layout),
        }
        state.content = Some(opened.content.clone());
        let mut written = Runs::from_slice(&opened.written);
        // The reply may not know of stripes that were reported while it was under way. The server will refuse
        // stripes that have no room.
        let _ = written.merge(&state.dirty.written) && written.merge(&state.under_way.written);
        state.written = written;
        drop(state);
        inode
    }

    /// Makes sure of a lease for the duration of the result.
    pub(crate) async fn lease(&self, inode: &Rc<Inode>, purpose: For) -> Result<Use, Errno> {
        self.lease_over(inode, purpose, None).await
    }

    /// As [`Client::lease`], for a request of the kernel that holds pages of these bytes locked.
    pub(crate) async fn lease_over(
        &self,
        inode: &Rc<Inode>,
        purpose: For,
        bytes: Option<(u64, u64)>,
    ) -> Result<Use, Errno> {
        let mut waiting = None;
        // A change that a program made to a page already has no other try.
        let only = purpose == For::WriteBack;
        for _ in 0..1000 {
            self.sure_session_for(only).await?;
            let closing = inode.idle.notified();
            let (mode, known) = {
                let state = inode.state.borrow();
                (state.mode, state.content.is_some())
            };
            if purpose.is_blocked(inode) {
                wait_visibly(&mut waiting, inode, bytes);
                closing.await;
                continue;
            }
            if purpose.is_served(inode, mode) && known {
                let writes = matches!(purpose, For::Writing | For::WriteBack);
                if writes && inode.in_doubt.get() {
                    let _reporting = inode.reporting.acquire().await;
                    self.renew_epoch(inode).await?;
                    continue;
                }
                if purpose == For::Pages {
                    inode.page_reads.set(inode.page_reads.get() + 1);
                }
                return Ok(Use::new(inode));
            }
            wait_visibly(&mut waiting, inode, bytes);
            let _change = inode.change.acquire().await;
            if purpose.is_blocked(inode) || inode.mode() != mode {
                continue;
            }
            let (mode, insist) = purpose.wish(inode);
            let request = MetaRequest::Acquire { inode: inode.number, mode, insist };
            let reply = self.ask(&request, opened).await?;
            self.learn_opened(&reply);
            if insist {
                inode.state.borrow_mut().insisted = true;
                self.let_settle(inode);
            }
        }
        // Others take the lease back each time before we use it: they are never tired of it.
        Err(Errno::EIO)
    }

    /// The metadata server wants a lease back.
    pub(crate) async fn recalled(&self, number: u64, grant: u64, keep: LeaseMode) {
        let inode = self.inode(number);
        {
            let mut state = inode.state.borrow_mut();
            state.recalled = state.recalled.max(grant);
            if state.number > grant {
                return;
            }
        }
        self.inner.entries.borrow_mut().remove(number);
        self.settled(&inode).await;
        self.await_open(&inode, grant).await;
        let _giving = inode.giving.acquire().await;
        self.clear(&inode, keep).await;
        // Among several writers there is nothing to keep for a file that is not open.
        let unused = keep == LeaseMode::Shared && inode.opened().is_none();
        let keep = if unused { LeaseMode::None } else { keep };
        self.give_back(&inode, grant, keep).await;
    }

    /// A lease may be recalled before the reply that grants it has come. That reply may have opened the file:
    /// the release has to say so, or the file is nobody's and goes.
    async fn await_open(&self, inode: &Inode, grant: u64) {
        let world = &self.inner.world;
        let end = world.now() + OPEN_PATIENCE;
        while self.inner.opening.get() > 0 && world.now() < end {
            let told = inode.idle.notified();
            if inode.state.borrow().told >= grant {
                return;
            }
            race(told, world.sleep(OPEN_PAUSE)).await;
        }
    }

    /// Gives a lease back that nobody recalled, unless the file is open.
    pub(crate) async fn return_unused(&self, inode: &Rc<Inode>, number: u64) {
        {
            // Entries of replies that are under way must not be remembered any more.
            let mut state = inode.state.borrow_mut();
            state.recalled = state.recalled.max(number);
        }
        self.inner.entries.borrow_mut().remove(inode.number);
        let _giving = inode.giving.acquire().await;
        self.clear(inode, LeaseMode::None).await;
        if inode.opened().is_some() || inode.state.borrow().number != number {
            inode.state.borrow_mut().closing = false;
            return inode.idle.notify_all();
        }
        self.give_back(inode, number, LeaseMode::None).await;
    }

    /// Lets no new users to the lease, and waits for those that it has.
    pub(crate) async fn close_to_users(&self, inode: &Rc<Inode>) {
        inode.state.borrow_mut().closing = true;
        loop {
            let idle = inode.idle.notified();
            if inode.users.get() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Changes that the lease covered are reported on their own, before the lease goes. A server that dies in
    /// the middle forgets what it was told of leases, and the client reclaims the leases that it still has
    /// for sure. While it reports, those are all of them. From the moment on at which the server may have
    /// given the rest to others, they are only those that it keeps.
    async fn give_back(&self, inode: &Rc<Inode>, number: u64, keep: LeaseMode) {
        // A report that is under way must not come after the lease went.
        let _reporting = inode.reporting.acquire().await;
        let losses = inode.state.borrow().losses.count;
        if self.report_now(inode).await.is_err() {
            inode.state.borrow_mut().dirty = Dirty::default();
            self.say_lost(inode, losses);
        }
        if let Err(errno) = self.renew_epoch(inode).await {
            (self.inner.config.log)(&format!(
                "inode {}: the metadata server gives no new write epoch: {errno}",
                inode.number
            ));
        }
        let open = inode.opened();
        inode.lower(number, keep);
        let request = MetaRequest::Release { inode: inode.number, number, keep, open };
        let answer = self
            .ask(&request, |reply| match reply {
                MetaReply::Attributes { attributes, grant } => Ok((attributes, grant)),
                _ => unexpected(),
            })
            .await;
        inode.met_others();
        let mut state = inode.state.borrow_mut();
        state.closing = false;
        if state.number > number {
            // A newer lease came meanwhile; the one that went is no longer of interest.
            drop(state);
            return inode.idle.notify_all();
        }
        drop(state);
        // Replies that came meanwhile may have told of data that no lease covers any more.
        inode.lower(number, keep);
        let mut state = inode.state.borrow_mut();
        let mut learned = None;
        if let Ok((attributes, grant)) = answer {
            match grant {
                Some(grant) => {
                    state.mode = grant.mode;
                    state.epoch = grant.epoch;
                    state.number = state.number.max(grant.number);
                }
                None => (state.mode, state.ground) = (LeaseMode::None, state.ground + 1),
            }
            if state.mode >= LeaseMode::Read {
                learned = Some(attributes);
            }
        }
        if state.mode == LeaseMode::None {
            state.content = None;
        }
        drop(state);
        if let Some(attributes) = learned {
            inode.learned(attributes);
        }
        inode.idle.notify_all();
    }

    /// Makes sure that changes that were given up cannot come about any more once others write, or we do
    /// again. Called by the task that has the turn to report: a report of the former epoch is refused.
    async fn renew_epoch(&self, inode: &Inode) -> Result<(), Errno> {
        if !inode.in_doubt.replace(false) {
            return Ok(());
        }
        let doubt = InDoubt::new(inode);
        let request = MetaRequest::RenewEpoch { inode: inode.number };
        let answer = self
            .ask_under_lease(&request, |reply| match reply {
                MetaReply::Attributes { attributes, grant } => Ok((attributes, grant)),
                _ => unexpected(),
            })
            .await;
        match answer {
            Ok((attributes, grant)) => {
                doubt.answered();
                self.note_change(inode);
                inode.granted(grant);
                inode.learned(attributes);
                if grant.is_none() {
                    // It is being recalled: the new epoch comes with the next lease.
                    inode.refresh();
                }
                Ok(())
            }
            // There is no lease (any more), while the session may live: the doubt stays until it has one.
            Err(Errno::ESTALE) => {
                inode.refresh();
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Tells the metadata server the changes under the lease. Where the lease went with its session the
    /// changes are not the file's any more: the next syncs say so.
    pub(crate) async fn report(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        let _reporting = inode.reporting.acquire().await;
        let losses = inode.state.borrow().losses.count;
        match self.report_now(inode).await {
            Err(Errno::ESTALE) => {
                self.say_lost(inode, losses);
                Ok(())
            }
            reported => reported,
        }
    }

    /// As [`Client::report`]; `ESTALE` where the lease went: writes under it may be repeated under another
    /// lease.
    pub(crate) async fn try_report(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        // A caller that finds nothing to report has waited for the report that carries its changes.
        let _reporting = inode.reporting.acquire().await;
        self.report_now(inode).await
    }

    /// As [`Client::try_report`], by the task that has the turn.
    async fn report_now(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        let (dirty, report) = take_dirty(inode);
        let Some(report) = report else { return Ok(()) };
        let mut dirty = Reported::new(inode, dirty);
        let answer = match self.report_ahead(inode, &report, &mut dirty.written).await {
            Ok(()) => {
                let written = dirty.written.to_report();
                let report = Report { written: Bytes(&written), ..report };
                let request = MetaRequest::Report { inode: inode.number, report };
                self.ask_under_lease(&request, attributes_of).await
            }
            Err(errno) => Err(errno),
        };
        match answer {
            Ok(attributes) => {
                dirty.settled();
                self.note_change(inode);
                self.learned(inode, attributes);
                Ok(())
            }
            // More stripes than the row has room for, with those of other writers. A program that writes anew
            // knows theirs by then, and is told before.
            Err(Errno::ESTALE | Errno::EFBIG) => {
                dirty.settled();
                let mut state = inode.state.borrow_mut();
                if state.mode == LeaseMode::Write && !state.insisted {
                    // Writes were acknowledged that nobody repeats.
                    state.losses.add();
                }
                drop(state);
                inode.lose_changes();
                Err(Errno::ESTALE)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Reports stripes for which the last report, with all else, has no room, and takes them out of
    /// `written`. They go in their order, with the size up to the last of them: whenever this ends, the
    /// server knows a beginning of the written stripes. Stripes behind the end would do no harm as long as
    /// this client lives; if it died, they would come to light when somebody makes the file longer.
    async fn report_ahead(
        &self,
        inode: &Inode,
        report: &Report<'_>,
        written: &mut Runs,
    ) -> Result<(), Errno> {
        let layout = inode.state.borrow().layout;
        let stripe_bytes = layout.map_or(0, |layout| u64::from(layout.stripe_bytes));
        while written.as_slice().len() > REPORT_RUNS_MAX {
            let head = Runs::from_slice(&written.as_slice()[..REPORT_RUNS_MAX]);
            let (first, count) = written.as_slice()[REPORT_RUNS_MAX - 1];
            // More runs come behind it.
            let end = first + count;
            let ahead = Report {
                size: report.size.map(|size| size.min(u64::from(end) * stripe_bytes)),
                modified: None,
                accessed: None,
                written: Bytes(&head.to_report()),
                ..*report
            };
            let request = MetaRequest::Report { inode: inode.number, report: ahead };
            self.ask_under_lease(&request, attributes_of).await?;
            self.note_change(inode);
            let removed = written.remove(0, end);
            debug_assert!(removed, "whole runs go");
        }
        Ok(())
    }

    /// Acknowledged changes are lost: people are told now, the program with its next sync. `losses`: the
    /// count before. Losses that came with the session are counted already, and the program may have been
    /// told.
    fn say_lost(&self, inode: &Inode, losses: u64) {
        let mut state = inode.state.borrow_mut();
        if state.losses.count == losses {
            state.losses.add();
        }
        drop(state);
        (self.inner.config.log)(&format!(
            "{}inode {}: changes of size or times could not be reported to the metadata server and \
             are lost",
            Level::Error.mark(),
            inode.number
        ));
    }

    fn dirty(&self) -> Vec<Rc<Inode>> {
        let inodes = self.inner.inodes.borrow();
        let is_dirty = |inode: &&Rc<Inode>| {
            let state = inode.state.borrow();
            !state.dirty.is_clean() || !state.under_way.is_clean()
        };
        inodes.values().filter(is_dirty).cloned().collect()
    }

    /// Reports all inodes with changes; the first error.
    pub(crate) async fn report_all_strictly(&self) -> Result<(), Errno> {
        for inode in self.dirty() {
            self.report(&inode).await?;
        }
        Ok(())
    }

    /// Reports all inodes with changes.
    pub(crate) async fn report_all(&self) {
        for inode in self.dirty() {
            if let Err(errno) = self.report(&inode).await {
                self.inner.lines.say(&format!(
                    "inode {}: the metadata server does not take the new size and times: {errno}",
                    inode.number
                ));
            }
        }
    }

    pub(crate) fn keep_reporting(&self) {
        let weak = Rc::downgrade(&self.inner);
        self.inner.world.spawn(async move {
            while let Some(inner) = weak.upgrade() {
                if inner.stopped.get() {
                    return;
                }
                let (world, pause) = (inner.world.clone(), inner.config.report_after);
                drop(inner);
                world.sleep(pause).await;
                let Some(inner) = weak.upgrade() else { return };
                Client { inner }.report_all().await;
            }
        });
    }

    /// Gives back the inodes that were not used for longest, when more are remembered than allowed.
    pub(crate) fn trim(&self) {
        let max = self.inner.config.inodes_max;
        let excess = self.inner.inodes.borrow().len().saturating_sub(max);
        if excess <= max / 8 || self.inner.trimming.get() {
            return;
        }
        let mut idle: Vec<(u64, u64)> = self
            .inner
            .inodes
            .borrow()
            .values()
            .filter(|inode| {
                let state = inode.state.borrow();
                inode.users.get() == 0
                    && Rc::strong_count(inode) == 1
                    && state.readers + state.writers == 0
                    && state.dirty.is_clean()
                    && !state.closing
            })
            .map(|inode| (inode.used.get(), inode.number))
            .collect();
        idle.sort_unstable();
        idle.truncate(excess);
        // Once at a time: looking for the oldest looks at all of them.
        self.inner.trimming.set(true);
        let client = self.clone();
        self.inner.world.spawn(async move {
            for some in idle.chunks(TRIMMED_AT_ONCE) {
                let some = some.iter().filter_map(|(_, number)| {
                    let inode = client.inner.inodes.borrow().get(number).cloned()?;
                    Some(client.forget(inode))
                });
                join_all(some).await;
            }
            client.inner.trimming.set(false);
        });
    }

    /// Gives back the lease of an inode's record, and drops the record if nobody wants it meanwhile.
    pub(crate) async fn forget(&self, inode: Rc<Inode>) {
        if inode.mode() != LeaseMode::None {
            let grant = inode.state.borrow().number;
            self.return_unused(&inode, grant).await;
        }
        // One is ours, one the table's.
        let wanted = Rc::strong_count(&inode) > 2 || inode.users.get() > 0;
        let clean = inode.unsynced.borrow().is_empty()
            && !inode.state.borrow().losses.are_untold()
            && !inode.in_doubt.get();
        if !wanted && clean && inode.mode() == LeaseMode::None && inode.opened().is_none() {
            self.inner.inodes.borrow_mut().remove(&inode.number);
        }
    }
}

/// From now on a recall does not wait for pages that the request holds.
fn wait_visibly<'a>(
    waiting: &mut Option<Waiting<'a>>,
    inode: &'a Inode,
    bytes: Option<(u64, u64)>,
) {
    if let (None, Some(bytes)) = (&waiting, bytes) {
        *waiting = Some(Waiting::new(inode, bytes));
    }
}

fn attributes_of(reply: MetaReply<'_>) -> Result<Attributes, Errno> {
    match reply {
        MetaReply::Attributes { attributes, .. } => Ok(attributes),
        _ => unexpected(),
    }
}

/// Takes the unreported changes out, with the report for them (its `written` still to be filled in).
fn take_dirty(inode: &Inode) -> (Dirty, Option<Report<'static>>) {
    let mut state = inode.state.borrow_mut();
    debug_assert!(state.under_way.is_clean(), "one report at a time; its guard ends it");
    if state.dirty.is_clean() {
        return (Dirty::default(), None);
    }
    let dirty = std::mem::take(&mut state.dirty);
    state.under_way = dirty.clone();
    let report = Report {
        epoch: state.epoch,
        size: dirty.size,
        modified: dirty.modified,
        accessed: dirty.accessed,
        written: Bytes(&[]),
        punched: Bytes(&[]),
    };
    (dirty, Some(report))
}
