//! Cross-memory attach: whether other processes of the same user may reach this process's memory, and
//! whether that way is a fast one.
//!
//! Under the Yama module's scope 1, the default of some distributions, it works from parents to children
//! only, unless the target declares otherwise.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::native::read_process;

/// On systems where Yama demands it, declares that processes of the same user may attach to this one, as they may on
/// a system without Yama. Does nothing elsewhere.
pub fn allow() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // SAFETY: this prctl takes a plain number and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

/// Whether messages come from other processes by cross-memory attach, or through the ring.
///
/// The kernel looks up and pins each page that it reads of another process. In a virtual machine that
/// costs more than the bytes themselves; the ring's two copies run on two processors at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attach {
    /// As this machine is measured to do better, once a process.
    #[default]
    Measured,
    Always,
    Never,
}

impl Attach {
    /// Whether to attach. The first call that has to measure takes about 2 ms.
    pub fn pays(self) -> bool {
        static MEASURED: OnceLock<bool> = OnceLock::new();
        match self {
            Attach::Measured => *MEASURED.get_or_init(measure),
            Attach::Always => true,
            Attach::Never => false,
        }
    }
}

/// Bytes of a measured copy: more than a processor's own caches keep of both sides.
const BYTES: usize = 1 << 20;
/// The fastest of so many counts: others were interrupted.
const ROUNDS: usize = 5;

/// Two copies take the time of one where both sides have a processor, and twice that where they share
/// it: attaching pays up to the middle.
fn measure() -> bool {
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    let own = rustix::process::getpid();
    let address = from.as_ptr().expose_provenance() as u64;
    let fastest = |work: &mut dyn FnMut() -> bool| -> Option<Duration> {
        let timed = |_| {
            let begin = Instant::now();
            work().then(|| begin.elapsed())
        };
        (0..ROUNDS).map(timed).collect::<Option<Vec<_>>>()?.into_iter().min()
    };
    let attached =
        fastest(&mut || read_process(own, address, &mut to).is_ok_and(|read| read == BYTES));
    let copied = fastest(&mut || {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        true
    });
    attached.zip(copied).is_some_and(|(attached, copied)| 2 * attached <= 3 * copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_measured_once_and_users_may_decide() {
        let measured = Attach::Measured.pays();
        assert!((0..100).all(|_| Attach::Measured.pays() == measured));
        assert!(Attach::Always.pays() && !Attach::Never.pays());
    }
}
