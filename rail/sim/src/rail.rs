//! One simulated rail, as an endpoint owns it.
//!
//! Invariant: the network's lock is never held while the owner is called, so that a report may lead
//! to anything but a call into this very rail.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, Help, LinkId, Ordered, Placement, RailCounters, Token, Verb,
};
use ropewalk_rail::{Rail, Report, frame_lengths};

use crate::access::AccessOrder;
use crate::config::{Kill, SimConfig};
use crate::network::{Frame, Item, Network};
use crate::{SimNetwork, lock};

/// Items that one poll reports at most.
const POLL_ITEMS_MAX: usize = 256;

/// The presence of one process in a [`SimNetwork`]. Dropping it is the death of the process: peers
/// see their links go down. After a kill it answers every call as a closed rail would.
#[derive(Debug)]
pub struct SimRail {
    network: SimNetwork,
    name: String,
    config: SimConfig,
    /// The name's index in the network.
    number: usize,
    /// The number of this process among those under this name.
    life: u64,
    /// The destinations of payloads of which the first half has arrived.
    placing: BTreeMap<LinkId, (Slice, Token)>,
}

impl SimRail {
    pub(crate) fn new(network: SimNetwork, name: &str, config: SimConfig) -> SimRail {
        let (number, life) = lock(&network.shared).start_rail(name, config.clone());
        let name = name.to_string();
        SimRail { network, name, config, number, life, placing: BTreeMap::new() }
    }

    /// Its name, which is its address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `action` on the network while this process lives.
    fn with<R>(&self, action: impl FnOnce(&mut Network) -> R) -> Option<R> {
        let mut network = lock(&self.network.shared);
        let rail = &network.rails[self.number];
        let lives = rail.alive && rail.life == self.life;
        lives.then(|| action(&mut network))
    }

    fn report(&mut self, item: Item, report: &mut dyn Report) {
        match item {
            Item::Up { link, accepted } => report.link_up(link, accepted),
            Item::Down { link, fault } => {
                self.placing.remove(&link);
                self.with(|network| network.rails[self.number].links.remove(link.slot));
                report.link_down(link, fault);
            }
            Item::Whole { link, frame } => {
                if let Some((slice, token)) = self.place(link, &frame, report) {
                    report.buffers().write(slice, &frame.payload);
                    report.received(link, token);
                }
            }
            Item::Head { link, frame } => self.take_head(link, &frame, report),
            Item::Tail { link, frame } => self.take_tail(link, &frame, report),
            Item::Done { token, held } => {
                self.check_held(held, report);
                report.done(token);
            }
            Item::Failed { token, held, fault } => {
                self.check_held(held, report);
                report.failed(token, fault);
            }
            Item::Access { connection, side, access } => {
                let region = self.with(|network| network.region_of(connection, side, &access));
                let Some(region) = region.flatten() else {
                    self.with(|network| network.refuse_access(connection, side, &access));
                    return;
                };
                self.check_held(region, report);
                let outcome = access.carry_out(region, report.buffers());
                self.with(|network| network.finish_access(connection, side, &access, outcome));
            }
            Item::Answer { token, local, data } => {
                self.check_held(local, report);
                report.buffers().write(local, &data);
                report.done(token);
            }
            Item::Revoked { link, key } => report.revoked(link, key),
        }
    }

    /// Asks where a frame's payload belongs; `None` where it belongs nowhere.
    fn place(
        &mut self,
        link: LinkId,
        frame: &Arc<Frame>,
        report: &mut dyn Report,
    ) -> Option<(Slice, Token)> {
        let (header, payload) = (frame.header.as_bytes(), frame.payload.len());
        // On a rail that corrupts, the lengths may be wrong: if they do not fit together, it is no frame.
        if frame_lengths(header) != Some((header.len(), payload as u32)) {
            self.with(|network| network.rails[self.number].counters.violations += 1);
            return None;
        }
        self.with(|network| {
            let counters = &mut network.rails[self.number].counters;
            counters.frames_received += 1;
            counters.bytes_received += frame.bytes();
        });
        match report.place(link, header, payload as u32) {
            Placement::Into { slice, token } => {
                assert!(payload > 0, "a frame without payload was given a place");
                self.check_held(slice, report);
                Some((slice, token))
            }
            Placement::Drop => None,
            Placement::Stage { .. } => panic!("the layer above turns Stage into Into"),
            Placement::Violation(_) => {
                self.with(|network| {
                    network.discard_frames(self.number, link);
                    let found = network.rails[self.number].links.get(link.slot).copied();
                    if let Some((connection, side)) = found {
                        network.hang_up(connection, side, Fault::Protocol);
                    }
                });
                None
            }
        }
    }

    fn take_head(&mut self, link: LinkId, frame: &Arc<Frame>, report: &mut dyn Report) {
        if let Some((slice, token)) = self.place(link, frame, report) {
            report.buffers().write(slice, &frame.payload[..frame.payload.len() / 2]);
            self.placing.insert(link, (slice, token));
        }
    }

    fn take_tail(&mut self, link: LinkId, frame: &Arc<Frame>, report: &mut dyn Report) {
        let Some((slice, token)) = self.placing.remove(&link) else { return };
        self.check_held(slice, report);
        let half = frame.payload.len() / 2;
        if slice.len > half as u64 {
            let rest = slice.part(half as u64, slice.len - half as u64);
            report.buffers().write(rest, &frame.payload[half..]);
        }
        report.received(link, token);
    }

