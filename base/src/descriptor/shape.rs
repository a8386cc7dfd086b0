//! The tree of a descriptor: it is checked, and simplified, as it is made.

use std::ops::Range;

use super::{DEPTH_MAX, FAR, Malformed, NODES_HERE_MAX};

/// Nodes between two marks.
const MARKED: usize = 64;
/// Bytes of a node in a frame: how many nodes are in it, its offset, count and stride.
pub(super) const NODE_BYTES: usize = 2 + 8 + 8 + 8;

/// A node, in the order of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// So many bytes, so far from the loop's turn that they are in.
    Run { offset: i64, bytes: u64 },
    /// The next `nodes` nodes `count` times, `stride` bytes apart.
    Loop { offset: i64, count: u64, stride: i64, nodes: usize },
}

impl Node {
    /// The node behind this one, which is at `at`, and behind what is in it.
    #[inline]
    pub fn after(&self, at: usize) -> usize {
        match self {
            Node::Run { .. } => at + 1,
            Node::Loop { nodes, .. } => at + 1 + nodes,
        }
    }

    fn offset(&self) -> i64 {
        match self {
            Node::Run { offset, .. } | Node::Loop { offset, .. } => *offset,
        }
    }

    /// The same, so many bytes farther.
    pub fn moved(self, by: i64) -> Result<Node, Malformed> {
        let offset = near(i128::from(self.offset()) + i128::from(by))?;
        Ok(match self {
            Node::Run { bytes, .. } => Node::Run { offset, bytes },
            Node::Loop { count, stride, nodes, .. } => Node::Loop { offset, count, stride, nodes },
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let (nodes, offset, count, stride) = match *self {
            Node::Run { offset, bytes } => (0, offset, bytes, 0),
            Node::Loop { offset, count, stride, nodes } => (nodes, offset, count, stride),
        };
        out.extend((nodes as u16).to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(stride.to_le_bytes());
    }

    pub fn decode(bytes: &[u8; NODE_BYTES]) -> Node {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            word
        };
        let offset = i64::from_le_bytes(word(2));
        let (count, stride) = (u64::from_le_bytes(word(10)), i64::from_le_bytes(word(18)));
        match u16::from_le_bytes([bytes[0], bytes[1]]) {
            0 => Node::Run { offset, bytes: count },
            nodes => Node::Loop { offset, count, stride, nodes: usize::from(nodes) },
        }
    }
}

fn near(value: i128) -> Result<i64, Malformed> {
    if value.abs() > FAR { Err(Malformed::TooFar) } else { Ok(value as i64) }
}

/// A tree of nodes with data, simplified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    nodes: Box<[Node]>,
    /// Bytes of data of each node, with all its turns.
    data: Box<[u64]>,
    bytes: u64,
    /// Of some outer nodes: the bytes of data before them, and their places. Empty where a search finds a node soon enough.
    marks: Box<[(u64, usize)]>,
}

/// Nodes next to each other, their bytes of data and their bounds.
#[derive(Default)]
struct Part {
    nodes: Vec<Node>,
    data: Vec<u64>,
    bytes: i128,
    bounds: Option<Range<i128>>,
    /// The last of them is a run, and in no loop among them.
    ends_in_run: bool,
}

impl Shape {
    /// Checks and simplifies; returns the bounds, too, which are empty where there is no data.
    pub fn made(nodes: &[Node]) -> Result<(Shape, Range<i64>), Malformed> {
        let part = simplified(nodes, 0)?;
        if part.nodes.len() > NODES_HERE_MAX {
            return Err(Malformed::TooMany);
        }
        let bounds = part.bounds.unwrap_or(0..0);
        let bounds = near(bounds.start)?..near(bounds.end)?;
        let marks = marks(&part.nodes, &part.data);
        let (nodes, data) = (part.nodes.into(), part.data.into());
        let bytes = near(part.bytes)? as u64;
        Ok((Shape { nodes, data, bytes, marks }, bounds))
    }

