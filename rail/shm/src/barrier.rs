//! The barrier between "I published work" and "is the peer asleep".
//!
//! A full fence after each frame would wait until the frame's cache lines were won from the peer,
//! which costs most of a ring's rate. Going to sleep is rare and slow anyway; so, where the kernel
//! offers it, the sleeper makes every running thread of the registered processes pass a barrier
//! (`membarrier`), and the sender gets by with a barrier for the compiler. Both sides of a link have
//! to have registered, otherwise both use fences.
//!
//! That interrupts every processor that runs one of them, for some microseconds. A rail that sleeps
//! after every few frames therefore asks its peers for fences, by a flag beside its sleeping word
//! ([`Habit`]). The barrier of the sleep in which it sets the flag is still the heavy one: a peer that read the flag
//! before had already published the work that it will not look again for, and every peer that reads it afterwards
//! sees it. Taking the flag back needs no more than going on with heavy barriers.

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

/// The number of frames that a rail gets per sleep, which decides which of the two barriers is cheaper.
#[derive(Debug, Default)]
pub struct Habit {
    /// Frames received when it slept last.
    frames: u64,
    /// Frames between two sleeps, times eight: a floating mean.
    between: u64,
    /// Peers are asked for fences.
    fenced: bool,
}

/// A heavy barrier costs about as much as so many fences; between both limits nothing changes.
const FRAMES_FEW: u64 = 16;
const FRAMES_MANY: u64 = 64;

impl Habit {
    /// The rail goes to sleep, having received so many frames in its life. Whether peers shall fence
    /// from now on, where that changes.
    pub fn sleeps(&mut self, frames: u64) -> Option<bool> {
        let since = (frames - self.frames).min(8 * FRAMES_MANY);
        self.frames = frames;
        self.between = self.between - self.between / 8 + since;
        let before = self.fenced;
        match self.between / 8 {
            0..FRAMES_FEW => self.fenced = true,
            FRAMES_MANY.. => self.fenced = false,
            _ => {}
        }
        (self.fenced != before).then_some(self.fenced)
    }

    /// Whether peers fence.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_fence_for_those_who_sleep_often() {
        let mut habit = Habit::default();
        assert_eq!(habit.sleeps(1), Some(true), "a newcomer sleeps after its first frame");
        assert!((0..100).all(|round| habit.sleeps(1 + 3 * round).is_none()) && habit.is_fenced());
        let busy = (1..100).find(|round| habit.sleeps(1000 + 500 * round) == Some(false));
        assert!(busy.is_some_and(|rounds| rounds < 10) && !habit.is_fenced());
        let frames = 1000 + 500 * 100;
        let calm = (1..100).find(|_| habit.sleeps(frames) == Some(true));
        assert!(calm.is_some_and(|rounds| rounds > 3), "one long pause is no habit: {calm:?}");
    }
}
