//! Layouts of datatypes, which travel once in a session and later by their numbers: ours at the peer, and the peer's here.
//!
//! The side that uses a layout gives it its number, and sends its nodes some at a time. The other side tells in its next
//! word about credit that it has all of them; until then nothing of that layout leaves. So it does not matter whether frames
//! may pass each other. One layout is on its way at a time.
//!
//! Invariants: both sides count the same layouts and nodes. A number is freed, or given again, when all operations that
//! named it are over at the peer.

use std::sync::Arc;

use ropewalk_base::descriptor::{Descriptor, NODES_MAX};
use ropewalk_base::verb::RemoteLayout;
use ropewalk_wire::frame::{LayoutBody, NODE_BYTES, NODES_OF_FRAME};

use crate::api::*;
use crate::engine::Core;

/// Layouts that a side of a session knows by number.
const LAYOUTS_MAX: usize = 64;
/// Nodes that they have together: some 100 KiB of memory.
const NODES_KEPT_MAX: usize = 2 * NODES_MAX;
/// Pieces for which a rail reads or writes by itself have so many bytes each, on average: attached memory costs 0.8 us a
/// piece, and a frame of 64 KiB some 100 us.
const PIECE_BYTES_MIN: u64 = 1024;
/// Bytes of an encoded descriptor before its nodes.
const EXTENT_BYTES: usize = size_of::<i64>();

/// Layouts by their numbers.
#[derive(Debug, Default)]
struct Kept {
    layouts: Vec<Option<Layout>>,
    /// Of all of them, as they were sent.
    nodes: usize,
}

#[derive(Debug)]
struct Layout {
    shape: Arc<Descriptor>,
    nodes: usize,
}

/// Our layouts, as the peer knows them.
#[derive(Debug, Default)]
pub(crate) struct Taught {
    kept: Kept,
    /// Layouts, and numbers freed, that were sent; it wraps. The peer counts what it has taken.
    sent: u16,
    /// The number that the last of these is about, until the peer has taken it.
    pending: Option<u8>,
    /// Where the next number to free is looked for.
    hand: u8,
}

/// Layouts of the peer.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    kept: Kept,
    taken: u16,
    arriving: Option<Arriving>,
}

/// A layout of which some frames are here.
#[derive(Debug)]
struct Arriving {
    number: u8,
    extent: i64,
    nodes: usize,
    frames: Vec<Option<[u8; NODES_OF_FRAME * NODE_BYTES]>>,
}

/// The next step before a layout can be used.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The peer knows it.
    Nothing,
    /// Something is over, or the peer has taken what was sent.
    Waiting,
    /// This number is to be given to it.
    Number(u8),
    /// This number is to be freed, if no operation names it.
    Free(u8),
}

impl Kept {
    fn get(&self, number: u8) -> Option<&Arc<Descriptor>> {
        self.layouts.get(usize::from(number))?.as_ref().map(|layout| &layout.shape)
    }

    /// False, and nothing happens, where there is no such number or no room.
    fn set(&mut self, number: u8, layout: Option<Layout>) -> bool {
        let at = usize::from(number);
        let before = self.layouts.get(at).and_then(|it| it.as_ref()).map_or(0, |it| it.nodes);
        let nodes = self.nodes - before + layout.as_ref().map_or(0, |it| it.nodes);
        if at >= LAYOUTS_MAX || nodes > NODES_KEPT_MAX {
            return false;
        }
        if self.layouts.len() <= at {
            self.layouts.resize_with(at + 1, || None);
        }
        (self.layouts[at], self.nodes) = (layout, nodes);
        true
    }

    fn find(&self, shape: &Arc<Descriptor>) -> Option<u8> {
        let layouts = || self.layouts.iter().map(|it| it.as_ref().map(|it| &it.shape));
        let same = layouts().position(|it| it.is_some_and(|it| Arc::ptr_eq(it, shape)));
        same.or_else(|| layouts().position(|it| it == Some(shape))).map(|at| at as u8)
    }

    /// A number that is free, where there is room for so many nodes.
    fn room(&self, nodes: usize) -> Option<u8> {
        let free = self.layouts.iter().position(Option::is_none).unwrap_or(self.layouts.len());
        (free < LAYOUTS_MAX && self.nodes + nodes <= NODES_KEPT_MAX).then_some(free as u8)
    }
}

