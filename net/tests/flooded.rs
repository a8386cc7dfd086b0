//! A port to which strangers send all the time: timers go on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::shared::Leaving;
use ropewalk_base::time::Time;
use ropewalk_net::packets::PacketRail;
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::recorder::{Event, Recorder};
use ropewalk_rail::port::{Port, PortCounters, Received};

/// A port to which strangers send all the time.
struct Flooded {
    slot: [u8; 1486],
    left: Arc<AtomicU64>,
}

impl Port for Flooded {
    type Station = u32;

    fn scheme(&self) -> &'static str {
        "flooded"
    }

    fn endpoint(&self) -> u8 {
        1
    }

    fn packet_bytes(&self) -> usize {
        self.slot.len()
    }

    fn packets_max(&self) -> u32 {
        100
    }

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    fn resolve(&mut self, _: &str) -> Result<(u32, u8), Fault> {
        Ok((7, 1))
    }

    fn host(&self, _: u32) -> Option<String> {
        None
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(u32, &[u8])) -> Received {
        (0..max).for_each(|_| to(9, b"nonsense"));
        Received { packets: max, empty: false }
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.slot)
    }

    fn commit(&mut self, _: u32, _: usize) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    fn commit_around(&mut self, to: u32, leaving: Leaving) {
        self.commit(to, leaving.bytes());
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn attach(&mut self, _: BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_call_that_nobody_answers_ends_also_where_the_port_always_has_more() {
    let clock = Arc::new(AtomicU64::new(1));
    let shared = clock.clone();
    let port = Flooded { slot: [0; 1486], left: Arc::default() };
    let left = port.left.clone();
    let time = Arc::new(move || Time(shared.load(Ordering::Relaxed)));
    let mut rail = PacketRail::new(port, Random::from_seed(1), time).expect("descriptors");
    rail.attach(0);
    let mut recorder = Recorder::default();
    let link = rail.connect("somebody", Time(1)).expect("an address");
    let ends = |recorder: &Recorder| {
        recorder.events.iter().any(
            |event| matches!(event, Event::Down { link: other, fault: Fault::Unreachable } if *other == link),
        )
    };
    let mut now = Time(1);
    while !ends(&recorder) {
        rail.poll(now, &mut recorder);
        now = now + Duration::from_millis(1);
        clock.store(now.0, Ordering::Relaxed);
        assert!(
            now < Time(1) + Duration::from_secs(60),
            "{} packets left",
            left.load(Ordering::Relaxed)
        );
    }
    assert!(left.load(Ordering::Relaxed) > 3, "it called again");
}
