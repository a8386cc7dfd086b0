use std::time::Duration;

use super::*;

#[test]
fn a_sealed_header_decodes_to_itself_and_any_flipped_bit_is_noticed() {
    let body = Body::Put(PutBody {
        key_slot: 1.into(),
        key_secret: 2.into(),
        offset: 3.into(),
        number: 4.into(),
        total_bytes: 5.into(),
        within: 6.into(),
        flags: TELL.into(),
        reserved: [0; 6],
    });
    let envelope = Envelope {
        payload_bytes: 77,
        session: 8,
        attempt: 6,
        packet: 9,
        acknowledged: 5,
        span: 10,
        ..Envelope::default()
    };
    let mut header = encode(envelope, &body);
    seal(&mut header, Some(0xdead_beef));
    assert!(verify(header.as_bytes()));
    let (prefix, decoded) = decode(header.as_bytes()).unwrap();
    assert_eq!(prefix.payload_bytes.get(), 77);
    assert_eq!(prefix.payload_checksum.get(), 0xdead_beef);
    assert_eq!(prefix.flags.get(), FLAG_PAYLOAD_CHECKSUM);
    assert_eq!((prefix.attempt.get(), prefix.acknowledged.get()), (6, 5));
    assert_eq!((prefix.packet.get(), prefix.span.get()), (9, 10));
    assert!(matches!(decoded, Arrived::Put(put) if put.total_bytes.get() == 5));
    for bit in 0..header.as_bytes().len() * 8 {
        let mut bytes = header.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!verify(&bytes), "bit {bit}");
    }
}

#[test]
fn a_short_header_says_what_the_long_one_does() {
    let body = EagerBody::whole(0x0102_0304_0506_0708, u64::MAX, 1, 2);
    let mut header = Header::EMPTY;
    encode_short(&mut header, 77, 24, &body);
    assert_eq!(header.as_bytes().len(), 32);
    let (prefix, decoded) = decode_short(header.as_bytes()).expect("short").expand();
    assert_eq!((prefix.session.get(), prefix.payload_bytes.get()), (77, 24));
    assert_eq!((prefix.span.get(), prefix.flags.get()), (0, 0));
    assert_eq!(decoded.as_bytes(), body.as_bytes());
    assert!(decode(header.as_bytes()).is_err(), "the two forms are not taken for each other");
    for len in 0..32 {
        assert!(decode_short(&header.as_bytes()[..len]).is_none());
    }
    let long = encode(Envelope::default(), &Body::Eager(body));
    assert!(decode_short(long.as_bytes()).is_none());
    assert!(decode_short(&long.as_bytes()[..32]).is_none());
}

#[test]
fn an_acknowledgement_names_runs_of_spans_until_one_that_is_none() {
    let mut ack = AckBody::new(10, Duration::from_micros(250));
    assert!(ack.push(2, 3) && ack.push(1, 1) && ack.push(u16::MAX, u16::MAX));
    let far = 17 + u64::from(u16::MAX);
    let ranges: Vec<_> = ack.ranges().collect();
    assert_eq!(ranges, [13..=15, 17..=17, far + 1..=far + u64::from(u16::MAX)]);
    assert_eq!(ack.delay.get(), 250);
    ack.runs[1].placed = 0.into();
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [13..=15]);
    ack.runs[0].missing = 0.into();
    assert_eq!(ack.ranges().count(), 0);
    let mut ack = AckBody::new(u64::MAX - 3, Duration::MAX);
    assert!((0..ACK_RUNS_MAX).all(|_| ack.push(1, 1)) && !ack.push(1, 1));
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [u64::MAX - 1..=u64::MAX - 1], "no overflow");
    ack.count = u8::MAX;
    assert_eq!(ack.ranges().count(), 1, "no more than there are");
    let header = encode(Envelope::default(), &Body::Ack(ack));
    assert_eq!(header.as_bytes().len(), 104);
}

#[test]
fn a_word_about_a_broken_path_has_its_own_length_only() {
    let (path, span) = (0x0102_0304.into(), 0x0506.into());
    let body = SuspectBody { path, cause: 3, reserved: [0; 3], span };
    let header = encode(Envelope::default(), &Body::Suspect(body));
    let bytes = header.as_bytes();
    assert_eq!(
        (bytes[0], &bytes[40..]),
        (Kind::Suspect as u8, &[4, 3, 2, 1, 3, 0, 0, 0, 6, 5, 0, 0, 0, 0, 0, 0][..])
    );
    let (_, decoded) = decode(bytes).unwrap();
    assert!(matches!(decoded, Arrived::Suspect(it) if it.path.get() == 0x0102_0304));
    for length in 40..64 {
        let mut other = bytes.to_vec();
        other.resize(length, 0);
        other[1] = length as u8;
        assert_eq!(decode(&other).is_ok(), length == 56, "{length} bytes");
    }
}

#[test]
fn immediate_data_has_its_own_length_only() {
    let body = ImmediateBody {
        key_slot: 1.into(),
        key_secret: 2.into(),
        offset: 3.into(),
        number: 4.into(),
        data: 0x0102_0304_0506_0708.into(),
        len: 5.into(),
        flags: TELL.into(),
        reserved: [0; 6],
    };
    let header = encode(Envelope::default(), &Body::Immediate(body));
    let bytes = header.as_bytes();
    assert_eq!((bytes[0], bytes.len()), (Kind::Immediate as u8, 96));
    assert_eq!(bytes[72..80], [8, 7, 6, 5, 4, 3, 2, 1]);
    let (_, decoded) = decode(bytes).unwrap();
    assert!(matches!(decoded, Arrived::Immediate(it) if it.len.get() == 5));
    assert!(decoded.takes_payload());
    for length in 40..105 {
        let mut other = bytes.to_vec();
        other.resize(length, 0);
        other[1] = length as u8;
        assert_eq!(decode(&other).is_ok(), length == 96, "{length} bytes");
    }
}

#[test]
fn another_version_is_told_from_what_is_malformed() {
    let mut header = encode(Envelope::default(), &Body::Confirm);
    header.as_bytes_mut()[22] = 2;
    assert_eq!(decode(header.as_bytes()).err(), Some(FrameError::Version(2)));
}

#[test]
fn every_length_but_the_right_one_is_refused() {
    let header = encode(Envelope::default(), &Body::Confirm);
    for len in 0..header.as_bytes().len() {
        assert!(decode(&header.as_bytes()[..len]).is_err());
    }
    let mut longer = header.as_bytes().to_vec();
    longer.push(0);
    assert!(decode(&longer).is_err());
    longer[1] += 1;
    assert!(decode(&longer).is_err());
}
