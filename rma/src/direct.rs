//! Windows by remote access: the target's calls are not needed for anything.
//!
//! * Each rank exposes its window and a board of words, and knows the keys of all others.
//! * Puts and gets are single accesses; updates and swaps are executed at the target's memory by whoever serves it.
//! * Post and complete are tokens on boards: they take effect after all that their sender did before. A start never waits:
//!   operations for a rank that has not posted wait here.
//! * Memory that a rank of this host allocated is mapped here, where it may be: [`mapped`] loads and stores it at once.
//! * Locks are taken at the target's memory, in the order in which requests come there. Operations for a rank wait here until
//!   its lock is taken. A short put that is alone in its epoch goes with the request, and the lock goes back with it.
//! * Memory that ranks attach to a dynamic window is found by its address: [`dynamic`].
//! * Where accumulates are reduced at their origins ([`origin`]), each locks the target's accumulates by a word of its board.
//! * A fence tells each rank of itself, behind what went there, when all that went to others is complete. Among many ranks it
//!   flushes, then all come together (dissemination).
//!
//! Invariant: an operation counts as under way until the target has said that it is applied.

pub(crate) mod directory;
mod dynamic;
mod issue;
pub(crate) mod late;
mod mapped;
mod origin;
pub(crate) mod posting;
pub(crate) mod state;
mod updaters;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

use ropewalk_base::memory::Cells;
use ropewalk_base::verb::RemoteKey;
use ropewalk_net::{Awaited, Offer};

use crate::epochs::LockKind;
use crate::error::Error;
use crate::messages::hub::Hub;
use crate::operation::Operation;
use crate::team::shared::Shared;
use crate::ticket::Ticket;
use crate::way::{Reach, Way};
use directory::{Directory, Known};
use state::{Gate, Lane, Lock, Remote, Word, Words};
use updaters::Updaters;

/// Looks of a flush at its ranks after which it takes what it waits for apart from what other threads issue meanwhile.
const LOOKS_TOGETHER: u32 = 64;

/// Ranks of which each tells each other one of a fence. Among more of them a barrier is fewer messages.
const FUSED_RANKS_MAX: usize = 16;

/// One window.
pub(crate) struct Direct {
    team: Arc<Shared>,
    window: u32,
    /// All of them.
    ranks: Vec<u32>,
    /// Room for the ranks that an end waits for, and whether each has been sent its last word. It is here between ends.
    room: Mutex<Vec<(u32, bool)>>,
}

/// How other ranks reach a window's memory, beside by the endpoint's rails.
pub(crate) enum Sharing {
    Not,
    /// They may map it.
    Offered(Offer),
    /// Every rank has mapped that of all others, and the program loads and stores it: cells by rank.
    All(Vec<Cells>),
    /// The window has none: ranks attach theirs.
    Dynamic,
}

/// What a window is made of.
pub(crate) struct Opening<'a> {
    pub cells: &'a Cells,
    pub range: Range<usize>,
    pub sharing: Sharing,
    /// Bytes of each rank.
    pub sizes: Vec<u64>,
    /// This rank maps the memory of others.
    pub maps: bool,
    /// Accumulates are reduced at their origins.
    pub at_origin: bool,
    /// Of notices.
    pub counters: u32,
}

