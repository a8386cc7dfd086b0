//! Datagrams without bytes, which are datagrams like others.

use std::net::UdpSocket;

use ropewalk_rail::port::Port;
use ropewalk_rail_udp::{UdpConfig, UdpPort};

#[test]
fn many_empty_datagrams_keep_nobody_in_a_look() {
    let config = UdpConfig { listen: "127.0.0.1:0".parse().ok(), ..UdpConfig::default() };
    let mut port = UdpPort::open(config).expect("there is a socket");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(port.local_address()).unwrap();
    // Fewer than the kernel's least buffer holds.
    for _ in 0..150 {
        sender.send(&[]).unwrap();
    }
    sender.send(&[7; 30]).unwrap();
    let (mut shown, mut looks) = (Vec::new(), 0);
    while shown.last() != Some(&30) {
        let (before, shown_before) = (port.counters().system_calls, shown.len());
        let received = port.receive(8, &mut |_, bytes| shown.push(bytes.len()));
        assert_eq!(received.packets, shown.len() - shown_before);
        let calls = port.counters().system_calls - before;
        assert!(calls <= 1, "one look took {calls} calls");
        looks += 1;
        assert!(looks < 200, "it does not come");
    }
    assert_eq!((shown.len(), shown.iter().sum()), (151, 30));
}
