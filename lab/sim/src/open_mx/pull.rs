//! Pulls of the driver: transfers of blocks, each of so many frames, and the timers of both.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{Dialect, Pull, PullReply};

use super::{BLOCKS_MAX, PULL_AFTER, Status};

/// Handles of an endpoint; the upper 10 bits of a handle are its slot.
const SLOTS: usize = 1024;
const GENERATION_BITS: u32 = 22;
/// The generation that a slot begins with.
const GENERATION_FIRST: u32 = 0x23;

/// A pull to start: its source and its length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// The library's name for it.
    pub tag: u64,
    /// The owner: a peer's index and its endpoint, and the session that it shall have.
    pub peer: u16,
    pub endpoint: u8,
    pub session: u32,
    pub region: u8,
    pub region_sequence: u8,
    pub region_offset: u16,
    pub bytes: u32,
}

/// A transfer that ended, with its data or status.
#[derive(Debug)]
pub(super) struct Fetched {
    pub tag: u64,
    pub outcome: Result<Vec<u8>, Status>,
}

/// Frames that were asked for together.
#[derive(Debug)]
struct Block {
    frame: u32,
    frames: u32,
    first_offset: u32,
    bytes: u32,
    /// A bit for each frame that has not come.
    missing: u64,
    asked_again: bool,
}

/// A transfer under way.
#[derive(Debug)]
struct Transfer {
    wanted: Wanted,
    handle: u32,
    data: Vec<u8>,
    blocks: VecDeque<Block>,
    /// The beginning of the next block: its frame, and the number of bytes requested before it.
    frame: u32,
    asked: u32,
    /// When something new came, and when everything was asked for again.
    heard: Time,
    repeated: Time,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    transfer: Option<Transfer>,
}

/// All transfers of an endpoint.
#[derive(Debug)]
pub(super) struct Pulls {
    endpoint: u8,
    dialect: Dialect,
    give_up_after: Duration,
    slots: Vec<Slot>,
    free: VecDeque<usize>,
    busy: BTreeSet<usize>,
    /// Pulls that are to be sent, with the peer's index.
    pub orders: Vec<(u16, Pull)>,
    pub fetched: VecDeque<Fetched>,
    pub blocks_again: u64,
}

impl Pulls {
    pub fn new(endpoint: u8, dialect: Dialect, give_up_after: Duration) -> Pulls {
        let slot = |_| Slot { generation: GENERATION_FIRST, transfer: None };
        Pulls {
            endpoint,
            dialect,
            give_up_after,
            slots: (0..SLOTS).map(slot).collect(),
            free: (0..SLOTS).collect(),
            busy: BTreeSet::new(),
            orders: Vec::new(),
            fetched: VecDeque::new(),
            blocks_again: 0,
        }
    }

    /// Begins a transfer of at least one byte; false if no handle is free.
    pub fn begin(&mut self, wanted: Wanted, now: Time) -> bool {
        let Some(slot) = self.free.pop_front() else { return false };
        let handle = (slot as u32) << GENERATION_BITS | self.slots[slot].generation;
        let mut transfer = Transfer {
            wanted,
            handle,
            data: vec![0; wanted.bytes as usize],
            blocks: VecDeque::new(),
            frame: 0,
            asked: 0,
            heard: now,
            repeated: now,
        };
        self.ask_on(&mut transfer);
        self.slots[slot].transfer = Some(transfer);
        self.busy.insert(slot);
        true
    }

    /// Gives a transfer up.
    pub fn abort(&mut self, tag: u64) {
        let named = |slot: &Slot| slot.transfer.as_ref().is_some_and(|it| it.wanted.tag == tag);
        if let Some(slot) = self.slots.iter().position(named) {
            self.end(slot);
        }
        self.fetched.retain(|fetched| fetched.tag != tag);
    }

    /// The owner refused.
    pub fn refused(&mut self, handle: u32, status: Status) -> bool {
        let Some(slot) = self.find(handle) else { return false };
        self.finish(slot, Err(status));
        true
    }

    /// A piece came; false if it fits nowhere, or came before.
    pub fn reply(&mut self, reply: PullReply, bytes: &[u8], now: Time) -> bool {
        let Some(slot) = self.find(reply.handle) else { return false };
        let Some(mut transfer) = self.slots[slot].transfer.take() else { return false };
        let Some((position, bit)) = transfer.place(reply, bytes, self.dialect) else {
            self.slots[slot].transfer = Some(transfer);
            return false;
        };
        transfer.heard = now;
        transfer.blocks[position].missing &= !bit;
        let complete = transfer.blocks[position].missing == 0;
        if complete && position == 0 {
            while transfer.blocks.front().is_some_and(|block| block.missing == 0) {
                transfer.blocks.pop_front();
            }
            self.ask_on(&mut transfer);
        } else if complete {
            // A later block was faster: the earlier ones have probably lost something.
            for earlier in 0..position {
                let block = &mut transfer.blocks[earlier];
                if block.missing != 0 && !std::mem::replace(&mut block.asked_again, true) {
                    self.blocks_again += 1;
                    self.orders.push(transfer.order(earlier, self.endpoint));
                }
            }
        }
        let over = transfer.blocks.is_empty();
        self.slots[slot].transfer = Some(transfer);
        if over {
            self.finish(slot, Ok(()));
        }
        true
    }

