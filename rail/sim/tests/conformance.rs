//! The suite that every rail has to pass, for each kind of simulated rail and for changed timings.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail_sim::{Path, Release, SimConfig, SimNetwork};

struct SimFixture {
    network: SimNetwork,
    config: SimConfig,
    count: u32,
}

impl SimFixture {
    fn new(seed: u64, config: SimConfig) -> SimFixture {
        SimFixture { network: SimNetwork::new(seed), config, count: 0 }
    }

    fn with_path(self, path: Path) -> SimFixture {
        self.network.set_default_path(path);
        self
    }
}

impl Fixture for SimFixture {
    fn rail(&mut self) -> Box<dyn Rail> {
        self.count += 1;
        Box::new(self.network.rail(&format!("node{}", self.count), self.config.clone()))
    }

    fn nowhere(&mut self) -> String {
        "nowhere".into()
    }

    fn now(&self) -> Time {
        self.network.now()
    }

    fn step(&mut self, busy: bool) {
        let pace = if busy { Duration::from_micros(1) } else { Duration::from_millis(1) };
        let soon = self.network.now() + pace;
        self.network.set_now(self.network.next_event().map_or(soon, |next| next.min(soon)));
    }

    fn native_needs_target_polls(&self) -> bool {
        true
    }
}

fn released_at_once() -> SimConfig {
    SimConfig { release: Release::AtOnce, window_frames: 3, ..SimConfig::native() }
}

/// Far away, slow, and with more jitter than anything takes to send.
fn long_line() -> Path {
    Path {
        latency: Duration::from_millis(20),
        jitter: Duration::from_millis(15),
        bytes_per_second: 50_000_000,
        ..Path::default()
    }
}

/// Everything happens in the instant in which it is ordered.
fn no_line() -> Path {
    Path { latency: Duration::ZERO, jitter: Duration::ZERO, bytes_per_second: 0, ..Path::default() }
}

ropewalk_rail::conformance!(stream, SimFixture::new(1, SimConfig::stream()));
ropewalk_rail::conformance!(native, SimFixture::new(2, SimConfig::native()));
ropewalk_rail::conformance!(datagram, SimFixture::new(3, SimConfig::datagram()));
ropewalk_rail::conformance!(at_once, SimFixture::new(4, released_at_once()));
ropewalk_rail::conformance!(far, SimFixture::new(5, SimConfig::native()).with_path(long_line()));
ropewalk_rail::conformance!(near, SimFixture::new(6, SimConfig::native()).with_path(no_line()));
