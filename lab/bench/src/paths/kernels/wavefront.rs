//! A wavefront like that of the kernel LU of the NAS benchmarks: each cell needs its neighbours before it along three
//! axes, and a sweep back those behind it. So many short messages follow each other.
//!
//! Members have columns of cells. A cell is computed from the same numbers in the same order whoever has it: so the
//! result has the same bits as that of one process.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::paths::kernels::class::Class;
use crate::paths::kernels::group::{Group, bytes_of, part, words_of};

/// Unknowns of a cell.
const UNKNOWNS: usize = 5;
/// The parts of the new value that come from the old one and from the three neighbours.
const WEIGHTS: [f64; 4] = [0.25, 0.24, 0.23, 0.22];

type Cell = [f64; UNKNOWNS];

/// Cells along each axis, and how often both sweeps are made.
fn problem(class: Class) -> (usize, usize) {
    match class {
        Class::S => (12, 50),
        Class::W => (33, 300),
        Class::A => (64, 250),
        Class::B => (102, 250),
    }
}

/// Columns along x and y, each with all cells of z.
struct Block {
    len: usize,
    x: Range<usize>,
    y: Range<usize>,
    cells: Vec<Cell>,
}

/// The cells beside a plane of a block, on the side that comes first in a sweep: by y and by x.
struct Edges {
    x: Vec<Cell>,
    y: Vec<Cell>,
}

/// The source term of a cell: any numbers that differ.
fn source(x: usize, y: usize, z: usize) -> Cell {
    std::array::from_fn(|unknown| {
        let mixed = (x * 7 + y * 13 + z * 29 + unknown * 3) % 101;
        mixed as f64 / 101.0 - 0.37
    })
}

fn relax(own: Cell, source: &Cell, neighbours: [&Cell; 3]) -> Cell {
    let ([a, b, c], [old, w0, w1, w2]) = (neighbours, WEIGHTS);
    std::array::from_fn(|unknown| {
        let (next, last) = ((unknown + 1) % UNKNOWNS, (unknown + 2) % UNKNOWNS);
        source[unknown] + old * own[unknown] + w0 * a[unknown] + w1 * b[next] + w2 * c[last]
    })
}

impl Block {
    fn new(len: usize, x: Range<usize>, y: Range<usize>) -> Block {
        let cells = vec![[0.0; UNKNOWNS]; x.len() * y.len() * len];
        Block { len, x, y, cells }
    }

    fn place(&self, x: usize, y: usize, z: usize) -> usize {
        (z * self.y.len() + y) * self.x.len() + x
    }

    /// The cells of a plane's edge: those that a sweep reaches last.
    fn edges(&self, z: usize, forward: bool) -> Edges {
        let (width, height) = (self.x.len(), self.y.len());
        let (x, y) = if forward { (width - 1, height - 1) } else { (0, 0) };
        Edges {
            x: (0..height).map(|row| self.cells[self.place(x, row, z)]).collect(),
            y: (0..width).map(|column| self.cells[self.place(column, y, z)]).collect(),
        }
    }

    /// Cells beside a plane where the grid ends.
    fn outside(&self) -> Edges {
        Edges { x: vec![[0.0; UNKNOWNS]; self.y.len()], y: vec![[0.0; UNKNOWNS]; self.x.len()] }
    }

    /// Sweeps over a plane.
    fn sweep(&mut self, z: usize, edges: &Edges, forward: bool) {
        let (width, height, zero) = (self.x.len(), self.y.len(), [0.0; UNKNOWNS]);
        let turned = |step: usize, count: usize| if forward { step } else { count - 1 - step };
        let before = |place: usize| if forward { place - 1 } else { place + 1 };
        let first_z = if forward { 0 } else { self.len - 1 };
        for row in 0..height {
            let y = turned(row, height);
            for column in 0..width {
                let x = turned(column, width);
                let along_x = match column {
                    0 => &edges.x[y],
                    _ => &self.cells[self.place(before(x), y, z)],
                };
                let along_y = match row {
                    0 => &edges.y[x],
                    _ => &self.cells[self.place(x, before(y), z)],
                };
                let along_z = match z == first_z {
                    true => &zero,
                    false => &self.cells[self.place(x, y, before(z))],
                };
                let at = self.place(x, y, z);
                let source = source(self.x.start + x, self.y.start + y, z);
                self.cells[at] = relax(self.cells[at], &source, [along_x, along_y, along_z]);
            }
        }
    }
}

/// The members as a grid along x and y.
fn grid(members: usize) -> [usize; 2] {
    let mut rows = members.isqrt();
    while !members.is_multiple_of(rows) {
        rows -= 1;
    }
    [members / rows, rows]
}

fn flat(cells: &[Cell]) -> Vec<u8> {
    bytes_of(cells.as_flattened())
}

fn cells_of(bytes: &[u8]) -> Vec<Cell> {
    let numbers: Vec<f64> = words_of(bytes);
    numbers.as_chunks().0.to_vec()
}

/// A member, and those beside it along x and y.
struct Member {
    /// The neighbours before and behind along x, then along y.
    beside: [[Option<usize>; 2]; 2],
    /// Messages to and from each neighbour so far.
    sent: u64,
}

impl Member {
    fn new(group: &Group) -> (Member, [Range<usize>; 2], [usize; 2]) {
        let [columns, rows] = grid(group.size());
        let (column, row) = (group.rank() % columns, group.rank() / columns);
        let at = |column: usize, row: usize| row * columns + column;
        let along_x = [
            column.checked_sub(1).map(|column| at(column, row)),
            (column + 1 < columns).then(|| at(column + 1, row)),
        ];
        let along_y = [
            row.checked_sub(1).map(|row| at(column, row)),
            (row + 1 < rows).then(|| at(column, row + 1)),
        ];
        let member = Member { beside: [along_x, along_y], sent: 0 };
        (member, [column..column + 1, row..row + 1], [columns, rows])
    }

