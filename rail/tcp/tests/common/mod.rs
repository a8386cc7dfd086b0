//! Rails on this machine's loopback, for the tests.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ropewalk_base::time::Time;
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail::conformance::recorder::Recorder;
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

/// Rails that listen on one loopback address, each on a port of its own.
pub struct Loopback {
    host: SocketAddr,
    start: Instant,
    /// Strangers that sent garbage and stay connected.
    strangers: Vec<TcpStream>,
    sent: usize,
}

impl Loopback {
    pub fn new(host: &str) -> Loopback {
        let host = host.parse().expect("a socket address");
        Loopback { host, start: Instant::now(), strangers: Vec::new(), sent: 0 }
    }
}

impl Fixture for Loopback {
    fn rail(&mut self) -> Box<dyn Rail> {
        let config = TcpConfig::listening(self.host);
        Box::new(TcpRail::open(config).expect("loopback can be listened on"))
    }

    fn nowhere(&mut self) -> String {
        let listener = TcpListener::bind(self.host).expect("loopback can be listened on");
        listener.local_addr().expect("bound").to_string()
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn step(&mut self, busy: bool) {
        if !busy {
            std::thread::yield_now();
        }
    }

    fn garbage(&mut self, address: &str, bytes: &[u8]) -> bool {
        let mut stranger = TcpStream::connect(address).expect("the rail listens");
        // The rail may hang up before all is written.
        let _ = stranger.write_all(bytes);
        self.sent += 1;
        if self.sent.is_multiple_of(2) {
            self.strangers.push(stranger);
        }
        true
    }
}

/// One rail whose peers are raw sockets.
pub struct Raw {
    pub rail: TcpRail,
    pub recorder: Recorder,
    start: Instant,
}

impl Raw {
    pub fn open(config: TcpConfig) -> Raw {
        let rail = TcpRail::open(config).expect("loopback can be listened on");
        Raw { rail, recorder: Recorder::default(), start: Instant::now() }
    }

    pub fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    pub fn poll(&mut self) {
        let now = self.now();
        if !self.rail.poll(now, &mut self.recorder) {
            std::thread::yield_now();
        }
    }

    /// Polls until `holds`.
    pub fn until(&mut self, mut holds: impl FnMut(&mut Raw) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !holds(self) {
            let (rail, events) = (self.rail.counters(), &self.recorder.events);
            assert!(Instant::now() < end, "gave up waiting: {rail:?}, {events:?}");
            self.poll();
        }
    }

    /// Polls for a while.
    pub fn settle(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.poll();
        }
    }
}
