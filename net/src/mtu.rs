//! Handling of a reduced MTU: the end of links whose packets are longer than their interface now takes.
//!
//! The user is told once for each interface and each reduction. Each link of our own protocol has its own packet
//! length. Links that cannot go on are given up, and the next ones have shorter packets. On a wire of MXoE all links
//! have the same length, which cannot be reduced. A link with a refused packet ends as if its peer could not be
//! reached. So does a read of which no data arrives any more. Short packets still go through.
//!
//! The kernel tells of changes of an interface ([`ropewalk_rail::interfaces`]), and then the port is asked. Where it does
//! not, the port is asked now and then; so it is while the interface takes shorter packets only.
//!
//! Invariants: no link ends while the interface takes the packets that the links need; no interface is queried while
//! nobody polls.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;
use ropewalk_wire::mxoe::ETHERNET_BYTES;

use crate::notice;

/// The interval at which an interface whose changes nobody tells is asked for its MTU, and whether it is up.
const ASK_EACH: Duration = Duration::from_millis(100);
/// The values that stand for the MTU of an interface that is down, or gone.
const DOWN: usize = 1;
const GONE: usize = 0;
/// A read is given up that is not over after so long on an interface that takes no packet of the usual length.
const READS_FOR: Duration = Duration::from_secs(1);

/// A rail's knowledge of the length of its packets, and of the links and reads that depend on it.
#[derive(Debug)]
pub(crate) struct MtuMonitor {
    /// Longest packet of its links, and whether all have the same, which cannot be shortened.
    needed: usize,
    is_fixed: bool,
    /// The interface takes shorter ones only.
    is_narrow: bool,
    is_gone: bool,
    is_down: bool,
    /// Changes of the interface are told.
    is_told: bool,
    ask_at: Time,
    /// With a fixed length: the links that are up, those among them that are about to end, and the reads.
    links: Vec<SlotId>,
    ending: Vec<SlotId>,
    reads: Vec<Reading>,
}

#[derive(Debug)]
struct Reading {
    token: Token,
    link: SlotId,
    /// The time since which the interface is too narrow for it.
    since: Option<Time>,
}

impl MtuMonitor {
    /// Links of which each has a length of its own, at most so many bytes.
    pub fn flexible(needed: usize) -> MtuMonitor {
        let (links, ending, reads) = (Vec::new(), Vec::new(), Vec::new());
        let (is_fixed, is_narrow, ask_at) = (false, false, Time::ZERO);
        let (is_gone, is_down, is_told) = (false, false, false);
        MtuMonitor {
            needed,
            is_fixed,
            is_narrow,
            is_gone,
            is_down,
            is_told,
            ask_at,
            links,
            ending,
            reads,
        }
    }

    /// Links whose packets all have at most so many bytes, and cannot do with less.
    pub fn fixed(needed: usize) -> MtuMonitor {
        MtuMonitor { is_fixed: true, ..MtuMonitor::flexible(needed) }
    }

    /// From now on changes of the interface are told, or not any more.
    pub fn set_told(&mut self, is_told: bool) {
        self.is_told = is_told;
        self.ask_at = Time::ZERO;
    }