impl Direct {
    /// Collective: exposes this rank's memory, learns the keys of all others, and maps their memory where it is offered.
    ///
    /// # Errors
    /// There is no room, or a rank is lost.
    pub fn open(team: &Arc<Shared>, window: u32, opening: Opening<'_>) -> Result<Direct, Error> {
        let directory = matches!(opening.sharing, Sharing::Dynamic).then(Directory::new);
        let listed = directory.as_ref().map(|directory| directory.cells().clone());
        let mut opening = opening;
        if let Some(cells) = &listed {
            (opening.cells, opening.range) = (cells, 0..cells.len());
            opening.sizes.fill(cells.len() as u64);
            opening.maps = false;
        }
        let words = Words { ranks: team.size(), counters: opening.counters };
        let exposed = team.with(|hub| hub.expose(opening.cells, opening.range.clone(), words));
        let mut card = exposed.as_ref().map_or(Vec::new(), |(_, key)| posting::encode(*key));
        match &opening.sharing {
            Sharing::Not | Sharing::Dynamic => {}
            Sharing::Offered(offer) if exposed.is_ok() => card.extend(offer.card()),
            Sharing::Offered(_) => {}
            // Whoever has this card may update elements.
            Sharing::All(_) => opening.cells.share(),
        }
        let ranks = (0..team.size()).collect();
        let direct = Direct { team: team.clone(), window, ranks, room: Mutex::default() };
        let (board, key) = match exposed {
            Ok(exposed) => exposed,
            Err(error) => {
                // The others learn of it by the card, which is empty.
                team.exchange(&card)?;
                return Err(error);
            }
        };
        let lane = |_| Lane { known: directory.as_ref().map(|_| Known::new()), ..Lane::default() };
        let remote = Remote {
            board,
            words,
            keys: vec![key; team.size() as usize],
            sizes: opening.sizes.clone(),
            lanes: (0..team.size()).map(lane).collect(),
            at_origin: opening.at_origin,
            mapped: vec![None; team.size() as usize],
            updaters: Updaters::default(),
            is_shared: matches!(opening.sharing, Sharing::All(_)),
            directory,
            fences: 0,
            idle_flushes: 0,
            is_returned: false,
        };
        team.with(|hub| hub.remotes.insert(window, remote));
        match direct.meet(&opening, &card) {
            Ok((keys, mapped)) => team.with(|hub| {
                let remote = hub.remote(window);
                (remote.keys, remote.mapped) = (keys, mapped);
            }),
            Err(error) => {
                // Others may have met all ranks: nobody is to reach the memory behind this.
                direct.take_back()?;
                return Err(error);
            }
        }
        Ok(direct)
    }

    /// The keys of all ranks, and their memory as far as it is mapped here.
    fn meet(
        &self,
        opening: &Opening<'_>,
        card: &[u8],
    ) -> Result<(Vec<RemoteKey>, Vec<Option<Cells>>), Error> {
        let all = self.team.exchange(card)?;
        let keys = posting::decode(&all)?;
        Ok((keys, map(&self.team, opening, &all)?))
    }

    /// Ends the exposure of this rank's memory, and waits until nobody reaches it.
    fn take_back(&self) -> Result<(), Error> {
        let window = self.window;
        self.team.with(|hub| hub.unexpose(window));
        self.team.until(|hub| Ok(hub.is_unexposed(window).then_some(())))
    }

    /// Ends something at some ranks: `send` says when its last word to one has left, `is_over` when that is done. `awaited`
    /// says where the end comes from. Ranks that are lost are passed over, and told at the end.
    fn end(
        &self,
        ranks: &[u32],
        awaited: Awaited,
        mut send: impl FnMut(&mut Hub, u32) -> bool,
        mut is_over: impl FnMut(&mut Hub, u32) -> bool,
    ) -> Result<(), Error> {
        let window = self.window;
        let mut left = self.take_room();
        left.extend(ranks.iter().map(|rank| (*rank, false)));
        let mut lost = None;
        let waited = self.team.until_there(awaited, |hub| {
            left.retain_mut(|(rank, sent)| {
                if let Some(error) = hub.lost(window, *rank) {
                    lost.get_or_insert((*rank, error));
                    // Until the end of what was cancelled the user's memory is in use.
                    return hub.remote(window).lanes[*rank as usize].local > 0;
                }
                hub.push_remotely(window, *rank);
                *sent = *sent || send(hub, *rank);
                !(*sent && is_over(hub, *rank))
            });
            Ok(left.is_empty().then_some(()))
        });
        self.give_room(left);
        waited?;
        match lost {
            Some((rank, error)) => {
                let ended = self.team.look(|hub| hub.interrupted.remove(&(window, rank)));
                Err(match ended {
                    Some(ended) => error.during(ended),
                    None => error,
                })
            }
            None => self.team.with(|hub| hub.settle(window)),
        }
    }

    /// Ends of several threads at once have room of their own.
    fn take_room(&self) -> Vec<(u32, bool)> {
        std::mem::take(&mut *self.room.lock().expect("nobody panics with it"))
    }

    fn give_room(&self, mut room: Vec<(u32, bool)>) {
        room.clear();
        *self.room.lock().expect("nobody panics with it") = room;
    }