impl Taught {
    /// The number of a layout that the peer knows.
    pub fn number_of(&self, shape: &Arc<Descriptor>) -> Option<u8> {
        self.kept.find(shape).filter(|number| self.pending != Some(*number))
    }

    /// The next step for a layout with so many nodes. `is_named`: by an operation that is not over.
    fn step(
        &mut self,
        shape: &Arc<Descriptor>,
        nodes: usize,
        is_named: impl Fn(u8) -> bool,
    ) -> Step {
        if self.number_of(shape).is_some() {
            return Step::Nothing;
        }
        if self.pending.is_some() {
            return Step::Waiting;
        }
        if let Some(number) = self.kept.room(nodes) {
            return Step::Number(number);
        }
        let count = self.kept.layouts.len() as u8;
        let others = (0..count).map(|at| (self.hand + at) % count);
        let free = others.into_iter().find(|it| self.kept.get(*it).is_some() && !is_named(*it));
        match free {
            Some(number) => {
                self.hand = (number + 1) % count;
                Step::Free(number)
            }
            None => Step::Waiting,
        }
    }

    fn send(&mut self, number: u8, layout: Option<Layout>) {
        let has_room = self.kept.set(number, layout);
        debug_assert!(has_room, "a number was chosen for which there is room");
        (self.sent, self.pending) = (self.sent.wrapping_add(1), Some(number));
    }

    /// Whether the peer has taken all that was sent.
    pub fn is_settled(&self) -> bool {
        self.pending.is_none()
    }

    /// The peer has taken so many layouts.
    pub fn confirm(&mut self, taken: u16) {
        if taken == self.sent {
            self.pending = None;
        }
    }
}

impl Learned {
    pub fn get(&self, number: u8) -> Option<&Arc<Descriptor>> {
        self.kept.get(number)
    }

    /// Whether no layout is here in part.
    pub fn is_settled(&self) -> bool {
        self.arriving.is_none()
    }

    /// How many were taken; it wraps.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Some nodes come. True where a layout is complete by that; `None`: that is no layout, or there is no room for it.
    fn take(&mut self, body: &LayoutBody) -> Option<bool> {
        let [number, nodes, first] = body.place();
        let (number, nodes) = (u8::try_from(number).ok()?, nodes as usize);
        if nodes == 0 {
            self.kept.get(number).filter(|_| self.arriving.is_none())?;
            self.kept.set(number, None);
            self.taken = self.taken.wrapping_add(1);
            return Some(true);
        }
        if nodes > NODES_MAX || !(first as usize).is_multiple_of(NODES_OF_FRAME) {
            return None;
        }
        let extent = body.extent.get();
        let arriving = self.arriving.get_or_insert_with(|| Arriving {
            number,
            extent,
            nodes,
            frames: vec![None; nodes.div_ceil(NODES_OF_FRAME)],
        });
        let is_same = (arriving.number, arriving.nodes, arriving.extent) == (number, nodes, extent);
        let frame = arriving.frames.get_mut(first as usize / NODES_OF_FRAME)?;
        if !is_same || frame.is_some() {
            return None;
        }
        *frame = body.nodes.as_flattened().try_into().ok();
        if arriving.frames.iter().any(Option::is_none) {
            return Some(false);
        }
        let shape = self.arriving.take()?.shape()?;
        self.kept.set(number, Some(Layout { shape: Arc::new(shape), nodes })).then(|| {
            self.taken = self.taken.wrapping_add(1);
            true
        })
    }
}

impl Arriving {
    fn shape(self) -> Option<Descriptor> {
        let mut bytes = self.extent.to_le_bytes().to_vec();
        self.frames.into_iter().flatten().for_each(|nodes| bytes.extend(nodes));
        bytes.truncate(EXTENT_BYTES + self.nodes * NODE_BYTES);
        Descriptor::decode(&bytes).ok()
    }
}

