//! The machine: storage by its name, the processor time and memory of processes, caches that are emptied.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

/// The file systems that a benchmark is likely to stand on, by the number that statfs tells.
const STORAGE: [(u64, &str); 5] = [
    (0x0102_1994, "tmpfs"),
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x794C_7630, "overlay"),
];

/// The type of the file system that holds a path.
pub fn storage(path: &Path) -> &'static str {
    let Ok(found) = rustix::fs::statfs(path) else { return "unknown" };
    let number = found.f_type as u64;
    STORAGE.iter().find(|(other, _)| *other == number).map_or("other", |(_, name)| name)
}

/// The kernel's release: the version of everything that only the kernel does.
pub fn kernel() -> String {
    format!("Linux {}", rustix::system::uname().release().to_string_lossy())
}

/// The number of this process's network namespace, which stands for a machine; 0: nobody tells.
pub fn network() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Nanoseconds of the machine's monotonic clock, the same in all processes.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processor time of this process, with its threads.
pub fn own_cpu_nanos() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processor time of the calling thread.
pub fn thread_cpu_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processor time of another process, with its living threads; 0 if it is gone.
pub fn cpu_nanos(process: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Bytes that have left by an interface of this thread's network namespace; `None` if there is no such interface.
pub fn interface_bytes_sent(interface: &str) -> Option<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let mut lines = table.lines().filter_map(|line| line.trim_start().split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| *name == interface)?;
    numbers.split_whitespace().nth(8)?.parse().ok()
}

/// Bytes that have left and come by all interfaces of this thread's network, but for the loopback interface; `None` if nobody
/// tells.
pub fn network_bytes() -> Option<(u64, u64)> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let lines = table.lines().filter_map(|line| line.trim_start().split_once(':'));
    let (mut sent, mut received) = (0, 0);
    for (_, numbers) in lines.filter(|(name, _)| *name != "lo") {
        let mut numbers = numbers.split_whitespace();
        received += numbers.next()?.parse::<u64>().ok()?;
        sent += numbers.nth(7)?.parse::<u64>().ok()?;
    }
    Some((sent, received))
}

/// Bytes of memory that a process has now.
pub fn resident_bytes(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} does not tell VmRSS"))? * 1024)
}

/// Writes dirty pages out, and empties the page cache and the caches of names.
///
/// False if this user may not: then reads find the data of the last write in the page cache.
pub fn drop_caches() -> bool {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// Whether a mount is on this directory.
pub fn is_mounted(path: &Path) -> bool {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}
