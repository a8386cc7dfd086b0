//! Addresses: those that were looked up, and those of peers that sent us something.
//!
//! A handle is the peer's own number, so that a post needs no table. The table has what the interface
//! says about it: its URL, its references, and under which of several handles an endpoint is reported.
//!
//! Invariants
//! * a handle that was learnt, not looked up, is good for one session: who calls us again has another one,
//!   so that nothing which comes late of the former session, be it told or done, concerns the new one;
//! * it is forgotten once nobody refers to it and its session is over; its number never comes back;
//! * of several handles of one peer each is forgotten alone.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;

use ropewalk_base::slots::SlotId;
use ropewalk_net::endpoint::PeerEvent;
use ropewalk_net::{Endpoint, PeerId};

/// An address in the C interface; 0 is none.
pub type Handle = i64;

/// The separators between URLs in a list. Callers read lists from files and leave the line end there.
pub const BETWEEN_URLS: [char; 5] = [',', ' ', '\t', '\n', '\r'];

/// The longest URL.
pub const URL_BYTES_MAX: usize = 2048;

#[derive(Default)]
pub struct Addresses {
    entries: HashMap<Handle, Entry>,
    by_url: HashMap<String, Handle>,
    /// The handle under which a peer is reported, where that is another than its own.
    reported: HashMap<PeerId, Handle>,
    /// Peers of these whose sessions are over: messages of theirs may still wait to be told.
    over: VecDeque<PeerId>,
    /// Handles that were told after their sessions had ended: by the last test of messages, and by this one.
    late: [Vec<Handle>; 2],
    /// Events of the endpoint that were taken into account.
    events_seen: u64,
}

struct Entry {
    /// As it was looked up; `None` for peers that reached us.
    url: Option<CString>,
    /// The host, as it was asked for last. Callers have pointers to it, so that all of them stay.
    hosts: Vec<CString>,
    references: i64,
    /// It was learnt, and its session is over.
    gone: bool,
}

/// Peers whose sessions are over that are still told under the address that they were looked up by.
const OVER_MAX: usize = 1024;

pub fn peer_of(handle: Handle) -> PeerId {
    PeerId(SlotId::from_u64(handle as u64))
}

pub fn handle_of(peer: PeerId) -> Handle {
    peer.0.to_u64() as i64
}

impl Addresses {
    /// The handle of an earlier look-up of exactly this text.
    pub fn looked_up(&self, url: &str) -> Option<Handle> {
        self.by_url.get(url).copied()
    }

    /// A look-up made this peer.
    pub fn add(&mut self, url: &str, peer: PeerId) -> Handle {
        let handle = handle_of(peer);
        let text = CString::new(url).ok();
        let entry = Entry { url: text, hosts: Vec::new(), references: 0, gone: false };
        self.entries.insert(handle, entry);
        self.by_url.insert(url.to_string(), handle);
        handle
    }

    /// The handle under which a message of this peer is reported.
    pub fn learn(&mut self, endpoint: &Endpoint, peer: PeerId, count: bool) -> Handle {
        self.take_events(endpoint);
        let handle = match self.reported.get(&peer) {
            Some(handle) => *handle,
            None => handle_of(peer),
        };
        if let Some(entry) = self.entries.get_mut(&handle) {
            entry.references += i64::from(count);
            return handle;
        }
        let (url, hosts, references) = (None, Vec::new(), i64::from(count));
        self.entries.insert(handle, Entry { url, hosts, references, gone: false });
        // Asked after it is in the table: an end that comes later is told by an event.
        if endpoint.is_over(peer) {
            self.mark_gone(peer);
            self.late[1].push(handle);
        }
        handle
    }

    /// The end of a test of messages: forgets what the one before told though it had ended, since users have
    /// seen it by now.
    pub fn settle(&mut self, endpoint: &Endpoint) {
        self.take_events(endpoint);
        let [before, now] = &mut self.late;
        std::mem::swap(before, now);
        for handle in std::mem::take(now) {
            self.forget_unused(endpoint, handle);
        }
    }

    /// Takes note of sessions that ended, and of peers that turned out to be one.
    pub fn take_events(&mut self, endpoint: &Endpoint) {
        if self.events_seen == endpoint.event_count() {
            return;
        }
        while let Some(event) = endpoint.next_event() {
            self.events_seen += 1;
            match event {
                PeerEvent::Down(peer, _) => self.ended(endpoint, peer),
                PeerEvent::Aliased { alias, peer } => self.aliased(alias, peer),
                PeerEvent::Up(_) | PeerEvent::KeyJudged { .. } => {}
            }
        }
        let count = endpoint.event_count();
        if self.events_seen < count {
            // More happened than the endpoint keeps: each address is asked for by itself.
            self.events_seen = count;
            self.ask_for_aliases(endpoint);
            let learnt = |(handle, entry): (&Handle, &Entry)| {
                (entry.url.is_none() && !entry.gone).then_some(peer_of(*handle))
            };
            let learnt: Vec<PeerId> = self.entries.iter().filter_map(learnt).collect();
            learnt.into_iter().for_each(|peer| self.ended(endpoint, peer));
        }
    }

