//! The way in: headers through the rail's buffer, payloads straight to their places.
//!
//! Short frames are read many at a time. After a long frame only a header's worth is read behind the
//! payload, so that the next long payload is not staged: a stream of data frames costs one system call
//! for each piece that the kernel has, and copies next to nothing.
//!
//! Invariants: bytes from the peer never decide an allocation; every read byte is consumed before
//! the function returns; the layer above is asked once for each frame.

use ropewalk_base::error::Fault;
use ropewalk_base::health::Suspicion;
use ropewalk_base::limits::HEADER_BYTES_MAX;
use ropewalk_base::memory::{Segment, Slice};
use ropewalk_base::payload::Sealing;
use ropewalk_base::verb::{LinkId, Placement, RailCounters};
use ropewalk_rail::host::is_of_path;
use ropewalk_rail::{FRAME_PREFIX_BYTES, Report, frame_lengths};
use ropewalk_seal::{HEAD_BYTES, Reader};
use rustix::io::Errno;

use crate::link::{Incoming, Link, READ_BYTES_MIN, State};
use crate::sealed::{LinkSeal, Sealed, Spares};
use crate::vectors::{Vectors, discard};

/// The rail's buffer, in bytes: the most that is read at once of short frames.
pub const BUFFER_BYTES: usize = 64 * 1024;
/// From this payload length on a frame counts as long.
const LONG_BYTES: u32 = 16 * 1024;
/// Fewer bytes than this are skipped in the buffer rather than with a system call of their own.
const DISCARD_BYTES_MIN: u32 = 4096;
/// The limits of one link in one poll: system calls, bytes, frames (judged after each read).
const CALLS_MAX: usize = 8;
const BYTES_MAX: usize = 512 * 1024;
const FRAMES_MAX: u64 = 256;

/// The reason why reading a link stopped.
enum Stop {
    /// The system call said so.
    Socket(Errno),
    /// The data that was read ends the link.
    Ended(Fault),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Socket(errno)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Ended(fault)
    }
}

/// The parts of the rail that reading a link needs.
pub struct Receiver<'a> {
    pub buffer: &'a mut [u8],
    pub counters: &'a mut RailCounters,
    pub forged_records: &'a mut u64,
    pub spares: &'a mut Spares,
    pub report: &'a mut dyn Report,
}

