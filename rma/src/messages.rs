//! Windows by messages: the yardstick. Operations are queued at the origin, sent as tagged messages with headers, and
//! executed within the target's calls.
//!
//! * Small operations for one target share a message. They leave at the synchronisation, or when 16 of them or 64 KiB wait.
//! * Data above the eager threshold go in messages of their own, for which the target posts a receive by number, in its
//!   window where that has no gaps.
//! * A get is a request and a reply; the target reduces accumulates.
//! * A lock is a queue at the target. Lock, operations and unlock are one message where they fit.
//! * A fence flushes, then all ranks come together (dissemination).
//!
//! Invariants: whoever waits serves all windows of the team; no peer's messages take more than bounded memory; a rank that is
//! lost ends the epochs that wait for it, with an error, and no others.

mod attached;
mod execute;
mod fetches;
pub(crate) mod hub;
mod inbound;
mod issue;
mod locks;
mod queue;
pub(crate) mod state;
pub(crate) mod verbs;
pub(crate) mod wire;

use std::ops::Range;
use std::sync::Arc;

use hub::Hub;
use queue::Gate;
use wire::Item;

use ropewalk_base::memory::Cells;

use crate::epochs::LockKind;
use crate::error::Error;
use crate::operation::Operation;
use crate::team::shared::Shared;
use crate::ticket::Ticket;
use crate::way::{Reach, Way};

/// One window.
pub(crate) struct Messages {
    team: Arc<Shared>,
    window: u32,
    /// The program loads and stores the memory of all ranks.
    is_shared: bool,
}

/// What a rank has still to do for the end of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The token is not sent yet.
    Open,
    /// Answers are awaited.
    Sent,
    Over,
}

impl Messages {
    pub fn new(team: Arc<Shared>, window: u32, is_shared: bool) -> Messages {
        Messages { team, window, is_shared }
    }

    /// Ends something at some ranks: `send` sends the token, if the way is open by now. Waits until all have answered and
    /// all is complete here. Ranks that are lost are passed over, and told at the end.
    fn end(&self, ranks: &[u32], mut send: impl FnMut(&mut Hub, u32) -> bool) -> Result<(), Error> {
        let window = self.window;
        let mut endings = vec![Ending::Open; ranks.len()];
        let mut lost = None;
        self.team.until(|hub| {
            for (&rank, ending) in ranks.iter().zip(&mut endings) {
                if *ending != Ending::Over
                    && let Some(error) = hub.lost(window, rank)
                {
                    lost.get_or_insert(error);
                    if hub.lost[rank as usize].is_some() {
                        hub.push(window, rank);
                        *ending = Ending::Over;
                    } else if hub.window(window).queues[rank as usize].gate != Gate::Asked {
                        // It lives: it refuses what waits, and answers the token. It grants its lock, too, where that was asked for.
                        hub.window(window).queues[rank as usize].gate = Gate::Open;
                    }
                }
                if *ending == Ending::Open && send(hub, rank) {
                    *ending = Ending::Sent;
                }
                let queue = &hub.window(window).queues[rank as usize];
                if *ending == Ending::Sent && queue.done == queue.token && queue.is_local() {
                    *ending = Ending::Over;
                }
            }
            Ok(endings.iter().all(|it| *it == Ending::Over).then_some(()))
        })?;
        match lost {
            Some(error) => Err(error),
            None => self.team.with(|hub| hub.settle(window)),
        }
    }

    /// Sends a token behind the operations for a rank, once the way is open; asks for the lock before.
    fn send_token(&self, hub: &mut Hub, rank: u32, item: impl FnOnce(u64) -> Item) -> bool {
        let window = self.window;
        if !hub.window(window).queues[rank as usize].is_open() {
            hub.push(window, rank);
            return false;
        }
        hub.append(window, rank, item);
        hub.push(window, rank);
        true
    }

    /// Completes everything at a rank; without a token, where nothing needs one.
    fn send_flush(&self, hub: &mut Hub, rank: u32, reach: Reach) -> bool {
        let window = self.window;
        let queue = &mut hub.window(window).queues[rank as usize];
        if queue.is_empty() && !(queue.is_unflushed && reach == Reach::Target) {
            return true;
        }
        if reach == Reach::Target && queue.is_unflushed {
            return self.send_token(hub, rank, |token| Item::Flush { window, token });
        }
        hub.push(window, rank);
        hub.window(window).queues[rank as usize].is_empty()
    }

