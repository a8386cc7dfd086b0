//! Posted receives: found by hash however many there are.
//!
//! The first few are in one short list, which is all that most programs need and costs no hashing. The
//! others are kept by *class*: those that ask for a source or not, with the same mask over the bits.
//! Within a class the criteria of a receive are a key: a message looks once in each class, and there are as many
//! classes as masks in use. Post numbers decide between what is found.

use std::collections::VecDeque;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::slots::SlotId;

use super::unmatched::Wanted;
use crate::api::{Channel, OperationId, PeerId};

/// Receives that are kept without hashing.
const EARLY_MAX: usize = 8;
/// Classes without a receive that are kept, with the memory of their tables.
const CLASSES_KEPT: usize = 16;
/// Entries for which a queue that none uses keeps room.
const QUEUE_KEPT: usize = 16;
/// Empty queues that a class may always keep: nearly always the same is wanted again.
const EMPTY_MAX: usize = 64;

/// Receives that wait for messages.
#[derive(Debug)]
pub(super) struct Receives {
    posts: u64,
    /// In the order of their posts, but not before all others.
    early: VecDeque<Early>,
    classes: Vec<Class>,
    /// Receives in all classes together.
    hashed: usize,
    /// The queues of all classes, and those that none has.
    queues: Vec<Queue>,
    spare: Vec<u32>,
    hash: HashSeed,
}

#[derive(Debug)]
struct Early {
    post: u64,
    operation: OperationId,
    wanted: Wanted,
}

/// Receives that are told apart by the same bits.
#[derive(Debug)]
struct Class {
    channel: Channel,
    sourced: bool,
    mask: u64,
    /// How many there are.
    count: usize,
    /// Queues that are not empty.
    filled: usize,
    queues: HashMap<Key, u32>,
}

/// The source, or 0 where any will do, and the bits that count.
type Key = (u64, u64);

/// Receives that want the same, by their posts. The first entry is there.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<(u64, OperationId)>,
    /// Entries that were withdrawn and are still there.
    gone: usize,
}

/// Stands for a receive that was withdrawn.
const GONE: OperationId = OperationId(SlotId { index: 0, generation: 0 });

/// A posted receive, and where it is among the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub operation: OperationId,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Early(usize),
    Hashed { class: u32, queue: u32 },
}

impl Class {
    fn key(&self, source: Option<PeerId>, bits: u64) -> Key {
        let source = source.filter(|_| self.sourced).map_or(0, |source| source.0.to_u64());
        (source, bits & self.mask)
    }

    fn is_of(&self, wanted: &Wanted) -> bool {
        self.channel == wanted.channel
            && self.mask == wanted.mask
            && self.sourced == wanted.source.is_some()
    }
}

impl Queue {
    /// Adds a receive in its turn: nearly always the latest, and so the last.
    fn add(&mut self, post: u64, operation: OperationId) {
        match self.entries.back() {
            Some((last, _)) if *last > post => {
                let at = self.entries.partition_point(|(other, _)| *other < post);
                if self.entries[at].0 == post {
                    // It was withdrawn from here.
                    self.gone -= 1;
                    self.entries[at].1 = operation;
                } else {
                    self.entries.insert(at, (post, operation));
                }
            }
            Some((last, gone)) if *last == post => {
                debug_assert_eq!(*gone, GONE, "a turn is one receive's");
                self.gone -= 1;
                self.entries.back_mut().expect("seen just now").1 = operation;
            }
            _ => self.entries.push_back((post, operation)),
        }
    }

    fn pop(&mut self) {
        self.entries.pop_front();
        while self.entries.front().is_some_and(|(_, operation)| *operation == GONE) {
            self.entries.pop_front();
            self.gone -= 1;
        }
    }

    /// Takes a receive out, wherever it is; false where it is not in here.
    fn withdraw(&mut self, post: u64) -> bool {
        let Ok(at) = self.entries.binary_search_by_key(&post, |(other, _)| *other) else {
            return false;
        };
        if self.entries[at].1 == GONE {
            return false;
        }
        if at == 0 {
            self.pop();
            return true;
        }
        self.entries[at].1 = GONE;
        self.gone += 1;
        if self.gone > 16 && self.gone > self.entries.len() / 2 {
            self.entries.retain(|(_, operation)| *operation != GONE);
            self.gone = 0;
        }
        true
    }
}

impl Receives {
    pub fn new(hash: HashSeed) -> Receives {
        Receives {
            posts: 0,
            early: VecDeque::new(),
            classes: Vec::new(),
            hashed: 0,
            queues: Vec::new(),
            spare: Vec::new(),
            hash,
        }
    }

    /// A turn for a receive.
    #[inline(always)]
    pub fn next_post(&mut self) -> u64 {
        self.posts += 1;
        self.posts
    }

    /// The turn that was given last.
    pub fn posts(&self) -> u64 {
        self.posts
    }

    /// Adds a receive in its turn.
    #[inline(always)]
    pub fn post(&mut self, post: u64, operation: OperationId, wanted: Wanted) {
        if self.early.len() >= EARLY_MAX {
            return self.post_hashed(post, operation, wanted);
        }
        let early = Early { post, operation, wanted };
        match self.early.back() {
            Some(last) if last.post > post => {
                let at = self.early.partition_point(|other| other.post < post);
                self.early.insert(at, early);
            }
            _ => self.early.push_back(early),
        }
    }

