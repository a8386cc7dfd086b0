//! Information from /proc about the process behind a request.
//!
//! Invariants: remembered processes are bounded in number and age; a process that cannot be read is taken for
//! one that is going away, and has no supplementary groups.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;

/// The time for which a process's groups are believed.
const GROUPS_VALID: Duration = Duration::from_secs(1);
/// Most processes whose groups are remembered.
const PROCESSES_MAX: usize = 256;

fn status(pid: u32) -> Option<String> {
    if pid == 0 {
        // The caller lives outside our process namespace.
        return None;
    }
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether a fatal signal is pending. The kernel turns a fatal signal of any kind into SIGKILL for
/// every thread of the process, which is what can be seen.
pub(crate) fn is_being_killed(pid: u32) -> bool {
    if pid == 0 {
        // Nothing can be seen of it: its signal is taken for one that it handles.
        return false;
    }
    let Some(status) = status(pid) else { return true };
    let killed = 1u64 << (libc::SIGKILL - 1);
    ["SigPnd", "ShdPnd"].iter().any(|name| {
        let mask = field(&status, name).and_then(|text| u64::from_str_radix(text, 16).ok());
        mask.is_some_and(|mask| mask & killed != 0)
    })
}

/// Rights of a process beside its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_FSETID`: setuid and setgid stay on what it changes.
    SetIds,
    /// `CAP_SYS_ADMIN`: it sees attributes of the name space `trusted`.
    Administer,
}

impl Capability {
    fn bit(self) -> u64 {
        match self {
            Capability::SetIds => 1 << 4,
            Capability::Administer => 1 << 21,
        }
    }
}

/// Whether thread `pid`, which runs as `uid`, has a capability in our own user name space. For what
/// the kernel does not tell with a request.
pub(crate) fn has_capability(pid: u32, uid: u32, capability: Capability) -> bool {
    if pid == 0 {
        // Nothing can be seen of it but its id.
        return uid == 0;
    }
    let Some(status) = status(pid) else { return false };
    let effective = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    if effective.is_none_or(|effective| effective & capability.bit() == 0) {
        return false;
    }
    // Root of a user name space has all capabilities there, which are none here.
    let space = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    match (space("self"), space(&pid.to_string())) {
        (Some(ours), Some(its)) => ours == its,
        // A kernel without user name spaces.
        (None, None) => true,
        _ => false,
    }
}

/// The process of a thread; the thread itself where nothing can be seen of it.
pub(crate) fn process_of(thread: u32) -> u32 {
    let text = status(thread);
    let process = text.as_deref().and_then(|text| field(text, "Tgid")?.parse().ok());
    process.unwrap_or(thread)
}

struct Known {
    until: Time,
    uid: u32,
    groups: Rc<[u32]>,
}

/// Supplementary groups of recent callers.
#[derive(Default)]
pub(crate) struct Groups {
    known: RefCell<BTreeMap<u32, Known>>,
}

impl Groups {
    /// The supplementary groups of process `pid`, which runs as `uid`.
    pub(crate) fn of(&self, pid: u32, uid: u32, now: Time) -> Rc<[u32]> {
        if let Some(known) = self.known.borrow().get(&pid)
            && known.uid == uid
            && now < known.until
        {
            return known.groups.clone();
        }
        let text = status(pid);
        let list = text.as_deref().and_then(|text| field(text, "Groups")).unwrap_or("");
        let groups: Rc<[u32]> = list.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        let mut known = self.known.borrow_mut();
        if known.len() >= PROCESSES_MAX {
            known.retain(|_, one| now < one.until);
        }
        if known.len() < PROCESSES_MAX {
            let until = now + GROUPS_VALID;
            known.insert(pid, Known { until, uid, groups: groups.clone() });
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_this_processs_and_age() {
        let own: Vec<u32> = {
            let text = status(std::process::id()).unwrap();
            field(&text, "Groups").unwrap().split_whitespace().map(|g| g.parse().unwrap()).collect()
        };
        let groups = Groups::default();
        let pid = std::process::id();
        let first = groups.of(pid, 0, Time::ZERO);
        assert_eq!(*first, own[..]);
        assert!(Rc::ptr_eq(&first, &groups.of(pid, 0, Time(1))));
        assert!(!Rc::ptr_eq(&first, &groups.of(pid, 0, Time::ZERO + GROUPS_VALID)));
        assert!(groups.of(0, 0, Time::ZERO).is_empty());
    }

    #[test]
    fn capabilities_are_those_of_our_own_name_space() {
        let pid = std::process::id();
        let effective =
            field(&status(pid).unwrap(), "CapEff").map(|text| u64::from_str_radix(text, 16));
        let administers = effective.unwrap().unwrap() & Capability::Administer.bit() != 0;
        assert_eq!(has_capability(pid, 5, Capability::Administer), administers);
        assert!(!has_capability(u32::MAX, 0, Capability::SetIds));
        assert!(
            has_capability(0, 0, Capability::SetIds) && !has_capability(0, 1, Capability::SetIds)
        );
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let own = std::process::id();
        let thread = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let other = std::thread::spawn(move || (thread(), process_of(thread()))).join().unwrap();
        assert!(other.0 != own && other.1 == own);
        assert_eq!((process_of(own), process_of(u32::MAX)), (own, u32::MAX));
    }

    #[test]
    fn a_healthy_process_is_not_being_killed() {
        assert!(!is_being_killed(std::process::id()));
        assert!(is_being_killed(u32::MAX));
        // Outside of our process namespace, which says nothing about its health.
        assert!(!is_being_killed(0));
    }
}
