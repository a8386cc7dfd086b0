//! What a side is told, and when: frames that overtake each other, and sends that wait for their bytes to be there.

use ropewalk_base::health::Suspicion;
use ropewalk_wire::frame::SuspectBody;

use super::*;

impl Rig {
    /// A message of 1000 bytes whose sender waits for `level`.
    fn asking(&mut self, channel: Channel, level: Level, checksum: Option<u32>) -> Token {
        let (session, payload_bytes) = (self.session, 1000);
        let envelope =
            Envelope { session, span: 1, attempt: 1, payload_bytes, ..Envelope::default() };
        let body = Body::Eager(EagerBody::whole(1, 0, channel as u8, level as u8));
        into(self.place_checked(ONE, envelope, &body, checksum)).1
    }

    /// The outcomes of messages that the peer is told of.
    fn told(&self) -> Vec<u8> {
        let fins = self.frames.iter().filter_map(|frame| match &frame.body {
            Body::Fin(fin) => Some(fin.status),
            _ => None,
        });
        fins.collect()
    }

    /// The numbers of messages that left, announced or whole.
    fn messages(&self) -> Vec<u64> {
        let numbers = self.frames.iter().filter_map(|frame| match &frame.body {
            Body::Eager(eager) => Some(eager.message.get()),
            Body::Rts(announce) => Some(announce.message.get()),
            _ => None,
        });
        numbers.collect()
    }
}

#[test]
fn a_sender_hears_that_its_bytes_are_there_when_they_are() {
    for (channel, level, is_awaited) in [
        (Channel::Untagged, Level::Delivered, true),
        (Channel::Untagged, Level::Matched, true),
        (Channel::Untagged, Level::Delivered, false),
        (Channel::Request, Level::Delivered, false),
    ] {
        let mut rig = Rig::new();
        if is_awaited {
            rig.receive(50, 1000);
        }
        let token = rig.asking(channel, level, None);
        assert_eq!(rig.told(), [], "{channel:?} {level:?}: the header alone is here");
        rig.received(token);
        assert_eq!(rig.told(), [0], "{channel:?} {level:?}");
    }
}

#[test]
fn a_sender_is_not_told_of_bytes_that_are_spoiled() {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let token = rig.asking(Channel::Untagged, Level::Delivered, Some(7));
    rig.core.received_corrupt(token);
    rig.drain();
    assert_eq!(rig.told(), []);
    // The sender hears which span it was: the link loses nothing, so nobody else would send it again soon.
    let words = rig.frames.iter().filter_map(|frame| match &frame.body {
        Body::Suspect(word) => Some((frame.link, word.span.get())),
        _ => None,
    });
    assert_eq!(words.collect::<Vec<_>>(), [(ONE, 1)]);
}

#[test]
fn a_span_that_came_spoiled_over_the_only_path_goes_again_at_once() {
    let mut rig = Rig::new();
    rig.send(1);
    let sent = rig.frames.iter().find(|frame| matches!(frame.body, Body::Eager(_)));
    let (span, token) = sent.map(|frame| (frame.prefix.span.get(), frame.token)).unwrap();
    let cause = Suspicion::Corrupt.to_wire();
    let word = SuspectBody { path: 0.into(), cause, reserved: [0; 3], span: span.into() };
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    let again = |rig: &mut Rig| {
        rig.frames.clear();
        rig.place(ONE, envelope, &Body::Suspect(word));
        rig.messages()
    };
    assert!(again(&mut rig).is_empty(), "the rail has it yet");
    rig.core.done(token);
    rig.drain();
    assert_eq!(again(&mut rig).len(), 1);
}

#[test]
fn a_send_whose_receive_is_cancelled_in_the_middle_is_told_so() {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let token = rig.asking(Channel::Untagged, Level::Matched, None);
    rig.core.cancel(operation(50));
    rig.drain();
    let order = rig.taken_back(token).pop().expect("the rail is told to give the place up");
    rig.took_back(&order, Ordered::Released);
    assert_eq!(rig.told().len(), 1);
    assert_ne!(rig.told(), [0]);
}

#[test]
fn an_announce_without_a_region_takes_no_number() {
    let mut rig = Rig::with(Config { regions_max: 1, ..Config::default() });
    for number in [1, 2] {
        let (peer, channel) = (rig.peer.expect("a session"), Channel::Untagged);
        let payload = memory(number, 1 << 20);
        let send = Send { peer, channel, bits: 1, payload, level: Level::Buffered };
        assert!(matches!(rig.core.post_send(operation(number), send), Sending::Operation));
        rig.drain();
    }
    assert_eq!(rig.completed, [(operation(2), Err(Fault::Busy))]);
    rig.send(3);
    assert_eq!(rig.messages(), [0, 1], "the number of the refused one is the next one's");
}
