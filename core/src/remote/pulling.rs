//! Gets in parts: which part is asked for next, and over which link.
//!
//! Every byte of a get is in one place: not asked for yet (`turns`), given back (`again`), with the rail of a link (an
//! order), asked for by frames, or here. It is asked for anew only after its rail has let go of its memory.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, RemoteLayout, RemoteSegment};

use super::ACCESSES_MAX;
use crate::api::OperationId;

/// Parts begin at multiples of this, in bytes.
pub(crate) const UNIT_BYTES: u64 = 64 << 10;
/// The longest part, in bytes: what is lost and read again for each part under way when its path dies.
pub(crate) const PART_BYTES_MAX: u64 = 256 << 10;
/// A get over several links has about so many parts, if it is long enough for that.
const PARTS: u64 = 32;
/// Bytes that a link's rail is asked for at a time: at least and at most.
const WINDOW_MIN: u64 = 1 << 20;
const WINDOW_MAX: u64 = 8 << 20;
/// In between, what the link delivers in this time.
const WINDOW: Duration = Duration::from_millis(20);
/// The rate of a link is measured over at least this time.
const MEASURE: Duration = Duration::from_millis(1);
/// Bytes that are asked for by frames at a time.
const BY_FRAMES_MAX: u64 = 4 << 20;

const _: () = assert!(PART_BYTES_MAX.is_multiple_of(UNIT_BYTES) && BY_FRAMES_MAX >= PART_BYTES_MAX);
// A part that ends within a segment makes one stream more of it than the segments that its peer counts.
const _: () = assert!(2 * (BY_FRAMES_MAX / UNIT_BYTES) <= ACCESSES_MAX as u64);

/// A part of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first byte in the get, in units of [`UNIT_BYTES`].
    at: u32,
    pub bytes: u32,
}

/// A get in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// The bytes from here on were not asked for yet.
    next: u64,
    part_bytes: u32,
    /// Bytes that are asked for by frames and not here.
    pub by_frames: u64,
}

/// All gets in parts of one session.
#[derive(Debug, Default)]
pub(crate) struct Pulling {
    /// Gets of which more is to be asked for, in turn.
    turns: VecDeque<OperationId>,
    /// Parts that came back from links which did not carry them.
    again: VecDeque<(OperationId, Part)>,
    lanes: Vec<Lane>,
    /// Bytes that are asked for by frames and not here.
    by_frames: u64,
    /// Bytes that are still to be asked for, of all gets.
    left: u64,
}

/// A link over which parts are read.
#[derive(Debug)]
struct Lane {
    link: LinkId,
    /// Bytes that its rail was asked for and has not read.
    bytes: u64,
    /// Bytes in a second, smoothed; `None` before the first measurement.
    rate: Option<u64>,
    /// What it has read since then; measured when enough time has passed.
    measured: u64,
    since: Time,
}

/// The next part to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Again(OperationId, Part),
    /// Of the get whose turn it is.
    Fresh(OperationId),
}

impl Part {
    /// Its first byte in the get.
    pub fn offset(self) -> u64 {
        u64::from(self.at) * UNIT_BYTES
    }

    /// The part that begins at a byte, which is a multiple of [`UNIT_BYTES`].
    fn new(offset: u64, bytes: u64) -> Part {
        debug_assert!(offset.is_multiple_of(UNIT_BYTES) && bytes <= PART_BYTES_MAX);
        Part { at: (offset / UNIT_BYTES) as u32, bytes: bytes as u32 }
    }

    /// Whether a get of so many bytes can be named by parts.
    pub fn can_name(bytes: u64) -> bool {
        bytes / UNIT_BYTES <= u64::from(u32::MAX)
    }

    /// Where its bytes lie in the remote region. `whole`: the bytes of the whole get.
    pub fn remote(self, layout: &RemoteLayout, whole: u64) -> RemoteLayout {
        let RemoteLayout::List(list) = layout else {
            let RemoteLayout::At(offset) = layout else {
                unreachable!("strided gets have no parts")
            };
            return RemoteLayout::At(offset + self.offset());
        };
        if u64::from(self.bytes) == whole {
            return layout.clone();
        }
        RemoteLayout::List(self.segments(list).collect())
    }