impl Receiver<'_> {
    /// Reads a link until it is empty or has had its turn; true where anything came. An error is the
    /// end of the link.
    pub fn receive(&mut self, id: LinkId, link: &mut Link) -> Result<bool, Fault> {
        let (mut bytes, frames) = (0, self.counters.frames_received);
        for _ in 0..CALLS_MAX {
            let (read, asked) = match self.read(id, link) {
                Ok(outcome) => outcome,
                Err(Stop::Ended(fault)) => return Err(fault),
                Err(Stop::Socket(Errno::AGAIN)) => break,
                Err(Stop::Socket(Errno::INTR)) => continue,
                Err(Stop::Socket(errno)) => {
                    if is_of_path(errno.raw_os_error()) {
                        let cause = Suspicion::SendError(errno.raw_os_error());
                        self.report.suspect(id, cause);
                    }
                    return Err(end_of(link.state));
                }
            };
            if read == 0 {
                return Err(end_of(link.state));
            }
            bytes += read;
            // A short read has emptied the socket; the epoll set reports later data.
            let had_its_turn =
                bytes >= BYTES_MAX || self.counters.frames_received - frames >= FRAMES_MAX;
            if read < asked || had_its_turn {
                break;
            }
        }
        Ok(bytes > 0)
    }

    /// One system call and the processing of its data: returns the bytes read and asked for.
    fn read(&mut self, id: LinkId, link: &mut Link) -> Result<(usize, usize), Stop> {
        if link.state == State::Lingering {
            self.counters.system_calls += 1;
            let asked = BYTES_MAX;
            return Ok((discard(needs_socket(link), asked)?, asked));
        }
        if link.seal.sealed().is_some() {
            return self.read_records(id, link);
        }
        match link.inbound.payload {
            Some(incoming) if incoming.landing() > 0 => self.read_payload(id, link, incoming),
            Some(incoming) if incoming.total - incoming.done >= DISCARD_BYTES_MIN => {
                self.counters.system_calls += 1;
                let asked = (incoming.total - incoming.done) as usize;
                let read = discard(needs_socket(link), asked)?;
                self.counters.bytes_received += read as u64;
                self.advance(id, link, read);
                Ok((read, asked))
            }
            _ => self.read_frames(id, link),
        }
    }

    /// Reads into the rail's buffer.
    fn read_frames(&mut self, id: LinkId, link: &mut Link) -> Result<(usize, usize), Stop> {
        let asked = tail_bytes(link);
        self.counters.system_calls += 1;
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let socket = needs_socket(link);
        let (read, _) = rustix::net::recv(socket, &mut self.buffer[..asked], flags)?;
        self.counters.bytes_received += read as u64;
        let consumed = self.consume(id, link, 0, read);
        // Reads that are filled by short frames grow, so that a burst costs few system calls.
        let inbound = &mut link.inbound;
        if read == asked && !inbound.bulk {
            inbound.read_bytes = (inbound.read_bytes * 4).min(BUFFER_BYTES as u32);
        }
        consumed?;
        Ok((read, asked))
    }

    /// Reads records into the rail's buffer.
    fn read_records(&mut self, id: LinkId, link: &mut Link) -> Result<(usize, usize), Stop> {
        let Some(sealed) = link.seal.sealed() else { return Ok((0, 0)) };
        let had = sealed.partial.len();
        let asked = self.buffer.len() - had;
        self.counters.system_calls += 1;
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let socket = link.socket.as_ref().expect("a link that was up has a socket");
        let (read, _) = rustix::net::recv(socket, &mut self.buffer[had..], flags)?;
        self.counters.bytes_received += read as u64;
        if read > 0 {
            self.open_records(id, link, read)?;
        }
        Ok((read, asked))
    }

    /// Opens the records in the rail's buffer, in which `read` bytes lie behind those that are kept, and gives their texts to
    /// the frames that they belong to.
    fn open_records(&mut self, id: LinkId, link: &mut Link, read: usize) -> Result<(), Fault> {
        let Some(sealed) = link.seal.sealed() else { return Ok(()) };
        let partial = std::mem::take(&mut sealed.partial);
        self.buffer[..partial.len()].copy_from_slice(&partial);
        let (mut at, filled) = (0, partial.len() + read);
        self.spares.give_partial(partial);
        while let Some(bytes) = self.whole_record(at, filled)? {
            let Some(sealed) = link.seal.sealed() else { return Ok(()) };
            let opened = sealed.reader.open(&mut self.buffer[at..at + bytes]);
            let text = opened.map_err(|_| self.forged())?;
            self.consume(id, link, at + HEAD_BYTES, at + HEAD_BYTES + text)?;
            at += bytes;
        }
        if at < filled
            && let Some(sealed) = link.seal.sealed()
        {
            sealed.partial = self.spares.take_partial();
            sealed.partial.extend_from_slice(&self.buffer[at..filled]);
        }
        Ok(())
    }

    /// Bytes of the record that begins at `at`; `None` where its end has not come.
    fn whole_record(&mut self, at: usize, filled: usize) -> Result<Option<usize>, Fault> {
        let bytes = Reader::record_bytes(&self.buffer[at..filled]).map_err(|_| self.forged())?;
        Ok(bytes.filter(|bytes| at + bytes <= filled))
    }

    /// Takes note of bytes that are not the peer's.
    #[cold]
    fn forged(&mut self) -> Fault {
        *self.forged_records += 1;
        self.counters.violations += 1;
        Fault::Protocol
    }

    /// Asks whether what follows on a link is sealed; true where it is.
    #[cold]
    fn is_sealed_from_here(&mut self, id: LinkId, link: &mut Link) -> bool {
        link.seal = match self.report.sealing(id) {
            Sealing::Undecided => LinkSeal::Undecided,
            Sealing::Plain => LinkSeal::Plain,
            Sealing::Sealed(keys) => LinkSeal::Sealed(Box::new(Sealed::new(&keys))),
        };
        link.seal.sealed().is_some()
    }

    /// Reads to the payload's place, and the bytes behind it into the rail's buffer.
    fn read_payload(
        &mut self,
        id: LinkId,
        link: &mut Link,
        incoming: Incoming,
    ) -> Result<(usize, usize), Stop> {
        let wanted = incoming.landing();
        let rest = incoming.place.part(u64::from(incoming.done), u64::from(wanted));
        let mut vectors = Vectors::new();
        let landing = vectors.extend(self.report.buffers().resolve_writable(rest));
        if landing == 0 {
            // The place is gone, shorter than announced or not to be written: the rest of the payload is skipped.
            let payload = link.inbound.payload.as_mut().expect("the caller has just seen it");
            payload.place.len = u64::from(payload.done);
            return self.read(id, link);
        }
        let payload_ends_here =
            landing == wanted as usize && incoming.done + wanted == incoming.total;
        if payload_ends_here {
            let tail = tail_bytes(link);
            let start = self.buffer.as_mut_ptr();
            vectors.push(Segment::new(start, tail));
        }
        let asked = vectors.bytes();
        self.counters.system_calls += 1;
        // SAFETY: the place lies in memories of the table, which their owner keeps and nobody else
        // touches until `received`; the tail lies in the rail's own buffer, which is borrowed mutably. The
        // kernel writes where memory is, and tells where it is gone.
        let read = match unsafe { vectors.receive(needs_socket(link)) } {
            Err(Errno::FAULT) => {
                lose_place(link);
                return self.read(id, link);
            }
            read => read?,
        };
        self.counters.bytes_received += read as u64;
        self.advance(id, link, read.min(landing));
        let tail = read.saturating_sub(landing);
        self.consume(id, link, 0, tail)?;
        Ok((read, asked))
    }

    /// Takes note of payload bytes that are at their place or were skipped.
    fn advance(&mut self, id: LinkId, link: &mut Link, bytes: usize) {
        let Some(incoming) = &mut link.inbound.payload else { return };
        incoming.done += bytes as u32;
        if incoming.done < incoming.total {
            return;
        }
        let (token, is_gone) = (incoming.token, incoming.is_gone);
        link.inbound.payload = None;
        match token {
            Some(token) if is_gone => self.report.unplaced(id, token),
            Some(token) => self.report.received(id, token),
            None => {}
        }
    }

    /// Gives the bytes of the rail's buffer from `at` to `filled` to the frames that they belong to.
    fn consume(
        &mut self,
        id: LinkId,
        link: &mut Link,
        mut at: usize,
        filled: usize,
    ) -> Result<(), Fault> {
        while at < filled {
            if let Some(incoming) = link.inbound.payload {
                let bytes = ((incoming.total - incoming.done) as usize).min(filled - at);
                let landing = (incoming.landing() as usize).min(bytes);
                if landing > 0 {
                    let place = incoming.place.part(u64::from(incoming.done), landing as u64);
                    let from = &self.buffer[at..at + landing];
                    match self.report.buffers().try_write(place, from) {
                        Ok(written) => self.counters.bytes_staged += written as u64,
                        Err(_) => lose_place(link),
                    }
                }
                at += bytes;
                self.advance(id, link, bytes);
            } else {
                let is_between = link.inbound.header_bytes == 0;
                if matches!(link.seal, LinkSeal::Undecided)
                    && is_between
                    && self.is_sealed_from_here(id, link)
                {
                    self.buffer.copy_within(at..filled, 0);
                    return self.open_records(id, link, filled - at);
                }
                at += self.consume_header(id, link, at, filled)?;
            }
        }
        Ok(())
    }

    /// Hands up a frame that lies in the rail's buffer with all of its payload.
    fn arrived(
        &mut self,
        id: LinkId,
        link: &mut Link,
        at: usize,
        header_bytes: usize,
        payload_bytes: u32,
    ) -> Result<(), Fault> {
        note_frame(self.counters, link, payload_bytes);
        self.counters.bytes_staged += u64::from(payload_bytes);
        let (header, rest) = self.buffer[at..].split_at_mut(header_bytes);
        let payload = Segment::new(rest.as_mut_ptr(), payload_bytes as usize);
        // SAFETY: the caller has seen that the payload lies in the rail's own buffer, which is no memory
        // of the table and which nobody else touches meanwhile.
        let legal = unsafe { self.report.arrived(id, header, payload) };
        if legal { Ok(()) } else { Err(Fault::Protocol) }
    }

    /// Takes bytes of a frame's beginning, in the best case all of a header or of a short frame at
    /// once; how many.
    fn consume_header(
        &mut self,
        id: LinkId,
        link: &mut Link,
        at: usize,
        filled: usize,
    ) -> Result<usize, Fault> {
        let bytes = &self.buffer[at..filled];
        let had = usize::from(link.inbound.header_bytes);
        if had == 0 && bytes.len() >= FRAME_PREFIX_BYTES {
            let (length, payload) = lengths(bytes, self.counters)?;
            let whole = length + payload as usize;
            if payload > 0 && bytes.len() >= whole {
                self.arrived(id, link, at, length, payload)?;
                return Ok(whole);
            }
            if bytes.len() >= length {
                let header = &self.buffer[at..at + length];
                begin(self.report, self.counters, id, link, header, payload)?;
                return Ok(length);
            }
        }
        // The header is cut: first its prefix is completed, then the length that the prefix tells.
        let target = if had < FRAME_PREFIX_BYTES {
            FRAME_PREFIX_BYTES
        } else {
            lengths(&link.inbound.header[..had], self.counters)?.0
        };
        let bytes = &self.buffer[at..filled];
        let taken = bytes.len().min(target - had);
        link.inbound.header[had..had + taken].copy_from_slice(&bytes[..taken]);
        let have = had + taken;
        link.inbound.header_bytes = have as u8;
        if have < FRAME_PREFIX_BYTES {
            return Ok(taken);
        }
        let (length, payload) = lengths(&link.inbound.header[..have], self.counters)?;
        if have == length {
            let copy = link.inbound.header;
            link.inbound.header_bytes = 0;
            begin(self.report, self.counters, id, link, &copy[..length], payload)?;
        }
        Ok(taken)
    }
}

