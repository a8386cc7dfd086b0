//! The kernel's caches as the client sees them: told before a lease is given back.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ropewalk_client::Invalidate;

use super::places::Places;
use crate::notify::{Notified, Notifier, NotifyError};

/// Tells the kernel to forget.
pub(super) struct KernelCaches {
    notifier: Notifier,
    places: Rc<RefCell<Places>>,
}

impl KernelCaches {
    /// For the mount of this notifier.
    pub fn new(notifier: Notifier, places: Rc<RefCell<Places>>) -> KernelCaches {
        KernelCaches { notifier, places }
    }
}

impl Invalidate for KernelCaches {
    fn inode(&self, inode: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        self.forget(inode, 0, 0)
    }

    fn pages(&self, inode: u64, begin: u64, end: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let Ok(offset) = i64::try_from(begin) else { return Box::pin(async {}) };
        // To the end, if that is behind the end of all files.
        let len = i64::try_from(end).map_or(0, |end| (end - offset).max(1));
        self.forget(inode, offset, len)
    }

    fn grown(&self, inode: u64, size: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        wait_for(self.notifier.grow_inode(inode, size))
    }
}

impl KernelCaches {
    fn forget(&self, inode: u64, offset: i64, len: i64) -> Pin<Box<dyn Future<Output = ()>>> {
        // The kernel is gone, or never knew it: in both cases nothing is remembered.
        let send = |node: u64| self.notifier.invalidate_inode(node, offset, len).ok();
        let sent = send(inode);
        let others: Vec<Notified> =
            self.places.borrow().others(inode).iter().filter_map(|node| send(*node)).collect();
        Box::pin(async move {
            for notified in sent.into_iter().chain(others) {
                let _ = notified.await;
            }
        })
    }
}

fn wait_for(sent: Result<Notified, NotifyError>) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        // The kernel is gone, or never knew it: in both cases nothing is remembered.
        if let Ok(notified) = sent {
            let _ = notified.await;
        }
    })
}
