//! Ctrl-C and termination: noticed at once, acted upon in good order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use signal_hook::consts::{SIGINT, SIGTERM};

type Action = Box<dyn FnOnce() + Send>;

/// Whether the user wants the program to end.
#[derive(Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    actions: Arc<Mutex<Vec<Action>>>,
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
                let actions = std::mem::take(&mut *seen.actions.lock().expect("taken whole"));
                actions.into_iter().for_each(|action| action());
            }
        })?;
        Ok(stop)
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
