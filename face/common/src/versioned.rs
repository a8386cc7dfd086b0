//! State that many threads look at in each call and that hardly ever changes: the state has a version, and each thread
//! has a copy, which it renews if the version is another.
//!
//! Invariant: a look that begins after a change has returned sees the change, or a later one.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;

/// A value behind a lock, with a version that changes with it.
#[derive(Debug)]
pub struct Versioned<T> {
    value: Mutex<T>,
    /// Never 0: a new copy is of version 0, and out of date.
    version: AtomicU64,
}

impl<T> Versioned<T> {
    pub const fn new(value: T) -> Versioned<T> {
        Versioned { value: Mutex::new(value), version: AtomicU64::new(1) }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the value itself, under its lock.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the value, under its lock. All copies are out of date then.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.lock();
        let result = change(&mut value);
        self.outdate();
        result
    }

    /// All copies are out of date. Takes no lock and no memory, so that a fork handler may call it.
    pub fn outdate(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl<T: Default> Default for Versioned<T> {
    fn default() -> Versioned<T> {
        Versioned::new(T::default())
    }
}

/// One thread's copy of a [`Versioned`] value: `C` is a copy of it, or of the part that calls need. A part
/// that may end while a thread remembers it is remembered as a `Weak`.
#[derive(Debug, Default)]
pub struct ThreadCopy<C> {
    version: u64,
    copy: C,
}

impl<C> ThreadCopy<C> {
    /// A copy that is out of date; `empty` is never seen.
    pub const fn new(empty: C) -> ThreadCopy<C> {
        ThreadCopy { version: 0, copy: empty }
    }

    /// The copy, which `renew` has renewed if it was out of date. `renew` usually calls [`Versioned::look`].
    ///
    /// Costs a load and a comparison if nothing has changed.
    #[inline]
    pub fn of<T>(&mut self, value: &Versioned<T>, renew: impl FnOnce(&mut C)) -> &C {
        // Read before the copy is made: of a change meanwhile the copy is out of date, even if it has it.
        let version = value.version.load(Ordering::Acquire);
        if self.version != version {
            self.renew(version, renew);
        }
        &self.copy
    }

    #[cold]
    fn renew(&mut self, version: u64, renew: impl FnOnce(&mut C)) {
        renew(&mut self.copy);
        self.version = version;
    }
}

impl<C: Default + 'static> ThreadCopy<C> {
    /// Looks at this thread's copy, which is in a thread-local place. A thread that is ending has lost it, and may call
    /// the library from its last destructors: it looks at a copy for this call only.
    ///
    /// `look` must not call this function again.
    #[inline]
    pub fn with<T, R>(
        own: &'static LocalKey<RefCell<ThreadCopy<C>>>,
        value: &Versioned<T>,
        renew: impl Fn(&mut C),
        look: impl Fn(&C) -> R,
    ) -> R {
        let found = own.try_with(|copy| look(copy.borrow_mut().of(value, &renew)));
        found.unwrap_or_else(|_| {
            let mut copy = C::default();
            renew(&mut copy);
            look(&copy)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Weak};

    use super::*;

    static STATE: Versioned<Option<Arc<u32>>> = Versioned::new(None);

    thread_local! {
        static OWN: RefCell<ThreadCopy<Weak<u32>>> = const { RefCell::new(ThreadCopy::new(Weak::new())) };
    }

    fn seen() -> Option<u32> {
        let renew = |copy: &mut Weak<u32>| {
            *copy = STATE.look(|state| state.as_ref().map_or(Weak::new(), Arc::downgrade));
        };
        ThreadCopy::with(&OWN, &STATE, renew, |copy| copy.upgrade().map(|number| *number))
    }

    /// Looks again when its thread ends, after its own thread-local places are gone or before.
    struct AtTheEnd(std::sync::mpsc::Sender<Option<u32>>);

    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            let _ = self.0.send(seen());
        }
    }

    thread_local! {
        static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }

    #[test]
    fn every_thread_sees_the_state_that_replaced_another() {
        let (ask, asked) = channel::<()>();
        let (tell, told) = channel();
        let (end, ended) = channel();
        let other = std::thread::spawn(move || {
            // Its destructor runs after that of the copy, which comes into being later.
            LAST.with(|last| *last.borrow_mut() = Some(AtTheEnd(end)));
            while asked.recv().is_ok() {
                tell.send(seen()).unwrap();
            }
        });
        let both = || {
            ask.send(()).unwrap();
            (seen(), told.recv().unwrap())
        };
        assert_eq!(both(), (None, None));
        STATE.change(|state| *state = Some(Arc::new(1)));
        assert_eq!(both(), (Some(1), Some(1)));
        assert_eq!(both(), (Some(1), Some(1)));
        // The end of one life, and the beginning of another.
        let first = STATE.change(Option::take).unwrap();
        assert_eq!(Arc::strong_count(&first), 1, "no thread keeps it");
        assert_eq!(both(), (None, None));
        STATE.change(|state| *state = Some(Arc::new(2)));
        assert_eq!(both(), (Some(2), Some(2)));
        drop(ask);
        other.join().unwrap();
        assert_eq!(ended.recv(), Ok(Some(2)), "a thread that is ending looks all the same");
    }

    #[test]
    fn a_copy_is_renewed_once_for_each_change() {
        let value = Versioned::new(7);
        let (mut copy, mut renewals) = (ThreadCopy::new(0), 0);
        let mut look = || {
            let renew = |copy: &mut i32| {
                *copy = value.look(|value| *value);
                renewals += 1;
            };
            let seen = *copy.of(&value, renew);
            (seen, renewals)
        };
        assert_eq!([look(), look()], [(7, 1), (7, 1)]);
        value.change(|value| *value = 8);
        assert_eq!([look(), look()], [(8, 2), (8, 2)]);
        value.outdate();
        assert_eq!([look(), look()], [(8, 3), (8, 3)]);
    }
}