    /// Forgets where the rest of a payload belongs.
    fn unplace(&mut self, link: LinkId, token: Token) -> Ordered {
        if self.placing.get(&link).is_none_or(|(_, placed)| *placed != token) {
            return Ordered::Refused(Fault::Invalid);
        }
        self.placing.remove(&link);
        Ordered::Released
    }

    /// Breaks off where a buffer was given back that this rail still holds.
    fn check_held(&self, slice: Slice, report: &dyn Report) {
        let alive = slice.len == 0 || report.buffers().get(slice.buffer).is_some();
        assert!(
            alive || !self.config.strict_buffers,
            "a buffer was given back while rail {} held it: {slice:?}",
            self.name
        );
    }
}

impl Rail for SimRail {
    fn scheme(&self) -> &'static str {
        "sim"
    }

    fn attach(&mut self, index: u8) {
        self.with(|network| network.rails[self.number].index = index);
    }

    fn capabilities(&self) -> Capabilities {
        self.config.capabilities
    }

    fn addresses(&self) -> Vec<String> {
        if self.config.accepts { vec![self.name.clone()] } else { Vec::new() }
    }

    fn connect(&mut self, address: &str, now: Time) -> Result<LinkId, Fault> {
        if address.is_empty() {
            return Err(Fault::Invalid);
        }
        let begun = self.with(|network| {
            network.advance(now);
            network.connect(self.number, address)
        });
        begun.unwrap_or(Err(Fault::Closed))
    }

    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        let number = self.number;
        let outcome = self.with(|network| network.order_frame(number, frame, buffers));
        outcome.unwrap_or(Ordered::Refused(Fault::Closed))
    }

    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let number = self.number;
        if let Verb::CancelReceive { link, token } = verb {
            return self.unplace(*link, *token);
        }
        let outcome = self.with(|network| match verb.clone() {
            Verb::Read { help: Help::Possible | Help::PreferPush, .. }
                if network.random.below(4) == 0 =>
            {
                Ordered::Refused(Fault::NotPermitted)
            }
            Verb::Read { link, key, remote, local, token, .. } => {
                let order = AccessOrder { link, key, remote, local, token, write: false };
                network.order_access(number, order, buffers)
            }
            Verb::Write { link, key, remote, local, token } => {
                let order = AccessOrder { link, key, remote, local, token, write: true };
                network.order_access(number, order, buffers)
            }
            Verb::Expose { link, key, region, writable } => {
                network.order_expose(number, link, key, region, writable)
            }
            Verb::Revoke { link, key } => network.order_revoke(number, link, key),
            Verb::DetachSend { link, token, later } => {
                network.let_go(number, link, token, Some(later))
            }
            Verb::SkipSend { link, token } => {
                network.let_go(number, link, token, Some(Token::NONE))
            }
            Verb::CancelAccess { link, token } => network.let_go(number, link, token, None),
            Verb::CancelReceive { .. } => unreachable!("answered above"),
            Verb::Close { link } => network.order_close(number, link),
        });
        outcome.unwrap_or(Ordered::Refused(Fault::Closed))
    }

    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool {
        self.with(|network| network.advance(now));
        let mut any = false;
        for _ in 0..POLL_ITEMS_MAX {
            let item = self.with(|network| network.pop(self.number)).flatten();
            let Some(item) = item else { break };
            any = true;
            self.report(item, report);
        }
        any
    }

    fn arm(&mut self) -> bool {
        let idle = self.with(|network| network.rails[self.number].inbox.is_empty());
        idle.unwrap_or(true)
    }

    fn disarm(&mut self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<Time> {
        self.with(|network| {
            let idle = network.rails[self.number].inbox.is_empty();
            if idle { network.next_event() } else { Some(network.now) }
        })
        .flatten()
    }

    fn abandon(&mut self, link: LinkId) -> bool {
        let number = self.number;
        let ended = self.with(|network| {
            let found = network.find_end(number, link).ok();
            found.map(|(id, side)| network.hang_up(id, side, Fault::Closed)).is_some()
        });
        ended.unwrap_or(false)
    }

    fn health(&mut self, link: LinkId, now: Time) -> Option<Health> {
        let health = self.with(|network| {
            network.advance(now);
            network.health(self.number, link)
        });
        health.flatten()
    }

    /// Each rail of the network has an address: the first one of that name is 10.0.0.1.
    fn peer_host(&self, link: LinkId) -> Option<String> {
        let number = self.with(|network| {
            let (connection, side) = network.find_end(self.number, link).ok()?;
            Some(network.connections.get(&connection)?.ends[1 - side].rail)
        });
        let number = u32::try_from(number.flatten()?).ok()?;
        Some(Ipv4Addr::from(0x0a00_0001_u32.checked_add(number)?).to_string())
    }

    fn counters(&self) -> RailCounters {
        self.with(|network| network.rails[self.number].counters).unwrap_or_default()
    }
}

impl Drop for SimRail {
    fn drop(&mut self) {
        self.with(|network| network.kill(self.number, Kill::Process(Duration::ZERO)));
    }
}