impl Core {
    /// Whether an access may begin, as far as it is about instances of a datatype: a rail takes a list in their place, and for
    /// frames the peer has to know the layout.
    pub(in crate::remote) fn is_layout_ready(&mut self, id: OperationId) -> bool {
        let Core { operations, peers, rails, .. } = self;
        let Some(state) = operations.access_mut(id) else { return true };
        let RemoteLayout::Strided(strided) = &state.access.remote else { return true };
        let peer = state.access.peer;
        let Some(known) = peers.get_mut(peer) else { return true };
        let (Some(link), Some(session)) = (known.link(), known.session.as_mut()) else {
            return true;
        };
        if session.is_foreign() {
            // It is refused when it begins.
            return true;
        }
        if !state.by_frames && state.goes_by_rail(session, link, rails) {
            let len = state.access.local.len;
            match strided.listed(len).filter(|it| it.len() as u64 * PIECE_BYTES_MIN <= len) {
                Some(list) => {
                    state.access.remote = RemoteLayout::List(list);
                    return true;
                }
                None => state.by_frames = true,
            }
        }
        let RemoteLayout::Strided(strided) = &state.access.remote else { return true };
        let shape = strided.shape.clone();
        let one_sided = session.one_sided();
        if one_sided.taught.number_of(&shape).is_some() {
            return true;
        }
        if self.is_live(link) {
            self.teach(peer, &shape);
        }
        false
    }

