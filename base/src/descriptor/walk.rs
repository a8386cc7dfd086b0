//! The walk over the pieces of instances of a datatype.

use super::shape::{Node, Shape};
use super::{DEPTH_MAX, Piece};

/// The loops that a walk is in: those of the tree, and the instances around them.
const LEVELS: usize = DEPTH_MAX + 1;

/// The pieces of instances, in order.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    walk: Walk<'a>,
    /// The next piece, which may grow.
    next: Option<Piece>,
}

#[derive(Debug, Clone)]
struct Walk<'a> {
    shape: &'a Shape,
    levels: [Level; LEVELS],
    depth: usize,
    /// Bytes of the next run that are passed over.
    skip: u64,
}

/// A loop on the way to the next run.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    begin: usize,
    end: usize,
    /// The next node.
    at: usize,
    /// Where this turn is.
    base: i64,
    stride: i64,
    /// Turns after this one.
    left: u64,
}

/// The same piece several times, `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub offset: i64,
    pub bytes: u64,
    pub stride: i64,
    pub times: u64,
}

/// The bytes of instances in order, as few runs: a copy of each is a plain loop. Neighbours that touch may be two pieces here.
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    walk: Walk<'a>,
    /// Instances without gaps are one piece.
    only: Option<Piece>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(shape: &'a Shape, count: u64, extent: i64, from: u64) -> Pieces<'a> {
        let Runs { mut walk, only } = Runs::new(shape, count, extent, from);
        let next = only.or_else(|| walk.next());
        Pieces { walk, next }
    }
}

impl<'a> Runs<'a> {
    pub(super) fn new(shape: &'a Shape, count: u64, extent: i64, from: u64) -> Runs<'a> {
        let mut walk = Walk { shape, levels: [Level::default(); LEVELS], depth: 0, skip: 0 };
        let turn = shape.bytes();
        let is_any = count > 0 && turn > 0 && from / turn < count;
        if let [Node::Run { offset, bytes }] = *shape.nodes()
            && bytes as i64 == extent
            && is_any
        {
            // A walk would find their one piece, slowly.
            let only = Piece { offset: offset + from as i64, bytes: bytes * count - from };
            return Runs { walk, only: Some(only) };
        }
        if is_any {
            walk.enter(0..shape.nodes().len(), 0, extent, count, turn, from);
        }
        Runs { walk, only: None }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let run =
            |piece: Piece| Run { offset: piece.offset, bytes: piece.bytes, stride: 0, times: 1 };
        if let Some(piece) = self.only.take() {
            return Some(run(piece));
        }
        let is_whole = self.walk.skip == 0;
        let piece = self.walk.next()?;
        let turns = if is_whole { self.walk.take_turns() } else { None };
        Some(match turns {
            Some((stride, others)) => Run { stride, times: 1 + others, ..run(piece) },
            None => run(piece),
        })
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let mut piece = self.next?;
        loop {
            self.next = self.walk.next();
            match self.next {
                Some(after) if piece.offset + piece.bytes as i64 == after.offset => {
                    piece.bytes += after.bytes;
                }
                _ => return Some(piece),
            }
        }
    }
}

impl Walk<'_> {
    /// Goes into a loop of `count` turns with `turn` bytes of data each, at the byte `from` of its data.
    fn enter(
        &mut self,
        nodes: std::ops::Range<usize>,
        base: i64,
        stride: i64,
        count: u64,
        turn: u64,
        from: u64,
    ) {
        let (turns, mut from) = (from / turn, from % turn);
        let base = base + stride * turns as i64;
        let mut at = nodes.start;
        if self.depth == 0 {
            (at, from) = self.shape.find(from);
        }
        while from >= self.shape.data(at) {
            from -= self.shape.data(at);
            at = self.shape.nodes()[at].after(at);
        }
        let (begin, end, left) = (nodes.start, nodes.end, count - 1 - turns);
        self.levels[self.depth] = Level { begin, end, at, base, stride, left };
        self.depth += 1;
        if from > 0 {
            self.skip = from;
            self.descend();
        }
    }

    /// Goes into the loop that is next, if one is, so that what is skipped is part of a run.
    fn descend(&mut self) {
        let level = &mut self.levels[self.depth - 1];
        let Node::Loop { offset, count, stride, nodes } = self.shape.nodes()[level.at] else {
            return;
        };
        let own = level.at + 1..level.at + 1 + nodes;
        let (base, turn) = (level.base + offset, self.shape.data(level.at) / count);
        level.at = own.end;
        let from = std::mem::take(&mut self.skip);
        self.enter(own, base, stride, count, turn, from);
    }

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        loop {
            let level = self.levels[..self.depth].last_mut()?;
            if level.at == level.end {
                if level.left == 0 {
                    self.depth -= 1;
                    continue;
                }
                level.left -= 1;
                level.base += level.stride;
                level.at = level.begin;
            }
            match self.shape.nodes()[level.at] {
                Node::Run { offset, bytes } => {
                    level.at += 1;
                    let skip = std::mem::take(&mut self.skip);
                    let offset = level.base + offset + skip as i64;
                    return Some(Piece { offset, bytes: bytes - skip });
                }
                Node::Loop { .. } => self.descend(),
            }
        }
    }

    /// Where the loop has nothing but the run that was next: its stride, and the turns that are left, which are taken.
    #[inline]
    fn take_turns(&mut self) -> Option<(i64, u64)> {
        let level = self.levels[..self.depth].last_mut()?;
        if level.at != level.end || level.end - level.begin != 1 {
            return None;
        }
        Some((level.stride, std::mem::take(&mut level.left)))
    }
}
