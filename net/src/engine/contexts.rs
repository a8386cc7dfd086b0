//! The contexts of an endpoint, and those of them that want to be told of news.

use std::sync::Arc;

use crate::context::{Completed, LateRefusal, Queue};

/// The news that a context can be told of, beside its completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// A request waits to be taken.
    Requests,
    /// A peer's session changed.
    PeerEvents,
    /// A message waits for a receive.
    Arrivals,
    /// Something happened to the paths of a peer.
    PathEvents,
    /// A peer told something by a word of exposed memory.
    Raises,
    /// A peer refused what was complete before.
    Refusals,
}

pub(crate) struct Contexts {
    /// By number; none where nobody uses it any more.
    queues: Vec<Option<Arc<Queue>>>,
    /// By news: the contexts that are rung for it.
    subscribers: [Vec<Arc<Queue>>; 6],
}

impl Contexts {
    pub fn new() -> Contexts {
        Contexts { queues: Vec::new(), subscribers: Default::default() }
    }

    /// A new context. `wants_requests`: it is told of requests, too.
    pub fn add(&mut self, wants_requests: bool) -> std::io::Result<Arc<Queue>> {
        let queue = Arc::new(Queue::new(self.queues.len() as u32, wants_requests)?);
        self.queues.push(Some(queue.clone()));
        if wants_requests {
            self.tell_of(News::Requests, &queue);
        }
        Ok(queue)
    }

    /// A new context that counts completions and keeps none.
    pub fn add_counting(&mut self) -> std::io::Result<Arc<Queue>> {
        let queue = Arc::new(Queue::counting(self.queues.len() as u32)?);
        self.queues.push(Some(queue.clone()));
        Ok(queue)
    }

    /// A context that nobody uses any more: completions to it are dropped from here on.
    pub fn retire(&mut self, queue: &Queue) {
        queue.retire();
        for subscribers in &mut self.subscribers {
            subscribers.retain(|other| other.number != queue.number);
        }
        if let Some(place) = self.queues.get_mut(queue.number as usize) {
            *place = None;
        }
    }

    /// From now on a context is rung for such news.
    pub fn tell_of(&mut self, news: News, queue: &Arc<Queue>) {
        self.subscribers[news as usize].push(queue.clone());
    }

    /// There is such news.
    pub fn ring(&self, news: News) {
        self.subscribers[news as usize].iter().for_each(|queue| queue.ring());
    }

    /// A refusal that came late: every context that wants such news has it, since nobody knows any more whose operation it was.
    #[cold]
    pub fn push_refused(&self, refusal: LateRefusal) {
        self.subscribers[News::Refusals as usize].iter().for_each(|it| it.push_refused(refusal));
    }

    /// Wakes everybody who sleeps on a context.
    pub fn ring_all(&self) {
        self.queues.iter().flatten().for_each(|queue| queue.ring());
    }

    /// Whether no completion waits in a context.
    #[inline]
    pub fn is_empty(&self, number: u32) -> bool {
        self.queues[number as usize].as_ref().is_none_or(|queue| queue.is_empty())
    }

    /// A completion for a context, dropped where nobody uses that any more.
    #[inline]
    pub fn push(&self, number: u32, completed: Completed) {
        if let Some(queue) = &self.queues[number as usize] {
            queue.push(completed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_context_is_told_of_nothing() {
        let mut contexts = Contexts::new();
        let (first, second) = (contexts.add(true).unwrap(), contexts.add(true).unwrap());
        contexts.tell_of(News::Arrivals, &first);
        contexts.tell_of(News::PeerEvents, &first);
        contexts.retire(&first);
        let left = contexts.subscribers.iter().flatten().map(|queue| queue.number);
        assert_eq!(left.collect::<Vec<_>>(), [second.number]);
        assert!(contexts.is_empty(first.number));
        assert_eq!(contexts.add(false).unwrap().number, 2, "no number is used twice");
    }
}