/// Lengths of the frame that begins with `prefix`; an illegal one is counted and ends its link.
fn lengths(prefix: &[u8], counters: &mut RailCounters) -> Result<(usize, u32), Fault> {
    frame_lengths(prefix).ok_or_else(|| {
        counters.violations += 1;
        Fault::Protocol
    })
}

/// Takes note of a complete header.
fn note_frame(counters: &mut RailCounters, link: &mut Link, payload_bytes: u32) {
    counters.frames_received += 1;
    link.greeted = true;
    let inbound = &mut link.inbound;
    inbound.bulk = payload_bytes >= LONG_BYTES;
    if inbound.bulk {
        inbound.read_bytes = READ_BYTES_MIN;
    }
}

/// Asks where the payload of a complete header belongs.
fn begin(
    report: &mut dyn Report,
    counters: &mut RailCounters,
    id: LinkId,
    link: &mut Link,
    header: &[u8],
    total: u32,
) -> Result<(), Fault> {
    note_frame(counters, link, total);
    let inbound = &mut link.inbound;
    let (place, token) = match report.place(id, header, total) {
        Placement::Into { slice, token } => (slice, Some(token)),
        Placement::Drop => (Slice::NONE, None),
        Placement::Violation(_) => return Err(Fault::Protocol),
        Placement::Stage { .. } => unreachable!("the layer above turns Stage into Into"),
    };
    if total > 0 {
        inbound.payload = Some(Incoming { place, token, done: 0, total, is_gone: false });
    } else if let Some(token) = token {
        report.received(id, token);
    }
    Ok(())
}

/// The memory of a payload's place is gone: the rest of the payload is skipped.
#[cold]
fn lose_place(link: &mut Link) {
    if let Some(payload) = &mut link.inbound.payload {
        payload.place.len = payload.place.len.min(u64::from(payload.done));
        payload.is_gone = true;
    }
}

/// The number of bytes to read if a header comes next: after a long frame no more than one header.
fn tail_bytes(link: &Link) -> usize {
    if link.inbound.bulk { HEADER_BYTES_MAX } else { link.inbound.read_bytes as usize }
}

/// The meaning of the end of the stream.
fn end_of(state: State) -> Fault {
    if state == State::Lingering { Fault::Closed } else { Fault::PeerReset }
}

fn needs_socket(link: &Link) -> std::os::fd::BorrowedFd<'_> {
    link.socket().expect("a link that was up has a socket")
}
