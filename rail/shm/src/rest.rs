//! The way of a rail to sleep and to wake up: its sleeping word, its bell, and the barriers that they need.
//!
//! Peers ring for the frames that they send. But only the rail itself knows of the work that its own orders leave
//! for the next poll: an access larger than one poll moves, a revocation that is complete, a link that ends. A
//! thread may give such an order while another one sleeps on the rail, having looked for work before. So the rail
//! rings for itself if an order leaves work. This costs nothing if no work is left, and one ring per sleep
//! otherwise. (The alternative is that each thread that gives orders beside a sleeper looks over all rails
//! afterwards, as before a sleep. It costs a barrier and a walk for each order.)

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ropewalk_base::verb::RailCounters;

use crate::barrier::{self, Habit};
use crate::local::ring;
use crate::segment::Board;
use crate::sleep::Sleeper;

pub struct Rest {
    pub board: Arc<Board>,
    pub bell: Arc<OwnedFd>,
    /// This process registered for the asymmetric barrier.
    pub asymmetric: bool,
    sleeper: Sleeper,
    habit: Habit,
}

impl Rest {
    /// Awake.
    pub fn new(board: Arc<Board>, bell: Arc<OwnedFd>) -> Rest {
        let asymmetric = barrier::register();
        Rest { board, bell, asymmetric, sleeper: Sleeper::default(), habit: Habit::default() }
    }

    /// Falls asleep. A look for work must follow.
    pub fn begin(&mut self, counters: &RailCounters) {
        self.sleeper.fall_asleep(&*self.board);
        let change = self.habit.sleeps(counters.frames_received);
        if let Some(fenced) = change {
            self.board.fenced().store(u32::from(fenced), Ordering::Relaxed);
        }
        // The sleep in which peers are told is not one of which they know.
        barrier::heavy(self.asymmetric && (change.is_some() || !self.habit.is_fenced()));
    }

    /// Wakes up.
    pub fn end(&mut self) {
        self.sleeper.wake_up(&*self.board);
    }

    /// Between a link's beginning to rest and the look that must follow.
    pub fn barrier(&self) {
        barrier::heavy(self.asymmetric && !self.habit.is_fenced());
    }

    /// An order may have left work: if it has, rings for a sleeper on the rail.
    #[cold]
    pub fn rouse(&mut self, counters: &mut RailCounters, has_work: impl FnOnce() -> bool) {
        if !self.sleeper.is_unrung() {
            return;
        }
        // The peer may have made room, or left a region, before it could see that this is waited for
        // now, and then it rings for nobody: so this looks once more, after the barrier of a sleeper.
        self.barrier();
        if has_work() {
            self.sleeper.ring();
            counters.system_calls += 1;
            ring(&self.bell);
        }
    }
}