    fn flush_ranks(&self, ranks: &[u32], reach: Reach) -> Result<(), Error> {
        let window = self.window;
        let is_local = reach == Reach::Local;
        // The fences: loads and stores of this rank come before those behind the flush, in everybody's eyes.
        if self.team.look(|hub| hub.is_at_rest(window, ranks, is_local)) {
            fence(Ordering::SeqCst);
            return Ok(());
        }
        let mut is_flushed = self.flushed(is_local);
        let send = |hub: &mut Hub, rank: u32| {
            hub.ask_for_what_waits(window, rank);
            true
        };
        let ended = self.end(ranks, Awaited::Answer, send, |hub, rank| is_flushed(hub, rank));
        fence(Ordering::SeqCst);
        ended
    }

    /// Flushes, and tells each rank of the fence behind what went there, as soon as all that went to others is complete: a rank
    /// that has heard of all may read, anywhere, all that they did. So the last answers and the fence travel at the same time.
    fn flush_and_meet(&self) -> Result<(), Error> {
        let window = self.window;
        self.team.look(|hub| hub.remote(window).fences += 1);
        let (mut is_flushed, mut are_others) = (self.flushed(false), self.flushed(false));
        let is_over =
            |hub: &mut Hub, rank: u32| is_flushed(hub, rank) && hub.has_fenced(window, rank);
        let send = |hub: &mut Hub, rank: u32| {
            let is_done = |other: &u32| {
                *other == rank || hub.is_lost(window, *other) || are_others(hub, *other)
            };
            self.ranks.iter().all(is_done) && hub.fence_remotely(window, rank)
        };
        let ended = self.end(&self.ranks, Awaited::Program, send, is_over);
        fence(Ordering::SeqCst);
        ended
    }

    /// Whether what was issued to a rank is complete, there or only here.
    fn flushed(&self, is_local: bool) -> impl FnMut(&mut Hub, u32) -> bool + use<> {
        let window = self.window;
        // Where other threads go on issuing operations a lane is never empty: then those that came before count.
        let (mut looks, mut rounds) = (0, BTreeMap::new());
        move |hub: &mut Hub, rank: u32| {
            let lane = &mut hub.remote(window).lanes[rank as usize];
            let is_all_over = if is_local { lane.is_local() } else { lane.is_flushed() };
            if is_all_over {
                return true;
            }
            looks += 1;
            if looks < LOOKS_TOGETHER {
                return false;
            }
            let round: &mut Vec<_> = rounds.entry(rank).or_insert_with(|| lane.end_round());
            round.iter().all(|it| it.strong_count() == 0)
        }
    }

    /// Waits until no rank can refuse any more what was complete before it came there. Marks that come by themselves tell most;
    /// a rank that has not sent one yet, 5 ms after the last put, is asked.
    fn hear_the_last(&self) -> Result<(), Error> {
        let window = self.window;
        let mut left: Vec<(u32, bool)> = self.ranks.iter().map(|rank| (*rank, false)).collect();
        self.team.until_there(Awaited::Answer, |hub| {
            left.retain_mut(|(rank, is_asked)| {
                if !hub.is_unsure(window, *rank) {
                    return false;
                }
                *is_asked = *is_asked || hub.ask_behind_all(window, *rank);
                !(*is_asked && hub.remote(window).lanes[*rank as usize].is_flushed())
            });
            Ok(left.is_empty().then_some(()))
        })
    }

    fn set_gates(&self, ranks: &[u32], gate: Gate, lock: Option<LockKind>) {
        self.team.with(|hub| {
            for rank in ranks {
                let lane = &mut hub.remote(self.window).lanes[*rank as usize];
                lane.gate = gate;
                lane.lock = lock.map(|kind| Lock { kind, request: None, is_held: false });
            }
        });
    }

    /// Locks of memory that the program loads and stores are not lazy: this rank's own, and all of a shared window. Nobody
    /// waits for ranks that are lost: the end of the epoch tells of them.
    fn lock_now(&self, ranks: &[u32]) -> Result<(), Error> {
        let (window, own) = (self.window, self.team.rank());
        let is_shared = self.team.look(|hub| hub.remote(window).is_shared);
        let is_now = |rank: &u32| is_shared || *rank == own;
        let mut left: Vec<u32> = ranks.iter().copied().filter(is_now).collect();
        self.team.until(|hub| {
            left.retain(|rank| {
                hub.ask_for_lock(window, *rank);
                hub.lost(window, *rank).is_none() && !hub.remote(window).is_open(*rank)
            });
            Ok(left.is_empty().then_some(()))
        })?;
        let is_locked = |rank: &u32| ranks.contains(rank) && is_now(rank);
        self.team.look(|hub| hub.settle_locks(window, is_locked))
    }

