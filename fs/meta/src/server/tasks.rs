//! The tasks of a server, which end with it: who gave its term up must let go of its store.

use std::future::Future;
use std::pin::pin;

use ropewalk_base::task::race;
use ropewalk_base::world::World;
use ropewalk_store::marks::{Mark, Position};

/// The mark of the end.
const END: Position = Position(1);

/// Cloning gives another handle.
#[derive(Clone, Default)]
pub(super) struct Tasks {
    /// At [`END`] once the tasks have ended. One that waits for it leaves nothing behind when it is over.
    mark: Mark,
}

impl Tasks {
    /// Starts a task. Once the tasks have ended it goes no further.
    pub fn spawn(&self, world: &World, future: impl Future<Output = ()> + 'static) {
        let ended = self.mark.reached(END);
        world.spawn(async move {
            drop(race(ended, pin!(future)).await);
        });
    }

    /// Ends all tasks; those that wait are dropped at the executor's next turn.
    pub fn end(&self) {
        self.mark.advance(END);
    }
}
