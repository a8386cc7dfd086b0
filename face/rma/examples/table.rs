//! A hash table that is spread over all ranks, in which all of them count words at once. A slot is taken by a compare and
//! swap of its key, from 0 to the word; whoever finds another word there goes on to the next slot. The counts are compared
//! with those of one process.
//!
//!     cargo build -p ropewalk-rma-face --examples
//!     ropewalk run -n 4 -- target/debug/examples/table

use std::error::Error;

use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Implementation, Operator, Source, Target,
    Window, WindowOptions,
};
use ropewalk_rma_face::Process;

/// Slots of each rank: a key, which is 0 while the slot is free, and a count.
const SLOTS: u64 = 256;
const WORDS: i64 = 100;
const SEEN: u64 = 300;
const BYTES: usize = size_of::<i64>();

/// The n-th word that a rank sees: a number from 1 on.
fn word(rank: u32, n: u64) -> i64 {
    ((n * n + u64::from(rank) * 31 + 7) % WORDS as u64) as i64 + 1
}

fn hash(key: i64) -> u64 {
    (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The table as a rank sees it.
struct Table {
    window: Window,
    number: Datatype,
    /// Where results come.
    found: Cells,
}

/// A slot: its rank, and where it begins there.
type Slot = (u32, u64);

impl Table {
    /// The slot of a word; takes a free one if it `takes`.
    fn find(&self, key: i64, takes: bool) -> Result<Option<Slot>, ropewalk_rma::Error> {
        let all = u64::from(self.window.size()) * SLOTS;
        for tried in 0..all {
            let slot = (hash(key) + tried) % all;
            let (owner, at) = ((slot / SLOTS) as u32, slot % SLOTS * 2);
            let target = Target::new(owner, at, 1, &self.number);
            let result = Destination::new(&self.found, 0, 1, &self.number);
            match takes {
                true => {
                    let (free, taken) = (0_i64.to_ne_bytes(), key.to_ne_bytes());
                    self.window.compare_and_swap(&free, &taken, result, target)?;
                }
                false => self.window.fetch_and_op(None, result, target, Operator::Nothing)?,
            }
            self.window.flush(owner)?;
            match self.found() {
                found if found == key => return Ok(Some((owner, at))),
                0 => return Ok(takes.then_some((owner, at))),
                _ => {}
            }
        }
        Ok(None)
    }

    fn found(&self) -> i64 {
        self.found.load(0).expect("it has as many bytes")
    }

    /// Counts a word.
    fn count(&self, key: i64) -> Result<(), ropewalk_rma::Error> {
        let (owner, at) = self.find(key, true)?.expect("the table is not full");
        let one = 1_i64.to_ne_bytes();
        let source = Source::slice(&one, 1, &self.number);
        let target = Target::new(owner, at + 1, 1, &self.number);
        self.window.accumulate(source, target, Operator::Sum)
    }

    /// How often a word was counted.
    fn look_up(&self, key: i64) -> Result<i64, ropewalk_rma::Error> {
        let Some((owner, at)) = self.find(key, false)? else { return Ok(0) };
        let result = Destination::new(&self.found, 0, 1, &self.number);
        self.window.get(result, Target::new(owner, at + 1, 1, &self.number))?;
        self.window.flush(owner)?;
        Ok(self.found())
    }
}

/// How often one process sees a word.
fn serial(key: i64, size: u32) -> i64 {
    let seen = (0..size).flat_map(|rank| (0..SEEN).map(move |n| word(rank, n)));
    seen.filter(|word| *word == key).count() as i64
}

pub fn main() -> Result<(), Box<dyn Error>> {
    let process = Process::start()?;
    let team = process.team();
    let (rank, size) = (team.rank(), team.size());
    let options = WindowOptions {
        implementation: Implementation::Direct,
        name: "table".into(),
        displacement_unit: BYTES as u32,
        ..WindowOptions::default()
    };
    let window = team.allocate(2 * SLOTS as usize * BYTES, &options)?;
    let number = Datatype::of(Element::I64);
    let mut table = Table { window, number, found: Cells::zeroed(BYTES) };

    table.window.lock_all(Asserts::NONE)?;
    for n in 0..SEEN {
        table.count(word(rank, n))?;
    }
    table.window.flush_all()?;
    team.barrier()?;
    for key in 1..=WORDS {
        assert_eq!(table.look_up(key)?, serial(key, size), "word {key}");
    }
    table.window.unlock_all()?;
    table.window.free()?;
    process.end()?;
    println!("table: rank {rank} of {size} finds what one process counts");
    Ok(())
}