    /// Waits until no rank can refuse any more what a complete has ended.
    fn hear_the_last(&self) -> Result<(), Error> {
        let window = self.window;
        let unheard: Vec<u32> = self.team.look(|hub| {
            let queues = &mut hub.window(window).queues;
            let unheard = self.ranks().into_iter().filter(|it| queues[*it as usize].is_unheard);
            let unheard: Vec<u32> = unheard.collect();
            unheard.iter().for_each(|rank| queues[*rank as usize].is_unflushed = true);
            unheard
        });
        self.set_gates(&unheard, Gate::Open);
        self.end(&unheard, |hub, rank| self.send_flush(hub, rank, Reach::Target))
    }

    /// Releases the lock of a rank.
    fn send_unlock(&self, hub: &mut Hub, rank: u32) -> bool {
        let window = self.window;
        let queue = &mut hub.window(window).queues[rank as usize];
        if !queue.locks {
            return self.send_flush(hub, rank, Reach::Target);
        }
        if let Gate::Lock(kind) = queue.gate {
            if queue.is_empty() {
                // The lock was never needed.
                return true;
            }
            if queue.ride(window, kind) {
                queue.gate = Gate::Open;
            }
        }
        self.send_token(hub, rank, |token| Item::Unlock { window, token })
    }

    fn ranks(&self) -> Vec<u32> {
        (0..self.team.size()).collect()
    }

    fn set_gates(&self, ranks: &[u32], gate: Gate) {
        self.team.with(|hub| {
            for rank in ranks {
                let queue = &mut hub.window(self.window).queues[*rank as usize];
                queue.gate = gate;
                queue.locks = matches!(gate, Gate::Lock(_));
            }
        });
    }

    /// Locks of memory that the program loads and stores are not lazy: this rank's own, and all of a shared window. Nobody
    /// waits for ranks that are lost: the end of the epoch tells of them.
    fn lock_now(&self, ranks: &[u32]) -> Result<(), Error> {
        let (window, own) = (self.window, self.team.rank());
        let is_now = |rank: &u32| self.is_shared || *rank == own;
        let mut left: Vec<u32> = ranks.iter().copied().filter(is_now).collect();
        self.team.until(|hub| {
            left.retain(|rank| {
                hub.push(window, *rank);
                let is_open = hub.window(window).queues[*rank as usize].is_open();
                !is_open && hub.lost(window, *rank).is_none()
            });
            Ok(left.is_empty().then_some(()))
        })?;
        let is_locked = |rank: &u32| ranks.contains(rank) && is_now(rank);
        self.team.look(|hub| hub.settle_locks(window, is_locked))
    }
}

impl Way for Messages {
    fn operate(
        &self,
        operation: &Operation<'_>,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<(), Error> {
        self.team.with(|hub| hub.issue(self.window, operation, ticket))
    }

    fn fence(&self, flush: bool) -> Result<(), Error> {
        let flushed = match flush {
            true => self.end(&self.ranks(), |hub, rank| self.send_flush(hub, rank, Reach::Target)),
            false => Ok(()),
        };
        let met = self.team.barrier(Some(self.window));
        self.set_gates(&self.ranks(), Gate::Open);
        flushed.and(met)
    }

    fn start(&self, group: &[u32], check: bool) -> Result<(), Error> {
        self.set_gates(group, if check { Gate::Start } else { Gate::Open });
        self.team.with(|hub| {
            for rank in group.iter().filter(|_| check) {
                hub.window(self.window).queues[*rank as usize].starts += 1;
            }
            hub.progress();
        });
        Ok(())
    }

    fn complete(&self, group: &[u32]) -> Result<(), Error> {
        let window = self.window;
        let ended = self.end(group, |hub, rank| {
            let sent = self.send_token(hub, rank, |_| Item::Complete { window });
            if sent {
                // The target's wait waits for these, nobody here.
                let queue = &mut hub.window(window).queues[rank as usize];
                queue.is_unheard |= std::mem::take(&mut queue.is_unflushed);
            }
            sent
        });
        self.set_gates(group, Gate::Closed);
        ended
    }

    fn post(&self, group: &[u32], check: bool) -> Result<(), Error> {
        self.team.with(|hub| {
            for rank in group {
                let state = hub.window(self.window);
                state.origins[*rank as usize].exposures += 1;
                if check {
                    hub.tell(*rank, &Item::Post { window: self.window });
                }
            }
            hub.progress();
        });
        Ok(())
    }

