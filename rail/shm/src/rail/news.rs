//! News of a rail: what the kernel tells of its links, and which links are looked at without it.

use std::mem::MaybeUninit;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use rustix::event::Timespec;
use rustix::event::epoll::{self};

use crate::attention::Attention;
use crate::link::Presence;
use crate::meeting::{self, Stage};
use crate::rail::{BELL, Entry, LISTENER, PROCESS, RING, ShmRail};
use crate::socket;

/// The interval at which the kernel is asked for news while the rail is polled without sleep. The second one applies
/// while links rest, whose bells are such news.
const EVENTS_AFTER: Duration = Duration::from_micros(200);
const EVENTS_AFTER_RESTING: Duration = Duration::from_micros(20);
const EVENTS_PER_POLL: usize = 64;

impl ShmRail {
    /// Takes the news of the kernel: rings, connects, notes, deaths.
    #[cold]
    pub(super) fn take_events(&mut self, now: Time) -> bool {
        self.events_due = false;
        self.events_by = now + if self.resting > 0 { EVENTS_AFTER_RESTING } else { EVENTS_AFTER };
        self.polls = 0;
        self.common.counters.system_calls += 1;
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_POLL];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&at_once)) else {
            return false;
        };
        let mut worked = false;
        self.events_due = events.len() == EVENTS_PER_POLL;
        for event in events.iter() {
            match event.data.u64() {
                BELL => {
                    self.common.counters.system_calls += 1;
                    let _ = rustix::io::read(&*self.common.rest.bell, &mut [0u8; 8]);
                }
                LISTENER => worked |= self.accept(now),
                name if name & RING != 0 => self.rung(SlotId::from_u64(name & !RING)),
                name => {
                    let slot = SlotId::from_u64(name & !PROCESS);
                    self.take_news(slot, name & PROCESS != 0);
                    self.attend(slot);
                    worked = true;
                }
            }
        }
        worked
    }

    /// Something happened to a link's socket or process.
    fn take_news(&mut self, slot: SlotId, process: bool) {
        let Some(entry) = self.links.get_mut(slot) else { return };
        match entry {
            Entry::Up(link) => {
                let Presence::Socket { socket, process: pidfd } = &link.parts().presence else {
                    return;
                };
                let news = if process { socket::Received::Broken } else { socket::receive(socket) };
                match news {
                    socket::Received::Nothing => {}
                    socket::Received::Broken => {
                        // Level-triggered, an end would be news for ever.
                        let _ = epoll::delete(&self.epoll, socket);
                        if let Some(pidfd) = pidfd {
                            let _ = epoll::delete(&self.epoll, pidfd);
                        }
                        link.peer_gone();
                    }
                    socket::Received::Note(..) => link.break_off(Fault::Protocol),
                }
            }
            Entry::Meeting(meeting) => {
                let stage = std::mem::replace(&mut meeting.stage, Stage::Failed);
                let accepted = matches!(stage, Stage::Hello { .. } | Stage::Confirm { .. });
                let outcome = meeting::proceed(stage, &self.host());
                self.settle(slot, outcome, accepted);
            }
        }
    }

    /// A link's bell rang.
    fn rung(&mut self, slot: SlotId) {
        // If the link has no frames, the bell rang for a frame that was seen without it.
        if matches!(self.links.get(slot), Some(Entry::Up(link)) if link.has_frames()) {
            self.look_at(slot);
        }
    }

    /// Looks at a link that does not wait for frames alone.
    #[cold]
    pub(super) fn attend(&mut self, slot: SlotId) {
        if matches!(self.links.get(slot), Some(Entry::Up(link)) if !link.is_quiet()) {
            self.look_at(slot);
        }
    }

    fn look_at(&mut self, slot: SlotId) {
        let now = self.now;
        if let Some(Entry::Up(link)) = self.links.get_mut(slot)
            && link.is_resting()
        {
            link.end_rest();
            link.note_active(now);
            self.resting -= 1;
            self.attention.add(slot);
        }
    }

    /// Sends links to rest on which nothing happened for a while, where there are many.
    #[cold]
    pub(super) fn rest_idle(&mut self, now: Time) {
        let Self { links, attention, common, resting, .. } = self;
        attention.decide(now);
        let all = attention.links().len();
        let mut sent = 0;
        for slot in attention.links() {
            let Some(Entry::Up(link)) = links.get_mut(*slot) else { continue };
            let others = all - sent - 1;
            if link.is_quiet() && Attention::may_rest(now.since(link.active()), others) {
                link.begin_rest();
                sent += 1;
            }
        }
        if sent == 0 {
            return;
        }
        common.rest.barrier();
        attention.retain(|slot| {
            let Some(Entry::Up(link)) = links.get_mut(slot) else { return true };
            if link.is_resting() && link.has_frames() {
                // They came before the peer could know that it has to ring.
                link.end_rest();
                link.note_active(now);
            }
            *resting += usize::from(link.is_resting());
            !link.is_resting()
        });
    }
}
