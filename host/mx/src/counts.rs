//! The counters of this host's endpoints, for any process that asks.
//!
//! An endpoint that has a service thread and carries packets listens at a name of its network namespace, if its
//! configuration names [`start`]. The service thread sends all counters to each client that connects there, in one
//! packet of text. It sleeps at that socket beside its other descriptors: nothing is counted, copied or looked at for
//! this purpose before somebody asks.
//!
//! Invariants:
//! * the name ends with the endpoint, however that ends;
//! * only root and the user of the process get an answer, and the endpoint waits for nobody;
//! * anybody may have such a name: words that are not of our form are skipped. A terminal can show all others.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ropewalk_net::Teller;
use ropewalk_rail::{Account, Count};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::local;

/// The prefix of the names; a unique number follows.
const NAME: &str = "ropewalk/counts/";
/// Longest answer: more rails than any endpoint has.
const ANSWER_BYTES_MAX: usize = 128 << 10;
/// An endpoint that does not answer for so long, since its process is stopped, is none.
const PATIENCE: Duration = Duration::from_secs(1);

/// The counters of an endpoint on a network of packets, or of the socket that it shares with others of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The process that it belongs to.
    pub process: u32,
    pub scheme: String,
    /// The number of the interface; `None` where it is on none in particular.
    pub interface: Option<u32>,
    /// `None`: the socket's.
    pub endpoint: Option<u8>,
    pub counts: Vec<(String, u64)>,
}

/// A socket at which an endpoint is asked for its counters.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    /// Under a name of its own; `None` where there is no descriptor for it.
    pub fn new() -> Option<Listener> {
        let name = format!("{NAME}{:016x}", ropewalk_net::host::random_seed());
        local::listen(&name).ok().map(Listener)
    }
}

impl Teller for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// An error if no client can be accepted.
    fn answer(&self, accounts: &dyn Fn() -> Vec<Account>) -> io::Result<()> {
        let socket = match local::accept(&self.0) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let own = rustix::process::geteuid();
        if socket_peercred(&socket).is_ok_and(|it| it.uid.is_root() || it.uid == own) {
            // A client that has gone meanwhile misses the answer.
            let _ = local::say(&socket, emit(&accounts()).as_bytes(), false);
        }
        Ok(())
    }
}

/// Starts to tell the counters of an endpoint: for `EndpointConfig::teller`. `None` where there is no descriptor for
/// it.
pub fn start() -> Option<Box<dyn Teller>> {
    Some(Box::new(Listener::new()?))
}

/// The counters of all endpoints of this network namespace that may be asked and answer.
pub fn counted() -> Vec<Counted> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(NAME)).collect();
    // Sockets that are being told something are in the table, too.
    names.sort_unstable();
    names.dedup();
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    names.into_iter().flat_map(|name| ask(name, &mut buffer).unwrap_or_default()).collect()
}

fn ask(name: &str, buffer: &mut [u8]) -> Result<Vec<Counted>, Errno> {
    let socket = local::call(name, PATIENCE)?;
    let process = socket_peercred(&socket)?.pid.as_raw_nonzero().get().cast_unsigned();
    let text = local::hear(&socket, buffer, true)?;
    Ok(parse(&String::from_utf8_lossy(text), process))
}

/// Names and values of counters, a line each.
pub(crate) fn emit_counts(counts: &[Count]) -> String {
    let mut text = String::new();
    for (name, count) in counts {
        let _ = writeln!(text, "{name} {count}");
    }
    text
}

/// Lines as `emit_counts` writes them; others are passed over.
pub(crate) fn parse_counts(text: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ').filter(|(name, _)| is_word(name))?;
        Some((name.to_string(), count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Whether it is one like ours.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_graphic())
}

/// For each account its lines, below one that says whose they are.
fn emit(accounts: &[Account]) -> String {
    let mut text = String::new();
    for account in accounts {
        let interface = account.interface.map_or("-".to_string(), |it| it.to_string());
        let (scheme, endpoint) = (account.scheme, account.endpoint);
        let _ = writeln!(text, "= {scheme} {interface} {endpoint}");
        text.push_str(&emit_counts(&account.counts));
        let _ = writeln!(text, "= {scheme} {interface} -");
        text.push_str(&emit_counts(&account.socket));
    }
    text
}

fn parse(text: &str, process: u32) -> Vec<Counted> {
    let text = text.strip_prefix("= ").unwrap_or_default();
    let account = |part: &str| {
        let (whose, lines) = part.split_once('\n')?;
        let mut words = whose.split(' ');
        let (scheme, interface, endpoint) = (words.next()?, words.next()?, words.next()?);
        is_word(scheme).then_some(())?;
        Some(Counted {
            process,
            scheme: scheme.to_string(),
            interface: interface.parse().ok(),
            endpoint: endpoint.parse().ok(),
            counts: parse_counts(lines),
        })
    };
    text.split("\n= ").filter_map(account).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_reads_as_it_was_written() {
        let account = Account {
            scheme: "mxoe",
            interface: Some(7),
            endpoint: 3,
            counts: vec![("packets.sent", u64::MAX), ("resent", 0)],
            socket: vec![("dropped.ring_full", 5)],
        };
        let none = Vec::new();
        let other = Account { scheme: "udp", interface: None, socket: none, ..account.clone() };
        let text = emit(&[account, other]);
        let counts = vec![("packets.sent".to_string(), u64::MAX), ("resent".to_string(), 0)];
        let of = |scheme: &str, interface, endpoint, counts: &[(String, u64)]| Counted {
            process: 77,
            scheme: scheme.to_string(),
            interface,
            endpoint,
            counts: counts.to_vec(),
        };
        let expected = [
            of("mxoe", Some(7), Some(3), &counts),
            of("mxoe", Some(7), None, &[("dropped.ring_full".to_string(), 5)]),
            of("udp", None, Some(3), &counts),
            of("udp", None, None, &[]),
        ];
        assert_eq!(parse(&text, 77), expected);
        assert_eq!(parse("", 1), []);
        assert_eq!(parse("= mxoe", 1), []);
        assert_eq!(parse("= mxoe 1 2\nx\ny -1\nz 1", 1)[0].counts, [("z".to_string(), 1)]);
        // Escape sequences that a terminal would obey.
        assert_eq!(parse("= mxoe 1 2\na\u{1b}[2J 1\n\u{9b}5n 1\nz 1", 1)[0].counts.len(), 1);
        assert_eq!(parse("= \u{1b}]0;x 1 2\nz 1", 1), []);
    }
}
