//! Figures that servers keep of themselves, from their pages of metrics: the same ones that operators see.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::host;

/// A server makes a page at most once in 50 ms: after this pause the next one is another.
pub const REST: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(10);
/// Below those that Linux gives to connections, unless somebody changed that.
const PORTS: Range<u16> = 12_000..32_000;
const TRIES: u32 = 100;

/// Work of servers, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Served {
    pub calls: f64,
    /// From the arrival of each call to its reply.
    pub seconds: f64,
    /// Calls to the disk that make something durable.
    pub syncs: f64,
}

impl Served {
    fn of(page: &str) -> Served {
        Served {
            calls: sum(page, "ropewalk_calls_total", ""),
            seconds: sum(page, "ropewalk_call_seconds_sum", ""),
            syncs: sum(page, "ropewalk_work_seconds_count", "work=\"disk_sync\""),
        }
    }

    fn plus(self, other: Served) -> Served {
        Served {
            calls: self.calls + other.calls,
            seconds: self.seconds + other.seconds,
            syncs: self.syncs + other.syncs,
        }
    }

    fn since(self, before: Served) -> Served {
        Served {
            calls: self.calls - before.calls,
            seconds: self.seconds - before.seconds,
            syncs: self.syncs - before.syncs,
        }
    }
}

/// The sum of all series of a metric whose labels have this part.
fn sum(page: &str, metric: &str, part: &str) -> f64 {
    let series = page.lines().filter_map(|line| line.rsplit_once(' '));
    let found = series.filter(|(name, _)| {
        let rest = name.strip_prefix(metric);
        rest.is_some_and(|rest| (rest.is_empty() || rest.starts_with('{')) && rest.contains(part))
    });
    found.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
}

/// A page of metrics.
pub fn page(place: SocketAddr) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(place)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, page) = answer.split_once("\r\n\r\n").context("the answer has no head")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "the answer is '{head}'");
    Ok(page.to_string())
}

/// An address for a page that was free a moment ago. Not of the ports from which the kernel gives connections theirs: one of those
/// may be taken before a server has it.
pub fn free() -> anyhow::Result<SocketAddr> {
    let mut last = None;
    for _ in 0..TRIES {
        let random = RandomState::new().hash_one(0);
        let port = PORTS.start + (random % PORTS.len() as u64) as u16;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return Ok(listener.local_addr()?),
            Err(error) => last = Some(error),
        }
    }
    bail!("no port is free for a page of metrics: {last:?}")
}

/// The calls that the servers with these pages have had, of all kinds.
pub fn calls(pages: &[SocketAddr]) -> anyhow::Result<u64> {
    std::thread::sleep(REST);
    let counts = pages.iter().map(|place| Ok(Served::of(&page(*place)?).calls as u64));
    counts.sum()
}

/// Processes that work for a client, whose work is measured with its own.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    pub processes: Vec<u32>,
    /// The pages of the servers among them.
    pages: Vec<SocketAddr>,
}

/// The part of watched processes in some work.
pub struct Share {
    pub cpu_nanos: u64,
    /// None of processes without pages.
    pub served: Option<Served>,
}

/// The state before some work.
pub struct Before {
    cpu_nanos: u64,
    served: Served,
}

impl Watched {
    /// `pages`: of the servers among them, where they have some.
    pub fn new(processes: Vec<u32>, pages: Vec<SocketAddr>) -> Watched {
        Watched { processes, pages }
    }

    fn served(&self) -> anyhow::Result<Served> {
        if self.pages.is_empty() {
            return Ok(Served::default());
        }
        std::thread::sleep(REST);
        let mut all = Served::default();
        for place in &self.pages {
            all = all.plus(Served::of(&page(*place)?));
        }
        Ok(all)
    }

    fn cpu_nanos(&self) -> u64 {
        self.processes.iter().map(|process| host::cpu_nanos(*process)).sum()
    }

    /// Begins to measure.
    pub fn begin(&self) -> anyhow::Result<Before> {
        let served = self.served()?;
        Ok(Before { served, cpu_nanos: self.cpu_nanos() })
    }

    /// The part of these processes since then.
    pub fn end(&self, before: &Before) -> anyhow::Result<Share> {
        let cpu_nanos = self.cpu_nanos().saturating_sub(before.cpu_nanos);
        let served = match self.pages.is_empty() {
            true => None,
            false => Some(self.served()?.since(before.served)),
        };
        Ok(Share { cpu_nanos, served })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_summed_over_servers_and_kinds() {
        let page = "# HELP ropewalk_calls_total Calls.\n\
             ropewalk_calls_total{server=\"meta0\",op=\"create\"} 3\n\
             ropewalk_calls_total{server=\"data1\",op=\"write\"} 4\n\
             ropewalk_calls_total_of_others 100\n\
             ropewalk_call_seconds_sum{server=\"meta0\",op=\"create\"} 0.25\n\
             ropewalk_call_seconds_count{server=\"meta0\",op=\"create\"} 3\n\
             ropewalk_work_seconds_count{server=\"meta0\",work=\"disk_sync\"} 2\n\
             ropewalk_work_seconds_count{server=\"meta0\",work=\"disk_write\"} 9\n";
        let served = Served::of(page);
        assert_eq!(served, Served { calls: 7.0, seconds: 0.25, syncs: 2.0 });
        assert_eq!(served.plus(served).since(served), served);
    }
}