    /// The pieces of a list that it has.
    pub fn segments(self, list: &[RemoteSegment]) -> impl Iterator<Item = RemoteSegment> {
        let (begin, end) = (self.offset(), self.offset() + u64::from(self.bytes));
        let mut done = 0;
        list.iter().filter_map(move |segment| {
            let first = done;
            done += segment.len;
            let (from, to) = (first.max(begin), done.min(end));
            let offset = segment.offset.wrapping_add(from.saturating_sub(first));
            (from < to).then(|| RemoteSegment { offset, len: to - from })
        })
    }
}

impl Pulled {
    /// A get of so many bytes over so many links.
    pub fn new(bytes: u64, links: usize) -> Pulled {
        // Two units are read sooner over one link than shared out.
        let part = match links {
            0 | 1 => PART_BYTES_MAX,
            _ if bytes <= 2 * UNIT_BYTES => 2 * UNIT_BYTES,
            _ => (bytes / PARTS / UNIT_BYTES * UNIT_BYTES).clamp(UNIT_BYTES, PART_BYTES_MAX),
        };
        Pulled { next: 0, part_bytes: part as u32, by_frames: 0 }
    }

    /// Bytes of a get of so many that were not asked for yet.
    pub fn left(&self, bytes: u64) -> u64 {
        bytes - self.next
    }

    /// The length of the part that is asked for next, in bytes.
    pub fn next_bytes(&self, bytes: u64) -> u64 {
        self.left(bytes).min(self.part_bytes.into())
    }

    fn take(&mut self, bytes: u64) -> Part {
        let part = Part::new(self.next, bytes);
        self.next += bytes;
        part
    }
}

impl Pulling {
    /// A get of so many bytes begins.
    pub fn begin(&mut self, id: OperationId, bytes: u64) {
        self.turns.push_back(id);
        self.left += bytes;
    }

    /// A get is over. `bytes`: of it; all parts that were not asked for are dropped.
    pub fn end(&mut self, id: OperationId, pulled: &mut Pulled, bytes: u64) {
        self.left -= pulled.left(bytes);
        pulled.next = bytes;
        self.turns.retain(|other| *other != id);
        let left = &mut self.left;
        self.again.retain(|(other, part)| {
            let stays = *other != id;
            *left -= if stays { 0 } else { u64::from(part.bytes) };
            stays
        });
        self.frames_came(pulled, u64::MAX);
    }

    /// What is to be asked for next.
    pub fn next(&self) -> Option<Next> {
        match self.again.front() {
            Some((id, part)) => Some(Next::Again(*id, *part)),
            None => self.turns.front().copied().map(Next::Fresh),
        }
    }

    /// So many bytes of it are asked for. `pulled`, `whole`: of its get, and the bytes of that.
    pub fn take(&mut self, next: Next, bytes: u64, pulled: &mut Pulled, whole: u64) -> Part {
        self.left -= bytes;
        match next {
            Next::Again(id, part) => {
                self.again.pop_front();
                let rest = u64::from(part.bytes) - bytes;
                if rest > 0 {
                    self.again.push_front((id, Part::new(part.offset() + bytes, rest)));
                }
                Part::new(part.offset(), bytes)
            }
            Next::Fresh(id) => {
                let part = pulled.take(bytes);
                self.turns.pop_front();
                if pulled.left(whole) > 0 {
                    self.turns.push_back(id);
                }
                part
            }
        }
    }

    /// A part came back, and is to be asked for again.
    pub fn give_back(&mut self, id: OperationId, part: Part) {
        self.again.push_back((id, part));
        self.left += u64::from(part.bytes);
    }

    /// Forgets links that are no path's any more.
    pub fn keep_lanes(&mut self, is_path: impl Fn(LinkId) -> bool) {
        self.lanes.retain(|lane| lane.bytes > 0 || is_path(lane.link));
    }

    /// The link that finishes a part of at most so many bytes first, and how many it is asked for. `None`: wait until one
    /// of them has read something, which is better than any that has room, or none has.
    ///
    /// This is the whole choice among links: whoever knows more of their rates replaces it.
    pub fn choose(
        &mut self,
        links: impl Iterator<Item = LinkId>,
        bytes: u64,
    ) -> Option<(LinkId, u64)> {
        let mut count = 0;
        for link in links {
            self.lane_mut(link);
            // Those that may be used now come first.
            let at = self.lanes.iter().position(|lane| lane.link == link)?;
            self.lanes.swap(count, at);
            count += 1;
        }
        let (lanes, are_several) = (&self.lanes[..count], count > 1);
        // One that was not measured counts as the best of those that were.
        let usual = lanes.iter().filter_map(|lane| lane.rate).max().unwrap_or(1);
        let time = |lane: &Lane, bytes: u64| {
            u128::from(bytes) * 1_000_000_000 / u128::from(lane.rate.unwrap_or(usual).max(1))
        };
        let finish = |lane: &Lane| time(lane, lane.bytes + lane.part(bytes, are_several));
        let has_room = |lane: &&Lane| lane.has_room(lane.part(bytes, are_several), are_several);
        let with_room = lanes.iter().filter(has_room);
        let first = with_room.min_by_key(|lane| (finish(lane), lane.link))?;
        // All that is left may be finished earlier by one that has no room now.
        let full = lanes.iter().filter(|lane| !has_room(lane));
        let full = full.map(|lane| time(lane, lane.bytes + self.left)).min();
        let waits = full.is_some_and(|full| full < finish(first));
        (!waits).then_some((first.link, first.part(bytes, are_several)))
    }

