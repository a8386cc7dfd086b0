//! Jacobi's iteration on a square whose upper edge is hot: each rank has some rows, and puts its first and its last one
//! into its neighbours' memory, between two fences. The result is compared with that of one process.
//!
//!     cargo build -p ropewalk-rma-face --examples
//!     ropewalk run -n 4 -- target/debug/examples/jacobi

use std::error::Error;

use ropewalk_rma::{
    Asserts, Cells, Datatype, Element, Implementation, Source, Target, Window, WindowOptions,
};
use ropewalk_rma_face::Process;

const INNER: usize = 64;
const WIDTH: usize = INNER + 2;
const ITERATIONS: usize = 100;
const BYTES: usize = size_of::<f64>();

/// The rows of a rank: the first one, and how many there are.
fn rows(rank: usize, size: usize) -> (usize, usize) {
    let first = rank * INNER / size;
    (first, (rank + 1) * INNER / size - first)
}

/// Numbers of a grid. In cells, since neighbours write there.
fn load(cells: &Cells, at: usize) -> f64 {
    cells.load(at * BYTES).expect("it lies in the grid")
}

fn store(cells: &Cells, at: usize, value: f64) {
    cells.store(at * BYTES, value).expect("it lies in the grid");
}

/// One iteration over some rows, from one grid to another one.
fn iterate(cells: &Cells, (from, to): (usize, usize), rows: usize) {
    for row in 1..=rows {
        for column in 1..=INNER {
            let at = from + row * WIDTH + column;
            let [above, below] = [at - WIDTH, at + WIDTH].map(|at| load(cells, at));
            let [left, right] = [at - 1, at + 1].map(|at| load(cells, at));
            store(cells, to + row * WIDTH + column, 0.25 * (above + below + left + right));
        }
    }
}

fn heat(cells: &Cells, edge: usize) {
    (edge..edge + WIDTH).for_each(|at| store(cells, at, 1.0));
}

/// What one process computes.
fn serial() -> Cells {
    let grid = WIDTH * WIDTH;
    let cells = Cells::zeroed(2 * grid * BYTES);
    heat(&cells, 0);
    heat(&cells, grid);
    for iteration in 0..ITERATIONS {
        iterate(&cells, (iteration % 2 * grid, (iteration + 1) % 2 * grid), INNER);
    }
    cells
}

/// Puts a row of this rank to a place of a neighbour's.
fn put_row(
    window: &Window,
    from: usize,
    rank: usize,
    to: usize,
) -> Result<(), ropewalk_rma::Error> {
    let row = Datatype::of(Element::F64);
    let source = Source::cells(window.cells(), from * BYTES, WIDTH as u64, &row);
    window.put(source, Target::new(rank as u32, to as u64, WIDTH as u64, &row))
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let process = Process::start()?;
    let team = process.team();
    let (rank, size) = (team.rank() as usize, team.size() as usize);
    let (first, own) = rows(rank, size);
    let options = WindowOptions {
        implementation: Implementation::Direct,
        name: "jacobi".into(),
        displacement_unit: BYTES as u32,
        no_locks: true,
        ..WindowOptions::default()
    };
    // Two grids, of which one is made of the other in turn; in each, the neighbours' rows lie around the own ones.
    let grid = (own + 2) * WIDTH;
    let mut window = team.allocate(2 * grid * BYTES, &options)?;
    if rank == 0 {
        heat(window.cells(), 0);
        heat(window.cells(), grid);
    }
    window.fence(Asserts::NO_PRECEDE)?;
    for iteration in 0..ITERATIONS {
        let into = (iteration + 1) % 2;
        let to = into * grid;
        iterate(window.cells(), (iteration % 2 * grid, to), own);
        if rank > 0 {
            // Behind the last row of the rank above.
            let (_, above) = rows(rank - 1, size);
            let place = into * (above + 2) * WIDTH + (above + 1) * WIDTH;
            put_row(&window, to + WIDTH, rank - 1, place)?;
        }
        if rank + 1 < size {
            // Before the first row of the rank below.
            let (_, below) = rows(rank + 1, size);
            put_row(&window, to + own * WIDTH, rank + 1, into * (below + 2) * WIDTH)?;
        }
        window.fence(Asserts::NONE)?;
    }
    let wanted = serial();
    let last = ITERATIONS % 2;
    for at in 0..own * WIDTH {
        let has = load(window.cells(), last * grid + WIDTH + at);
        let should = load(&wanted, last * WIDTH * WIDTH + (first + 1) * WIDTH + at);
        assert_eq!(has, should, "rank {rank}: the grid is not that of one process");
    }
    window.free()?;
    process.end()?;
    println!("jacobi: rank {rank} of {size} has what one process computes");
    Ok(())
}
