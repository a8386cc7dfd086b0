//! A histogram of numbers that all ranks draw, in bins that are spread over all of them: each number is counted by a fetch
//! and add, so that all ranks contend for all bins. A fetch returns the number's place in its bin: no two numbers
//! have the same one. Bins and places are compared with what one process counts.
//!
//!     cargo build -p ropewalk-rma-face --examples
//!     ropewalk run -n 4 -- target/debug/examples/histogram

use std::error::Error;

use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Implementation, Operator, Source, Target,
    WindowOptions,
};
use ropewalk_rma_face::Process;

const BINS: u64 = 16;
const DRAWN: usize = 400;
const BYTES: usize = size_of::<i64>();

/// The numbers that a rank draws: small ones are more frequent.
fn drawn(rank: u32) -> impl Iterator<Item = u64> {
    let mut state = u64::from(rank) * 7919 + 1;
    let next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % BINS * ((state >> 40) % BINS) / BINS
    };
    std::iter::repeat_with(next).take(DRAWN)
}

/// What one process counts in a bin.
fn serial(bin: u64, size: u32) -> i64 {
    (0..size).flat_map(drawn).filter(|number| *number == bin).count() as i64
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let process = Process::start()?;
    let team = process.team();
    let (rank, size) = (team.rank(), team.size());
    let options = WindowOptions {
        implementation: Implementation::Direct,
        name: "histogram".into(),
        displacement_unit: BYTES as u32,
        ..WindowOptions::default()
    };
    // The own bins, then the sums of the places in each.
    let own = BINS.div_ceil(size.into());
    let mut window = team.allocate(2 * own as usize * BYTES, &options)?;
    let number = Datatype::of(Element::I64);
    let home = |bin: u64| ((bin % u64::from(size)) as u32, bin / u64::from(size));

    window.lock_all(Asserts::NONE)?;
    let mut places = [0_i64; BINS as usize];
    let one = 1_i64.to_ne_bytes();
    let place = Cells::zeroed(BYTES);
    for bin in drawn(rank) {
        let (owner, at) = home(bin);
        let source = Source::slice(&one, 1, &number);
        let destination = Destination::new(&place, 0, 1, &number);
        let target = Target::new(owner, at, 1, &number);
        window.fetch_and_op(Some(source), destination, target, Operator::Sum)?;
        window.flush(owner)?;
        places[bin as usize] += place.load::<i64>(0).expect("it has as many bytes");
    }
    for (bin, sum) in (0..).zip(places) {
        let (owner, at) = home(bin);
        let sum = sum.to_ne_bytes();
        let source = Source::slice(&sum, 1, &number);
        window.accumulate(source, Target::new(owner, own + at, 1, &number), Operator::Sum)?;
    }
    window.unlock_all()?;
    team.barrier()?;

    window.sync()?;
    let load = |at: u64| window.cells().load::<i64>(at as usize * BYTES).expect("it is a bin");
    for bin in (0..BINS).filter(|bin| home(*bin).0 == rank) {
        let (count, at) = (serial(bin, size), home(bin).1);
        assert_eq!(load(at), count, "bin {bin} has not what one process counts");
        assert_eq!(load(own + at), count * (count - 1) / 2, "bin {bin}: two numbers, one place");
    }
    window.free()?;
    process.end()?;
    println!("histogram: rank {rank} of {size} has what one process counts");
    Ok(())
}
