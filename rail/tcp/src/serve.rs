//! The pass that serves all links: deadlines, the hot link, and the links that the epoll set names.
//!
//! A caller that spins gets its answer from one `recv` on the link that had all recent traffic; every
//! few passes, and always where there is no such link, the epoll set is asked for the others.
//!
//! Invariants: a pass does a bounded amount of work, and hears all of some hundreds of links that have little to say (with a
//! few of them a pass, who drives many endpoints in turn would make more rounds the more there are, and each would be longer);
//! a link that ends is reported once, after the outcomes of its orders, and its socket is closed by then.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Suspicion;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;
use ropewalk_rail::Report;
use ropewalk_rail::host::is_of_path;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::link::{Link, State};
use crate::rail::{INTERFACES, LISTENER, LOOKUPS, QUIET_PASSES, TcpRail};
use crate::receive::Receiver;
use crate::sealed::IN_BYTES;
use crate::send::{self, Flushed};
use crate::socket;

/// Events of one look at the epoll set.
const EVENTS: usize = 64;
/// A pass looks again after a look that was full, so often at most, and until so many bytes have come.
const LOOKS_MAX: usize = 8;
const PASS_BYTES_MAX: u64 = 4 << 20;
/// Links accepted in one poll.
const ACCEPTS_MAX: usize = 32;
/// Passes over the hot link for each look at the epoll set.
const PASSES_PER_WAIT: u32 = 16;
/// The pause in accepting after descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl TcpRail {
    /// One pass; true where anything happened.
    pub(crate) fn pass(&mut self, now: Time, report: &mut dyn Report) -> bool {
        self.now = now;
        let mut progress = self.expire(report);
        if self.stalls.due() <= now {
            progress |= self.look_for_stalls(report);
        }
        if let Some(change) = self.watch.poll(now) {
            progress |= self.suspect_all(&change, report);
        }
        while let Some((slot, fault)) = self.stillborn.pop() {
            progress |= self.down(slot, fault, report);
        }
        if std::mem::take(&mut self.guesses)
            && let Some(hot) = self.hot
            && self.waiting_for_room == 0
            && self.receive(hot, report)
        {
            return true;
        }
        self.passes_since_wait = self.passes_since_wait.saturating_add(1);
        if let Some(hot) = self.hot
            && self.passes_since_wait < PASSES_PER_WAIT
            && self.quiet_passes < QUIET_PASSES
            && self.waiting_for_room == 0
        {
            return self.receive(hot, report) || progress;
        }
        self.serve_events(report) || progress
    }

    /// Serves everybody whom the epoll set names, each for a bounded turn.
    fn serve_events(&mut self, report: &mut dyn Report) -> bool {
        self.passes_since_wait = 0;
        let before = self.counters.bytes_received;
        let mut progress = false;
        for _ in 0..LOOKS_MAX {
            let (served, is_full) = self.serve_some(report);
            progress |= served;
            if !is_full || self.counters.bytes_received - before >= PASS_BYTES_MAX {
                break;
            }
        }
        progress
    }

    /// One look at the epoll set: whether anything happened, and whether there may be more.
    fn serve_some(&mut self, report: &mut dyn Report) -> (bool, bool) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.counters.system_calls += 1;
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) else {
            return (false, false);
        };
        let is_full = events.len() == EVENTS;
        let mut progress = false;
        for event in events {
            progress |= match event.data.u64() {
                INTERFACES => match self.watch.poll_woken(self.now, true) {
                    Some(change) => self.suspect_all(&change, report),
                    None => false,
                },
                LISTENER => self.accept(report),
                LOOKUPS => self.take_answers(report),
                name => self.serve(SlotId::from_u64(name), event.flags, report),
            };
        }
        (progress, is_full)
    }

    /// Serves one link.
    fn serve(&mut self, slot: SlotId, flags: EventFlags, report: &mut dyn Report) -> bool {
        let Some(link) = self.links.get(slot) else { return false };
        if link.state == State::Connecting {
            return self.finish_connect(slot, report);
        }
        let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut progress = false;
        if ended || flags.contains(EventFlags::IN) {
            progress = self.receive(slot, report);
            if progress {
                self.note_traffic(slot);
            }
        }
        // At the end of a link, data from before the end is read first, over several passes if need be; a failing
        // send would cut that short.
        if flags.contains(EventFlags::OUT) && !ended {
            progress |= self.flush(slot, report);
        }
        progress
    }

    fn note_traffic(&mut self, slot: SlotId) {
        self.hot = (self.last_traffic == Some(slot)).then_some(slot);
        self.last_traffic = Some(slot);
    }

    fn receive(&mut self, slot: SlotId, report: &mut dyn Report) -> bool {
        let id = self.id(slot);
        let Some(link) = self.links.get_mut(slot) else {
            self.hot = None;
            return false;
        };
        let buffer = match link.seal.sealed().is_some() {
            true => {
                self.sealed_buffer.resize(IN_BYTES, 0);
                &mut self.sealed_buffer[..]
            }
            false => &mut self.buffer[..],
        };
        let mut receiver = Receiver {
            buffer,
            counters: &mut self.counters,
            forged_records: &mut self.statistics.forged_records,
            spares: &mut self.spares,
            report: &mut *report,
        };
        match receiver.receive(id, link) {
            Ok(progress) => progress,
            Err(fault) => self.down(slot, fault, report),
        }
    }

    pub(crate) fn flush(&mut self, slot: SlotId, report: &mut dyn Report) -> bool {
        let Some(link) = self.links.get_mut(slot) else { return false };
        let flushed = send::flush(link, report, &mut self.counters, &mut self.spares);
        if let Some(stall) = &mut link.stall {
            self.stalls.sent(slot, stall, self.now);
        }
        match flushed {
            Ok(Flushed::All) => {
                if self.waits_for_room(slot) {
                    self.watch_room(slot, false);
                }
                self.finish_sending(slot);
                true
            }
            Ok(Flushed::Part) => {
                if !self.waits_for_room(slot) {
                    self.watch_room(slot, true);
                }
                true
            }
            Err(errno) => {
                if is_of_path(errno.raw_os_error()) {
                    report.suspect(self.id(slot), Suspicion::SendError(errno.raw_os_error()));
                }
                self.down(slot, Fault::PeerReset, report)
            }
        }
    }

    fn waits_for_room(&self, slot: SlotId) -> bool {
        self.links.get(slot).is_some_and(|link| link.wants_room)
    }

    /// Ends a link: the outcomes of its orders, then the last word.
    fn down(&mut self, slot: SlotId, fault: Fault, report: &mut dyn Report) -> bool {
        let Some(mut link) = self.links.remove(slot) else { return false };
        if self.hot == Some(slot) {
            self.hot = None;
        }
        self.waiting_for_room -= usize::from(link.wants_room);
        self.counters.links_down += u64::from(link.was_up());
        // Closing the socket takes it out of the epoll set.
        link.socket = None;
        for frame in link.outbound.frames() {
            if frame.token != Token::NONE {
                report.failed(frame.token, fault);
            }
        }
        report.link_down(self.id(slot), fault);
        // A descriptor is free again.
        if self.accept_again.is_some() {
            self.watch_listener(true);
        }
        true
    }

    fn finish_connect(&mut self, slot: SlotId, report: &mut dyn Report) -> bool {
        let Some(link) = self.links.get_mut(slot) else { return false };
        self.counters.system_calls += 3;
        if link.socket().is_some_and(socket::connected) {
            link.state = State::Up;
            link.candidates = Vec::new();
            if let Some(socket) = link.socket() {
                socket::tune(socket, &self.config);
            }
            let queued = !link.is_drained();
            self.watch_room(slot, queued);
            self.counters.links_up += 1;
            report.link_up(self.id(slot), false);
            return true;
        }
        link.socket = None;
        match self.dial(slot) {
            Ok(()) => true,
            Err(fault) => self.down(slot, fault, report),
        }
    }

    fn take_answers(&mut self, report: &mut dyn Report) -> bool {
        self.lookups.quiet();
        while let Some((whom, found)) = self.lookups.answer() {
            let slot = SlotId::from_u64(whom);
            let Some(link) = self.links.get_mut(slot) else { continue };
            link.candidates = found;
            if let Err(fault) = self.dial(slot) {
                self.down(slot, fault, report);
            }
        }
        true
    }

    fn accept(&mut self, report: &mut dyn Report) -> bool {
        let mut progress = false;
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { break };
            self.counters.system_calls += 1;
            match socket::accept(listener.socket.as_fd()) {
                Ok((socket, from)) => {
                    progress = true;
                    self.welcome(socket, from, report);
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The connection stays in the kernel's queue, and the listener readable: without
                    // a pause every waiter would spin on it.
                    self.statistics.accept_pauses += 1;
                    self.watch_listener(false);
                    report.crowded();
                    break;
                }
                Err(Errno::AGAIN) => break,
                // The peer gave up before it was accepted; the next may be fine.
                Err(_) => {}
            }
        }
        progress
    }

    fn welcome(&mut self, socket: OwnedFd, from: Option<IpAddr>, report: &mut dyn Report) {
        socket::tune(socket.as_fd(), &self.config);
        let mut link = Link::new(State::Up, Some(socket));
        link.accepted = true;
        let Ok(slot) = self.links.insert(link) else {
            self.statistics.accepts_refused += 1;
            return;
        };
        let link = self.links.get(slot).expect("inserted just now");
        let name = EventData::new_u64(slot.to_u64());
        let socket = link.socket.as_ref().expect("made with a socket");
        if epoll::add(&self.epoll, socket, name, EventFlags::IN).is_err() {
            self.links.remove(slot);
            self.statistics.accepts_refused += 1;
            return;
        }
        self.greetings.set(self.now, slot, 0);
        let links = &self.links;
        let silent = |slot| links.get(slot).is_some_and(|link| !link.greeted);
        self.greetings.sweep(links.len(), |timer| silent(timer.link));
        self.counters.links_up += 1;
        let link = self.id(slot);
        report.link_up(link, true);
        if let Some(from) = from {
            report.link_from(link, &socket::host_of(from));
        }
    }

    fn watch_listener(&mut self, wanted: bool) {
        let Some(listener) = &self.listener else { return };
        let interest = if wanted { EventFlags::IN } else { EventFlags::empty() };
        self.counters.system_calls += 1;
        // The listener is in the set as long as it lives, so that this cannot fail.
        let _ =
            epoll::modify(&self.epoll, &listener.socket, EventData::new_u64(LISTENER), interest);
        self.accept_again = if wanted { None } else { Some(self.now + ACCEPT_PAUSE) };
    }

    /// Ends links whose deadline has passed, and a pause in accepting that is over.
    fn expire(&mut self, report: &mut dyn Report) -> bool {
        let mut progress = false;
        while let Some(timer) = self.connects.pop(self.now) {
            if self.links.get(timer.link).is_some_and(|link| !link.was_up()) {
                progress |= self.down(timer.link, Fault::Unreachable, report);
            }
        }
        while let Some(timer) = self.greetings.pop(self.now) {
            if self.links.get(timer.link).is_some_and(|link| !link.greeted) {
                self.statistics.silent_links += 1;
                self.counters.violations += 1;
                progress |= self.down(timer.link, Fault::Protocol, report);
            }
        }
        while let Some(timer) = self.closes.pop(self.now) {
            let Some(link) = self.links.get(timer.link) else { continue };
            if link.state == State::Flushing && link.progress != timer.mark {
                self.closes.set(self.now, timer.link, link.progress);
            } else {
                progress |= self.down(timer.link, Fault::Closed, report);
            }
        }
        if self.accept_again.is_some_and(|again| again <= self.now) {
            self.watch_listener(true);
        }
        progress
    }
}