    /// Sends a layout to a peer that does not know it, or makes room for it there.
    fn teach(&mut self, id: PeerId, shape: &Arc<Descriptor>) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let one_sided = session.one_sided();
        let bytes = shape.encode();
        let (extent, nodes) = bytes.split_at(EXTENT_BYTES);
        let extent = i64::from_le_bytes(extent.try_into().expect("a descriptor has its extent"));
        let count = nodes.len() / NODE_BYTES;
        let (issued, updates) = (&one_sided.issued, &one_sided.updates);
        let is_named = |number| {
            updates.names(number) || issued.iter().any(|issue| issue.layout == Some(number))
        };
        match one_sided.taught.step(shape, count, is_named) {
            Step::Nothing | Step::Waiting => {}
            Step::Free(number) => {
                one_sided.taught.send(number, None);
                let place = LayoutBody::placed(number, 0, 0);
                let nodes = [[0; NODE_BYTES]; NODES_OF_FRAME];
                self.emit_control(id, LayoutBody { extent: 0.into(), place, nodes });
            }
            Step::Number(number) => {
                let layout = Layout { shape: shape.clone(), nodes: count };
                one_sided.taught.send(number, Some(layout));
                for (at, some) in nodes.chunks(NODES_OF_FRAME * NODE_BYTES).enumerate() {
                    let first = (at * NODES_OF_FRAME) as u32;
                    let place = LayoutBody::placed(number, count as u32, first);
                    let mut nodes = [[0; NODE_BYTES]; NODES_OF_FRAME];
                    nodes.as_flattened_mut()[..some.len()].copy_from_slice(some);
                    self.emit_control(id, LayoutBody { extent: extent.into(), place, nodes });
                }
            }
        }
    }

    /// Nodes of a layout of a peer's come. False: they are none.
    pub(crate) fn arrive_layout(&mut self, id: PeerId, body: &LayoutBody) -> bool {
        let Some(session) = self.peers.session_mut(id) else { return true };
        match session.one_sided().learned.take(body) {
            None => false,
            Some(false) => true,
            Some(true) => {
                self.lend_for_strided(id);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(stride: i64) -> Arc<Descriptor> {
        let run = Descriptor::contiguous(8).expect("a run");
        Arc::new(run.repeated(4, stride).expect("a vector"))
    }

    /// The frames of a layout.
    fn frames(number: u8, shape: &Descriptor) -> Vec<LayoutBody> {
        let bytes = shape.encode();
        let (extent, nodes) = bytes.split_at(EXTENT_BYTES);
        let extent = i64::from_le_bytes(extent.try_into().unwrap());
        let count = (nodes.len() / NODE_BYTES) as u32;
        let chunks = nodes.chunks(NODES_OF_FRAME * NODE_BYTES).enumerate();
        chunks
            .map(|(at, some)| {
                let place = LayoutBody::placed(number, count, (at * NODES_OF_FRAME) as u32);
                let mut nodes = [[0; NODE_BYTES]; NODES_OF_FRAME];
                nodes.as_flattened_mut()[..some.len()].copy_from_slice(some);
                LayoutBody { extent: extent.into(), place, nodes }
            })
            .collect()
    }

    /// Runs with gaps of different lengths: as many nodes.
    fn runs(count: usize) -> Descriptor {
        let run = Descriptor::contiguous(1).expect("a run");
        let parts: Vec<_> = (0..count as i64).map(|it| (it * it + 2 * it, &run)).collect();
        Descriptor::joined(&parts).expect("not too many")
    }

    #[test]
    fn a_layout_is_known_when_all_its_frames_are_here_in_whatever_order() {
        let shape = runs(9);
        let mut all = frames(63, &shape);
        assert_eq!(all.len(), 5);
        all.reverse();
        let mut learned = Learned::default();
        for (at, body) in all.iter().enumerate() {
            assert!(learned.get(63).is_none());
            assert_eq!(learned.take(body), Some(at == 4));
        }
        assert_eq!((learned.get(63).map(|it| &**it), learned.taken()), (Some(&shape), 1));
        let free = LayoutBody { place: LayoutBody::placed(63, 0, 0), ..all[0] };
        assert_eq!(learned.take(&free), Some(true));
        assert_eq!((learned.get(63), learned.kept.nodes, learned.taken()), (None, 0, 2));
        assert_eq!(learned.take(&free), None, "it is free");
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        let body = frames(3, &runs(5))[1];
        let with = |number, nodes, first| LayoutBody {
            place: LayoutBody::placed(number, nodes, first),
            ..body
        };
        let twice = |first: &LayoutBody, second: &LayoutBody| {
            let mut learned = Learned::default();
            assert_eq!(learned.take(first), Some(false));
            learned.take(second)
        };
        for (number, nodes, first) in [(3, 1025, 0), (3, 5, 1), (3, 5, 6), (3, 4095, 4094)] {
            assert_eq!(Learned::default().take(&with(number, nodes, first)), None);
        }
        assert_eq!(twice(&body, &body), None, "the same nodes twice");
        assert_eq!(twice(&body, &with(4, 5, 0)), None, "another one between");
        assert_eq!(twice(&body, &with(3, 6, 0)), None, "another length");
        let wide = LayoutBody { extent: 1.into(), ..with(3, 5, 0) };
        assert_eq!(twice(&body, &wide), None, "another extent");
        assert_eq!(Learned::default().take(&frames(64, &vector(9))[0]), None, "no such number");
        let mut broken = frames(1, &vector(9))[0];
        broken.nodes[0] = [0xff; NODE_BYTES];
        assert_eq!(Learned::default().take(&broken), None, "nodes that reach too far");
    }

    #[test]
    fn no_more_nodes_are_kept_than_there_is_room_for() {
        let mut learned = Learned::default();
        let take = |learned: &mut Learned, number, nodes| {
            let all = frames(number, &runs(nodes));
            all.iter().fold(None, |_, body| learned.take(body))
        };
        assert_eq!(take(&mut learned, 0, NODES_MAX), Some(true));
        assert_eq!(take(&mut learned, 1, NODES_MAX - 1), Some(true));
        assert_eq!(take(&mut learned, 2, 2), None);
        assert_eq!(take(&mut learned, 2, 1), Some(true));
        assert_eq!(take(&mut learned, 1, 2), Some(true), "in the place of another one");
        assert_eq!(take(&mut learned, 3, 900), Some(true));
    }

    #[test]
    fn numbers_are_given_again_when_nothing_names_them() {
        let mut taught = Taught::default();
        let shapes: Vec<_> = (0..=LAYOUTS_MAX as i64).map(|it| vector(9 + it)).collect();
        for (number, shape) in shapes[..LAYOUTS_MAX].iter().enumerate() {
            assert_eq!(taught.step(shape, 2, |_| false), Step::Number(number as u8));
            taught.send(number as u8, Some(Layout { shape: shape.clone(), nodes: 2 }));
            assert_eq!(taught.step(shape, 2, |_| false), Step::Waiting);
            taught.confirm(number as u16);
            assert_eq!(taught.number_of(shape), None, "an older word");
            taught.confirm(number as u16 + 1);
            assert_eq!(taught.step(&vector(9 + number as i64), 2, |_| false), Step::Nothing);
        }
        let last = &shapes[LAYOUTS_MAX];
        assert_eq!(taught.step(last, 2, |_| true), Step::Waiting);
        assert_eq!(taught.step(last, 2, |it| it != 5), Step::Free(5));
        taught.send(5, None);
        assert_eq!((taught.number_of(&shapes[5]), taught.number_of(&shapes[6])), (None, Some(6)));
        taught.confirm(LAYOUTS_MAX as u16 + 1);
        assert_eq!(taught.step(last, 2, |_| true), Step::Number(5));
    }
}
