//! The interfaces of a network namespace, for a group of a process's subscribers there: one socket, and the table that it
//! keeps. A process has as many groups as its subscribers need.
//!
//! Invariants: a group has at most [`SUBSCRIBERS_MAX`] subscribers, so the kernel lets all of them watch its socket; the kernel tells of all that subscribers follow, and the table is right for these; no look waits for
//! another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::feed::{Broken, Feed, Looked};
use super::filter::Followed;
use super::side::{LocalSide, Side};
use super::socket::Socket;
use super::subscriber::Subscriber;

/// Subscribers of one socket. Linux bounds the ways by which epoll sets lead to one file: 1000 over one set, 500 over two,
/// 100 over three, and 50 over four. A rail's set is in an endpoint's; that may be in a reactor's, and that in a program's.
const SUBSCRIBERS_MAX: usize = 32;
/// Looks at most until a dump is whole.
const LOOKS_MAX: u32 = 1 << 14;

/// The identity of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    process: u32,
    namespace: (u64, u64),
}

impl Key {
    /// That of the calling thread: threads of a process can be in several namespaces.
    fn here() -> io::Result<Key> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?;
        let namespace = (namespace.dev(), namespace.ino());
        Ok(Key { process: std::process::id(), namespace })
    }
}

/// The interfaces of a network namespace, for a group of subscribers. Each subscriber holds it once.
#[derive(Debug)]
pub struct Interfaces {
    key: Key,
    state: Mutex<State>,
    /// Nothing comes any more.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct State {
    feed: Feed<Socket>,
    subscribers: Vec<Arc<Subscriber>>,
    /// The kernel tells of these alone, and the table is right for these. `None`: of all.
    followed: Option<Followed>,
    follows_routes: bool,
}

static INSTANCES: Mutex<Vec<Weak<Interfaces>>> = Mutex::new(Vec::new());

