//! The pages of a file in the kernel, and the lease that covers all of them.
//!
//! Programs that map a file use pages without a word to us. They read a page that is there; if the file was
//! opened to read and to write they change it, too. So a page may be there only while nobody else can change
//! its bytes: under `Read`, or under `Write` if programs can change it. Pages come by reads that the kernel
//! does for them (`Path::Pages`), which insist on that lease, and go before the lease does.
//!
//! Invariants
//! * no page that can be read is there without `Read` or `Write`, but for the moment after a write
//!   through pages beside other writers;
//! * no page that a program changed is lost while the session lives: it is written back under the
//!   lease under which it was changed;
//! * pages that were changed under a lease that went with its session are never written;
//! * nobody waits for a page that a request of the kernel holds while it waits for the lease itself:
//!   such a page shows nothing yet.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Either, join_all, race};
use ropewalk_wire::fs::meta::{LeaseMode, MetaRequest};

use crate::client::Client;
use crate::inode::Inode;

/// The time a recall waits for a page that a waiting write may hold, under a lease under which programs may
/// have changed it. The write has most often not locked it.
const PAGE_PATIENCE: Duration = Duration::from_millis(2);
/// The time that the kernel may take to note a size.
const GROWTH_PATIENCE: Duration = Duration::from_millis(400);
/// For so long programs use pages that others want, too: less, and they would go before they were used.
const SETTLED_AFTER: Duration = Duration::from_millis(1);
/// Passes in which requests of the kernel are still served.
const PASSES: usize = 2;

const PAGE_BYTES: u64 = 4096;

/// A request of the kernel that waits for the lease and holds pages locked.
pub(crate) struct Waiting<'a> {
    inode: &'a Inode,
    pages: (u64, u64),
}

impl<'a> Waiting<'a> {
    /// From the byte `begin` to `end`.
    pub fn new(inode: &'a Inode, (begin, end): (u64, u64)) -> Waiting<'a> {
        let pages = (begin / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        inode.waiting.borrow_mut().push(pages);
        inode.wanted.notify_all();
        Waiting { inode, pages }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.inode.waiting.borrow_mut();
        let at = waiting.iter().position(|pages| *pages == self.pages);
        waiting.swap_remove(at.expect("it is there as long as this is"));
    }
}

/// Bytes that are under way to pages of the kernel.
pub(crate) struct Coming<'a>(&'a Inode);

impl<'a> Coming<'a> {
    pub fn new(inode: &'a Inode) -> Coming<'a> {
        inode.pages_coming.set(inode.pages_coming.get() + 1);
        Coming(inode)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.pages_coming.set(self.0.pages_coming.get() - 1);
    }
}

/// The gaps between ranges of pages: first page and the one behind the last.
fn gaps(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut gaps = Vec::with_capacity(ranges.len() + 1);
    let mut at = 0;
    for (begin, end) in ranges {
        if at < begin {
            gaps.push((at, begin));
        }
        at = at.max(end);
    }
    let last = u64::MAX / PAGE_BYTES;
    if at < last {
        gaps.push((at, last));
    }
    gaps
}

impl Client {
    /// Lets the kernel forget an inode, and waits until it has: pages that programs changed are written
    /// back meanwhile. Not waited for is a page which a request holds that waits for the lease.
    pub(crate) async fn forget_in_kernel(&self, inode: &Inode) {
        let invalidate = self.invalidate();
        let mut whole = pin!(invalidate.inode(inode.number));
        loop {
            let wanted = inode.wanted.notified();
            let waiting = inode.waiting.borrow().clone();
            if waiting.is_empty() {
                match race(whole.as_mut(), wanted).await {
                    Either::Left(()) => return,
                    Either::Right(()) => continue,
                }
            }
            let rest = join_all(gaps(waiting).into_iter().map(|(begin, end)| {
                invalidate.pages(inode.number, begin * PAGE_BYTES, end * PAGE_BYTES)
            }));
            let forgotten = race(whole.as_mut(), rest);
            match race(forgotten, wanted).await {
                Either::Left(Either::Left(())) => return,
                Either::Left(Either::Right(_)) if inode.mode() == LeaseMode::Write => {
                    let _ = race(whole, self.inner.world.sleep(PAGE_PATIENCE)).await;
                    return;
                }
                Either::Left(Either::Right(_)) => return,
                Either::Right(()) => {}
            }
        }
    }

    /// Takes the lease from its users and its pages from the kernel, where they have to go. `keep` is the
    /// mode that will be left of the lease. When this ends, new users wait.
    pub(crate) async fn clear(&self, inode: &Rc<Inode>, keep: LeaseMode) {
        let goes = || keep < LeaseMode::Read || keep < LeaseMode::Write && inode.is_mapped();
        let mut served = None;
        for _ in 0..PASSES {
            if !goes() || served == Some(inode.page_reads.get()) {
                break;
            }
            served = Some(inode.page_reads.get());
            self.forget_in_kernel(inode).await;
        }
        self.close_to_users(inode).await;
        if goes() && served != Some(inode.page_reads.get()) {
            // Pages came all the time. Now no more do; those that were changed are still taken.
            self.forget_in_kernel(inode).await;
            self.close_to_users(inode).await;
        }
    }

    /// Programs waited for these pages while others wanted them, too: they get the time to use them.
    pub(crate) fn let_settle(&self, inode: &Inode) {
        inode.settling.set(self.inner.world.now() + SETTLED_AFTER);
    }

    /// Waits until programs could use the pages that they waited for.
    pub(crate) async fn settled(&self, inode: &Inode) {
        loop {
            let left = crate::clock::left(inode.settling.get(), self.inner.world.now());
            // A longer wait than any settling comes from the clock of another life.
            if left.is_zero() || left > SETTLED_AFTER {
                return;
            }
            self.inner.world.sleep(left).await;
            inode.settling.set(ropewalk_base::time::Time::ZERO);
        }
    }

    /// Another client made a file longer that is open here: the kernel believes its size where it
    /// splices, copies, or serves a map.
    pub(crate) async fn grown(&self, inode: u64, size: u64, number: u64) {
        let grown = self.invalidate().grown(inode, size);
        // The size is noted at once; the wait for a page that somebody holds may take longer. The writer must
        // not go on before, or the size could come after a later truncation.
        let _ = race(grown, self.inner.world.sleep(GROWTH_PATIENCE)).await;
        // The writer does not wait for long.
        let _ = self.ask(&MetaRequest::ToldGrown { inode, number }, |_| Ok(())).await;
    }

    /// Pages that a write beside other writers left with the kernel go as soon as it lets them.
    pub(crate) fn drop_pages(&self, inode: &Inode, begin: u64, end: u64) {
        let dropped = self.invalidate().pages(inode.number, begin, end);
        self.inner.world.spawn(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_what_waits() {
        let last = u64::MAX / PAGE_BYTES;
        assert_eq!(gaps(vec![(0, 2), (5, 7), (6, 9), (1, 3)]), [(3, 5), (9, last)]);
        assert_eq!(gaps(vec![(4, 5)]), [(0, 4), (5, last)]);
        let inode = Inode::new(1);
        let first = Waiting::new(&inode, (4095, 4097));
        let second = Waiting::new(&inode, (4095, 4097));
        drop(first);
        assert_eq!(*inode.waiting.borrow(), [(0, 2)]);
        drop(second);
        assert!(inode.waiting.borrow().is_empty());
    }
}