    /// Whether the interface is to be asked, though nobody told of a change.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.ask_at
    }

    /// When something has to be looked at though nothing may come.
    pub fn deadline(&self) -> Time {
        if self.is_narrow && !self.reads.is_empty() { self.ask_at } else { Time::NEVER }
    }

    /// The interface takes packets of so many bytes now. `name`: its own, and the scheme of the rail.
    pub fn takes(&mut self, bytes: usize, name: (Option<&str>, &str), now: Time) {
        let is_narrow = bytes < self.needed;
        self.ask_at = if self.is_told && !is_narrow { Time::NEVER } else { now + ASK_EACH };
        if std::mem::replace(&mut self.is_narrow, is_narrow) != is_narrow
            && let (Some(interface), scheme) = name
        {
            match is_narrow {
                true => tell(interface, scheme, self, bytes),
                false => told().retain(|(other, _)| other != interface),
            }
        }
        for reading in &mut self.reads {
            reading.since = is_narrow.then(|| reading.since.unwrap_or(now));
        }
    }

    /// Its interface was removed.
    pub fn gone(&mut self, name: (Option<&str>, &str)) {
        if !std::mem::replace(&mut self.is_gone, true)
            && let (Some(interface), scheme) = name
        {
            say_once(interface, GONE, || gone_words(interface, scheme));
        }
    }

    /// Its interface is down, or up.
    pub fn set_down(&mut self, is_down: bool, name: (Option<&str>, &str)) {
        if std::mem::replace(&mut self.is_down, is_down) != is_down
            && let (Some(interface), scheme) = name
        {
            match is_down {
                true => say_once(interface, DOWN, || down_words(interface, scheme)),
                false => told().retain(|(other, _)| other != interface),
            }
        }
    }

    /// The next read that nothing comes of any more; it is not among them from here on.
    pub fn next_stalled(&mut self, now: Time) -> Option<(SlotId, Token)> {
        let stalled = |it: &Reading| it.since.is_some_and(|since| now.since(since) >= READS_FOR);
        let at = self.reads.iter().position(stalled)?;
        let Reading { token, link, .. } = self.reads.swap_remove(at);
        Some((link, token))
    }

    /// Links that are up, where the length of their packets is fixed.
    pub fn links(&self) -> &[SlotId] {
        &self.links
    }

    pub fn up(&mut self, link: SlotId) {
        if self.is_fixed {
            self.links.push(link);
        }
    }

    /// A link is about to end since a packet of it was refused; false where that is known.
    pub fn end(&mut self, link: SlotId) -> bool {
        let is_new = !self.is_ending(link);
        if is_new {
            self.ending.push(link);
        }
        is_new
    }

    #[inline]
    pub fn is_ending(&self, link: SlotId) -> bool {
        !self.ending.is_empty() && self.ending.contains(&link)
    }

    /// A link has ended; returns the fault to report for it.
    pub fn down(&mut self, link: SlotId, fault: Fault) -> Fault {
        self.links.retain(|other| *other != link);
        let fault = if self.is_ending(link) { unreachable_if_closed(fault) } else { fault };
        self.ending.retain(|other| *other != link);
        fault
    }

    pub fn read(&mut self, link: SlotId, token: Token) {
        if self.is_fixed {
            self.reads.push(Reading { token, link, since: None });
        }
    }

    /// An order is over, perhaps a read; returns the outcome to report for it.
    #[inline]
    pub fn ended(&mut self, token: Token, outcome: Result<(), Fault>) -> Result<(), Fault> {
        if let Some(at) = self.reads.iter().position(|reading| reading.token == token) {
            self.reads.swap_remove(at);
        }
        match outcome {
            Err(fault) if !self.ending.is_empty() => Err(unreachable_if_closed(fault)),
            _ => outcome,
        }
    }
}

/// We have closed the link; its user has not.
fn unreachable_if_closed(fault: Fault) -> Fault {
    if fault == Fault::Closed { Fault::Unreachable } else { fault }
}

/// Interfaces of which users were told a smaller length of packets, that length, or [`DOWN`] or [`GONE`].
fn told() -> std::sync::MutexGuard<'static, Vec<(String, usize)>> {
    static TOLD: Mutex<Vec<(String, usize)>> = Mutex::new(Vec::new());
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says it, unless another endpoint of this process has.
#[cold]
fn tell(interface: &str, scheme: &str, narrow: &MtuMonitor, bytes: usize) {
    say_once(interface, bytes, || words(interface, scheme, narrow.is_fixed, narrow.needed, bytes));
}

/// Says something of an interface that takes packets of so many bytes only.
fn say_once(interface: &str, bytes: usize, words: impl FnOnce() -> String) {
    let mut told = told();
    if told.iter().any(|(other, to)| other == interface && *to == bytes) {
        return;
    }
    told.retain(|(other, _)| other != interface);
    told.push((interface.to_string(), bytes));
    notice::tell(&words());
}

fn down_words(interface: &str, scheme: &str) -> String {
    format!(
        "the interface {interface} is down: no messages pass over {scheme}://{interface} before it \
         is up again (ip link set {interface} up), and connections whose peers are silent for too \
         long by then end"
    )
}

fn gone_words(interface: &str, scheme: &str) -> String {
    format!(
        "the interface {interface} is gone, and with it all connections over \
         {scheme}://{interface}; if an interface of that name is created again, programs have to \
         open new endpoints on it"
    )
}

