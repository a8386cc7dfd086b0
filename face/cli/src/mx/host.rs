//! Information from files of the kernel: interfaces, processors, limits and the names of claims.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The prefix of claims' names: a protocol, an interface's number and an endpoint's follow (rail/ether).
const CLAIM: &str = "@ropewalk/";
/// The protocols that endpoints of an interface speak, by their schemes; each has numbers of its own.
const PROTOCOLS: [&str; 2] = ["ether", "mxoe"];
/// The names of the kernel's counters of an interface, and their places in its table.
const TRAFFIC: [(&str, usize); 11] = [
    ("packets.sent", 9),
    ("packets.received", 1),
    ("bytes.sent", 8),
    ("bytes.received", 0),
    ("dropped.unsent", 11),
    ("dropped.received", 3),
    ("dropped.ring_full", 4),
    ("dropped.wrong_frame", 5),
    ("errors.sent", 10),
    ("errors.received", 2),
    ("errors.carrier", 14),
];
/// The text in place of a protocol if a queue of the interface goes by AF_XDP: the queue's number follows.
const XDP: &str = "xdp/";
/// Bits of rights in `/proc/PID/status`.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;

/// The files, from some root on.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
}

/// An endpoint that somebody has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub interface: u32,
    pub scheme: &'static str,
    pub endpoint: u8,
    /// Number and name of the process, if it can be seen.
    pub process: Option<(u32, String)>,
}

/// The properties of the whole host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// Rights of this process: to raw frames, and to more memory for what comes than the limit.
    pub raw: bool,
    pub admin: bool,
    /// Bytes of a socket's receive buffer, at most.
    pub receive_buffer_max: Option<u64>,
    /// The longest time, in microseconds, that a processor takes to wake up from a sleep that is allowed.
    pub wake_us: Option<u32>,
}

impl Default for Files {
    fn default() -> Files {
        Files { root: "/".into() }
    }
}

impl Files {
    #[cfg(test)]
    pub fn at(root: &Path) -> Files {
        Files { root: root.to_path_buf() }
    }

    fn text(&self, path: &str) -> Option<String> {
        // Names of sockets are any bytes that their owners like.
        let bytes = std::fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// The properties of the whole host.
    pub fn host(&self) -> Host {
        let status = self.text("proc/self/status").unwrap_or_default();
        let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let rights = rights.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
        let has = |right: u32| rights >> right & 1 == 1;
        Host {
            raw: has(CAP_NET_RAW),
            admin: has(CAP_NET_ADMIN),
            receive_buffer_max: self
                .text("proc/sys/net/core/rmem_max")
                .and_then(|it| it.parse().ok()),
            wake_us: self.wake_us(),
        }
    }

    /// Of all sleeps of the first processor that are not switched off the deepest one; what the whole host
    /// asked for, where that is seen.
    fn wake_us(&self) -> Option<u32> {
        let states = self.root.join("sys/devices/system/cpu/cpu0/cpuidle");
        let states = std::fs::read_dir(states).ok()?;
        let number = |path: &Path, name: &str| -> Option<u32> {
            std::fs::read_to_string(path.join(name)).ok()?.trim().parse().ok()
        };
        let deepest = states
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| number(path, "disable") != Some(1))
            .filter_map(|path| number(&path, "latency"))
            .max()?;
        let asked = std::fs::read(self.root.join("dev/cpu_dma_latency")).ok();
        let asked = asked.and_then(|bytes| bytes.first_chunk().map(|it| i32::from_ne_bytes(*it)));
        let asked = asked.and_then(|asked| u32::try_from(asked).ok()).unwrap_or(u32::MAX);
        Some(deepest.min(asked))
    }

    /// The kernel's counters of each interface of this network namespace.
    pub fn traffic(&self) -> BTreeMap<String, Vec<(String, u64)>> {
        let table = self.text("proc/thread-self/net/dev").unwrap_or_default();
        let of = |line: &str| {
            let (name, counts) = line.split_once(':')?;
            let counts: Vec<u64> =
                counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
            let of = |(name, place): &(&str, usize)| Some((name.to_string(), *counts.get(*place)?));
            Some((name.trim().to_string(), TRAFFIC.iter().filter_map(of).collect()))
        };
        table.lines().filter_map(of).collect()
    }

    /// All endpoints that somebody has, in order.
    pub fn claims(&self) -> Vec<Claim> {
        let table = self.text("proc/self/net/unix").unwrap_or_default();
        let mut found: BTreeMap<Name, u64> = BTreeMap::new();
        for line in table.lines() {
            let mut words = line.split_whitespace();
            let (inode, name) = (words.nth(6), words.next());
            let claim = name.and_then(|name| name.strip_prefix(CLAIM)).and_then(parse);
            if let (Some(claim), Some(Ok(inode))) = (claim, inode.map(str::parse)) {
                found.insert(claim, inode);
            }
        }
        let owners = if found.is_empty() { BTreeMap::new() } else { self.sockets() };
        let claim = |((interface, scheme, endpoint), inode): (Name, u64)| {
            let process = owners.get(&inode).map(|process| (*process, self.name_of(*process)));
            Claim { interface, scheme, endpoint, process }
        };
        found.into_iter().map(claim).collect()
    }

    /// Queues that processes take frames from by AF_XDP, each with the number of its interface.
    pub fn queues(&self) -> Vec<(u32, u32)> {
        let table = self.text("proc/self/net/unix").unwrap_or_default();
        let names = table.lines().filter_map(|line| line.split_whitespace().nth(7));
        let queue = |name: &str| {
            let (interface, queue) =
                name.strip_prefix(CLAIM)?.strip_prefix(XDP)?.split_once('/')?;
            Some((interface.parse().ok()?, queue.parse().ok()?))
        };
        names.filter_map(queue).collect()
    }

