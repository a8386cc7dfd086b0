//! A single-threaded executor: tasks, timers, and wake-ups from other threads.
//!
//! It does no I/O. Its driver (the reactor of `net`, the simulator) calls [`Executor::run`] until nothing is ready,
//! then looks at [`Executor::next_deadline`] and sleeps as it sees fit.
//!
//! Invariants: a task is in the ready queue at most once; a task that completed is never polled again, even if somebody
//! still holds its waker; with a seed the order of ready tasks depends on the seed alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::random::Random;
use crate::slots::{SlotId, Slots};
use crate::time::Time;

/// Most tasks of one executor.
const TASKS_MAX: usize = 1 << 20;

/// Wakes a sleeping driver from another thread.
pub type Unpark = Box<dyn Fn() + Send + Sync>;

/// A handle on an executor; cloning gives another one. Stays on its thread.
#[derive(Clone)]
pub struct Executor {
    local: Rc<Local>,
}

struct Local {
    tasks: RefCell<Slots<Task>>,
    /// By deadline, and in the order of their making.
    timers: RefCell<BTreeMap<TimerId, Waker>>,
    timer_count: std::cell::Cell<u64>,
    /// Picks among ready tasks, where the simulator wants other orders than first come.
    shuffle: Option<RefCell<Random>>,
    ready: Arc<Ready>,
}

struct Task {
    /// Absent while the task is being polled.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Waker,
    queued: Arc<TaskWaker>,
}

struct Ready {
    queue: Mutex<VecDeque<SlotId>>,
    /// Set by a driver that is about to sleep; a thread that wakes a task clears it and unparks the driver.
    parked: AtomicBool,
    unpark: Unpark,
}

struct TaskWaker {
    id: Mutex<SlotId>,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let id = *self.id.lock().expect("a task's id is never left half-changed");
            self.ready.push(id);
        }
    }
}

impl Ready {
    fn push(&self, id: SlotId) {
        self.queue.lock().expect("the ready queue is never left half-changed").push_back(id);
        // SeqCst pairs with `Executor::park`: either the driver sees the task, or we see it parked.
        if self.parked.load(Ordering::SeqCst) && self.parked.swap(false, Ordering::SeqCst) {
            (self.unpark)();
        }
    }
}

/// Names a timer of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId {
    deadline: Time,
    number: u64,
}

impl Executor {
    /// An executor whose driver is woken by `unpark` (called from any thread).
    pub fn new(unpark: Unpark) -> Executor {
        Executor::with_order(unpark, None)
    }

    /// An executor that picks among ready tasks at random, for the simulator.
    pub fn shuffled(unpark: Unpark, random: Random) -> Executor {
        Executor::with_order(unpark, Some(RefCell::new(random)))
    }

    fn with_order(unpark: Unpark, shuffle: Option<RefCell<Random>>) -> Executor {
        Executor {
            local: Rc::new(Local {
                tasks: RefCell::new(Slots::with_limit(TASKS_MAX)),
                timers: RefCell::new(BTreeMap::new()),
                timer_count: std::cell::Cell::new(0),
                shuffle,
                ready: Arc::new(Ready {
                    queue: Mutex::new(VecDeque::new()),
                    parked: AtomicBool::new(false),
                    unpark,
                }),
            }),
        }
    }

