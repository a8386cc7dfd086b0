//! Layouts of a peer, and elements that lie in them, are judged before anything moves.

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::memory::Change;
use ropewalk_wire::frame::{LayoutBody, NODE_BYTES, NODES_OF_FRAME, StridedBody};

use super::*;

const REGION: u64 = 1000;

/// The frame that tells of four runs of 8 bytes.
fn layout(number: u8, stride: i64) -> LayoutBody {
    let run = Descriptor::contiguous(8).expect("a run");
    let bytes = run.repeated(4, stride).expect("a vector").encode();
    let (extent, encoded) = bytes.split_at(8);
    let mut nodes = [[0; NODE_BYTES]; NODES_OF_FRAME];
    nodes.as_flattened_mut().copy_from_slice(encoded);
    let extent = i64::from_le_bytes(extent.try_into().expect("eight bytes")).into();
    LayoutBody { extent, place: LayoutBody::placed(number, NODES_OF_FRAME as u32, 0), nodes }
}

struct Target {
    rig: Rig,
    right: StridedBody,
    spans: u64,
}

impl Target {
    /// One that knows layout 0, whose runs overlap, and layout 1.
    fn new() -> Target {
        let mut rig = Rig::new();
        let region = memory(60, REGION);
        let key = rig.core.expose(region, true, Audience::Everybody).expect("there is room");
        let (key_slot, key_secret) = frame::key_to_wire(key);
        let right = StridedBody {
            key_slot,
            key_secret,
            address: 100.into(),
            number: 1.into(),
            instances: 2.into(),
            from: 4.into(),
            count: 40.into(),
            operator: Operator::Replace as u8,
            element: Element::Byte as u8,
            flags: frame::TELL.into(),
            layout: 1,
            reserved: [0; 7],
        };
        let mut target = Target { rig, right, spans: 0 };
        for body in [layout(0, 7), layout(1, -20)] {
            target.place(&Body::Layout(body), 0);
        }
        target
    }

    fn place(&mut self, body: &Body, payload_bytes: u32) -> Placement {
        self.spans += 1;
        let (session, span) = (self.rig.session, self.spans);
        let envelope = Envelope { session, span, attempt: 1, payload_bytes, ..Envelope::default() };
        self.rig.place(ONE, envelope, body)
    }

    /// The status that an operation is answered with, if it is.
    fn status(&self, number: u64) -> Option<u8> {
        self.rig.frames.iter().find_map(|sent| match &sent.body {
            Body::Reply(reply) if reply.number.get() == number => Some(reply.status),
            _ => None,
        })
    }
}

#[test]
fn a_layout_is_confirmed_with_room_for_what_goes_by_it() {
    let target = Target::new();
    let credits = target.rig.frames.iter().filter_map(|sent| match &sent.body {
        Body::Credit(credit) => Some((credit.layouts.get(), credit.update_limit.get())),
        _ => None,
    });
    let credits: Vec<_> = credits.collect();
    assert_eq!(credits.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
    assert!(credits.iter().all(|it| it.1 > 4 * 65_536), "{credits:?}");
}

#[test]
fn what_a_layout_reaches_is_judged_before_a_byte_moves() {
    let mut target = Target::new();
    let right = target.right;
    let wrong = [
        // Runs overlap.
        StridedBody { layout: 0, ..right },
        // The last run begins below the region; the first one ends behind it; all are beyond every address.
        StridedBody { address: 59.into(), ..right },
        StridedBody { address: (-1).into(), ..right },
        StridedBody { address: 925.into(), ..right },
        StridedBody { address: i64::MIN.into(), ..right },
        StridedBody { address: i64::MAX.into(), ..right },
        StridedBody { instances: u64::MAX.into(), ..right },
        StridedBody { instances: (1 << 60).into(), ..right },
        StridedBody { instances: 0.into(), ..right },
        // More bytes than there are.
        StridedBody { from: 25.into(), ..right },
        StridedBody { from: u64::MAX.into(), ..right },
        StridedBody { key_secret: 5.into(), ..right },
        StridedBody { operator: 77, ..right },
    ];
    for (at, body) in wrong.into_iter().enumerate() {
        let number = at as u64 + 1;
        let body = Body::Strided(StridedBody { number: number.into(), ..body });
        assert_eq!(target.place(&body, 40), Placement::Drop, "{body:?}");
        assert!(target.status(number).is_some_and(|status| status > 0), "{body:?}");
        assert!(!target.rig.core.has_jobs());
    }
    let number = wrong.len() as u64 + 1;
    let body = Body::Strided(StridedBody { number: number.into(), ..right });
    let (slice, token) = into(target.place(&body, 40));
    target.rig.core.received(token, &[]);
    let task = target.rig.core.next_job().expect("its bytes are here");
    assert_eq!((task.source, task.job.change), (slice, Change::Store));
    target.rig.core.job_done(Ok([0; 8]), None);
    target.rig.drain();
    target.rig.core.check();
}

#[test]
fn layouts_that_there_are_not_cost_the_peer_its_link() {
    let mut broken = layout(2, 50);
    broken.nodes[0] = [0xff; NODE_BYTES];
    let right = Target::new().right;
    let bodies = [
        Body::Strided(StridedBody { layout: 2, ..right }),
        Body::Strided(StridedBody { layout: 255, ..right }),
        Body::Layout(layout(64, 50)),
        Body::Layout(broken),
        Body::Layout(LayoutBody { place: LayoutBody::placed(2, 0, 0), ..broken }),
        Body::Layout(LayoutBody { place: LayoutBody::placed(2, 2, 2), ..broken }),
    ];
    for body in bodies {
        let payload_bytes = if matches!(body, Body::Strided(_)) { 40 } else { 0 };
        let placement = Target::new().place(&body, payload_bytes);
        assert!(matches!(placement, Placement::Violation(_)), "{body:?}: {placement:?}");
    }
}
