//! Whether other processes of the same user may reach this process's memory.
//!
//! Under the Yama module's scope 1, the default of some distributions, cross-memory attach works from
//! parents to children only, unless the target declares otherwise.

/// Where Yama asks for it, declares that processes of the same user may attach to this one, as they
/// may on a system without Yama. Does nothing elsewhere.
pub fn allow() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if scope.is_ok_and(|scope| scope.trim() == "1") {
        // SAFETY: this prctl takes a plain number and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}
