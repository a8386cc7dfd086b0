use super::super::made::{
    CARRIER, DEL_ADDRESS, DEL_LINK, DONE, ERROR, INTERRUPTED, NEW_ADDRESS, NEW_LINK, NEW_ROUTE, UP,
    address, attribute, done, link, link_body, link_removed, message, route,
};
use super::*;

fn events(datagram: &[u8]) -> Vec<Result<Event, Malformed>> {
    Messages::of(datagram).map(|message| message.map(|message| message.event)).collect()
}

fn one(datagram: &[u8]) -> Event {
    let events = events(datagram);
    assert_eq!(events.len(), 1, "{events:?}");
    events[0].expect("it is well formed")
}

#[test]
fn an_interface_is_read_with_all_that_the_message_tells() {
    let Event::Link(told) = one(&link(7, UP | CARRIER, "eth0", 9000)) else { panic!("a link") };
    assert_eq!((told.index, told.is_up, told.has_carrier, told.mtu), (7, true, true, Some(9000)));
    assert_eq!(told.name.unwrap().as_str(), "eth0");
    assert_eq!(told.hardware.unwrap().as_bytes(), [2, 0, 0, 0, 0, 1]);
    let Event::Link(told) = one(&link(7, UP, "eth0", 9000)) else { panic!("a link") };
    assert!(told.is_up && !told.has_carrier);
    // Wireless events tell the name alone; and unknown attributes are passed over.
    let few = [attribute(3, b"wlan0\0"), attribute(11, &[0; 9]), attribute(0x8000 | 4, &[])];
    let body = link_body(0, 3, UP, &few[..2]);
    let Event::Link(told) = one(&message(NEW_LINK, 0, 0, &body)) else { panic!("a link") };
    assert_eq!((told.mtu, told.hardware), (None, None));
    // A value that is too short for what it is.
    assert_eq!(events(&message(NEW_LINK, 0, 0, &link_body(0, 3, UP, &few))), [Err(Malformed)]);
    assert_eq!(one(&link_removed(7)), Event::LinkRemoved(7));
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_gone() {
    const AF_BRIDGE: u8 = 7;
    let body = link_body(AF_BRIDGE, 7, 0, &[attribute(3, b"eth0\0")]);
    assert_eq!(one(&message(DEL_LINK, 0, 0, &body)), Event::Other);
    assert_eq!(one(&message(NEW_LINK, 0, 0, &body)), Event::Other);
}

#[test]
fn an_address_is_the_interfaces_own_and_not_its_peers() {
    let told = |bytes: &[u8]| match one(bytes) {
        Event::Address(told) => (told.index, told.address.to_string(), told.is_usable),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&address(NEW_ADDRESS, 2, "10.9.0.1")), (2, "10.9.0.1".into(), true));
    assert_eq!(told(&address(DEL_ADDRESS, 2, "fd00::1")), (2, "fd00::1".into(), false));
    let body = |flags: u8, more: &[Vec<u8>]| {
        let mut body = vec![2, 32, flags, 0, 2, 0, 0, 0];
        body.extend(more.concat());
        message(NEW_ADDRESS, 0, 0, &body)
    };
    let pair = [attribute(1, &[10, 0, 0, 2]), attribute(2, &[10, 0, 0, 1])];
    assert_eq!(told(&body(0, &pair)), (2, "10.0.0.1".into(), true));
    // Nobody has looked yet whether another host has it; the longer flags win.
    assert!(!told(&body(0x40, &pair)).2);
    let flags = attribute(8, &0x80u32.to_ne_bytes());
    assert!(told(&body(0x40, &[pair[1].clone(), flags])).2);
    // Of another family, or without an address.
    assert_eq!(one(&body(0, &[])), Event::Other);
    assert_eq!(one(&body(0, &[attribute(2, &[1, 2, 3])])), Event::Other);
}

#[test]
fn a_route_names_its_interface_or_none() {
    assert_eq!(one(&route(Some(4))), Event::Route(Some(4)));
    assert_eq!(one(&route(None)), Event::Route(None));
    let mut cloned = vec![10, 128, 0, 0, 254, 0, 0, 1];
    cloned.extend(0x200u32.to_ne_bytes());
    assert_eq!(one(&message(NEW_ROUTE, 0, 0, &cloned)), Event::Other);
}