    /// A session ended, or may have.
    fn ended(&mut self, endpoint: &Endpoint, peer: PeerId) {
        let handle = handle_of(peer);
        let is_learnt = self.entries.get(&handle).is_some_and(|entry| entry.url.is_none());
        let is_reported = self.reported.contains_key(&peer);
        if !(is_learnt || is_reported) || !endpoint.is_over(peer) {
            return;
        }
        if is_reported {
            self.over.push_back(peer);
            if self.over.len() > OVER_MAX
                && let Some(oldest) = self.over.pop_front()
            {
                self.reported.remove(&oldest);
            }
        }
        self.mark_gone(peer);
        self.forget_unused(endpoint, handle);
    }

    fn mark_gone(&mut self, peer: PeerId) {
        if let Some(entry) = self.entries.get_mut(&handle_of(peer)) {
            entry.gone = entry.url.is_none();
        }
    }

    /// A handle that was looked up is what users know: their peer is reported under it.
    fn aliased(&mut self, alias: PeerId, peer: PeerId) {
        let earlier = self.reported.remove(&alias).unwrap_or(handle_of(alias));
        let known = self.reported.get(&peer).copied().unwrap_or(handle_of(peer));
        let is_looked_up =
            |handle| self.entries.get(&handle).is_some_and(|entry| entry.url.is_some());
        if !is_looked_up(known) && is_looked_up(earlier) {
            self.reported.insert(peer, earlier);
        }
    }

    fn ask_for_aliases(&mut self, endpoint: &Endpoint) {
        let handles: Vec<Handle> = self.by_url.values().copied().collect();
        for handle in handles {
            let own = peer_of(handle);
            let peer = endpoint.resolve(own);
            if peer != own {
                self.aliased(own, peer);
            }
        }
    }

    /// Counts one reference more.
    pub fn refer(&mut self, handle: Handle) -> bool {
        let entry = self.entries.get_mut(&handle);
        entry.map(|entry| entry.references += 1).is_some()
    }

    /// Counts one reference less; false where there is none.
    pub fn release(&mut self, endpoint: &Endpoint, handle: Handle) -> bool {
        let Some(entry) = self.entries.get_mut(&handle) else { return false };
        if entry.references == 0 {
            return false;
        }
        entry.references -= 1;
        self.take_events(endpoint);
        self.forget_unused(endpoint, handle);
        true
    }

    /// Whether the address may be forgotten: nobody refers to it, and nobody can reach it.
    pub fn is_droppable(&self, handle: Handle) -> bool {
        self.entries
            .get(&handle)
            .is_some_and(|entry| entry.url.is_none() && entry.gone && entry.references == 0)
    }

    fn forget_unused(&mut self, endpoint: &Endpoint, handle: Handle) {
        if self.is_droppable(handle) {
            self.drop_one(endpoint, handle);
        }
    }

    /// Forgets an address in any case: operations under way with it fail. Its connection is closed, unless the
    /// same peer has another address here.
    pub fn forget(&mut self, endpoint: &Endpoint, handle: Handle) -> bool {
        self.take_events(endpoint);
        self.drop_one(endpoint, handle)
    }

    fn drop_one(&mut self, endpoint: &Endpoint, handle: Handle) -> bool {
        let Some(entry) = self.entries.remove(&handle) else { return false };
        if let Some(url) = entry.url.as_ref().and_then(|url| url.to_str().ok()) {
            self.by_url.remove(url);
        }
        self.reported.retain(|_, reported| *reported != handle);
        let peer = peer_of(handle);
        let mut names = endpoint.names_of(peer);
        let main = names.first().copied().unwrap_or(peer);
        names.retain(|name| self.entries.contains_key(&handle_of(*name)));
        if names.is_empty() {
            endpoint.forget(peer);
            return true;
        }
        self.report_otherwise(main, &names);
        endpoint.forget_name(peer);
        true
    }

    /// An address of a peer is gone: the peer is told under one that is left, best under one that was looked
    /// up.
    fn report_otherwise(&mut self, main: PeerId, left: &[PeerId]) {
        let is_looked_up = |name: &PeerId| {
            self.entries.get(&handle_of(*name)).is_some_and(|entry| entry.url.is_some())
        };
        if self.reported.contains_key(&main) || is_looked_up(&main) {
            return;
        }
        let other = left.iter().find(|name| is_looked_up(name));
        let other = other.or(left.first()).copied().filter(|other| *other != main);
        if let Some(other) = other {
            self.reported.insert(main, handle_of(other));
        }
    }

