//! Each fault on real sockets: what it promises happens, and mending it ends it.

mod events;
mod traffic;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use events::Events;
use ropewalk_netns::{
    Direction, Error, Fault, FaultKind, Flap, Host, Impairment, Joint, Route, ScheduleConfig,
    Topology, TopologyConfig, schedule,
};
use traffic::Traffic;

const MS: Duration = Duration::from_millis(1);

fn build(config: TopologyConfig) -> Option<Topology> {
    Topology::or_skip(&config)
}

/// Two hosts and two rails.
fn pair(joint: Joint) -> Option<Topology> {
    build(TopologyConfig { joint, ..TopologyConfig::default() })
}

/// Datagrams and frames from the first host to the second one, on a rail, after addresses are known.
fn ways(net: &Topology, rail: usize) -> [Traffic; 3] {
    let (near, far) = (net.host(0), net.host(1));
    let mut ways = [
        Traffic::udp(near, far, rail),
        Traffic::raw(near, far, rail),
        Traffic::raw_tap(near, far, rail),
    ];
    ways.iter_mut().for_each(Traffic::until_clean);
    ways
}

fn inject(net: &Topology, fault: Fault) -> ropewalk_netns::Injected {
    net.inject(&fault).unwrap_or_else(|error| panic!("{error}"))
}

fn namespaces() -> String {
    let output = std::process::Command::new("ip").args(["netns", "list"]).output();
    String::from_utf8(output.expect("ip runs").stdout).expect("text")
}