impl Interfaces {
    /// Those of the network namespace in which the calling thread is, for one more subscriber.
    pub fn here() -> io::Result<Arc<Interfaces>> {
        let key = Key::here()?;
        let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|instance| instance.strong_count() > 0);
        for instance in instances.iter() {
            let holders = instance.strong_count();
            let Some(instance) = instance.upgrade().filter(|instance| instance.key == key) else {
                continue;
            };
            if instance.is_broken() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            if holders < SUBSCRIBERS_MAX {
                return Ok(instance);
            }
        }
        let feed = Feed::new(Socket::open()?).map_err(unsupported)?;
        let state = State { feed, subscribers: Vec::new(), followed: None, follows_routes: false };
        let is_broken = AtomicBool::new(false);
        let instance = Arc::new(Interfaces { key, state: Mutex::new(state), is_broken });
        instances.push(Arc::downgrade(&instance));
        Ok(instance)
    }

    /// Whether it belongs to this process, and not to one from which this was forked off.
    pub fn is_own(&self) -> bool {
        self.key.process == std::process::id()
    }

    /// Whether no news comes any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Waits for the state: for calls that are rare.
    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves it as it has to be.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the news, unless another thread does. Whether there may be more.
    pub fn look(&self) -> bool {
        match self.state.try_lock() {
            Ok(mut state) => self.look_with(&mut state),
            Err(TryLockError::Poisoned(state)) => self.look_with(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn look_with(&self, state: &mut State) -> bool {
        if self.is_broken() {
            return false;
        }
        let looked = state.look().and_then(|looked| {
            // Interfaces that are followed from now on are asked for.
            let is_whole = !looked.is_news || state.follow()?;
            Ok(looked.is_behind || !is_whole)
        });
        looked.unwrap_or_else(|broken| {
            self.set_broken(state, broken);
            false
        })
    }

    #[cold]
    fn set_broken(&self, state: &State, _: Broken) {
        self.is_broken.store(true, Ordering::Relaxed);
        state.subscribers.iter().for_each(|subscriber| subscriber.tell());
    }

    /// One more subscriber, which this bell wakes.
    pub fn enter(&self, side: &LocalSide<'_>, bell: OwnedFd) -> io::Result<Arc<Subscriber>> {
        let mut state = self.state();
        if self.is_broken() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let entered = state.enter(side, bell);
        // Only now the messages are known that concern a subscriber.
        if let Err(broken) = state.follow() {
            self.set_broken(&state, broken);
        }
        entered
    }

    /// Asks the kernel for an interface, and takes in the answer. Whether there may be more.
    pub fn ask(&self, index: u32) -> io::Result<bool> {
        let mut state = self.state();
        if self.is_broken() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        state.feed.ask(index).map_err(unsupported)?;
        Ok(self.look_with(&mut state))
    }

    /// From now on this epoll set is readable while there is something to take in, or not any more.
    pub fn watch(&self, set: BorrowedFd<'_>) -> io::Result<()> {
        let (data, flags) = (EventData::new_u64(0), EventFlags::IN);
        Ok(epoll::add(set, self.state().descriptor(), data, flags)?)
    }

    pub fn unwatch(&self, set: BorrowedFd<'_>) {
        // It is there, unless the kernel had no memory for it.
        let _ = epoll::delete(set, self.state().descriptor());
    }

    /// The number of dumps after the first one.
    pub fn dumped_again(&self) -> u64 {
        self.state().feed.dumped_again()
    }

    /// A subscriber goes.
    pub fn leave(&self, subscriber: &Arc<Subscriber>) {
        let mut state = self.state();
        state.subscribers.retain(|other| !Arc::ptr_eq(other, subscriber));
        // Where that fails, more comes than is needed.
        let _ = state.follow();
    }
}

fn unsupported(_: Broken) -> io::Error {
    io::ErrorKind::Unsupported.into()
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateLooked {
    is_news: bool,
    /// There may be more.
    is_behind: bool,
}

impl State {
    /// Takes in the news, and tells the subscribers whose sides have changed.
    fn look(&mut self) -> Result<StateLooked, Broken> {
        let is_behind = self.feed.look()? == Looked::More;
        let is_news = self.feed.table_mut().take_changed();
        if is_news {
            let table = self.feed.table();
            self.subscribers.iter().for_each(|subscriber| subscriber.update(table));
        }
        Ok(StateLooked { is_news, is_behind })
    }

    /// Has the kernel tell of the interfaces and addresses that subscribers follow, and of no others. False where there
    /// are more of them than before: a look has to list them.
    fn follow(&mut self) -> Result<bool, Broken> {
        let table = self.feed.table();
        let mut followed = Followed::default();
        for (index, has_source) in self.subscribers.iter().map(|it| it.follows(table)) {
            followed.links.push(index);
            followed.addresses |= has_source;
        }
        followed.links.sort_unstable();
        followed.links.dedup();
        if self.followed.as_ref() == Some(&followed) {
            return Ok(true);
        }
        self.feed.kernel().filter(&followed).map_err(|_| Broken)?;
        let before = self.followed.replace(followed);
        let Some((before, now)) = before.as_ref().zip(self.followed.as_ref()) else {
            return Ok(true);
        };
        let is_new = |index: &u32| before.links.binary_search(index).is_err();
        let is_more = now.links.iter().any(is_new) || now.addresses && !before.addresses;
        if is_more {
            self.feed.dump_again();
        }
        Ok(!is_more)
    }

    /// One more subscriber. Afterwards the kernel may tell of more than subscribers follow.
    fn enter(&mut self, side: &LocalSide<'_>, bell: OwnedFd) -> io::Result<Arc<Subscriber>> {
        if self.followed.take().is_some() {
            self.feed.kernel().remove_filter()?;
            self.feed.dump_again();
        }
        for _ in 0..LOOKS_MAX {
            let StateLooked { is_behind, .. } = self.look().map_err(unsupported)?;
            if self.feed.is_whole() || !is_behind {
                break;
            }
        }
        if !self.feed.is_whole() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if side.follows_routes && !self.follows_routes {
            self.feed.kernel().join_routes()?;
            self.follows_routes = true;
        }
        let found = Side::find(side, self.feed.table());
        let (side, now) = found.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        let subscriber = Arc::new(Subscriber::new(side, now, bell));
        self.subscribers.push(subscriber.clone());
        Ok(subscriber)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.feed.kernel().as_fd()
    }
}