    /// The text that an address was looked up by.
    pub fn url(&self, handle: Handle) -> Option<&CString> {
        self.entries.get(&handle)?.url.as_ref()
    }

    /// Whether there is such an address.
    pub fn is_known(&self, handle: Handle) -> bool {
        self.entries.contains_key(&handle)
    }

    /// The schemes by which an address is reached: that of its connection, or those of its URLs.
    pub fn schemes(&self, endpoint: &Endpoint, handle: Handle) -> Vec<String> {
        if let Some(scheme) = endpoint.peer_scheme(peer_of(handle)) {
            return vec![scheme.to_string()];
        }
        let url = self.url(handle).and_then(|url| url.to_str().ok()).unwrap_or_default();
        let parts = reachable_parts(url, &ropewalk_net::modules::schemes());
        parts.into_iter().map(|(scheme, _)| scheme.to_string()).collect()
    }

    /// The host behind an address.
    pub fn host(&mut self, endpoint: &Endpoint, handle: Handle) -> Option<&CString> {
        let entry = self.entries.get_mut(&handle)?;
        let url = entry.url.as_ref().and_then(|url| url.to_str().ok());
        let host = endpoint.peer_host(peer_of(handle)).or_else(|| host_of(url?))?;
        let host = CString::new(host).ok()?;
        let index = match entry.hosts.iter().position(|other| *other == host) {
            Some(index) => index,
            None => {
                entry.hosts.push(host);
                entry.hosts.len() - 1
            }
        };
        entry.hosts.get(index)
    }
}

/// The host in the first URL that has one.
fn host_of(urls: &str) -> Option<String> {
    let rest = urls.split(BETWEEN_URLS).find_map(|url| url.strip_prefix("tcp://"))?;
    let host = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => rest.split([':', '/']).next()?,
    };
    (!host.is_empty()).then(|| host.to_string())
}

/// Whether URLs of this scheme may have a path behind host and port, as OrangeFS names its file systems.
fn has_path(scheme: &str) -> bool {
    matches!(scheme, "tcp" | "udp")
}

/// The part of a URL's place that leads to a process. The file systems behind it do not concern the network.
fn before_path(place: &str) -> &str {
    place.split_once('/').map_or(place, |(place, _)| place)
}

/// The parts of a list of URLs whose modules are there, in the way that the layer below writes them.
pub fn reachable_parts<'a>(urls: &'a str, schemes: &[&str]) -> Vec<(&'a str, String)> {
    let words = urls.split(BETWEEN_URLS).filter(|word| !word.is_empty());
    let parts = words.filter_map(|url| {
        let (begin, rest) = url.split_once("://")?;
        // A zone of OrangeFS: `tcp-name://`.
        let scheme = begin.split_once('-').map_or(begin, |(scheme, _)| scheme);
        let place = if has_path(scheme) { before_path(rest) } else { rest.trim_end_matches('/') };
        schemes.contains(&scheme).then(|| (scheme, format!("{scheme}://{place}")))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newline_ends_a_url() {
        let parts = reachable_parts("tcp://h:3334\n", &["tcp"]);
        assert_eq!(parts[0].1, "tcp://h:3334");
        assert_eq!(host_of("tcp://node1\n").as_deref(), Some("node1"));
    }

    #[test]
    fn parts_without_a_module_are_passed_over_and_zones_cut_off() {
        let parts = reachable_parts("ib://h:3335,tcp://h:3334/ tcp-far://[::1]:9", &["tcp", "shm"]);
        let urls: Vec<&str> = parts.iter().map(|(_, url)| url.as_str()).collect();
        assert_eq!(urls, ["tcp://h:3334", "tcp://[::1]:9"]);
        assert!(reachable_parts("gm://x, nothing", &["tcp"]).is_empty());
    }

    #[test]
    fn a_path_behind_the_port_names_no_process() {
        let schemes = ["tcp", "udp", "ether"];
        let of = |url| reachable_parts(url, &schemes)[0].1.clone();
        assert_eq!(of("tcp://h:3334/pvfs2-fs"), "tcp://h:3334");
        assert_eq!(of("udp://[::1]:9/a/b"), "udp://[::1]:9");
        assert_eq!(of("ether://02:00:00:00:00:01/3"), "ether://02:00:00:00:00:01/3");
        assert_eq!(host_of("tcp://node1:7000/pvfs2-fs").as_deref(), Some("node1"));
        assert_eq!(host_of("tcp://node1/fs:a").as_deref(), Some("node1"));
    }

    #[test]
    fn hosts_are_found_in_urls() {
        assert_eq!(host_of("shm://a,tcp://node1:7000").as_deref(), Some("node1"));
        assert_eq!(host_of("tcp://[fd00::1]:7").as_deref(), Some("fd00::1"));
        assert_eq!(host_of("shm://a"), None);
    }
}
