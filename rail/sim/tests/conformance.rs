//! The suite that every rail has to pass, for each kind of simulated rail and for changed timings.

use std::time::Duration;

use ropewalk_rail_sim::{Path, Release, SimConfig};

mod fixture;
use fixture::SimFixture;

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