fn words(interface: &str, scheme: &str, is_fixed: bool, needed: usize, bytes: usize) -> String {
    let (long, short) = (needed + ETHERNET_BYTES, bytes + ETHERNET_BYTES);
    let begin =
        format!("the MTU of {interface} is {bytes} now, too small for frames of {long} bytes");
    let remedy = format!("raise it to at least {needed} (ip link set {interface} mtu {needed})");
    match is_fixed {
        true => format!(
            "{begin}: longer messages over {scheme}://{interface} fail as if their peers could not \
             be reached; {remedy}, or open endpoints with frame={short} on all hosts"
        ),
        false => format!(
            "{begin}: connections over {scheme}://{interface} that send such frames end, and new \
             connections send shorter ones; {remedy}, or leave it as it is"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: SlotId = SlotId { index: 3, generation: 1 };

    #[test]
    fn reads_are_given_up_where_the_interface_stays_narrow_and_not_before() {
        let mut narrow = MtuMonitor::fixed(1486);
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        narrow.read(LINK, Token(7));
        narrow.takes(1500, (None, "mxoe"), at(0));
        assert!(!narrow.is_due(at(99)) && narrow.is_due(at(100)));
        assert_eq!((narrow.next_stalled(at(5000)), narrow.deadline()), (None, Time::NEVER));
        narrow.takes(1000, (None, "mxoe"), at(5000));
        assert_eq!((narrow.next_stalled(at(5999)), narrow.deadline()), (None, at(5100)));
        // It is wide enough meanwhile.
        narrow.takes(1486, (None, "mxoe"), at(5500));
        narrow.takes(1000, (None, "mxoe"), at(5600));
        assert_eq!(narrow.next_stalled(at(6500)), None);
        narrow.takes(1000, (None, "mxoe"), at(6500));
        assert_eq!(narrow.next_stalled(at(6600)), Some((LINK, Token(7))));
        assert_eq!(narrow.next_stalled(at(6600)), None);
    }

    #[test]
    fn an_interface_whose_changes_are_told_is_asked_at_first_and_while_it_is_narrow() {
        let mut narrow = MtuMonitor::flexible(1486);
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        narrow.set_told(true);
        assert!(narrow.is_due(at(0)));
        narrow.takes(1500, (None, "ether"), at(0));
        assert!(!narrow.is_due(at(1_000_000)));
        narrow.takes(1000, (None, "ether"), at(1_000_000));
        assert!(!narrow.is_due(at(1_000_099)) && narrow.is_due(at(1_000_100)));
        narrow.takes(1500, (None, "ether"), at(1_000_100));
        assert!(!narrow.is_due(at(2_000_000)));
        // And always where they are told no more.
        narrow.set_told(false);
        assert!(narrow.is_due(at(0)));
        narrow.takes(1500, (None, "ether"), at(2_000_000));
        assert!(narrow.is_due(at(2_000_100)));
    }

    #[test]
    fn what_ends_a_link_that_was_too_long_is_said_to_be_its_peer() {
        let mut narrow = MtuMonitor::fixed(1486);
        narrow.up(LINK);
        assert_eq!(narrow.ended(Token(1), Err(Fault::Closed)), Err(Fault::Closed));
        assert!(narrow.end(LINK) && !narrow.end(LINK) && narrow.is_ending(LINK));
        assert_eq!(narrow.ended(Token(1), Err(Fault::Closed)), Err(Fault::Unreachable));
        assert_eq!(narrow.ended(Token(1), Ok(())), Ok(()));
        assert_eq!(narrow.down(LINK, Fault::Closed), Fault::Unreachable);
        assert_eq!(narrow.down(LINK, Fault::Closed), Fault::Closed);
        assert!(narrow.links().is_empty() && !narrow.is_ending(LINK));
    }

    #[test]
    fn it_is_told_what_to_do() {
        let said = words("e0", "mxoe", true, 8986, 1000);
        assert!(said.starts_with("the MTU of e0 is 1000 now, too small for frames of 9000 bytes"));
        assert!(said.contains("ip link set e0 mtu 8986") && said.contains("frame=1014"), "{said}");
        assert!(words("e0", "ether", false, 9000, 1500).contains("ip link set e0 mtu 9000"));
        assert!(gone_words("e0", "ether").contains("ether://e0"));
        assert!(down_words("e0", "ether").contains("ip link set e0 up"));
    }
}
