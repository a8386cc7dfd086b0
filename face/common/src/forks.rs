//! The guard against use in a forked child. A fork copies the memory and one thread: the child has its parent's
//! connections, locks that may be held for ever, and none of the library's threads.
//!
//! Invariant: a process is a child, for the library, if and only if an object of the library lived in its parent at
//! the fork. A child that was forked before the first object or after the last one has a library of its own.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The guard of a library: a static of the face.
///
/// The face registers a handler with `pthread_atfork` (which takes unsafe code, and is the face's), through
/// [`ForkGuard::watch`]; the handler calls [`ForkGuard::in_child`]. Functions that would take a lock look at
/// [`ForkGuard::is_child`] first. Those that run often need not look: the handler can make the state that they find
/// invisible in the child.
#[derive(Debug)]
pub struct ForkGuard {
    living: AtomicUsize,
    is_child: AtomicBool,
    watched: Once,
}

/// Marks a live object of the library until it is dropped.
#[derive(Debug)]
pub struct Living {
    guard: &'static ForkGuard,
}

impl ForkGuard {
    /// A guard without live objects.
    pub const fn new() -> ForkGuard {
        ForkGuard {
            living: AtomicUsize::new(0),
            is_child: AtomicBool::new(false),
            watched: Once::new(),
        }
    }

    /// Calls `register` once in the life of the process. It registers the handler and returns the error of
    /// `pthread_atfork`, 0 if there is none. An error is printed under the name of the library; the library works
    /// without the handler, but does not notice forks.
    pub fn watch(&self, library: &str, register: impl FnOnce() -> i32) {
        self.watched.call_once(|| {
            if register() != 0 {
                eprintln!(
                    "{library}: not enough memory to notice forks: a forked child must not call the library's \
                     functions"
                );
            }
        });
    }

    /// A live object begins. Begin it before any lock of the library is taken: a child could find the lock held.
    pub fn begin(&'static self) -> Living {
        self.living.fetch_add(1, Ordering::SeqCst);
        Living { guard: self }
    }

    /// Notes, in a process that was just forked, whether it is a child; true if it is. Only stores numbers, as a
    /// fork handler must.
    pub fn in_child(&self) -> bool {
        if self.living.load(Ordering::SeqCst) > 0 {
            self.is_child.store(true, Ordering::Relaxed);
        }
        self.is_child()
    }

    /// Whether this process has only a copy of its parent's library.
    #[inline]
    pub fn is_child(&self) -> bool {
        self.is_child.load(Ordering::Relaxed)
    }
}

impl Default for ForkGuard {
    fn default() -> ForkGuard {
        ForkGuard::new()
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.guard.living.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_child_if_something_lived_at_the_fork() {
        static GUARD: ForkGuard = ForkGuard::new();
        assert!(!GUARD.in_child(), "nothing lived yet");
        let (first, second) = (GUARD.begin(), GUARD.begin());
        drop(first);
        drop(second);
        assert!(!GUARD.in_child(), "nothing lives any more");
        let last = GUARD.begin();
        assert!(!GUARD.is_child(), "the parent is none");
        assert!(GUARD.in_child());
        drop(last);
        assert!(GUARD.in_child(), "nor does a child of a child have a library of its own");
    }

    #[test]
    fn a_handler_is_registered_once() {
        static GUARD: ForkGuard = ForkGuard::new();
        let mut count = 0;
        for error in [12, 0, 0] {
            GUARD.watch("test", || {
                count += 1;
                error
            });
        }
        assert_eq!(count, 1);
    }
}