#[test]
fn hosts_reach_each_other_over_each_rail_and_all_is_gone_afterwards() {
    let many = TopologyConfig { hosts: 4, ipv6: true, ..TopologyConfig::default() };
    let direct = TopologyConfig { joint: Joint::Direct, rails: 4, ipv6: true, ..many.clone() };
    for config in [many, TopologyConfig { hosts: 2, mtu: 9000, ..direct }] {
        let Some(net) = build(config) else { return };
        let name = net.host(1).namespace().name().to_string();
        assert!(namespaces().contains(&name));
        for rail in 0..net.config().rails {
            for (near, far) in [(0, 1), (net.config().hosts - 1, 0)] {
                let (near, far) = (net.host(near), net.host(far));
                Traffic::udp(near, far, rail).until_clean();
                Traffic::udp6(near, far, rail).until_clean();
                Traffic::raw(near, far, rail).until_clean();
                let link = near.link(rail).expect("it is there");
                assert_eq!(link.mtu, net.config().mtu);
                assert!(link.is_up && link.has_carrier);
            }
        }
        // A process of the host sees its interfaces.
        let output = net.host(1).command("cat").arg("/proc/self/net/dev").output();
        let table = String::from_utf8(output.expect("cat runs").stdout).expect("text");
        assert!(table.contains("rail1:"), "{table}");
        let thread = net.host(0).spawn(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
        let table = thread.expect("a thread").join().expect("no panic").expect("the kernel tells");
        assert!(table.contains("rail1:"), "{table}");
        drop(net);
        assert!(!namespaces().contains(&name));
    }
}

#[test]
fn all_is_gone_after_a_panic() {
    let Some(net) = pair(Joint::Switched) else { return };
    let name = net.host(0).namespace().name().to_string();
    let died = std::thread::spawn(move || {
        let _cut = net.inject(&Fault::new(FaultKind::Cut, 0, 0));
        net.host(0).within(|| panic!("as it should"));
    });
    assert!(died.join().is_err());
    assert!(!namespaces().contains(&name));
}

#[test]
fn a_lost_carrier_is_seen_in_time_and_the_other_rail_goes_on() {
    for joint in [Joint::Direct, Joint::Switched] {
        let Some(net) = pair(joint) else { return };
        let (near, far) = (net.host(0), net.host(1));
        let mut ways = [Traffic::udp(near, far, 0), Traffic::raw(near, far, 0)];
        let mut other = Traffic::udp(near, far, 1);
        ways.iter_mut().for_each(Traffic::until_clean);
        // The far end of the cable, where a direct one has none of its own.
        let watched = if joint == Joint::Direct { far } else { near };
        let kind =
            if joint == Joint::Direct { FaultKind::InterfaceDown } else { FaultKind::CarrierLoss };
        let index = watched.link(0).expect("it is there").index;
        let events = watched.within(Events::listen);
        for round in 0..4 {
            let fault = inject(&net, Fault::new(kind, 0, 0));
            let down = events.carrier(index, false, 3000 * MS).expect("the kernel tells");
            // Where the kernel batches events, those of a second come together.
            assert!(down < 300 * MS, "{joint:?}, round {round}: it was told after {down:?}");
            let link = watched.link(0).expect("it is there");
            assert!(link.is_up && !link.has_carrier);
            if round == 0 {
                assert!(ways.iter_mut().all(|way| way.few(20).came.is_empty()));
                assert_eq!(other.few(20).lost(), 0);
            }
            fault.mend().expect("it can be mended");
            let up = events.carrier(index, true, 3000 * MS).expect("the kernel tells");
            assert!(up < 300 * MS, "{joint:?}, round {round}: it was told after {up:?}");
        }
        ways.iter_mut().for_each(Traffic::until_clean);
        // The other way to lose it.
        let kind =
            if joint == Joint::Direct { FaultKind::CarrierLoss } else { FaultKind::InterfaceDown };
        let fault = inject(&net, Fault::new(kind, 0, 0));
        let links = [near, far].map(|host| host.link(0).expect("it is there"));
        assert_eq!(links[0].is_up, joint == Joint::Direct);
        assert!(!links[0].has_carrier);
        // Behind a switch, the far host cannot know.
        assert_eq!(links[1].has_carrier, joint == Joint::Switched);
        assert!(ways.iter_mut().all(|way| way.few(20).came.is_empty()));
        drop(fault);
        ways.iter_mut().for_each(Traffic::until_clean);
    }
}

#[test]
fn cuts_are_silent_and_have_a_direction() {
    let Some(net) = pair(Joint::Switched) else { return };
    let mut there = ways(&net, 0);
    let mut back =
        [Traffic::udp(net.host(1), net.host(0), 0), Traffic::raw(net.host(1), net.host(0), 0)];
    back.iter_mut().for_each(Traffic::until_clean);
    for (direction, cut_there, cut_back) in [
        (Direction::Both, true, true),
        (Direction::From, true, false),
        (Direction::To, false, true),
    ] {
        let cut = inject(&net, Fault::new(FaultKind::Cut, 0, 0).directed(direction));
        for (ways, is_cut) in [(&mut there[..], cut_there), (&mut back[..], cut_back)] {
            for way in ways {
                let report = way.few(30);
                let came = if is_cut { 0 } else { 30 };
                assert_eq!((report.came.len(), report.refused.len()), (came, 0), "{direction:?}");
            }
        }
        assert!(net.hosts().all(|host| host.link(0).expect("it is there").has_carrier));
        cut.mend().expect("it can be mended");
        there.iter_mut().chain(&mut back).for_each(Traffic::until_clean);
    }
    // At the other end of the rail, and behind a wire, it is the same.
    net.wire(0, 0).expect("it comes in");
    there[1].until_clean();
    for (host, direction) in [(1, Direction::To), (0, Direction::From), (0, Direction::Both)] {
        let cut = inject(&net, Fault::new(FaultKind::Cut, host, 0).directed(direction));
        assert!(there.iter_mut().all(|way| way.few(20).came.is_empty()), "{host} {direction:?}");
        cut.mend().expect("it can be mended");
        there.iter_mut().for_each(Traffic::until_clean);
    }
}

#[test]
fn losses_are_as_many_as_were_asked_for() {
    let Some(net) = pair(Joint::Switched) else { return };
    let mut back = Traffic::raw(net.host(1), net.host(0), 0);
    for mut way in ways(&net, 0) {
        let fault = Fault::new(FaultKind::LossOfEach { nth: 10 }, 0, 0).directed(Direction::From);
        let loss = inject(&net, fault);
        let report = way.few(1000);
        // A question for an address counts as a frame, too.
        assert!((99..=100).contains(&report.lost()), "{} of 1000", report.lost());
        let missing = report.missing();
        assert!(missing.windows(2).all(|two| (9..=10).contains(&(two[1] - two[0]))));
        assert_eq!((back.few(50).lost(), report.refused.len()), (0, 0));
        loss.mend().expect("it can be mended");
        way.until_clean();
        let fault = Fault::new(FaultKind::Loss { ppm: 100_000 }, 0, 0).directed(Direction::From);
        let loss = inject(&net, fault);
        let lost = way.few(3000).lost();
        assert!((220..=380).contains(&lost), "{lost} of 3000");
        assert_eq!(back.few(50).lost(), 0);
        // Losses at both ends add up.
        let each = inject(&net, Fault::new(FaultKind::LossOfEach { nth: 2 }, 0, 0));
        let lost = way.few(1000).lost();
        assert!((500..=620).contains(&lost), "{lost} of 1000");
        drop((loss, each));
        way.until_clean();
    }
}

/// Received bits a second, in thousands, while so many bytes are sent as fast as the socket takes them.
fn rate(way: &mut Traffic, count: usize) -> u64 {
    let report = way.burst(count, 1000, Duration::ZERO);
    report.came.len() as u64 * 8_000_000 / report.took.as_micros().max(1) as u64
}

#[test]
fn rates_change_while_frames_pass() {
    let limited = TopologyConfig { rate_kbit: Some(80_000), ..TopologyConfig::default() };
    let Some(net) = build(limited) else { return };
    let mut there = Traffic::udp(net.host(0), net.host(1), 0);
    there.until_clean();
    // The burst at the beginning passes at once.
    let usual = rate(&mut there, 1000);
    assert!((20_000..110_000).contains(&usual), "{usual} kbit/s");
    for direction in [Direction::Both, Direction::From] {
        let kind = FaultKind::Rate { kbit: 8_000 };
        let slow = inject(&net, Fault::new(kind, 0, 0).directed(direction));
        let narrow = rate(&mut there, 200);
        assert!((2_000..12_000).contains(&narrow), "{narrow} kbit/s");
        slow.mend().expect("it can be mended");
        let again = rate(&mut there, 1000);
        assert!(again > 20_000, "{again} kbit/s");
    }
    // At the switch it concerns raw frames as well, and who sends them does not learn of it.
    let mut raw = Traffic::raw(net.host(1), net.host(0), 0);
    raw.until_clean();
    let kind = FaultKind::Rate { kbit: 800 };
    let slow = inject(&net, Fault::new(kind, 0, 0).directed(Direction::To));
    let report = raw.burst(100, 1000, MS / 10);
    assert!(report.lost() > 50 && report.came.len() >= 2, "{} lost", report.lost());
    assert!(report.refused.is_empty());
    slow.mend().expect("it can be mended");
    raw.until_clean();
    // Where there was no limit, there is none again.
    let Some(free) = pair(Joint::Direct) else { return };
    let mut there = Traffic::udp(free.host(0), free.host(1), 0);
    there.until_clean();
    let slow = inject(&free, Fault::new(kind, 1, 0));
    let narrow = rate(&mut there, 20);
    assert!(narrow < 1_500, "{narrow} kbit/s");
    slow.mend().expect("it can be mended");
    assert!(rate(&mut there, 200) > 50_000);
}

fn impaired(impairment: Impairment) -> Fault {
    Fault::new(FaultKind::Impaired(impairment), 0, 0).directed(Direction::From).seeded(7)
}

#[test]
fn wires_delay_double_and_reorder_frames() {
    let wired = TopologyConfig { rails: 1, wires: true, ..TopologyConfig::default() };
    let Some(net) = build(wired) else { return };
    let [mut udp, mut raw, _] = ways(&net, 0);
    let mut back = Traffic::raw(net.host(1), net.host(0), 0);
    back.until_clean();
    let clean = raw.few(2000);
    assert_eq!((clean.lost(), clean.overtaken(), clean.repeated()), (0, 0, 0));
    let delay = inject(&net, impaired(Impairment::delay(20 * MS, Duration::ZERO)));
    for way in [&mut udp, &mut raw] {
        let report = way.burst(100, 200, MS / 5);
        assert!(report.came.iter().all(|(_, time)| *time >= 20 * MS));
        assert!(report.median() < 80 * MS, "{:?}", report.median());
        assert_eq!((report.lost(), report.overtaken()), (0, 0));
    }
    assert!(back.few(100).median() < 20 * MS, "one direction is delayed");
    // Delays of several faults add up.
    let more = inject(&net, impaired(Impairment::delay(20 * MS, 5 * MS)));
    let report = raw.burst(200, 200, MS / 5);
    assert!(report.came.iter().all(|(_, time)| *time >= 40 * MS));
    assert!(report.overtaken() > 20 && report.lost() == 0, "{} overtaken", report.overtaken());
    more.mend().expect("it can be mended");
    delay.mend().expect("it can be mended");
    raw.until_clean();
    for way in [&mut udp, &mut raw] {
        let double = inject(&net, impaired(Impairment::duplicate(100_000)));
        let report = way.few(2000);
        assert!((130..=280).contains(&report.repeated()), "{} twice", report.repeated());
        assert_eq!(report.lost(), 0);
        double.mend().expect("it can be mended");
        let late = inject(&net, impaired(Impairment::reorder(50_000, 3 * MS)));
        let report = way.few(2000);
        assert!((50..=150).contains(&report.overtaken()), "{} overtaken", report.overtaken());
        assert_eq!((report.lost(), report.repeated()), (0, 0));
        late.mend().expect("it can be mended");
        way.until_clean();
    }
    let [there, back] = net.wire(0, 0).expect("it has one").counters();
    assert!(there.reordered > 100 && there.duplicated > 200 && there.dropped == 0, "{there:?}");
    assert_eq!((back.reordered, back.duplicated, back.lost), (0, 0, 0));
}

#[test]
fn wires_lose_and_corrupt_the_frames_that_the_seed_chooses() {
    let Some(net) = build(TopologyConfig { rails: 1, ..TopologyConfig::default() }) else { return };
    let [mut udp, mut raw, _] = ways(&net, 0);
    let losses = |raw: &mut Traffic, seed| {
        let loss = inject(&net, impaired(Impairment::loss(50_000)).seeded(seed));
        let missing = raw.few(2000).missing();
        loss.mend().expect("it can be mended");
        raw.until_clean();
        missing
    };
    let first = losses(&mut raw, 7);
    assert!((60..=150).contains(&first.len()), "{} of 2000", first.len());
    assert_eq!(first, losses(&mut raw, 7), "the same seed loses the same frames");
    assert_ne!(first, losses(&mut raw, 8));
    // The kernel does not notice wrong bytes, since nobody computed a checksum.
    let corrupt = inject(&net, impaired(Impairment::corrupt(100_000)));
    let (of_udp, of_raw) = (udp.few(2000), raw.few(2000));
    assert!((80..=280).contains(&of_udp.wrong), "{} wrong", of_udp.wrong);
    assert!((130..=280).contains(&of_raw.wrong) && of_raw.lost() == 0, "{} wrong", of_raw.wrong);
    corrupt.mend().expect("it can be mended");
    assert_eq!(udp.few(500).wrong + raw.few(500).wrong, 0);
    // An impairment can be changed while frames pass.
    let wire = net.wire(0, 0).expect("it has one");
    let id = wire.impair(Direction::Both, Impairment::loss(1_000_000), 1);
    assert!(raw.few(30).came.is_empty());
    assert!(wire.change(id, Impairment::default()));
    assert_eq!(raw.few(100).lost(), 0);
    wire.relieve(id);
    assert!(!wire.change(id, Impairment::default()));
}

#[test]
fn an_mtu_shrinks_loudly_at_the_host_and_silently_in_the_switch() {
    let wide = TopologyConfig { mtu: 4000, ipv6: true, ..TopologyConfig::default() };
    let Some(net) = build(wide) else { return };
    let (near, far) = (net.host(0), net.host(1));
    let [_, mut raw, _] = ways(&net, 0);
    let mut six = Traffic::udp6(near, far, 0);
    six.until_clean();
    let shrunk = inject(&net, Fault::new(FaultKind::MtuShrink { bytes: 1000 }, 0, 0));
    let report = raw.burst(10, 2000, Duration::ZERO);
    let too_long = |error: &std::io::Error| error.raw_os_error() == Some(90);
    assert!(report.refused.len() == 10 && report.refused.iter().all(too_long));
    assert_eq!(raw.burst(10, 900, Duration::ZERO).lost(), 0);
    shrunk.mend().expect("it can be mended");
    assert_eq!(raw.burst(10, 2000, Duration::ZERO).lost(), 0);
    // The kernel removes IPv6 where the MTU is below 1,280 bytes.
    six.until_clean();
    let [mut udp, mut raw, _] = ways(&net, 0);
    let (mut here, mut there) = connection(near, far, 0);
    for host in [0, 1] {
        let hole = inject(&net, Fault::new(FaultKind::MtuBlackHole { bytes: 1500 }, host, 0));
        for way in [&mut udp, &mut raw] {
            let report = way.burst(10, 2000, Duration::ZERO);
            assert_eq!((report.came.len(), report.refused.len()), (0, 0));
        }
        assert_eq!(raw.burst(10, 1500, Duration::ZERO).lost(), 0);
        assert_eq!(raw.burst(10, 1501, Duration::ZERO).came.len(), 0);
        // Behind the headers of IP and UDP.
        assert_eq!(udp.burst(10, 1472, Duration::ZERO).lost(), 0);
        // Segments of TCP are as long as the MTU of the hosts allows, and vanish as well.
        here.write_all(&[7; 20_000]).expect("there is room");
        std::thread::sleep(50 * MS);
        let mut bytes = vec![0; 20_000];
        let nothing = there.read(&mut bytes).expect_err("nothing comes");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        hole.mend().expect("it can be mended");
        there.set_nonblocking(false).expect("sockets can be");
        there.read_exact(&mut bytes).expect("TCP sends again");
        there.set_nonblocking(true).expect("sockets can be");
        assert_eq!(udp.burst(10, 2000, Duration::ZERO).lost(), 0);
    }
}

/// A TCP connection between two hosts; the far end does not block.
fn connection(near: Host<'_>, far: Host<'_>, rail: usize) -> (TcpStream, TcpStream) {
    let listener = far.within(|| TcpListener::bind((far.address(rail), 0))).expect("its address");
    let address = listener.local_addr().expect("it is bound");
    let here = near.within(|| TcpStream::connect(address)).expect("there is a route");
    let there = listener.accept().expect("somebody calls").0;
    there.set_nonblocking(true).expect("sockets can be");
    (here, there)
}

#[test]
fn an_interface_vanishes_and_comes_back_as_it_was() {
    for (joint, wires) in
        [(Joint::Direct, false), (Joint::Switched, false), (Joint::Switched, true)]
    {
        let config = TopologyConfig { joint, wires, ipv6: true, ..TopologyConfig::default() };
        let Some(net) = build(config) else { return };
        let (near, far) = (net.host(0), net.host(1));
        let mut raw = Traffic::raw(near, far, 0);
        raw.until_clean();
        let before = near.link(0).expect("it is there");
        let gone = inject(&net, Fault::new(FaultKind::InterfaceRemoved, 0, 0));
        assert!(near.link(0).is_err());
        assert_eq!(far.link(0).is_err(), joint == Joint::Direct, "both ends of a cable go");
        assert_eq!(raw.few(10).refused.len(), 10);
        Traffic::udp(near, far, 1).until_clean();
        gone.mend().expect("it can be mended");
        let after = near.link(0).expect("it is there again");
        assert_eq!((after.index, &after.station), (before.index, &before.station));
        // A socket stays with the interface that is gone.
        Traffic::raw(near, far, 0).until_clean();
        Traffic::udp(near, far, 0).until_clean();
        Traffic::udp6(far, near, 0).until_clean();
        let named = inject(&net, Fault::new(FaultKind::InterfaceRenamed, 0, 0));
        assert!(near.link(0).is_err());
        let renamed = near.namespace().link("renamed0").expect("it has this name");
        assert_eq!((renamed.index, &renamed.station), (before.index, &before.station));
        Traffic::udp(near, far, 0).until_clean();
        named.mend().expect("it can be mended");
        assert_eq!(near.link(0).expect("it has its name").index, before.index);
        Traffic::udp6(near, far, 0).until_clean();
    }
}

#[test]
fn addresses_and_routes_go_and_come_back() {
    let six = TopologyConfig { ipv6: true, rails: 1, ..TopologyConfig::default() };
    let Some(net) = build(six) else { return };
    let (near, far) = (net.host(0), net.host(1));
    let mut ways = [
        Traffic::udp(near, far, 0),
        Traffic::udp6(near, far, 0),
        Traffic::udp(far, near, 0),
        Traffic::udp6(far, near, 0),
    ];
    let mut raw = Traffic::raw(near, far, 0);
    ways.iter_mut().for_each(Traffic::until_clean);
    for kind in [FaultKind::AddressRemoved, FaultKind::AddressChanged] {
        let fault = inject(&net, Fault::new(kind, 1, 0));
        assert!(ways[..2].iter_mut().all(|way| way.few(10).came.is_empty()), "{kind:?}");
        assert_eq!(raw.few(10).lost(), 0, "frames need no address");
        if kind == FaultKind::AddressChanged {
            let bound = far.within(|| std::net::UdpSocket::bind("10.0.0.102:0"));
            assert!(bound.is_ok() && far.within(|| TcpListener::bind("[fd00::66]:0")).is_ok());
        }
        fault.mend().expect("it can be mended");
        ways.iter_mut().for_each(Traffic::until_clean);
    }
    for (route, code) in [(Route::BlackHole, 22), (Route::Unreachable, 113)] {
        let fault = inject(&net, Fault::new(FaultKind::Route(route), 0, 0));
        for way in &mut ways[..2] {
            let report = way.few(5);
            let codes: Vec<_> = report.refused.iter().map(|error| error.raw_os_error()).collect();
            assert_eq!((codes, report.came.len()), (vec![Some(code); 5], 0), "{route:?}");
        }
        assert_eq!(raw.few(10).lost(), 0);
        fault.mend().expect("it can be mended");
        ways.iter_mut().for_each(Traffic::until_clean);
    }
}

#[test]
fn rails_flap_until_they_are_mended() {
    let Some(net) = pair(Joint::Switched) else { return };
    let (near, far) = (net.host(0), net.host(1));
    let mut raw = Traffic::raw(near, far, 0);
    raw.until_clean();
    for flap in [Flap::Silent, Flap::Carrier] {
        let kind = FaultKind::Flapping { flap, mean: 20 * MS };
        let index = near.link(0).expect("it is there").index;
        let events = near.within(Events::listen);
        let fault = inject(&net, Fault::new(kind, 0, 0));
        let report = raw.burst(1000, 100, MS / 2);
        let came = report.came.len();
        assert!((50..950).contains(&came), "{flap:?}: {came} came");
        assert!(report.refused.is_empty() || flap == Flap::Carrier);
        let lost_it = events.carrier(index, false, 300 * MS).is_some();
        assert_eq!(lost_it, flap == Flap::Carrier);
        fault.mend().expect("it can be mended");
        raw.until_clean();
        Traffic::udp(near, far, 0).until_clean();
    }
}

#[test]
fn a_switch_dies_under_all_its_hosts() {
    let Some(net) = build(TopologyConfig { hosts: 4, ..TopologyConfig::default() }) else { return };
    let pairs = [(0, 1), (2, 3), (3, 0)];
    let between = |rail| pairs.map(|(near, far)| Traffic::udp(net.host(near), net.host(far), rail));
    let (mut dead, mut alive) = (between(0), between(1));
    dead.iter_mut().chain(&mut alive).for_each(Traffic::until_clean);
    for silently in [false, true] {
        let death = inject(&net, Fault::new(FaultKind::SwitchDeath { silently }, 2, 0));
        assert!(dead.iter_mut().all(|way| way.few(10).came.is_empty()));
        assert!(alive.iter_mut().all(|way| way.few(10).lost() == 0));
        for host in net.hosts() {
            assert_eq!(host.link(0).expect("it is there").has_carrier, silently);
        }
        death.mend().expect("it can be mended");
        dead.iter_mut().for_each(Traffic::until_clean);
    }
}

#[test]
fn faults_that_exclude_each_other_are_refused_and_leave_nothing() {
    let Some(net) = pair(Joint::Switched) else { return };
    let refused = |fault: Fault| net.inject(&fault).map(drop).expect_err("it is refused");
    let cut = inject(&net, Fault::new(FaultKind::Cut, 0, 0));
    for kind in [FaultKind::CarrierLoss, FaultKind::InterfaceRemoved, FaultKind::Cut] {
        assert!(matches!(refused(Fault::new(kind, 0, 0)), Error::Busy { host: 0, rail: 0 }));
    }
    // A wire that comes in now would mend the cut.
    let busy = refused(impaired(Impairment::loss(1)));
    assert!(matches!(busy, Error::Busy { host: 0, rail: 0 }));
    cut.mend().expect("it can be mended");
    inject(&net, impaired(Impairment::loss(1))).mend().expect("it can be mended");
    let one_way = Fault::new(FaultKind::CarrierLoss, 0, 0).directed(Direction::To);
    assert!(refused(one_way).to_string().contains("both directions"));
    assert!(matches!(refused(Fault::new(FaultKind::Cut, 0, 2)), Error::NoCable { .. }));
    // A command that the kernel refuses leaves the cable as it was, and free.
    net.host(0).within(|| {
        let line = ["route", "add", "blackhole", "10.0.0.2/32"];
        assert!(std::process::Command::new("ip").args(line).status().expect("ip runs").success());
    });
    let route = Fault::new(FaultKind::Route(Route::BlackHole), 0, 0);
    let said = refused(route).to_string();
    assert!(said.contains("ip refused 'route add blackhole 10.0.0.2/32'"), "{said}");
    inject(&net, route).mend().expect("it can be mended");
    Traffic::udp(net.host(0), net.host(1), 0).until_clean();
}

#[test]
fn a_schedule_is_played_while_one_rail_carries_on() {
    let config = TopologyConfig { wires: true, ipv6: true, ..TopologyConfig::default() };
    let Some(net) = build(config) else { return };
    let faults = schedule(
        11,
        &ScheduleConfig {
            hosts: 2,
            rails: 2,
            faults: 24,
            kinds: FaultKind::examples(),
            lasts: 30 * MS..=80 * MS,
            pause: 30 * MS..=60 * MS,
            rails_hurt_max: 1,
        },
    );
    let mut rails = [0, 1].map(|rail| Traffic::raw_tap(net.host(0), net.host(1), rail));
    rails.iter_mut().for_each(Traffic::until_clean);
    let player = net.play(faults.clone()).expect("a thread");
    let (end, mut told, mut heard) = (faults.last().expect("one").end(), 0, [0, 0]);
    while player.started().elapsed() < end {
        let both = [rails[0].tell(), rails[1].tell()];
        assert!(both.contains(&true), "at any time one rail is well");
        told += 1;
        std::thread::sleep(2 * MS);
        for (heard, rail) in heard.iter_mut().zip(&mut rails) {
            *heard += rail.heard();
        }
    }
    let started = player.started();
    let played = player.finish().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(played.len(), faults.len());
    for fault in &played {
        assert!(fault.begun >= started + fault.fault.at);
        assert!(fault.mended >= started + fault.fault.end());
    }
    // A rail that is mended sends nothing until the kernel has looked at its carrier, up to a second later. So the
    // faults of one rail may reach into those of the other, and no bound holds for the sum.
    assert!(heard.iter().all(|&heard| heard > 0) && heard != [told, told], "{heard:?} of {told}");
    for rail in 0..2 {
        Traffic::udp(net.host(0), net.host(1), rail).until_clean();
        Traffic::udp6(net.host(1), net.host(0), rail).until_clean();
    }
    // Stopped early, it mends what is there.
    let begin = Instant::now();
    let cut = Fault { lasts: Duration::from_secs(60), ..Fault::new(FaultKind::Cut, 0, 0) };
    let player = net.play(vec![cut]).expect("a thread");
    std::thread::sleep(30 * MS);
    assert_eq!(player.stop().expect("it can be mended").len(), 1);
    assert!(begin.elapsed() < 30_000 * MS);
    Traffic::udp(net.host(0), net.host(1), 0).until_clean();
}