    fn unlock_ranks(&self, ranks: &[u32]) -> Result<(), Error> {
        let window = self.window;
        let send = |hub: &mut Hub, rank: u32| hub.release_remotely(window, rank);
        let is_over =
            |hub: &mut Hub, rank: u32| hub.remote(window).lanes[rank as usize].is_flushed();
        let ended = self.end(ranks, Awaited::Answer, send, is_over);
        self.set_gates(ranks, Gate::Closed, None);
        ended
    }
}

/// Maps the memory of others. If all ranks have mapped all memory, all accumulates are the processor's atomic operations.
fn map(
    team: &Arc<Shared>,
    opening: &Opening<'_>,
    cards: &[Vec<u8>],
) -> Result<Vec<Option<Cells>>, Error> {
    let Opening { cells, range, sizes, maps, at_origin, .. } = opening;
    if let Sharing::All(all) = &opening.sharing {
        let mapped = |cells: &Cells| (*maps && !at_origin).then(|| cells.clone());
        all.iter().for_each(Cells::share);
        return Ok(all.iter().map(mapped).collect());
    }
    let own = team.rank() as usize;
    let offers: Vec<&[u8]> = cards.iter().map(|card| posting::offer(card)).collect();
    let map = |(rank, bytes): (usize, &u64)| {
        let bytes = usize::try_from(*bytes).ok().filter(|_| *maps && !at_origin)?;
        match rank == own {
            true => cells.part(range.clone()).ok(),
            false => team.endpoint().map_memory(offers[rank], bytes),
        }
    };
    let mapped: Vec<Option<Cells>> = sizes.iter().enumerate().map(map).collect();
    if offers.iter().all(|offer| offer.is_empty()) {
        return Ok(mapped);
    }
    let has_all =
        offers.iter().all(|offer| !offer.is_empty()) && mapped.iter().all(Option::is_some);
    if has_all {
        // Before anybody may know it.
        cells.share();
    }
    // Nobody withdraws an offer before all have taken it.
    let told = team.exchange(&[u8::from(has_all)])?;
    if told.iter().all(|it| *it == [1]) {
        mapped.iter().flatten().for_each(Cells::share);
    }
    Ok(mapped)
}

impl Way for Direct {
    fn operate(
        &self,
        operation: &Operation<'_>,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<(), Error> {
        let issued = self.team.look(|hub| hub.operate_remotely(self.window, operation, ticket));
        // Nobody waits for an operation that the call itself has done.
        if !matches!(issued, Ok(false)) {
            self.team.tell();
        }
        issued.map(drop)
    }

    fn fence(&self, flush: bool) -> Result<(), Error> {
        let fenced = if self.ranks.len() <= FUSED_RANKS_MAX {
            self.flush_and_meet()
        } else {
            let flushed = if flush { self.flush_ranks(&self.ranks, Reach::Target) } else { Ok(()) };
            flushed.and(self.team.barrier(Some(self.window)))
        };
        self.set_gates(&self.ranks, Gate::Open, None);
        fenced
    }

    fn start(&self, group: &[u32], check: bool) -> Result<(), Error> {
        self.set_gates(group, if check { Gate::Start } else { Gate::Open }, None);
        self.team.with(|hub| {
            for rank in group.iter().filter(|_| check) {
                hub.remote(self.window).lanes[*rank as usize].starts += 1;
            }
        });
        Ok(())
    }

    fn complete(&self, group: &[u32]) -> Result<(), Error> {
        let window = self.window;
        let send = |hub: &mut Hub, rank: u32| hub.complete_remotely(window, rank);
        let is_over = |hub: &mut Hub, rank: u32| hub.remote(window).lanes[rank as usize].is_local();
        let ended = self.end(group, Awaited::Program, send, is_over);
        self.set_gates(group, Gate::Closed, None);
        ended
    }

    fn post(&self, group: &[u32], check: bool) -> Result<(), Error> {
        let window = self.window;
        for rank in group {
            self.team.with(|hub| hub.remote(window).lanes[*rank as usize].exposures += 1);
            if check {
                self.team.until(|hub| Ok(hub.raise(window, *rank, Word::Posts).then_some(())))?;
            }
        }
        Ok(())
    }

