//! Keeps a [`Table`] up to date by the kernel's messages: a dump first, then events, and a dump again where the kernel
//! had no room for an event.
//!
//! Invariants: one look takes a bounded number of datagrams; one dump runs at a time; nothing is taken for gone by a
//! dump during which something changed or was lost.

use rustix::io::Errno;

use super::netlink::{Event, Message, Messages, request_addresses, request_links};
use super::socket::Kernel;
use super::table::Table;

/// Datagrams of one look.
pub const DATAGRAMS_MAX: usize = 64;
/// Room for a datagram at first, which is the most that the kernel puts into one of a dump, and at most.
const BUFFER_BYTES: usize = 32 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Dumps in a row that were disturbed: where interfaces change all the time, no dump may ever be whole.
const DISTURBED_MAX: u32 = 8;

/// The kernel's messages cannot be followed any more: they break the format, there is too much of something, no dump is
/// ever whole, or the kernel refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// There is nothing more.
    Empty,
    /// There may be more.
    More,
}

/// The dump that runs, by the number of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dump {
    None,
    Links(u32),
    Addresses(u32),
}

#[derive(Debug)]
pub struct Feed<K> {
    kernel: K,
    table: Table,
    buffer: Vec<u8>,
    sequence: u32,
    dump: Dump,
    /// The table may lack something: a dump is needed, after the one that runs.
    needs_dump: bool,
    disturbed: u32,
    /// Dumps after the first one.
    dumped_again: u64,
}

impl<K: Kernel> Feed<K> {
    /// Begins a dump: looks come to its end.
    pub fn new(kernel: K) -> Result<Feed<K>, Broken> {
        let mut feed = Feed {
            kernel,
            table: Table::default(),
            buffer: vec![0; BUFFER_BYTES],
            sequence: 0,
            dump: Dump::None,
            needs_dump: false,
            disturbed: 0,
            dumped_again: 0,
        };
        feed.begin_dump()?;
        Ok(feed)
    }

    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    pub fn table(&self) -> &Table {
        &self.table
    }

    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    /// Whether the table has everything, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.dump == Dump::None && !self.needs_dump
    }

    /// The number of dumps after the first one.
    pub fn dumped_again(&self) -> u64 {
        self.dumped_again
    }

    /// Has a dump made: the table may lack something.
    pub fn dump_again(&mut self) {
        self.needs_dump = true;
    }

    /// Asks for an interface: the answer is among the next datagrams.
    pub fn ask(&mut self, index: u32) -> Result<(), Broken> {
        let request = request_links(Some(index), self.next_sequence());
        self.send(&request).map(drop)
    }

    /// Takes in the datagrams that have come.
    pub fn look(&mut self) -> Result<Looked, Broken> {
        for _ in 0..DATAGRAMS_MAX {
            match self.kernel.receive(&mut self.buffer) {
                Ok(Some(bytes)) if bytes > self.buffer.len() => self.grow(bytes)?,
                Ok(Some(bytes)) => self.handle_datagram(bytes)?,
                Ok(None) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.dump == Dump::None && self.needs_dump => {
                    self.dumped_again += 1;
                    self.begin_dump()?;
                    // The kernel refused for the moment.
                    if self.needs_dump {
                        return Ok(Looked::Empty);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Looked::Empty),
                Err(Errno::NOBUFS | Errno::NOMEM) => self.needs_dump = true,
                Err(_) => return Err(Broken),
            }
        }
        Ok(Looked::More)
    }

    /// A datagram was longer than there is room, and is lost.
    #[cold]
    fn grow(&mut self, bytes: usize) -> Result<(), Broken> {
        if bytes > BUFFER_BYTES_MAX {
            return Err(Broken);
        }
        self.buffer.resize(bytes, 0);
        self.needs_dump = true;
        // It may have been the end of a dump.
        self.dump = Dump::None;
        Ok(())
    }

    fn handle_datagram(&mut self, bytes: usize) -> Result<(), Broken> {
        let buffer = std::mem::take(&mut self.buffer);
        let mut messages = Messages::of(&buffer[..bytes]);
        let handled = messages.try_for_each(|message| self.handle(&message.map_err(|_| Broken)?));
        self.buffer = buffer;
        handled
    }

    fn handle(&mut self, message: &Message) -> Result<(), Broken> {
        self.needs_dump |= message.is_interrupted;
        let is_ours = match self.dump {
            Dump::None => false,
            Dump::Links(sequence) | Dump::Addresses(sequence) => message.sequence == sequence,
        };
        match message.event {
            Event::Done if is_ours => self.end_dump(),
            Event::Failed(error) if is_ours && error != 0 => Err(Broken),
            event => self.table.handle(&event).map_err(|_| Broken),
        }
    }

    fn begin_dump(&mut self) -> Result<(), Broken> {
        self.needs_dump = false;
        self.table.begin_dump();
        let sequence = self.next_sequence();
        if self.send(&request_links(None, sequence))? {
            self.dump = Dump::Links(sequence);
        }
        Ok(())
    }

    fn end_dump(&mut self) -> Result<(), Broken> {
        let is_whole = !self.needs_dump;
        match std::mem::replace(&mut self.dump, Dump::None) {
            Dump::Links(_) if is_whole => {
                self.table.end_links();
                let sequence = self.next_sequence();
                if self.send(&request_addresses(sequence))? {
                    self.dump = Dump::Addresses(sequence);
                }
            }
            Dump::Addresses(_) if is_whole => {
                self.table.end_addresses();
                self.disturbed = 0;
            }
            _ => self.disturbed += 1,
        }
        if self.disturbed < DISTURBED_MAX { Ok(()) } else { Err(Broken) }
    }

    /// Sends a request; false where the kernel has no memory for it, and is to be asked later.
    fn send(&mut self, request: &[u8]) -> Result<bool, Broken> {
        match self.kernel.request(request) {
            Ok(()) => Ok(true),
            // A dump that was given up for a datagram without room may run still.
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::BUSY) => {
                self.needs_dump = true;
                Ok(false)
            }
            Err(_) => Err(Broken),
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}