    /// Requests frames again that have not come for long, and gives up transfers that have not gone on for very long.
    pub fn advance(&mut self, now: Time) {
        for slot in self.busy.clone() {
            let Some(mut transfer) = self.slots[slot].transfer.take() else { continue };
            let over = transfer.heard + self.give_up_after <= now;
            if !over && transfer.due() <= now {
                transfer.repeated = now;
                for position in 0..transfer.blocks.len() {
                    if transfer.blocks[position].missing != 0 {
                        self.blocks_again += 1;
                        self.orders.push(transfer.order(position, self.endpoint));
                    }
                }
            }
            self.slots[slot].transfer = Some(transfer);
            if over {
                self.finish(slot, Err(Status::Timeout));
            }
        }
    }

    pub fn deadline(&self) -> Time {
        let busy = self.busy.iter();
        let transfers = busy.filter_map(|slot| self.slots[*slot].transfer.as_ref());
        let due = |it: &Transfer| it.due().min(it.heard + self.give_up_after);
        transfers.map(due).min().unwrap_or(Time::NEVER)
    }

    fn find(&self, handle: u32) -> Option<usize> {
        let slot = (handle >> GENERATION_BITS) as usize;
        let at = self.slots.get(slot)?;
        at.transfer.as_ref().filter(|transfer| transfer.handle == handle)?;
        Some(slot)
    }

    fn finish(&mut self, slot: usize, outcome: Result<(), Status>) {
        if let Some(Transfer { wanted, data, .. }) = self.end(slot) {
            let outcome = outcome.map(|()| data);
            self.fetched.push_back(Fetched { tag: wanted.tag, outcome });
        }
    }

    /// Takes a transfer out; its slot goes to the end of the row.
    fn end(&mut self, slot: usize) -> Option<Transfer> {
        let at = &mut self.slots[slot];
        at.generation = (at.generation + 1) % (1 << GENERATION_BITS);
        self.free.push_back(slot);
        self.busy.remove(&slot);
        at.transfer.take()
    }

    /// Asks for more blocks, up to as many as may be under way.
    fn ask_on(&mut self, transfer: &mut Transfer) {
        let piece = self.dialect.reply_bytes();
        while transfer.blocks.len() < BLOCKS_MAX && transfer.asked < transfer.wanted.bytes {
            let offset = u32::from(transfer.wanted.region_offset) % piece;
            let first_offset = if transfer.frame == 0 { offset } else { 0 };
            let most = self.dialect.replies_per_block() * piece - first_offset;
            let bytes = most.min(transfer.wanted.bytes - transfer.asked);
            let frames = (first_offset + bytes).div_ceil(piece);
            let missing = u64::MAX >> (64 - frames);
            let frame = transfer.frame;
            let block = Block { frame, frames, first_offset, bytes, missing, asked_again: false };
            transfer.blocks.push_back(block);
            transfer.frame += frames;
            transfer.asked += bytes;
            self.orders.push(transfer.order(transfer.blocks.len() - 1, self.endpoint));
        }
    }
}

impl Transfer {
    fn due(&self) -> Time {
        self.heard.max(self.repeated) + PULL_AFTER
    }

    /// Puts a piece where it belongs: which block, and which bit of it.
    fn place(&mut self, reply: PullReply, bytes: &[u8], dialect: Dialect) -> Option<(usize, u64)> {
        let first = self.blocks.front()?.frame;
        let frame = first + u32::from(reply.frame.wrapping_sub(first as u8));
        // A frame number that wrapped around is not mistaken for an awaited one.
        if reply.offset.div_ceil(dialect.reply_bytes()) != frame {
            return None;
        }
        let holds = |block: &Block| (block.frame..block.frame + block.frames).contains(&frame);
        let position = self.blocks.iter().position(holds)?;
        let bit = 1 << (frame - self.blocks[position].frame);
        if self.blocks[position].missing & bit == 0 {
            return None;
        }
        let begin = reply.offset as usize;
        self.data.get_mut(begin..begin + bytes.len())?.copy_from_slice(bytes);
        Some((position, bit))
    }

