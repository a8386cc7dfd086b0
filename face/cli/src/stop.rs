//! Ctrl-C and termination: noticed at once, acted upon in good order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ropewalk_base::world::World;
use signal_hook::consts::{SIGINT, SIGTERM};

/// How often one who waits looks.
const LOOK: Duration = Duration::from_millis(50);

/// Whether the user wants the program to end.
#[derive(Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// Watches for the signals; a second one ends the process at once.
    pub fn watch() -> std::io::Result<Stop> {
        let stop = Stop::default();
        let seen = stop.clone();
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if seen.asked.swap(true, Ordering::SeqCst) {
                    std::process::exit(128 + signal);
                }
            }
        })?;
        Ok(stop)
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Completes when a signal comes.
    pub async fn asked(&self, world: &World) {
        while !self.is_asked() {
            world.sleep(LOOK).await;
        }
    }
}