    fn lane_mut(&mut self, link: LinkId) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.link == link).unwrap_or_else(|| {
            let since = Time::ZERO;
            self.lanes.push(Lane { link, bytes: 0, rate: None, measured: 0, since });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// The rail of a link is asked for a part.
    pub fn asked(&mut self, link: LinkId, bytes: u64, now: Time) {
        let lane = self.lane_mut(link);
        if lane.bytes == 0 {
            (lane.measured, lane.since) = (0, now);
        }
        lane.bytes += bytes;
    }

    /// The rail of a link let go of a part, with or without its bytes.
    pub fn ended(&mut self, link: LinkId, bytes: u64, has_read: bool, now: Time) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.link == link) else { return };
        lane.bytes = lane.bytes.saturating_sub(bytes);
        if has_read {
            lane.measured += bytes;
            lane.measure(now);
        }
    }

    /// Whether so many bytes may be asked for by frames.
    pub fn has_frame_room(&self, bytes: u64) -> bool {
        self.by_frames + bytes <= BY_FRAMES_MAX
    }

    /// A part is asked for by frames.
    pub fn asked_by_frames(&mut self, pulled: &mut Pulled, bytes: u64) {
        pulled.by_frames += bytes;
        self.by_frames += bytes;
    }

    /// Such bytes came: not more count than were asked for.
    pub fn frames_came(&mut self, pulled: &mut Pulled, bytes: u64) {
        let bytes = bytes.min(pulled.by_frames);
        pulled.by_frames -= bytes;
        self.by_frames -= bytes;
    }

    /// The links whose rails have parts.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.lanes.iter().filter(|lane| lane.bytes > 0).map(|lane| lane.link)
    }

    /// Bytes that the rail of a link has, of this get bytes to be asked for again, of all gets those by frames and those
    /// to be asked for: for tests.
    pub fn counts(&self, link: Option<LinkId>, id: Option<OperationId>) -> [u64; 4] {
        let over = self.lanes.iter().filter(|lane| Some(lane.link) == link);
        let again = self.again.iter().filter(|(other, _)| Some(*other) == id);
        let again = again.map(|(_, part)| u64::from(part.bytes)).sum();
        [over.map(|lane| lane.bytes).sum(), again, self.by_frames, self.left]
    }
}

impl Lane {
    /// How many of so many bytes it may be asked for. A short part finds out how fast one of several is.
    fn part(&self, bytes: u64, are_several: bool) -> u64 {
        if self.rate.is_none() && are_several { bytes.min(UNIT_BYTES) } else { bytes }
    }

    /// Whether its rail may be asked for so many bytes more. One of several whose rate is not known has one part at a time.
    fn has_room(&self, bytes: u64, are_several: bool) -> bool {
        let window = match self.rate {
            None if are_several => 0,
            None => WINDOW_MIN,
            Some(rate) => {
                let bytes = u128::from(rate) * WINDOW.as_nanos() / 1_000_000_000;
                bytes.clamp(WINDOW_MIN.into(), WINDOW_MAX.into()) as u64
            }
        };
        self.bytes == 0 || self.bytes + bytes <= window
    }

    fn measure(&mut self, now: Time) {
        let time = now.since(self.since);
        if time < MEASURE && self.rate.is_some() {
            return;
        }
        let nanos = time.as_nanos().max(1);
        let sample =
            (u128::from(self.measured) * 1_000_000_000 / nanos).min(u64::MAX.into()) as u64;
        self.rate = Some(match self.rate {
            None => sample,
            Some(rate) => rate / 4 * 3 + sample / 4,
        });
        (self.measured, self.since) = (0, now);
    }
}

#[cfg(test)]
mod tests;