    /// Starts a task.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let queued = Arc::new(TaskWaker {
            id: Mutex::new(SlotId { index: 0, generation: 0 }),
            queued: AtomicBool::new(false),
            ready: self.local.ready.clone(),
        });
        let task = Task {
            future: Some(Box::pin(future)),
            waker: Waker::from(queued.clone()),
            queued: queued.clone(),
        };
        let id = match self.local.tasks.borrow_mut().insert(task) {
            Ok(id) => id,
            Err(_) => panic!("more than {TASKS_MAX} tasks: a server starts tasks without bound"),
        };
        *queued.id.lock().expect("a task's id is never left half-changed") = id;
        queued.wake_by_ref();
    }

    /// Polls ready tasks until none is left; true where any was polled.
    pub fn run(&self) -> bool {
        let mut any = false;
        while let Some(id) = self.next_ready() {
            any = true;
            self.poll_task(id);
        }
        any
    }

    /// Polls one ready task; false where none is ready. For the simulator, which interleaves nodes.
    pub fn run_one(&self) -> bool {
        match self.next_ready() {
            Some(id) => {
                self.poll_task(id);
                true
            }
            None => false,
        }
    }

    fn next_ready(&self) -> Option<SlotId> {
        let queue = &self.local.ready.queue;
        let mut queue = queue.lock().expect("the ready queue is never left half-changed");
        match &self.local.shuffle {
            Some(random) if queue.len() > 1 => {
                let pick = random.borrow_mut().below(queue.len() as u64) as usize;
                queue.swap_remove_front(pick)
            }
            _ => queue.pop_front(),
        }
    }

    fn poll_task(&self, id: SlotId) {
        let taken = self.local.tasks.borrow_mut().get_mut(id).and_then(|task| {
            task.queued.queued.store(false, Ordering::Release);
            Some((task.future.take()?, task.waker.clone()))
        });
        let Some((mut future, waker)) = taken else { return };
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                if let Some(task) = self.local.tasks.borrow_mut().get_mut(id) {
                    task.future = Some(future);
                }
            }
            Poll::Ready(()) => {
                let task = self.local.tasks.borrow_mut().remove(id);
                // Dropped with no borrow held: destructors may spawn or wake.
                drop(task);
            }
        }
    }

    /// Wakes `waker` at `deadline` (or at the driver's first look at the clock after it).
    pub fn wake_at(&self, deadline: Time, waker: Waker) -> TimerId {
        let number = self.local.timer_count.get();
        self.local.timer_count.set(number + 1);
        let id = TimerId { deadline, number };
        self.local.timers.borrow_mut().insert(id, waker);
        id
    }

    /// Forgets a timer: most waits end before their limit, and would be remembered until then.
    pub fn cancel_timer(&self, id: TimerId) {
        let waker = self.local.timers.borrow_mut().remove(&id);
        // Dropped with no borrow held: it may be the last hold on a task.
        drop(waker);
    }

    /// Wakes whatever was due at `now`.
    pub fn fire_timers(&self, now: Time) {
        loop {
            let due = {
                let mut timers = self.local.timers.borrow_mut();
                match timers.first_key_value() {
                    Some((id, _)) if id.deadline <= now => timers.pop_first(),
                    _ => None,
                }
            };
            match due {
                Some((_, waker)) => waker.wake(),
                None => return,
            }
        }
    }

    /// When the next timer is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.local.timers.borrow().first_key_value().map(|(id, _)| id.deadline)
    }

    /// Announces that the driver is about to sleep. False where a task is ready after all; then
    /// the driver must not sleep. After true, a wake-up from any thread calls `unpark` once.
    pub fn park(&self) -> bool {
        let ready = &self.local.ready;
        ready.parked.store(true, Ordering::SeqCst);
        let idle =
            ready.queue.lock().expect("the ready queue is never left half-changed").is_empty();
        if !idle {
            ready.parked.store(false, Ordering::SeqCst);
        }
        idle
    }

    /// The driver is awake again.
    pub fn unparked(&self) {
        self.local.ready.parked.store(false, Ordering::SeqCst);
    }

    /// Tasks that were started and have not completed.
    pub fn task_count(&self) -> usize {
        self.local.tasks.borrow().len()
    }

    /// Drops all tasks and timers, as the death of a simulated node does.
    pub fn clear(&self) {
        loop {
            let id = self.local.tasks.borrow().iter().next().map(|(id, _)| id);
            let Some(id) = id else { break };
            let task = self.local.tasks.borrow_mut().remove(id);
            drop(task);
        }
        let timers = std::mem::take(&mut *self.local.timers.borrow_mut());
        drop(timers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::oneshot;
    use std::cell::Cell;

    #[test]
    fn tasks_run_in_order_wake_each_other_and_end() {
        let executor = Executor::new(Box::new(|| ()));
        let log = Rc::new(RefCell::new(Vec::new()));
        let (sender, receiver) = oneshot();
        let seen = log.clone();
        executor.spawn(async move {
            let value: u32 = receiver.await.unwrap();
            seen.borrow_mut().push(value);
        });
        let seen = log.clone();
        executor.spawn(async move {
            seen.borrow_mut().push(1);
            sender.send(2);
        });
        assert!(executor.run());
        assert_eq!(*log.borrow(), [1, 2]);
        assert_eq!(executor.task_count(), 0);
        assert!(!executor.run());
    }

    #[test]
    fn a_wake_from_another_thread_unparks_a_parked_driver_once() {
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counter = count.clone();
        let executor = Executor::new(Box::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        }));
        let (sender, receiver) = oneshot::<u32>();
        let got = Rc::new(Cell::new(0));
        let result = got.clone();
        executor.spawn(async move { result.set(receiver.await.unwrap()) });
        executor.run();
        assert!(executor.park());
        std::thread::spawn(move || sender.send(9)).join().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(!executor.park());
        executor.run();
        assert_eq!(got.get(), 9);
    }
}
