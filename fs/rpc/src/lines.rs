//! Lines for people, held back where they are too many.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::world::World;

/// Takes a line for people.
pub type Log = Rc<dyn Fn(&str)>;

/// Lines within one window; further ones are counted and told of in the next one.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// The log with a limit.
pub struct Lines {
    world: World,
    log: Log,
    begin: Cell<Time>,
    lines: Cell<u32>,
    left_out: Cell<u64>,
}

impl Lines {
    /// A log that takes few lines, however many are said.
    pub fn new(world: &World, log: Log) -> Lines {
        let (begin, lines, left_out) = (Cell::new(world.now()), Cell::new(0), Cell::new(0));
        Lines { world: world.clone(), log, begin, lines, left_out }
    }

    /// Says a line, or counts it.
    pub fn say(&self, line: &str) {
        let now = self.world.now();
        if now.since(self.begin.get()) >= WINDOW {
            self.begin.set(now);
            self.lines.set(0);
            let left_out = self.left_out.take();
            if left_out > 0 {
                (self.log)(&format!("{left_out} more log lines were left out"));
            }
        }
        if self.lines.get() < LINES_MAX {
            self.lines.set(self.lines.get() + 1);
            (self.log)(line);
        } else {
            self.left_out.set(self.left_out.get() + 1);
        }
    }
}
