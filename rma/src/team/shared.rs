//! What the windows of a team share: its mail, its state, and how threads wait for both.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ropewalk_net::{Awaited, Context, Endpoint, Group};

use super::mail::{MESSAGE_BYTES, Mail};
use crate::claims::Executor;
use crate::error::{Error, Loss};
use crate::messages::hub::{Hub, TEAM};
use crate::messages::state::Domain;
use crate::messages::wire::Item;
use crate::options::Implementation;

/// No thread waits longer without a look.
const REST: Duration = Duration::from_millis(100);
/// Bytes that a rank may give to an exchange.
pub(crate) const EXCHANGE_BYTES_MAX: usize = MESSAGE_BYTES / 2;

/// What the windows of a team share.
pub(crate) struct Shared {
    endpoint: Endpoint,
    context: Context,
    hub: Mutex<Hub>,
    rank: u32,
    size: u32,
    /// Collective calls, one after the other.
    collective: Mutex<()>,
    /// Grows when a thread may have got what it waits for from another one.
    news: AtomicU64,
    /// Whether a thread waits on the context, which can wake only one. The others follow: they wait for `passed`.
    led: Mutex<bool>,
    leads: AtomicBool,
    followers: AtomicUsize,
    passed: Condvar,
}

impl Shared {
    /// See [`Team::new`](crate::Team::new).
    pub fn open(endpoint: &Endpoint, group: &Group, tag: u64) -> Result<Arc<Shared>, Error> {
        let context = endpoint.context(false).map_err(|_| Error::Room("a context"))?;
        // Windows by remote access wait for words that others write.
        endpoint.tell_of_raises(&context);
        endpoint.tell_of_refusals(&context);
        let (rank, size) = (group.rank(), group.size());
        let peers = (0..size).map(|rank| group.peer(rank)).collect();
        let mail = Mail::open(endpoint, &context, rank, peers, tag);
        Ok(Arc::new(Shared {
            endpoint: endpoint.clone(),
            context,
            hub: Mutex::new(Hub::new(mail, rank, size)),
            rank,
            size,
            collective: Mutex::new(()),
            news: AtomicU64::new(0),
            led: Mutex::new(false),
            leads: AtomicBool::new(false),
            followers: AtomicUsize::new(0),
            passed: Condvar::new(),
        }))
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn size(&self) -> u32 {
        self.size
    }

    /// The executor of accumulates of an implementation's windows. No two that live at a time have one number.
    pub fn executor(&self, implementation: Implementation) -> Executor {
        let number = match implementation {
            Implementation::Direct => self.endpoint.descriptor().as_raw_fd() as usize,
            Implementation::Messages => std::ptr::from_ref(self).addr(),
            Implementation::DirectAccumulateAtOrigin => 0,
        };
        Executor { implementation, number }
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().expect("a hub is never left half-changed")
    }

    /// The right to make a collective call.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.collective.lock().expect("it guards nothing that could be left half-changed")
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Looks at something, or changes what nobody waits for.
    pub fn look<T>(&self, act: impl FnOnce(&mut Hub) -> T) -> T {
        act(&mut self.hub())
    }

    /// Does something without waiting. What it caused reaches other threads that wait.
    pub fn with<T>(&self, act: impl FnOnce(&mut Hub) -> T) -> T {
        let done = act(&mut self.hub());
        self.tell();
        done
    }

    /// Another thread may have got what it waits for.
    pub fn tell(&self) {
        // First: whoever is about to wait looks at this after it has said so.
        self.news.fetch_add(1, Ordering::SeqCst);
        if self.leads.load(Ordering::SeqCst) {
            self.context.wake();
        }
        self.wake_followers();
    }

    fn wake_followers(&self) {
        if self.followers.load(Ordering::SeqCst) > 0 {
            // Whoever has the lock may not sleep yet.
            drop(self.led());
            self.passed.notify_all();
        }
    }

    fn led(&self) -> MutexGuard<'_, bool> {
        self.led.lock().expect("nobody panics with it")
    }

    /// What changes when a thread that waits has to look again.
    fn seen(&self) -> (u64, u64) {
        (self.news.load(Ordering::SeqCst), self.endpoint.raise_count())
    }