    /// One sweep over all planes of a block.
    fn sweep(&mut self, group: &mut Group, block: &mut Block, forward: bool) -> anyhow::Result<()> {
        let from = self.beside.map(|pair| pair[usize::from(!forward)]);
        let to = self.beside.map(|pair| pair[usize::from(forward)]);
        for step in 0..block.len {
            let z = if forward { step } else { block.len - 1 - step };
            self.sent += 1;
            let (number, channel) = (self.sent, step % group.channels());
            let mut edges = block.outside();
            let tickets =
                [(from[0], edges.x.len()), (from[1], edges.y.len())].map(|(from, count)| {
                    from.map(|from| group.receive(from, channel, number, count * UNKNOWNS * 8))
                });
            let [x, y] = tickets;
            for (ticket, edge) in [(x, &mut edges.x), (y, &mut edges.y)] {
                if let Some(ticket) = ticket {
                    let message = group.wait(ticket?)?;
                    *edge = message.map(|bytes| cells_of(&bytes)).unwrap_or_default();
                }
            }
            block.sweep(z, &edges, forward);
            let edges = block.edges(z, forward);
            for (to, edge) in [(to[0], edges.x), (to[1], edges.y)] {
                if let Some(to) = to {
                    group.send(to, channel, number, &flat(&edge))?;
                }
            }
        }
        Ok(())
    }
}

/// The result of one process alone.
pub struct Reference {
    class: Class,
    cells: Vec<Cell>,
}

impl Reference {
    /// Computes it.
    pub fn of(class: Class) -> Reference {
        let (len, rounds) = problem(class);
        let mut block = Block::new(len, 0..len, 0..len);
        let outside = block.outside();
        for _ in 0..rounds {
            (0..len).for_each(|z| block.sweep(z, &outside, true));
            (0..len).rev().for_each(|z| block.sweep(z, &outside, false));
        }
        Reference { class, cells: block.cells }
    }

    /// For other processes, as a file.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let written = std::fs::write(file, flat(&self.cells));
        written.with_context(|| format!("cannot write {}", file.display()))
    }

    /// From such a file.
    pub fn read(class: Class, file: &Path) -> anyhow::Result<Reference> {
        let bytes = std::fs::read(file);
        let bytes = bytes.with_context(|| format!("cannot read {}", file.display()))?;
        let (cells, len) = (cells_of(&bytes), problem(class).0);
        ensure!(cells.len() == len.pow(3), "{} is no result of this class", file.display());
        Ok(Reference { class, cells })
    }

    /// Compares a member's block with it.
    fn check(&self, block: &Block) -> anyhow::Result<()> {
        let (len, _) = problem(self.class);
        for z in 0..len {
            for (row, y) in block.y.clone().enumerate() {
                for (column, x) in block.x.clone().enumerate() {
                    let own = block.cells[block.place(column, row, z)];
                    let other = self.cells[(z * len + y) * len + x];
                    let is_same = own.map(f64::to_bits) == other.map(f64::to_bits);
                    ensure!(is_same, "LU: cell {x}, {y}, {z} is {own:?} instead of {other:?}");
                }
            }
        }
        Ok(())
    }
}

/// Sweeps over the grid of a class. Returns what is to be checked outside of the measured time.
pub fn run(group: &mut Group, class: Class) -> anyhow::Result<Swept> {
    let (len, rounds) = problem(class);
    let (mut member, [column, row], [columns, rows]) = Member::new(group);
    let (x, y) = (part(len, column.start, columns), part(len, row.start, rows));
    let mut block = Block::new(len, x, y);
    for _ in 0..rounds {
        member.sweep(group, &mut block, true)?;
        member.sweep(group, &mut block, false)?;
    }
    group.flush()?;
    // Numbers of messages begin again with the next run.
    group.barrier()?;
    Ok(Swept { block })
}

/// A member's result.
pub struct Swept {
    block: Block,
}

impl Swept {
    /// Compares the result with that of one process, bit by bit.
    ///
    /// # Errors
    /// A bit differs.
    pub fn check(&self, reference: &Reference) -> anyhow::Result<()> {
        reference.check(&self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::kernels::group::tests::together;

    #[test]
    fn members_have_the_bits_of_one_process() {
        for (members, channels) in [(1, 1), (6, 1), (8, 3)] {
            together(members, channels, |group| {
                run(group, Class::S)?.check(&Reference::of(Class::S))
            });
        }
    }

    #[test]
    fn grids_are_as_square_as_can_be() {
        assert_eq!([1, 2, 6, 7, 8, 9].map(grid), [[1, 1], [2, 1], [3, 2], [7, 1], [4, 2], [3, 3]]);
    }

    #[test]
    fn a_wrong_bit_is_found() {
        let mut block = Block::new(12, 0..12, 0..12);
        let place = tempfile::NamedTempFile::new().expect("there is room");
        Reference::of(Class::S).write(place.path()).expect("it is written");
        let reference = Reference::read(Class::S, place.path()).expect("it is read");
        assert!(Reference::read(Class::W, place.path()).is_err());
        block.cells.clone_from_slice(&reference.cells);
        assert!(reference.check(&block).is_ok());
        block.cells[700][3] = f64::from_bits(block.cells[700][3].to_bits() ^ 1);
        assert!(reference.check(&block).is_err());
        assert!(block.cells.iter().flatten().all(|value| value.is_finite()));
    }
}