    /// The outer node that has a byte of data, and how many bytes of its own are before that one. Every node that is passed over
    /// costs time, so a walk begins at the mark before it.
    pub fn find(&self, from: u64) -> (usize, u64) {
        let behind = self.marks.partition_point(|(before, _)| *before <= from);
        let (before, mut at) = behind.checked_sub(1).map_or((0, 0), |mark| self.marks[mark]);
        let mut from = from - before;
        while from >= self.data[at] {
            from -= self.data[at];
            at = self.nodes[at].after(at);
        }
        (at, from)
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Bytes of data of the node at a place, with all its turns.
    #[inline]
    pub fn data(&self, at: usize) -> u64 {
        self.data[at]
    }

    /// Bytes of data of all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many runs a walk meets.
    pub fn runs(&self) -> u64 {
        self.runs_in(0..self.nodes.len())
    }

    fn runs_in(&self, range: Range<usize>) -> u64 {
        let mut runs = 0u64;
        let mut at = range.start;
        while at < range.end {
            let after = self.nodes[at].after(at);
            runs = runs.saturating_add(match self.nodes[at] {
                Node::Run { .. } => 1,
                Node::Loop { count, .. } => count.saturating_mul(self.runs_in(at + 1..after)),
            });
            at = after;
        }
        runs
    }

    /// Whether it is plain that no two runs have a byte in common: what is in no two turns of a loop, and in no two
    /// neighbours, reaches into the other's bounds.
    pub fn is_apart(&self) -> bool {
        self.apart_in(0..self.nodes.len()).is_some()
    }

    /// The bounds of some nodes, where they are plainly apart.
    fn apart_in(&self, range: Range<usize>) -> Option<Range<i64>> {
        let mut all: Vec<Range<i64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let after = self.nodes[at].after(at);
            all.push(match self.nodes[at] {
                Node::Run { offset, bytes } => offset..offset + bytes as i64,
                Node::Loop { offset, count, stride, .. } => {
                    let own = self.apart_in(at + 1..after)?;
                    if stride.unsigned_abs() < (own.end - own.start) as u64 {
                        return None;
                    }
                    let last = stride * (count - 1) as i64;
                    offset + own.start + last.min(0)..offset + own.end + last.max(0)
                }
            });
            at = after;
        }
        all.sort_unstable_by_key(|bounds| bounds.start);
        let touch = all.windows(2).any(|two| two[0].end > two[1].start);
        (!touch).then(|| match (all.first(), all.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        })
    }
}

fn marks(nodes: &[Node], data: &[u64]) -> Box<[(u64, usize)]> {
    let (mut marks, mut at, mut before, mut last) = (Vec::new(), 0, 0, 0);
    while at < nodes.len() {
        if at - last >= MARKED {
            marks.push((before, at));
            last = at;
        }
        before += data[at];
        at = nodes[at].after(at);
    }
    marks.into()
}

/// Nodes without empty ones, loops of one turn, and neighbours that touch.
fn simplified(nodes: &[Node], depth: usize) -> Result<Part, Malformed> {
    let mut all = Part::default();
    let mut at = 0;
    while at < nodes.len() {
        let after = nodes[at].after(at);
        if after > nodes.len() {
            return Err(Malformed::Bytes);
        }
        near(i128::from(nodes[at].offset()))?;
        match nodes[at] {
            Node::Run { offset, bytes } => all.add_run(offset, bytes)?,
            Node::Loop { offset, count, stride, .. } => {
                if depth == DEPTH_MAX {
                    return Err(Malformed::TooDeep);
                }
                let body = simplified(&nodes[at + 1..after], depth + 1)?;
                all.add_loop([offset, stride], count, body)?;
            }
        }
        at = after;
    }
    Ok(all)
}

impl Part {
    fn add_run(&mut self, offset: i64, bytes: u64) -> Result<(), Malformed> {
        if bytes == 0 {
            return Ok(());
        }
        near(i128::from(bytes))?;
        self.grow(i128::from(bytes), i128::from(offset)..i128::from(offset) + i128::from(bytes))?;
        if let (true, Some(Node::Run { offset: before, bytes: many }), Some(data)) =
            (self.ends_in_run, self.nodes.last_mut(), self.data.last_mut())
            && *before + *many as i64 == offset
        {
            *many += bytes;
            *data += bytes;
            return Ok(());
        }
        self.ends_in_run = true;
        self.nodes.push(Node::Run { offset, bytes });
        self.data.push(bytes);
        Ok(())
    }

    /// Turns of a loop, with its offset and stride.
    fn add_loop(
        &mut self,
        [offset, stride]: [i64; 2],
        count: u64,
        body: Part,
    ) -> Result<(), Malformed> {
        let Some(bounds) = body.bounds.filter(|_| count > 0) else { return Ok(()) };
        near(i128::from(count))?;
        if let [Node::Run { offset: first, bytes }] = body.nodes[..]
            && (count == 1 || i128::from(stride) == i128::from(bytes))
        {
            let all = near(i128::from(bytes) * i128::from(count))?;
            return self.add_run(near(i128::from(offset) + i128::from(first))?, all as u64);
        }
        if count == 1 {
            return self.add_inline(offset, &body.nodes, &body.data, (body.bytes, bounds));
        }
        near(i128::from(stride))?;
        let last = i128::from(stride) * i128::from(count - 1);
        let (by, bytes) = (i128::from(offset), body.bytes * i128::from(count));
        let ends = by + bounds.start + last.min(0)..by + bounds.end + last.max(0);
        self.grow(bytes, ends)?;
        self.nodes.push(Node::Loop { offset, count, stride, nodes: body.nodes.len() });
        self.nodes.extend(&body.nodes);
        self.data.push(bytes as u64);
        self.data.extend(&body.data);
        self.ends_in_run = false;
        Ok(())
    }

    /// The nodes of a loop of one turn take its place.
    fn add_inline(
        &mut self,
        offset: i64,
        nodes: &[Node],
        data: &[u64],
        (bytes, bounds): (i128, Range<i128>),
    ) -> Result<(), Malformed> {
        let by = i128::from(offset);
        self.grow(bytes, by + bounds.start..by + bounds.end)?;
        let mut at = 0;
        while at < nodes.len() {
            let after = nodes[at].after(at);
            self.nodes.push(nodes[at].moved(offset)?);
            self.nodes.extend(&nodes[at + 1..after]);
            at = after;
        }
        self.data.extend(data);
        self.ends_in_run = false;
        Ok(())
    }

    /// So many bytes more, in these bounds.
    fn grow(&mut self, bytes: i128, bounds: Range<i128>) -> Result<(), Malformed> {
        near(bounds.start)?;
        near(bounds.end)?;
        self.bytes += bytes;
        near(self.bytes)?;
        self.bounds = Some(match self.bounds.take() {
            None => bounds,
            Some(own) => own.start.min(bounds.start)..own.end.max(bounds.end),
        });
        Ok(())
    }
}