    /// Waits until there may be something new since `seen`.
    fn rest(&self, awaited: Awaited, seen: (u64, u64)) {
        let is_news = || self.seen() != seen;
        let mut led = self.led();
        if *led {
            self.followers.fetch_add(1, Ordering::SeqCst);
            let waits = |led: &mut bool| *led && !is_news();
            drop(self.passed.wait_timeout_while(led, REST, waits));
            self.followers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        *led = true;
        drop(led);
        self.leads.store(true, Ordering::SeqCst);
        self.endpoint.wait_ready(&self.context, awaited, REST, &is_news);
        self.leads.store(false, Ordering::SeqCst);
        *self.led() = false;
        self.wake_followers();
    }

    /// Makes progress until `look` has an answer.
    ///
    /// # Errors
    /// The endpoint is closed; or those of `look`.
    pub fn until<T>(
        &self,
        look: impl FnMut(&mut Hub) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        self.until_there(Awaited::Program, look)
    }

    /// The same. `awaited`: where the answer comes from.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub fn until_there<T>(
        &self,
        awaited: Awaited,
        mut look: impl FnMut(&mut Hub) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        loop {
            let seen = self.seen();
            let (any, answer) = {
                let mut hub = self.hub();
                let any = hub.progress();
                let answer = look(&mut hub)?;
                hub.send_replies();
                // What was sent to this rank itself waits for the next turn.
                (any || hub.mail.has_news() || !hub.pushes.is_empty(), answer)
            };
            if let Some(answer) = answer {
                self.tell();
                return Ok(answer);
            }
            if self.endpoint.is_closed() {
                return Err(Error::Closed);
            }
            if any {
                self.tell();
                continue;
            }
            self.rest(awaited, seen);
        }
    }

    /// See [`Team::settle`](crate::Team::settle).
    pub fn settle(&self, limit: Duration) {
        let end = std::time::Instant::now() + limit;
        let owes = || {
            self.with(|hub| {
                hub.progress();
                hub.mail.owes()
            })
        };
        while owes() && std::time::Instant::now() < end && !self.endpoint.is_closed() {
            std::thread::yield_now();
        }
        self.endpoint.settle(limit);
    }

    /// A collective call, in which ranks exchange bytes. One that a rank gives up, since it lost another one, comes to nothing
    /// there; all others hear of that, wherever they are in the call or behind it.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn call<T>(&self, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _turn = self.turn();
        self.look(|hub| hub.exchanges.begin_call());
        let done = act();
        if let Err(Error::TeamLost { rank: lost, .. }) = &done {
            self.with(|hub| {
                let item = Item::GaveUp { lost: *lost, call: hub.exchanges.call() };
                let others = (0..self.size).filter(|rank| *rank != self.rank);
                others.for_each(|rank| hub.tell(rank, &item));
                hub.send_replies();
            });
        }
        done
    }

    /// Within a collective call: gives some bytes to all ranks, and returns those of all, by rank.
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.give(bytes, 0..self.size);
        self.taken()
    }

    /// The first half of an exchange.
    pub fn give(&self, bytes: &[u8], to: impl IntoIterator<Item = u32>) {
        debug_assert!(bytes.len() <= EXCHANGE_BYTES_MAX, "a collective call gives little");
        self.with(|hub| {
            let round = hub.exchanges.round();
            let item = Item::Exchange { round, bytes: 0..bytes.len() };
            for rank in to {
                let fill = |_: &_, to: &mut [u8]| to.copy_from_slice(bytes);
                hub.reply_with(rank, &item, bytes.len(), fill);
            }
            hub.send_replies();
        });
    }

    /// The second half.
    pub fn taken(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.until(|hub| {
            let ended = hub.exchanges.end(&hub.lost);
            let failed = |(rank, loss)| Error::TeamLost { rank, loss };
            ended.map(|ended| ended.map_err(failed)).transpose()
        })
    }

    /// Waits until all ranks have come here: on a window's behalf, or the team's. Each sends `log2(size)` messages
    /// (dissemination). Who finds a rank lost goes on all the same, so that nobody waits for it, and tells the others.
    pub fn barrier(&self, window: Option<u32>) -> Result<(), Error> {
        let mut distance = 1;
        while distance < self.size {
            let to = (self.rank + distance) % self.size;
            let from = (self.rank + self.size - distance) % self.size;
            self.with(|hub| {
                let lost = domain(hub, window).lost;
                hub.tell(to, &Item::Barrier { domain: window.unwrap_or(TEAM), lost });
                hub.send_replies();
            });
            self.until(|hub| {
                let is_lost = hub.loss_of(window, from).is_some();
                let domain = domain(hub, window);
                if domain.tokens[from as usize] > domain.round {
                    return Ok(Some(()));
                }
                if is_lost {
                    domain.lost.get_or_insert(from);
                }
                Ok(is_lost.then_some(()))
            })?;
            distance *= 2;
        }
        self.with(|hub| {
            let domain = domain(hub, window);
            domain.round += 1;
            let Some(rank) = domain.lost else { return Ok(()) };
            let loss = hub.loss_of(window, rank).unwrap_or(Loss::Told);
            Err(hub.loss(window, rank, loss))
        })
    }
}

fn domain(hub: &mut Hub, window: Option<u32>) -> &mut Domain {
    match window {
        Some(window) => &mut hub.window(window).domain,
        None => &mut hub.domain,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Ok(hub) = self.hub.get_mut() {
            hub.mail.close();
        }
    }
}
