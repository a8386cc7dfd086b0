//! Running out of descriptors; alone in its process, since the limit is the process's.

mod common;

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use common::Raw;
use ropewalk_rail::Rail;
use ropewalk_rail_tcp::TcpConfig;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn accepting_pauses_without_descriptors_and_goes_on_with_them() {
    let mut raw = Raw::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap()));
    let address = raw.rail.local_address().unwrap();
    let streams: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let before = getrlimit(Resource::Nofile);
    let highest = streams.iter().map(AsRawFd::as_raw_fd).max().unwrap() as u64;
    let scarce = Rlimit { current: Some(highest + 4), maximum: before.maximum };
    setrlimit(Resource::Nofile, scarce).unwrap();
    raw.until(|raw| raw.rail.statistics().accept_pauses == 1);
    let accepted = raw.rail.counters().links_up;
    assert!(accepted < 20, "{accepted} links with descriptors for three");
    // Meanwhile a sleeper is not woken again and again by the ones who wait outside.
    assert!(raw.rail.arm() && raw.rail.deadline().is_some());
    let mut set = [PollFd::from_borrowed_fd(raw.rail.descriptor().unwrap(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut set, Some(&now)), Ok(0));
    setrlimit(Resource::Nofile, before).unwrap();
    raw.until(|raw| raw.rail.counters().links_up == 20);
    raw.settle(Duration::from_millis(20));
    assert_eq!(raw.rail.counters().links_down, 0);
}