    fn order(&self, position: usize, endpoint: u8) -> (u16, Pull) {
        let (wanted, block) = (&self.wanted, &self.blocks[position]);
        let pull = Pull {
            to: wanted.endpoint,
            from: endpoint,
            session: wanted.session,
            total_bytes: wanted.bytes,
            region: wanted.region.into(),
            region_sequence: wanted.region_sequence,
            region_offset: wanted.region_offset.into(),
            handle: self.handle,
            magic: Pull::magic_of(endpoint),
            first_offset: block.first_offset,
            block_bytes: block.bytes,
            frame: block.frame,
        };
        (wanted.peer, pull)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::mxoe::Order;

    use super::*;

    const NOW: Time = Time(1);

    fn wanted(bytes: u32, region_offset: u16) -> Wanted {
        let (tag, session) = (1, 2);
        let (peer, endpoint, region, region_sequence) = (1, 3, 0, 23);
        Wanted { tag, peer, endpoint, session, region, region_sequence, region_offset, bytes }
    }

    fn pulls() -> Pulls {
        Pulls::new(3, Dialect::native(1500, Order::Big).unwrap(), Duration::from_secs(500))
    }

    /// Answers a pull's frames with zeroes.
    fn answer(pulls: &mut Pulls, pull: Pull, which: impl Fn(u32) -> bool) {
        let piece = 1468;
        let shift = pull.region_offset % piece;
        let mut offset = pull.frame * piece + pull.first_offset - shift;
        let end = offset + pull.block_bytes;
        let mut frame = pull.frame;
        while offset < end {
            let room = if frame == pull.frame { piece - pull.first_offset } else { piece };
            let len = room.min(end - offset);
            let reply =
                PullReply { frame: frame as u8, offset, handle: pull.handle, magic: pull.magic };
            if which(frame) {
                assert!(pulls.reply(reply, &vec![0; len as usize], NOW), "{frame} {offset}");
                assert!(!pulls.reply(reply, &vec![0; len as usize], NOW), "twice");
            }
            (offset, frame) = (offset + len, frame + 1);
        }
    }

    #[test]
    fn blocks_begin_where_those_before_them_end_also_with_an_offset() {
        for offset in [0u16, 1, 100, 1467, 1468, 4000] {
            let mut pulls = pulls();
            assert!(pulls.begin(wanted(300_000, offset), NOW));
            let mut blocks = 0;
            while let Some((_, pull)) = (!pulls.orders.is_empty()).then(|| pulls.orders.remove(0)) {
                answer(&mut pulls, pull, |_| true);
                blocks += 1;
            }
            assert_eq!(blocks, 7, "300,000 bytes are 6 blocks and a piece");
            let fetched = pulls.fetched.pop_front().unwrap();
            assert_eq!(fetched.outcome.unwrap().len(), 300_000);
        }
    }

    #[test]
    fn a_later_block_asks_once_for_an_earlier_one_and_the_timer_for_all() {
        let mut pulls = pulls();
        assert!(pulls.begin(wanted(150_000, 0), NOW));
        let asked: Vec<Pull> = pulls.orders.drain(..).map(|(_, pull)| pull).collect();
        assert_eq!(asked.len(), 4);
        answer(&mut pulls, asked[0], |frame| frame != 5);
        answer(&mut pulls, asked[1], |_| true);
        assert_eq!(pulls.orders.drain(..).map(|(_, pull)| pull).collect::<Vec<_>>(), [asked[0]]);
        answer(&mut pulls, asked[2], |_| true);
        assert!(pulls.orders.is_empty(), "once");
        assert_eq!(pulls.deadline(), NOW + PULL_AFTER);
        pulls.advance(NOW + PULL_AFTER);
        let again: Vec<Pull> = pulls.orders.drain(..).map(|(_, pull)| pull).collect();
        assert_eq!(again, [asked[0], asked[3]]);
        answer(&mut pulls, again[0], |frame| frame == 5);
        answer(&mut pulls, again[1], |_| true);
        assert_eq!(pulls.fetched.len(), 1);
    }

    #[test]
    fn handles_go_round_and_then_have_another_generation() {
        let mut pulls = pulls();
        let mut next = || {
            assert!(pulls.begin(wanted(10, 0), NOW));
            let (_, pull) = pulls.orders.pop().unwrap();
            answer(&mut pulls, pull, |_| true);
            pull.handle
        };
        assert_eq!([next(), next(), next()], [0x23, 0x40_0023, 0x80_0023]);
        let later: Vec<u32> = (3..SLOTS + 1).map(|_| next()).collect();
        assert_eq!(later.last(), Some(&0x24));
    }
}
