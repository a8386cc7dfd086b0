//! Raw Ethernet frames, in a network namespace with a bridge and a pair of virtual cards for each endpoint, or
//! with all endpoints on one interface.

mod bridge;
mod captures;
mod namespace;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bridge::Bridge;
use namespace::{Namespace, card, ip};
use ropewalk_net::capture::{Capture, CaptureConfig, Captured};
use ropewalk_net::modules::Listen;
use ropewalk_rail::conformance::run_all;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherError, EtherPort, Protocol};
use ropewalk_wire::mxoe::Order;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn the_suite_of_all_rails_passes_in_usual_frames() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::new(1500));
}

#[test]
fn the_suite_of_all_rails_passes_over_bonded_links() {
    let Some(_namespace) = Namespace::enter() else { return };
    let late = Arc::<AtomicU64>::default();
    run_all(|| Bridge::new(1500).bonded(&late));
    let late = late.load(Ordering::Relaxed);
    assert!(late > 1000, "{late} frames took the slow way");
}

#[test]
fn the_suite_of_all_rails_passes_over_one_socket() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::loopback(1500));
}

#[test]
#[ignore = "for --deep: as the one above, in longer frames"]
fn the_suite_of_all_rails_passes_over_one_socket_in_jumbo_frames() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::loopback(9000));
}

#[test]
#[ignore = "for --deep: as the one above, in longer frames"]
fn the_suite_of_all_rails_passes_in_jumbo_frames() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::new(9000));
}

#[test]
fn endpoints_are_claimed_and_mistakes_are_named() {
    let Some(_namespace) = Namespace::enter() else { return };
    let card = card(1500);
    let open = |address: &str| EtherPort::open(&EtherConfig::listening(address)?);
    let first = open(&card).unwrap();
    let second = open(&format!("{card}/7")).unwrap();
    let third = open(&card).unwrap();
    assert_eq!([first.endpoint(), second.endpoint(), third.endpoint()], [0, 7, 1]);
    let several = open("").unwrap_err().to_string();
    assert!(several.contains("ether://02:00:00:00:00:01%bridge/3"), "{several}");
    assert!(several.contains(&card), "{several}");
    let protocol = Protocol::Mxoe(Order::Big);
    let several = EtherPort::open(&EtherConfig { protocol, ..EtherConfig::default() });
    let several = several.unwrap_err().to_string();
    assert!(several.contains("an address like mxoe://bridge/3"), "{several}");
    let calling = EtherConfig::calling(&format!("02:00:00:00:00:01%{card}/3"));
    assert_eq!(EtherPort::open(&calling).unwrap().interface().name, card);
    assert!(matches!(open(&format!("{card}/7")), Err(EtherError::Taken { endpoint: 7, .. })));
    drop(second);
    // A process that another test is just starting holds our descriptors until it executes its program.
    let begin = Instant::now();
    while let Err(error) = open(&format!("{card}/7")) {
        assert!(begin.elapsed().as_secs() < 10, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(matches!(open("nothing0"), Err(EtherError::NoInterface(_))));
    // A lack of descriptors is no lack of endpoints, nor of interfaces.
    let limit = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..limit }).unwrap();
    let refused = open(&card).map(drop);
    setrlimit(Resource::Nofile, limit).unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("Too many open files"), "{refused}");
    assert!(ip(&format!("link set {card} mtu 255")));
    let narrow = open(&card).unwrap_err().to_string();
    assert!(narrow.contains("is 255, but") && narrow.contains("mtu 1500"), "{narrow}");
    assert!(ip(&format!("link set {card} mtu 256")));
    drop(
        ropewalk_net::modules::open("ether", &Listen::At { address: &card, exactly: true })
            .unwrap(),
    );
    assert!(ip(&format!("link set {card} down")));
    assert!(matches!(open(&card), Err(EtherError::Down(_))));
}

/// Sends until something arrives: a bridge may forward nothing for a moment.
fn until_joined(near: &mut EtherPort, far: &mut EtherPort) {
    let (station, endpoint) = near.resolve(&far.addresses()[0]).unwrap();
    let begin = Instant::now();
    while far.receive(9, &mut |_, _| {}).packets == 0 {
        assert!(begin.elapsed().as_secs() < 60, "the cards are not joined");
        let slot = near.slot().unwrap();
        slot[..46].fill(0);
        (slot[2], slot[3]) = (0xc1, endpoint);
        near.commit(station, 46);
        assert!(near.flush());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn frames_are_captured_as_they_are_on_the_wire() {
    let Some(_namespace) = Namespace::enter() else { return };
    let cards = [card(1500), card(1500)];
    let port = |card: &String| EtherPort::open(&EtherConfig::listening(card).unwrap()).unwrap();
    until_joined(&mut port(&cards[0]), &mut port(&cards[1]));
    let file = std::env::temp_dir().join(format!("ropewalk-frames-{}.pcapng", std::process::id()));
    let captured = |card| {
        let port = port(card);
        let here = port.interface().station;
        let capture = Capture::open(&port, &CaptureConfig::new(file.to_string_lossy())).unwrap();
        Captured::new(port, here, capture)
    };
    let (mut near, mut far) = (captured(&cards[0]), captured(&cards[1]));
    let (station, endpoint) = near.resolve(&far.addresses()[0]).unwrap();
    for bytes in [46, 10, 1500] {
        let slot = near.slot().unwrap();
        slot[..bytes].fill(bytes as u8);
        // The bytes that the kernel's filter checks.
        (slot[2], slot[3]) = (0xc1, endpoint);
        near.commit(station, bytes);
        assert!(near.flush());
    }
    let (mut count, begin) = (0, Instant::now());
    while count < 3 && begin.elapsed().as_secs() < 30 {
        count += far.receive(9, &mut |_, _| {}).packets;
    }
    assert_eq!([near.capture_counters().packets, far.capture_counters().packets], [3, 3]);
    drop((near, far));
    let second = file.with_extension("1.pcapng");
    let [sent, received] = [&file, &second].map(|file| captures::read(file));
    assert_eq!((sent.link_type, sent.interface.as_str()), (1, "ether/0"));
    assert_eq!(sent.frames(true), received.frames(false));
    let lengths: Vec<usize> = sent.packets.iter().map(|packet| packet.frame.len()).collect();
    assert_eq!(lengths, [60, 60, 1514], "short ones are padded");
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&second).unwrap();
}
