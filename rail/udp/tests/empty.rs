//! Datagrams without bytes, which show nothing.

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
    let (mut shown, mut looks) = (0, 0);
    while shown == 0 {
        let before = port.counters().system_calls;
        let received = port.receive(8, &mut |_, bytes| {
            assert_eq!(bytes, [7; 30]);
            shown += 1;
        });
        assert_eq!(received.packets, shown);
        let calls = port.counters().system_calls - before;
        assert!(calls <= 1, "one look took {calls} calls");
        looks += 1;
        assert!(looks < 200, "it does not come");
    }
    assert!(looks > 5);
}
