//! The reports of a rail's packet protocol to the layer above.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::payload::Sealing;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{ForeignEnd, ForeignMessage, LinkId, Placement, RemoteKey, Token};
use ropewalk_rail::Report;
use ropewalk_transport::{Bytes, LinkEvents, Taken, Who};

use crate::mtu::MtuMonitor;

/// Memory of the table, for the machine.
pub(crate) struct Table<'a>(pub &'a BufferTable);

impl Bytes for Table<'_> {
    fn read(&self, from: Slice, to: &mut [u8]) {
        self.try_read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        self.0.write(to, from);
    }

    fn try_read(&self, from: Slice, to: &mut [u8]) -> bool {
        let read = self.0.try_read(from, to);
        // Memory that was given up reads as zeros; nobody waits for it any more.
        to[read.unwrap_or_else(|gone| gone.done)..].fill(0);
        read.is_ok()
    }

    fn try_write(&self, to: Slice, from: &[u8]) -> bool {
        self.0.try_write(to, from).is_ok()
    }
}

/// The layer above, for the machine.
pub(crate) struct PacketEvents<'a> {
    pub(crate) index: u8,
    pub(crate) report: &'a mut dyn Report,
    pub(crate) links_up: &'a mut u64,
    pub(crate) links_down: &'a mut u64,
    pub(crate) mtu: &'a mut MtuMonitor,
    /// Something was reported, which may be all that happened in a pass.
    pub(crate) told: bool,
}

impl PacketEvents<'_> {
    fn id(&self, slot: SlotId) -> LinkId {
        LinkId { rail: self.index, slot }
    }
}

impl Bytes for PacketEvents<'_> {
    fn read(&self, from: Slice, to: &mut [u8]) {
        Table(self.report.buffers()).read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        Table(self.report.buffers()).write(to, from);
    }

    fn try_read(&self, from: Slice, to: &mut [u8]) -> bool {
        Table(self.report.buffers()).try_read(from, to)
    }

    fn try_write(&self, to: Slice, from: &[u8]) -> bool {
        Table(self.report.buffers()).try_write(to, from)
    }
}

impl<S: Hash> LinkEvents<S> for PacketEvents<'_> {
    fn link_up(&mut self, link: SlotId, accepted: bool) {
        *self.links_up += 1;
        self.told = true;
        self.report.link_up(self.id(link), accepted);
    }

    fn foreign_up(&mut self, link: SlotId, who: Who<S>, accepted: bool) {
        *self.links_up += 1;
        self.told = true;
        self.mtu.up(link);
        // The same for the same endpoint, as long as this process lives.
        let Who { station, endpoint, .. } = who;
        let hash = |salt: u8| u128::from(NAMES.hash_one((salt, &station, endpoint)));
        let (id, name) = (self.id(link), hash(0) << 64 | hash(1) | 1);
        if let Some(foreign) = self.report.foreign() {
            foreign.up(id, name, accepted);
        }
    }

    fn key_judged(&mut self, link: SlotId, key: u32, right: bool) {
        self.told = true;
        let id = self.id(link);
        if let Some(foreign) = self.report.foreign() {
            foreign.key_judged(id, key, right);
        }
    }

    fn link_down(&mut self, link: SlotId, fault: Fault) {
        *self.links_down += 1;
        self.told = true;
        let fault = self.mtu.down(link, fault);
        self.report.link_down(self.id(link), fault);
    }

    fn place(&mut self, link: SlotId, header: &[u8], payload_bytes: u32) -> Placement {
        self.report.place(self.id(link), header, payload_bytes)
    }

    fn sealing(&mut self, link: SlotId) -> Sealing {
        self.report.sealing(self.id(link))
    }

    fn arrived(&mut self, link: SlotId, header: &[u8], payload: &[u8]) -> bool {
        match self.report.place_whole(self.id(link), header, payload.len() as u32) {
            Placement::Into { slice, token } => {
                match self.report.buffers().try_write(slice, payload) {
                    Ok(_) => self.report.received(self.id(link), token),
                    Err(_) => self.report.unplaced(self.id(link), token),
                }
                true
            }
            Placement::Drop => true,
            Placement::Violation(_) => false,
            Placement::Stage { .. } => unreachable!("the layer above turns staging into a place"),
        }
    }

    fn message(&mut self, link: SlotId, message: ForeignMessage, whole: bool) -> Taken {
        self.told = true;
        let id = self.id(link);
        let Some(foreign) = self.report.foreign() else { return Taken::Nothing };
        match foreign.message(id, message, whole) {
            None => Taken::Later,
            Some(Placement::Into { slice, token }) => Taken::Into { slice, token },
            Some(Placement::Drop | Placement::Violation(_)) => Taken::Nothing,
            Some(Placement::Stage { .. }) => {
                unreachable!("the layer above turns staging into a place")
            }
        }
    }

    fn finished(&mut self, link: SlotId, end: ForeignEnd) {
        self.told = true;
        let id = self.id(link);
        if let Some(foreign) = self.report.foreign() {
            foreign.ended(id, end);
        }
    }

    fn received(&mut self, link: SlotId, token: Token) {
        self.told = true;
        self.report.received(self.id(link), token);
    }

    fn unplaced(&mut self, link: SlotId, token: Token) {
        self.told = true;
        self.report.unplaced(self.id(link), token);
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        self.told = true;
        match self.mtu.ended(token, outcome) {
            Ok(()) => self.report.done(token),
            Err(fault) => self.report.failed(token, fault),
        }
    }

    fn revoked(&mut self, link: SlotId, key: RemoteKey) {
        self.told = true;
        self.report.revoked(self.id(link), key);
    }
}

/// Names of foreign endpoints are made by it.
static NAMES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
