//! Ctrl-C, termination and a closed terminal: noticed at once, acted upon in good order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::world::World;
use ropewalk_net::threads;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::log;
use crate::report::complain;

/// The interval at which a waiting command checks.
const LOOK: Duration = Duration::from_millis(50);

/// Whether the user wants the program to end.
#[derive(Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    asked: AtomicBool,
    /// The next signal ends what the first one only began, in good order.
    expected: AtomicBool,
    asked_again: AtomicBool,
    words: Mutex<Words>,
}

/// The messages for signals.
#[derive(Default)]
struct Words {
    /// At the first one.
    first: Option<&'static str>,
    /// Also where a program asks, and not a person at a terminal: at SIGTERM.
    at_termination: bool,
    /// At the second one: the leftovers of an end at once.
    left: Option<String>,
}

/// The signals that end a program: Ctrl-C, termination, and the end of the terminal unless the process that
/// started us has that ignored (`nohup`).
pub fn signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

impl Stop {
    /// Watches for the signals; a second one ends the process at once.
    pub fn watch() -> std::io::Result<Stop> {
        let stop = Stop::default();
        let seen = stop.clone();
        let mut signals = signal_hook::iterator::Signals::new(signals())?;
        threads::start("signals", move || {
            for signal in signals.forever() {
                seen.came(signal);
            }
        })?;
        Ok(stop)
    }

    /// As `watch`, for what takes a moment to end: a person's first signal is acknowledged. Programs that
    /// stop others by SIGTERM, such as `systemctl` and `bench`, would print the word once for each.
    pub fn watch_aloud() -> std::io::Result<Stop> {
        let stop = Stop::watch()?;
        stop.words().first = Some("stopping ...");
        Ok(stop)
    }

    /// Acknowledges SIGTERM, too: of what runs in front of a person.
    pub fn also_at_termination(self) -> Stop {
        self.words().at_termination = true;
        self
    }

    fn came(&self, signal: i32) {
        let again = self.shared.asked.swap(true, Ordering::SeqCst);
        let words = self.words();
        if !again {
            if let Some(first) = words.first
                && (signal != SIGTERM || words.at_termination)
            {
                log::answer(Level::Note, first);
            }
            return;
        }
        if self.shared.expected.swap(false, Ordering::SeqCst) {
            self.shared.asked_again.store(true, Ordering::SeqCst);
            return;
        }
        if let Some(left) = &words.left {
            complain!("ended at once; {left}");
        }
        std::process::exit(128 + signal);
    }

    fn words(&self) -> std::sync::MutexGuard<'_, Words> {
        // Words are replaced whole.
        self.shared.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what a second signal leaves behind, as a sentence without its beginning.
    pub fn leaves(&self, what: String) {
        self.words().left = Some(what);
    }

    /// Asks for the end, as a signal does.
    pub fn ask(&self) {
        self.shared.asked.store(true, Ordering::SeqCst);
    }

    /// Whether a signal came.
    pub fn is_asked(&self) -> bool {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// From now on a second signal is seen by [`Stop::is_asked_again`], and only a third one ends the process
    /// at once.
    pub fn expect_another(&self) {
        self.shared.expected.store(true, Ordering::SeqCst);
    }

    /// Whether a second signal came, if it was expected.
    pub fn is_asked_again(&self) -> bool {
        self.shared.asked_again.load(Ordering::SeqCst)
    }

    /// Fails when a signal came.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_asked() {
            anyhow::bail!("interrupted");
        }
        Ok(())
    }

    /// Completes when a signal comes.
    pub async fn asked(&self, world: &World) {
        while !self.is_asked() {
            world.sleep(LOOK).await;
        }
    }
}
