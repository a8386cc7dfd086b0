//! The barrier between "I published work" and "is the peer asleep".
//!
//! A full fence after each frame would wait until the frame's cache lines were won from the peer,
//! which costs most of a ring's rate. Going to sleep is rare and slow anyway; so, where the kernel
//! offers it, the sleeper makes every running thread of the registered processes pass a barrier
//! (`membarrier`), and the sender gets by with a barrier for the compiler. Both sides of a link have
//! to have registered, otherwise both use fences.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

const MEMBARRIER_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes plain numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process once; whether its peers may use the asymmetric barrier with it.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED))
}

/// The sleeper's barrier, paired with [`light`] of links that are asymmetric, and with fences.
pub fn heavy(any_asymmetric: bool) {
    fence(Ordering::SeqCst);
    if any_asymmetric {
        assert!(
            membarrier(MEMBARRIER_GLOBAL_EXPEDITED),
            "membarrier worked at registration and cannot fail later"
        );
    }
}

/// The sender's barrier.
#[inline]
pub fn light(asymmetric: bool) {
    if asymmetric {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
