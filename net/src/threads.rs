//! Threads of this process.

use std::io;
use std::thread::JoinHandle;

/// Starts a thread with this name. The error names the likely cause: mostly a limit is reached.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(|cause| {
        let what = format!(
            "cannot start a thread: {cause}; check the limits on tasks (ulimit -u, pids.max of the cgroup)"
        );
        io::Error::new(cause.kind(), what)
    })
}
