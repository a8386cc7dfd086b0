//! Replies on their way out.
//!
//! Invariants: a reply is sent exactly once; one that is dropped unsent is sent as EIO, since a
//! request without a reply leaves its caller unkillable; an error carries no data.

use std::io::IoSlice;
use std::rc::Rc;

use ropewalk_base::slots::SlotId;
use zerocopy::IntoBytes;

use crate::abi::replies as abi;
use crate::dev_loop::Shared;
use crate::errno::Errno;
use crate::reply::{Data, DirectoryReply};
use crate::source::Ticket;

/// The body behind the header of a successful reply.
pub(crate) enum Response {
    Empty,
    Entry(abi::EntryOut),
    Attributes(abi::AttrOut),
    Statx(abi::StatxOut),
    Open(abi::OpenOut),
    Create(abi::EntryOut, abi::OpenOut),
    Write(abi::WriteOut),
    CopyRange(abi::CopyFileRangeOut),
    StatFs(abi::StatFsOut),
    XattrSize(abi::GetXattrOut),
    Lock(abi::LockOut),
    Init(abi::InitOut),
    Ioctl(abi::IoctlOut, Vec<u8>),
    Poll(abi::PollOut),
    Seek(abi::SeekOut),
    Bytes(Vec<u8>),
    Data(Data),
    Directory(DirectoryReply),
}

/// The obligation to answer one request.
pub(crate) struct Reply<T: Ticket> {
    ticket: Option<T>,
    unique: u64,
    shared: Rc<Shared>,
    slot: Option<SlotId>,
}

impl<T: Ticket> Reply<T> {
    /// For a request that the registry does not know.
    pub(crate) fn unregistered(ticket: T, unique: u64, shared: Rc<Shared>) -> Reply<T> {
        Reply { ticket: Some(ticket), unique, shared, slot: None }
    }

    /// For a request that stays in the registry until it is answered.
    pub(crate) fn registered(ticket: T, unique: u64, shared: Rc<Shared>, slot: SlotId) -> Reply<T> {
        Reply { ticket: Some(ticket), unique, shared, slot: Some(slot) }
    }

    /// The request wants no answer.
    pub(crate) fn none(mut self) {
        self.ticket = None;
    }

    /// Sends the answer. False where the kernel did not take it: then it knows nothing of what the
    /// answer tells.
    pub(crate) fn send(mut self, outcome: &Result<Response, Errno>) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let response = match outcome {
            Ok(response) => response,
            Err(errno) => {
                self.send_error(&ticket, *errno);
                return true;
            }
        };
        let sent = match response {
            Response::Empty => self.write(&ticket, &[], &[]),
            Response::Entry(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Attributes(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Statx(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Open(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Create(entry, open) => self.write(&ticket, entry.as_bytes(), open.as_bytes()),
            Response::Write(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::CopyRange(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::StatFs(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::XattrSize(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Lock(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Init(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Ioctl(out, bytes) => self.write(&ticket, out.as_bytes(), bytes),
            Response::Poll(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Seek(out) => self.write(&ticket, out.as_bytes(), &[]),
            Response::Bytes(bytes) => self.write(&ticket, bytes, &[]),
            Response::Directory(reply) => self.write(&ticket, reply.as_bytes(), &[]),
            Response::Data(data) => {
                let header = self.header(data.len(), 0);
                data.with_slices(header.as_bytes(), |slices| ticket.answer(slices))
            }
        };
        match sent {
            Ok(()) => return true,
            // Nobody waits for it any more.
            Err(Errno::ENOENT | Errno::ENODEV | Errno::ECONNABORTED) => {
                self.shared.count(|counters| counters.refused += 1);
            }
            // The kernel could not take the data; the caller must not wait for ever.
            Err(_) => self.send_error(&ticket, Errno::EIO),
        }
        false
    }

    fn send_error(&self, ticket: &T, errno: Errno) {
        let header = self.header(0, errno.number());
        if ticket.answer(&[IoSlice::new(header.as_bytes())]).is_err() {
            self.shared.count(|counters| counters.refused += 1);
        }
    }

    fn write(&self, ticket: &T, first: &[u8], second: &[u8]) -> Result<(), Errno> {
        let header = self.header(first.len() + second.len(), 0);
        let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(first), IoSlice::new(second)];
        ticket.answer(&slices)
    }

    fn header(&self, body_bytes: usize, error: i32) -> abi::OutHeader {
        let len = size_of::<abi::OutHeader>() + body_bytes;
        let len = u32::try_from(len).expect("a reply is bounded by the request's 32-bit size");
        abi::OutHeader { len, error: -error, unique: self.unique }
    }
}

impl<T: Ticket> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && !self.shared.silent.get()
        {
            self.send_error(&ticket, Errno::EIO);
        }
        // Not earlier: until the reply is out, an interrupt may come for this request.
        if let Some(slot) = self.slot {
            self.shared.registry.finish(slot);
        }
    }
}
