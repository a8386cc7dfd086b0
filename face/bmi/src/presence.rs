//! The threads inside a call, tracked so that the last finalize can take the library apart.
//!
//! A thread raises its own flag, looks at the library, and lowers the flag when its call is over. The thread
//! that ends the library takes it out of sight first. It then waits until no flag is up, and owns the library
//! alone from then on. So a call writes no memory that other threads write, and no thread keeps a library alive
//! by having used it.
//!
//! Invariants
//! * the flag goes up before the library is looked at, and the library goes out of sight before flags are
//!   looked at; a barrier stands between both steps on either side;
//! * the `Memory` of a thread is touched by the thread with its flag up and a library in sight, or by the
//!   thread that waited for all flags.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::contexts::Copied;

/// The library state that a thread remembers.
#[derive(Default)]
pub struct Memory {
    pub contexts: Copied,
}

struct Presence {
    inside: AtomicBool,
    memory: UnsafeCell<Memory>,
}

// SAFETY: the memory is touched by one thread at a time, as the invariants of this module say.
unsafe impl Sync for Presence {}
// SAFETY: it has nothing that belongs to a thread.
unsafe impl Send for Presence {}

/// The presence of this thread, among those of all others.
struct Registered(Arc<Presence>);

static PRESENT: Mutex<Vec<Arc<Presence>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Registered = Registered::new();
}

fn present() -> MutexGuard<'static, Vec<Arc<Presence>>> {
    PRESENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registered {
    fn new() -> Registered {
        let memory = UnsafeCell::new(Memory::default());
        let own = Arc::new(Presence { inside: AtomicBool::new(false), memory });
        present().push(own.clone());
        Registered(own)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // In a child the list may be locked by a thread that is not there.
        if crate::library::is_child() {
            return;
        }
        present().retain(|other| !Arc::ptr_eq(other, &self.0));
    }
}

/// Calls `work` with this thread's flag up. `None` where the thread is ending.
#[inline]
pub fn inside<R>(work: impl FnOnce(*mut Memory) -> Option<R>) -> Option<R> {
    let entered = OWN.try_with(|own| {
        let presence = &*own.0;
        presence.inside.store(true, Ordering::Relaxed);
        light_barrier();
        let result = work(presence.memory.get());
        presence.inside.store(false, Ordering::Release);
        result
    });
    entered.ok().flatten()
}

/// Waits until every thread has left the calls that may have seen the library, and has them forget what
/// they remember of it. `again` is called now and then, and says whether to wait on; false where it gave
/// up.
pub fn wait_for_all(mut again: impl FnMut() -> bool) -> bool {
    heavy_barrier();
    let present = present();
    for thread in present.iter() {
        while thread.inside.load(Ordering::Acquire) {
            if !again() {
                return false;
            }
        }
    }
    for thread in present.iter() {
        // SAFETY: its flag was down after the library had gone out of sight, so that the thread does not
        // touch its memory before there is another library, which waits for the caller.
        unsafe { *thread.memory.get() = Memory::default() };
    }
    true
}

const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The kernel makes other threads pass a barrier when it is asked to: theirs needs no instruction.
static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes plain numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Prepares the cheap barrier, before there is a library to look at.
pub fn prepare() {
    ASYMMETRIC.store(membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
}

#[inline]
fn light_barrier() {
    if ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if ASYMMETRIC.load(Ordering::Relaxed) {
        assert!(
            membarrier(MEMBARRIER_PRIVATE_EXPEDITED),
            "membarrier worked at registration and cannot fail later"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicPtr;
    use std::time::Duration;

    use super::*;

    /// Threads that look at a number while it is replaced and freed again and again.
    #[test]
    fn nobody_looks_at_what_was_taken_away() {
        static SHARED: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
        static OVER: AtomicBool = AtomicBool::new(false);
        prepare();
        let looks = || {
            let mut seen = 0u64;
            while !OVER.load(Ordering::Relaxed) {
                inside(|_| {
                    let number = SHARED.load(Ordering::Acquire);
                    // SAFETY: it is freed only after this call, where it was in sight.
                    seen += u64::from(!number.is_null() && unsafe { *number } == 77);
                    Some(())
                });
            }
            seen
        };
        let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(looks)).collect();
        for _ in 0..200 {
            SHARED.store(Box::into_raw(Box::new(77)), Ordering::Release);
            std::thread::sleep(Duration::from_micros(50));
            let taken = SHARED.swap(std::ptr::null_mut(), Ordering::AcqRel);
            assert!(wait_for_all(|| true));
            // SAFETY: it came from a box, and nobody has it any more.
            unsafe {
                *taken = 0;
                drop(Box::from_raw(taken));
            }
        }
        OVER.store(true, Ordering::Relaxed);
        assert!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>() > 0);
    }
}