    #[inline(never)]
    fn post_hashed(&mut self, post: u64, operation: OperationId, wanted: Wanted) {
        let index = match self.classes.iter().position(|class| class.is_of(&wanted)) {
            Some(index) => index,
            None => self.add_class(&wanted),
        };
        let class = &mut self.classes[index];
        let key = class.key(wanted.source, wanted.bits);
        let queue = match class.queues.get(&key) {
            Some(queue) => *queue,
            None => self.add_queue(index, key),
        };
        let (class, queue) = (&mut self.classes[index], &mut self.queues[queue as usize]);
        class.filled += usize::from(queue.entries.is_empty());
        class.count += 1;
        self.hashed += 1;
        queue.add(post, operation);
    }

    fn add_queue(&mut self, class: usize, key: Key) -> u32 {
        let Receives { classes, queues, spare, .. } = self;
        let class = &mut classes[class];
        if class.queues.len() > EMPTY_MAX + 2 * class.filled {
            class.queues.retain(|_, queue| {
                let entries = &mut queues[*queue as usize].entries;
                if entries.is_empty() {
                    entries.shrink_to(QUEUE_KEPT);
                    spare.push(*queue);
                    return false;
                }
                true
            });
        }
        let queue = spare.pop().unwrap_or_else(|| {
            queues.push(Queue::default());
            (queues.len() - 1) as u32
        });
        class.queues.insert(key, queue);
        queue
    }

    #[cold]
    fn add_class(&mut self, wanted: &Wanted) -> usize {
        if self.classes.len() >= CLASSES_KEPT {
            let unused = |class: &mut Class| class.count == 0;
            for class in self.classes.extract_if(.., unused) {
                self.spare.extend(class.queues.into_values());
            }
        }
        self.classes.push(Class {
            channel: wanted.channel,
            sourced: wanted.source.is_some(),
            mask: wanted.mask,
            count: 0,
            filled: 0,
            queues: HashMap::with_hasher(self.hash.clone()),
        });
        self.classes.len() - 1
    }

    /// The earliest posted receive that accepts a message. It stays until `take`.
    #[inline(always)]
    pub fn first(&self, channel: Channel, peer: PeerId, bits: u64) -> Option<Found> {
        let accepts = |early: &Early| early.wanted.accepts(channel, peer, bits);
        let first = self.early.front().filter(|early| accepts(early));
        let found = match first {
            Some(early) => Some((0, early)),
            None => self.early.iter().enumerate().skip(1).find(|(_, early)| accepts(early)),
        };
        if self.hashed > 0 {
            let early = found.map_or(u64::MAX, |(_, early)| early.post);
            if let Some(found) = self.first_hashed(channel, peer, bits, early) {
                return Some(found);
            }
        }
        let (index, early) = found?;
        Some(Found { operation: early.operation, place: Place::Early(index) })
    }

    #[inline(never)]
    fn first_hashed(
        &self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
        before: u64,
    ) -> Option<Found> {
        let mut found = None;
        let mut before = before;
        for (index, class) in self.classes.iter().enumerate() {
            if class.count == 0 || class.channel != channel {
                continue;
            }
            let Some(&queue) = class.queues.get(&class.key(Some(peer), bits)) else { continue };
            let Some(&(post, operation)) = self.queues[queue as usize].entries.front() else {
                continue;
            };
            if post < before {
                before = post;
                let place = Place::Hashed { class: index as u32, queue };
                found = Some(Found { operation, place });
            }
        }
        found
    }

    /// Takes what `first` found just now.
    #[inline(always)]
    pub fn take(&mut self, found: Found) {
        match found.place {
            Place::Early(0) => drop(self.early.pop_front()),
            Place::Early(index) => drop(self.early.remove(index)),
            Place::Hashed { class, queue } => self.take_hashed(class as usize, queue as usize),
        }
    }

    #[inline(never)]
    fn take_hashed(&mut self, class: usize, queue: usize) {
        self.queues[queue].pop();
        self.taken(class, queue);
    }

    fn taken(&mut self, class: usize, queue: usize) {
        let class = &mut self.classes[class];
        class.filled -= usize::from(self.queues[queue].entries.is_empty());
        class.count -= 1;
        self.hashed -= 1;
    }

    /// Takes a posted receive out, wherever it is; false where it is not posted.
    pub fn withdraw(&mut self, post: u64, wanted: Wanted) -> bool {
        if let Some(at) = self.early.iter().position(|early| early.post == post) {
            return self.early.remove(at).is_some();
        }
        let Some(index) = self.classes.iter().position(|class| class.is_of(&wanted)) else {
            return false;
        };
        let key = self.classes[index].key(wanted.source, wanted.bits);
        let Some(&queue) = self.classes[index].queues.get(&key) else { return false };
        let queue = queue as usize;
        let here = self.queues[queue].withdraw(post);
        if here {
            self.taken(index, queue);
        }
        here
    }
}