    fn test(&self, group: &[u32]) -> Result<bool, Error> {
        self.team.with(|hub| {
            hub.progress();
            completed(hub, self.window, group)
        })
    }

    fn wait(&self, group: &[u32]) -> Result<(), Error> {
        self.team.until(|hub| Ok(completed(hub, self.window, group)?.then_some(())))?;
        self.team.with(|hub| hub.settle(self.window))
    }

    fn lock(&self, kind: LockKind, rank: u32, check: bool) -> Result<(), Error> {
        self.set_gates(&[rank], if check { Gate::Lock(kind) } else { Gate::Open });
        self.lock_now(&[rank])?;
        self.progress()
    }

    fn unlock(&self, rank: u32) -> Result<(), Error> {
        let ended = self.end(&[rank], |hub, rank| self.send_unlock(hub, rank));
        self.set_gates(&[rank], Gate::Closed);
        ended
    }

    fn lock_all(&self, check: bool) -> Result<(), Error> {
        let gate = if check { Gate::Lock(LockKind::Shared) } else { Gate::Open };
        let ranks = self.ranks();
        self.set_gates(&ranks, gate);
        self.lock_now(&ranks)
    }

    fn unlock_all(&self) -> Result<(), Error> {
        let ranks = self.ranks();
        let ended = self.end(&ranks, |hub, rank| self.send_unlock(hub, rank));
        self.set_gates(&ranks, Gate::Closed);
        ended
    }

    fn flush(&self, rank: Option<u32>, reach: Reach) -> Result<(), Error> {
        let ranks = rank.map_or_else(|| self.ranks(), |rank| vec![rank]);
        self.end(&ranks, |hub, rank| self.send_flush(hub, rank, reach))
    }

    fn notify(&self, put: Option<&Operation<'_>>, rank: u32, counter: u32) -> Result<(), Error> {
        let window = self.window;
        self.team.with(|hub| {
            match (put, hub.lost(window, rank)) {
                (Some(put), _) => hub.issue(window, put, None)?,
                (None, Some(error)) => return Err(error),
                (None, None) => {}
            }
            hub.append(window, rank, |_| Item::Notify { window, counter });
            let queue = &mut hub.window(window).queues[rank as usize];
            (queue.is_urgent, queue.is_unflushed) = (true, true);
            hub.push(window, rank);
            hub.progress();
            Ok(())
        })
    }

    fn notices(&self, counter: u32) -> u64 {
        self.team.with(|hub| {
            hub.progress();
            hub.window(self.window).counters[counter as usize]
        })
    }

    fn wait_notices(&self, counter: u32, least: u64) -> Result<(), Error> {
        let window = self.window;
        self.team.until(|hub| match hub.window(window).counters[counter as usize] >= least {
            true => Ok(Some(())),
            false => hub.anybody_lost(window).map_or(Ok(None), Err),
        })
    }

    fn push(&self, rank: u32) -> Result<(), Error> {
        self.team.with(|hub| {
            hub.push(self.window, rank);
            hub.progress();
        });
        Ok(())
    }

    fn wait_for(&self, rank: u32, ticket: &Ticket) -> Result<(), Error> {
        self.team.until(|hub| {
            hub.push(self.window, rank);
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
        self.team.with(|hub| hub.attach(self.window, cells, range))
    }

    fn detach(&self, address: u64) -> Result<(), Error> {
        self.team.until(|hub| Ok(hub.detach(self.window, address).then_some(())))
    }

    fn free(&self) -> Result<(), Error> {
        let heard = self.hear_the_last();
        let met = self.team.barrier(Some(self.window));
        self.team.until(|hub| {
            let is_still = hub.detach_regions(self.window) && hub.withdraw_memory(self.window);
            Ok(is_still.then_some(()))
        })?;
        self.team.with(|hub| {
            let settled = hub.settle(self.window);
            hub.shut(self.window);
            heard.and(met).and(settled)
        })
    }
}

/// Whether all ranks of a group completed as many epochs as exposures named them.
fn completed(hub: &mut Hub, window: u32, group: &[u32]) -> Result<bool, Error> {
    let mut all = true;
    let mut lost = None;
    for rank in group {
        let origin = &hub.window(window).origins[*rank as usize];
        if origin.completes < origin.exposures {
            match hub.lost(window, *rank) {
                Some(error) => lost = lost.or(Some(error)),
                None => all = false,
            }
        }
    }
    match lost {
        Some(error) if all => Err(error),
        _ => Ok(all),
    }
}