    /// The process that owns each socket, by inode, as far as that may be seen.
    fn sockets(&self) -> BTreeMap<u64, u32> {
        let mut owners = BTreeMap::new();
        let processes = std::fs::read_dir(self.root.join("proc")).into_iter().flatten().flatten();
        for process in processes {
            let Some(number) = process.file_name().to_str().and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let open = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
            for file in open.filter_map(|file| std::fs::read_link(file.path()).ok()) {
                let text =
                    file.to_str().and_then(|it| it.strip_prefix("socket:[")?.strip_suffix(']'));
                if let Some(Ok(inode)) = text.map(str::parse) {
                    owners.entry(inode).or_insert(number);
                }
            }
        }
        owners
    }

    fn name_of(&self, process: u32) -> String {
        self.text(&format!("proc/{process}/comm")).unwrap_or_default()
    }
}

/// The parts of a claim's name: interface, protocol and endpoint.
type Name = (u32, &'static str, u8);

fn parse(name: &str) -> Option<Name> {
    let mut parts = name.split('/');
    let protocol = parts.next()?;
    let scheme = PROTOCOLS.into_iter().find(|scheme| *scheme == protocol)?;
    let (interface, endpoint) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((interface, scheme, endpoint))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Files below a folder.
    pub fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = Files::at(folder.path());
        (folder, files)
    }

    #[test]
    fn claims_are_named_sockets_and_their_owners_are_found() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0002 01   501 @ropewalk/ether/3/1
0000000000000000: 00000002 00000000 00000000 0002 01   502 @ropewalk/ether/3/0
0000000000000000: 00000002 00000000 00010000 0001 01   503 /run/other
0000000000000000: 00000002 00000000 00000000 0002 01   504 @ropewalk/ether/x/0
0000000000000000: 00000002 00000000 00000000 0002 01   505 @ropewalk/ether/3/256
0000000000000000: 00000002 00000000 00000000 0002 01   507 @ropewalk/mxoe/3/1
0000000000000000: 00000002 00000000 00000000 0002 01   508 @ropewalk/shm/3/1
0000000000000000: 00000002 00000000 00000000 0002 01   509 @ropewalk/xdp/3/1
0000000000000000: 00000002 00000000 00000000 0002 01   510 @ropewalk/xdp/3
0000000000000000: 00000002 00000000 00000000 0002 01   506
";
        let (folder, files) = tree(&[("proc/self/net/unix", table), ("proc/77/comm", "server\n")]);
        std::fs::create_dir(folder.path().join("proc/77/fd")).unwrap();
        std::os::unix::fs::symlink("socket:[501]", folder.path().join("proc/77/fd/4")).unwrap();
        let claim = |scheme, endpoint, process| Claim { interface: 3, scheme, endpoint, process };
        let owner = Some((77, "server".to_string()));
        let expected = [claim("ether", 0, None), claim("ether", 1, owner), claim("mxoe", 1, None)];
        assert_eq!(files.claims(), expected);
        assert_eq!(files.queues(), [(3, 1)]);
        // Somebody else's name is no text.
        let stranger = b"0: 00000002 00000000 00000000 0002 01   511 @\xff\n".as_slice();
        let table = [table.as_bytes(), stranger].concat();
        std::fs::write(folder.path().join("proc/self/net/unix"), table).unwrap();
        assert_eq!(files.claims(), expected);
    }

    #[test]
    fn what_the_kernel_counts_is_read_by_its_place() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
";
        let (_folder, files) = tree(&[("proc/thread-self/net/dev", table)]);
        let traffic = files.traffic();
        let of = |name: &str| {
            traffic["eth0"].iter().find(|it| it.0 == name).expect("the kernel counts it").1
        };
        let names = ["bytes.received", "packets.received", "errors.received", "dropped.received"];
        assert_eq!(names.map(of), [1, 2, 3, 4]);
        let names = ["dropped.ring_full", "dropped.wrong_frame", "bytes.sent", "packets.sent"];
        assert_eq!(names.map(of), [5, 6, 9, 10]);
        let names = ["errors.sent", "dropped.unsent", "errors.carrier"];
        assert_eq!(names.map(of), [11, 12, 15]);
        assert_eq!(traffic.len(), 1);
    }

    #[test]
    fn a_host_says_what_it_has_and_what_it_does_not_say_is_not_known() {
        let idle = "sys/devices/system/cpu/cpu0/cpuidle";
        let (_folder, files) = tree(&[
            ("proc/self/status", "Name:\tx\nCapEff:\t0000000000002000\n"),
            ("proc/sys/net/core/rmem_max", "212992\n"),
            (&format!("{idle}/state0/latency"), "0\n"),
            (&format!("{idle}/state1/latency"), "133\n"),
            (&format!("{idle}/state2/latency"), "900\n"),
            (&format!("{idle}/state2/disable"), "1\n"),
        ]);
        let host = files.host();
        let rest =
            Host { receive_buffer_max: Some(212_992), wake_us: Some(133), ..Host::default() };
        assert_eq!(host, Host { raw: true, ..rest });
        let (_folder, nothing) = tree(&[]);
        assert_eq!((nothing.host(), nothing.claims()), (Host::default(), Vec::new()));
        let asked = String::from_utf8(5i32.to_ne_bytes().to_vec()).unwrap();
        let (_folder, files) =
            tree(&[(&format!("{idle}/state1/latency"), "133\n"), ("dev/cpu_dma_latency", &asked)]);
        assert_eq!(files.host().wake_us, Some(5), "somebody keeps the processors awake");
    }
}
