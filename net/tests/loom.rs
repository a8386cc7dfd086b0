//! Models of the two hand-overs between threads: waking a context, and leaving a command.
//!
//! They are models: the same steps in the same order as `net/src/context.rs` and `net/src/endpoint.rs`
//! take, with loom's locks and atomics, since descriptors cannot be modelled.

use std::collections::VecDeque;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// `Queue` of `net/src/context.rs`. Loom orders sequentially consistent accesses like acquire and
/// release only, so that fences stand here for the one order of `count` and `armed` there.
struct Queue {
    completions: Mutex<VecDeque<u32>>,
    count: AtomicU32,
    armed: AtomicBool,
    bell: AtomicU32,
}

impl Queue {
    fn push(&self, value: u32) {
        {
            let mut completions = self.completions.lock().unwrap();
            completions.push_back(value);
            self.count.store(completions.len() as u32, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.bell.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn an_armed_context_is_rung_or_was_not_empty() {
    loom::model(|| {
        let queue = Arc::new(Queue {
            completions: Mutex::new(VecDeque::new()),
            count: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            bell: AtomicU32::new(0),
        });
        let pushers: Vec<_> = (0..2)
            .map(|value| {
                let queue = queue.clone();
                thread::spawn(move || queue.push(value))
            })
            .collect();
        queue.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let ready = queue.count.load(Ordering::SeqCst) > 0;
        for pusher in pushers {
            pusher.join().unwrap();
        }
        let rung = queue.bell.load(Ordering::SeqCst);
        assert!(ready || rung == 1, "armed, two completions, and rung {rung} times");
    });
}

/// The engine lock of `net/src/endpoint.rs`, with the data that it protects.
struct Shared {
    engine: Mutex<u32>,
    commands: Mutex<u32>,
    count: AtomicU32,
}

impl Shared {
    fn leave(&self) {
        {
            *self.commands.lock().unwrap() += 1;
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        if let Ok(engine) = self.engine.try_lock() {
            self.unlock(engine);
        }
    }

    fn unlock<'a>(&'a self, engine: loom::sync::MutexGuard<'a, u32>) {
        let mut engine = engine;
        loop {
            while self.count.load(Ordering::SeqCst) > 0 {
                let mut commands = self.commands.lock().unwrap();
                if *commands > 0 {
                    *commands -= 1;
                    self.count.fetch_sub(1, Ordering::SeqCst);
                    *engine += 1;
                }
            }
            drop(engine);
            fence(Ordering::SeqCst);
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            match self.engine.try_lock() {
                Ok(again) => engine = again,
                Err(_) => return,
            }
        }
    }
}

#[test]
fn a_command_that_was_left_is_carried_out() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            engine: Mutex::new(0),
            commands: Mutex::new(0),
            count: AtomicU32::new(0),
        });
        let other = shared.clone();
        let leaver = thread::spawn(move || other.leave());
        if let Ok(engine) = shared.engine.try_lock() {
            shared.unlock(engine);
        }
        leaver.join().unwrap();
        assert_eq!(*shared.engine.lock().unwrap(), 1, "a command stayed behind");
    });
}
