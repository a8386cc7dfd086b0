//! Work whose result nobody waits for any more.
//!
//! A future that is dropped in the middle may leave behind a state that its author did not think of. Work that changes
//! things is therefore never dropped: it is told that it was abandoned, and goes on. At places where it holds much and
//! may wait for long, it gives up by an ordinary error.
//!
//! Invariant: the work that `over` runs finds its own mark as the current one, whatever other work runs beside it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::task::Notify;

thread_local! {
    static CURRENT: RefCell<Option<Abandoned>> = const { RefCell::new(None) };
}

/// Says whether some work was abandoned. Cloning gives another handle.
#[derive(Clone, Default)]
pub struct Abandoned {
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    set: Cell<bool>,
    notify: Notify,
}

impl Abandoned {
    /// Of work that somebody waits for.
    pub fn new() -> Abandoned {
        Abandoned::default()
    }

    /// Nobody waits any more.
    pub fn set(&self) {
        self.state.set.set(true);
        self.state.notify.notify_all();
    }

    /// Whether nobody waits any more.
    pub fn is_set(&self) -> bool {
        self.state.set.get()
    }

    /// Completes when nobody waits any more.
    pub async fn wait(&self) {
        while !self.is_set() {
            self.state.notify.notified().await;
        }
    }

    /// Whether the work that is running was abandoned.
    pub fn is_current() -> bool {
        CURRENT.with_borrow(|mark| mark.as_ref().is_some_and(Abandoned::is_set))
    }

    /// Of the work that is running, where it has one.
    pub fn current() -> Option<Abandoned> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `work` under this mark.
    pub fn over<F: Future>(self, work: F) -> Over<F> {
        Over { mark: Some(self), work }
    }
}

/// See [`Abandoned::over`].
pub struct Over<F> {
    mark: Option<Abandoned>,
    work: F,
}

impl<F: Future + Unpin> Future for Over<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let own = self.mark.take();
        let before = CURRENT.replace(own);
        let polled = Pin::new(&mut self.work).poll(context);
        self.mark = CURRENT.replace(before);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn work_finds_its_own_mark_and_hears_of_its_end() {
        let marks = [Abandoned::new(), Abandoned::new()];
        let mut works: Vec<_> = marks
            .iter()
            .map(|mark| {
                let work = Box::pin(async { Abandoned::current().expect("set").wait().await });
                mark.clone().over(work)
            })
            .collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut polls = |works: &mut Vec<Over<_>>| -> Vec<bool> {
            works.iter_mut().map(|work| Pin::new(work).poll(&mut context).is_ready()).collect()
        };
        assert_eq!(polls(&mut works), [false, false]);
        marks[1].set();
        assert_eq!(polls(&mut works), [false, true]);
        assert!(Abandoned::current().is_none());
    }
}
