//! Cancels after the end of a session, whose rail still holds what was sent in it.

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_MAX};
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::verb::Capabilities;
use ropewalk_wire::frame::{self, Body, Envelope, GetBody, key_to_wire};

use super::*;
use crate::credit::{Granted, Windows};
use crate::path::Link;
use crate::session::{NewSession, PeerKind, SessionId};

const LINK: LinkId = LinkId { rail: 0, slot: SlotId { index: 3, generation: 1 } };
const MEMORY: Slice =
    Slice { buffer: BufferId(SlotId { index: 5, generation: 1 }), offset: 0, len: 8 };

/// A core whose only link carries a session.
fn core_with_session(spans: bool) -> (Core, PeerId) {
    let identity = Identity {
        endpoint: EndpointId(1),
        incarnation: Incarnation(1),
        cluster: ClusterId(1),
        host: 1,
    };
    let rail = Capabilities {
        reliable: true,
        ordered: true,
        intact: true,
        native_read: false,
        native_write: false,
        frame_payload_bytes_max: EAGER_BYTES_MAX,
        eager_bytes: EAGER_BYTES,
        preference: 0,
        same_host_only: false,
        foreign: false,
    };
    let random = Random::from_seed(1);
    let mut core = Core::new(Config::default(), identity, vec![rail], Slice::NONE, random);
    let id = core.add_peer(true).unwrap();
    core.links.insert(LINK, Link { stage: LinkStage::Up, ..Link::new(Some(id), 1) });
    core.links.begin_carrying(LINK);
    let windows = Windows { eager: 1 << 16, request: 1 << 16 };
    let (granted, kind) = (Granted::begin(windows, 8), PeerKind::Ours);
    let number = SessionId::own(1);
    core.make_session(
        id,
        NewSession { id: number, kind, link: LINK, granted, windows, spans, outlives_links: false },
    );
    core.begin_lengths(id);
    outputs(&mut core);
    (core, id)
}

/// The tokens of frames with a payload, the verbs, and the operations that completed.
#[derive(Default)]
struct Told {
    frames: Vec<Token>,
    verbs: Vec<Verb>,
    completed: Vec<OperationId>,
}

fn outputs(core: &mut Core) -> Told {
    let mut told = Told::default();
    while let Some(next) = core.next_output() {
        match next {
            Next::Frame | Next::PatientFrame => {
                let frame = core.frame();
                told.frames.extend((frame.payload.len > 0).then_some(frame.token));
            }
            Next::Completed => told.completed.push(core.completion().operation),
            Next::Other => {
                if let Output::Verb(verb) = core.take_output() {
                    if matches!(verb, Verb::DetachSend { .. }) {
                        core.took_back(&verb, Ordered::Released);
                    }
                    told.verbs.push(verb);
                }
            }
        }
    }
    core.check();
    told
}

/// The link and the token of the only `DetachSend` of these orders.
fn detached(verbs: &[Verb]) -> (LinkId, Token) {
    let of = |verb: &Verb| match *verb {
        Verb::DetachSend { link, token, .. } => Some((link, token)),
        _ => None,
    };
    let all: Vec<_> = verbs.iter().filter_map(of).collect();
    let [one] = all[..] else { panic!("a rail is told once to let go: {verbs:?}") };
    one
}

#[test]
fn a_cancel_after_the_end_of_a_session_frees_the_memory_of_a_message() {
    for spans in [false, true] {
        let (mut core, peer) = core_with_session(spans);
        let id = OperationId(SlotId { index: 0, generation: 1 });
        let (channel, level) = (Channel::Tagged, Level::Matched);
        let send = Send { peer, channel, bits: 7, payload: MEMORY, level };
        assert!(matches!(core.post_send(id, send), Sending::Operation));
        let frames = outputs(&mut core).frames;
        core.ordered(frames[0], Ordered::Pending);
        core.arrive_goodbye(LINK);
        assert!(outputs(&mut core).completed.is_empty(), "the rail holds the memory");
        assert!(!core.cancel(id), "it has failed");
        let told = outputs(&mut core);
        assert_eq!(detached(&told.verbs), (LINK, frames[0]));
        assert_eq!(told.completed, [id]);
        core.link_down(LINK, Fault::PeerReset);
        outputs(&mut core);
    }
}

#[test]
fn a_region_ends_after_the_end_of_a_session_whose_rail_serves_it() {
    for (spans, forgotten) in [(false, false), (true, false), (false, true)] {
        let (mut core, peer) = core_with_session(spans);
        let key = core.expose(MEMORY, false, Audience::Everybody).unwrap();
        let (key_slot, key_secret) = key_to_wire(key);
        let (offset, into_offset, cookie) = (0.into(), 0.into(), 1.into());
        let get = GetBody { key_slot, key_secret, offset, len: 8.into(), cookie, into_offset };
        let session = core.peers.session(peer).unwrap().name();
        let envelope = Envelope { session, span: spans.into(), ..Envelope::default() };
        core.place(LINK, frame::encode(envelope, &Body::Get(get)).as_bytes(), 0);
        let frames = outputs(&mut core).frames;
        core.ordered(frames[0], Ordered::Pending);
        match forgotten {
            true => core.forget_peer(peer),
            false => core.arrive_goodbye(LINK),
        }
        outputs(&mut core);
        core.unexpose(key).unwrap();
        assert_eq!(detached(&outputs(&mut core).verbs), (LINK, frames[0]));
        assert!(core.regions.get(key.slot).is_none(), "nobody holds it");
    }
}