    fn test(&self, group: &[u32]) -> Result<bool, Error> {
        self.team.with(|hub| {
            hub.progress();
            hub.completed_remotely(self.window, group)
        })
    }

    fn wait(&self, group: &[u32]) -> Result<(), Error> {
        let window = self.window;
        self.team.until(|hub| Ok(hub.completed_remotely(window, group)?.then_some(())))?;
        self.team.with(|hub| hub.settle(window))
    }

    fn lock(&self, kind: LockKind, rank: u32, check: bool) -> Result<(), Error> {
        if !check {
            self.set_gates(&[rank], Gate::Open, None);
            return Ok(());
        }
        self.set_gates(&[rank], Gate::Lock, Some(kind));
        // Others are asked when something is to be done there: one put may go with the request.
        self.lock_now(&[rank])
    }

    fn unlock(&self, rank: u32) -> Result<(), Error> {
        self.unlock_ranks(&[rank])
    }

    fn lock_all(&self, check: bool) -> Result<(), Error> {
        let ranks = &self.ranks;
        if !check {
            self.set_gates(ranks, Gate::Open, None);
            return Ok(());
        }
        // The others are asked when something is to be done there.
        self.set_gates(ranks, Gate::Lock, Some(LockKind::Shared));
        self.lock_now(ranks)
    }

    fn unlock_all(&self) -> Result<(), Error> {
        self.unlock_ranks(&self.ranks)
    }

    fn flush(&self, rank: Option<u32>, reach: Reach) -> Result<(), Error> {
        match rank {
            Some(rank) => self.flush_ranks(&[rank], reach),
            None => self.flush_ranks(&self.ranks, reach),
        }
    }

    fn notify(&self, put: Option<&Operation<'_>>, rank: u32, counter: u32) -> Result<(), Error> {
        self.team.with(|hub| {
            if let Some(put) = put {
                hub.prepare_remotely(self.window, put, None, true)?;
            }
            if let Some(error) = hub.lost(self.window, rank) {
                return Err(error);
            }
            hub.notify_remotely(self.window, rank, counter);
            Ok(())
        })
    }

    fn notices(&self, counter: u32) -> u64 {
        self.team.with(|hub| {
            hub.progress();
            hub.remote(self.window).counter(counter)
        })
    }

    fn wait_notices(&self, counter: u32, least: u64) -> Result<(), Error> {
        let window = self.window;
        self.team.until(|hub| match hub.remote(window).counter(counter) >= least {
            true => Ok(Some(())),
            false => hub.anybody_lost(window).map_or(Ok(None), Err),
        })
    }

    fn push(&self, rank: u32) -> Result<(), Error> {
        self.team.with(|hub| {
            hub.progress();
            hub.ask_for_what_waits(self.window, rank);
            hub.push_remotely(self.window, rank);
        });
        Ok(())
    }

    fn wait_for(&self, rank: u32, ticket: &Ticket) -> Result<(), Error> {
        self.team.until_there(Awaited::Answer, |hub| {
            hub.ask_for_what_waits(self.window, rank);
            hub.push_remotely(self.window, rank);
            Ok(ticket.is_done().then_some(()))
        })
    }

    fn progress(&self) -> Result<(), Error> {
        self.team.with(|hub| {
            hub.progress();
        });
        Ok(())
    }

    fn attach(&self, cells: &Cells, range: Range<usize>) -> Result<(), Error> {
        self.team.with(|hub| hub.attach_remotely(self.window, cells, range))
    }

    fn detach(&self, address: u64) -> Result<(), Error> {
        let window = self.window;
        self.team.with(|hub| hub.detach_remotely(window, address));
        self.team.until(|hub| Ok(hub.is_detached(window, address).then_some(())))
    }

    fn free(&self) -> Result<(), Error> {
        let window = self.window;
        let heard = self.hear_the_last();
        let met = self.team.barrier(Some(window));
        self.team.with(|hub| hub.detach_all(window));
        self.team.until(|hub| Ok(hub.is_all_detached(window).then_some(())))?;
        self.take_back()?;
        self.team.with(|hub| {
            let settled = hub.settle(window);
            hub.shut(window);
            heard.and(met).and(settled)
        })
    }
}