#[test]
fn ends_and_failures_of_requests_are_told_apart() {
    assert_eq!(one(&done(3)), Event::Done);
    assert_eq!(one(&message(DONE, 0, 3, &[])), Event::Done);
    assert_eq!(one(&message(DONE, 0, 3, &(-16i32).to_ne_bytes())), Event::Failed(-16));
    assert_eq!(one(&message(ERROR, 0, 3, &(-1i32).to_ne_bytes())), Event::Failed(-1));
    assert_eq!(events(&message(ERROR, 0, 3, &[0; 3])), [Err(Malformed)]);
    assert_eq!(one(&message(99, 0, 0, &[1; 7])), Event::Other);
    let part = Messages::of(&message(NEW_LINK, INTERRUPTED, 9, &link_body(0, 1, 0, &[])))
        .next()
        .unwrap()
        .unwrap();
    assert_eq!((part.sequence, part.is_interrupted), (9, true));
}

#[test]
fn several_messages_of_a_datagram_come_in_their_order() {
    let datagram = [link(1, UP, "lo", 65536), message(99, 0, 0, &[1]), link_removed(2)].concat();
    let events = events(&datagram);
    assert_eq!(events[1..], [Ok(Event::Other), Ok(Event::LinkRemoved(2))]);
    assert!(matches!(events[0], Ok(Event::Link(_))));
}

#[test]
fn a_message_that_is_cut_anywhere_is_malformed() {
    let all = [
        link(7, UP | CARRIER, "eth0", 9000),
        address(NEW_ADDRESS, 2, "fd00::1"),
        route(Some(4)),
        message(ERROR, 0, 0, &[0; 4]),
    ];
    for whole in all {
        for end in 1..whole.len() {
            assert_eq!(events(&whole[..end]), [Err(Malformed)], "{end} of {whole:?}");
        }
        // What came before it counts.
        let pair = [&whole[..], &whole[..whole.len() - 1]].concat();
        assert_eq!(events(&pair)[1..], [Err(Malformed)]);
    }
}

#[test]
fn lengths_that_lie_lead_nowhere() {
    let whole = link(7, UP, "eth0", 9000);
    for length in [0u32, 1, 15, whole.len() as u32 + 1, 0x7fff_ffff, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(events(&bytes), [Err(Malformed)], "{length}");
    }
    // A shorter message, and what is behind it, are read on their own.
    let mut bytes = whole.clone();
    bytes[..4].copy_from_slice(&32u32.to_ne_bytes());
    assert_eq!(events(&bytes)[1], Err(Malformed));
    // The first attribute.
    for length in [0u16, 3, u16::MAX] {
        let mut bytes = whole.clone();
        bytes[32..34].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(events(&bytes), [Err(Malformed)], "{length}");
    }
    // Indices that no interface has; a name and a hardware address that none has.
    for index in [0, -1, i32::MIN] {
        assert_eq!(events(&link(index, UP, "eth0", 1500)), [Err(Malformed)]);
        assert_eq!(events(&route(Some(index as u32))), [Err(Malformed)]);
    }
    assert_eq!(events(&link(1, UP, "", 1500)), [Err(Malformed)]);
    assert_eq!(events(&link(1, UP, "abcdefghijklmnop", 1500)), [Err(Malformed)]);
    let long = link_body(0, 1, UP, &[attribute(1, &[2; 33])]);
    assert_eq!(events(&message(NEW_LINK, 0, 0, &long)), [Err(Malformed)]);
}

#[test]
fn requests_are_as_the_kernel_reads_them() {
    let all = request_links(None, 5);
    assert_eq!(all[..4], 40u32.to_ne_bytes());
    assert_eq!(all[4..8], [18u16.to_ne_bytes(), 0x301u16.to_ne_bytes()].concat());
    assert_eq!(all[8..12], 5u32.to_ne_bytes());
    assert_eq!(all[32..40], attribute(29, &8u32.to_ne_bytes()));
    let one = request_links(Some(7), 6);
    assert_eq!((&one[6..8], &one[20..24]), (&1u16.to_ne_bytes()[..], &7u32.to_ne_bytes()[..]));
    let addresses = request_addresses(7);
    assert_eq!(addresses[..4], 24u32.to_ne_bytes());
    assert_eq!(addresses[4..8], [22u16.to_ne_bytes(), 0x301u16.to_ne_bytes()].concat());
}
