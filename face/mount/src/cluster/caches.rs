//! The kernel's caches as the client sees them: told before a lease is given back.

use std::future::Future;
use std::pin::Pin;

use ropewalk_client::Invalidate;

use crate::notify::Notifier;

/// Tells the kernel to forget.
pub struct KernelCaches {
    notifier: Notifier,
}

impl KernelCaches {
    /// For the mount of this notifier.
    pub fn new(notifier: Notifier) -> KernelCaches {
        KernelCaches { notifier }
    }
}

impl Invalidate for KernelCaches {
    fn inode(&self, inode: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let sent = self.notifier.invalidate_inode(inode, 0, 0);
        Box::pin(async move {
            // The kernel is gone, or never knew it: in both cases nothing is remembered.
            if let Ok(notified) = sent {
                let _ = notified.await;
            }
        })
    }
}
