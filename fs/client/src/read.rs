//! Reading: from the inode row while a file is small, from stripe objects otherwise.

use std::rc::Rc;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::task::join_all;
use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::data::{DataReply, DataRequest, EMBEDDED_BYTES_MAX, Found, ObjectRange};
use ropewalk_wire::fs::layout::{Layout, Piece};
use ropewalk_wire::fs::meta::{LeaseMode, MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::data::checksums;
use crate::file::File;
use crate::guards::Exposed;
use crate::inode::Inode;
use crate::kernel::Coming;
use crate::lease::For;
use crate::locks::{Actor, Path};
use crate::members::{Failed, Try};
use crate::write::{Part, bulk};

/// A data server's answer about a part, and the checksums of its bytes.
struct Answer {
    found: Vec<Found>,
    bytes: Option<Vec<u8>>,
    checksums: Vec<u8>,
}

impl Client {
    /// Reads at `offset` into `buffer`, up to its length; returns it with the number of bytes, which
    /// is smaller only at the end of the file.
    pub async fn read(
        &self,
        file: &File,
        offset: u64,
        buffer: PoolBuffer,
    ) -> Result<(PoolBuffer, usize), Errno> {
        if !file.options().access.read {
            return Err(Errno::EBADF);
        }
        self.read_for_kernel(file, offset, buffer, &Actor::OWN).await
    }

    /// Reads as the kernel does on its own behalf, regardless of the open mode: the kernel has checked its
    /// callers.
    pub async fn read_for_kernel(
        &self,
        file: &File,
        offset: u64,
        buffer: PoolBuffer,
        actor: &Actor,
    ) -> Result<(PoolBuffer, usize), Errno> {
        let inode = &file.inode;
        let mut buffer = buffer;
        let mut patience = self.patience();
        let purpose = if actor.path == Path::Pages { For::Pages } else { For::Reading };
        let locked = (purpose == For::Pages).then(|| (offset, offset + buffer.len() as u64));
        let _coming = locked.map(|_| Coming::new(inode));
        while patience.lasts().await {
            let lease = self.lease_over(inode, purpose, locked).await?;
            // With the lease, which says that the session lives.
            self.check_locks(file, actor)?;
            let size = self.size(inode).await?;
            let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
            if len == 0 {
                return Ok((buffer, 0));
            }
            let content = inode.state.borrow().content.clone();
            let outcome = match content {
                Some(Content::Inline) => {
                    let outcome = self.read_inline(inode, offset, &mut buffer[..len]).await;
                    (outcome, Some(buffer))
                }
                Some(Content::Striped(layout)) => {
                    self.read_striped(inode, &layout, offset, buffer, len).await
                }
                None => (Err(Errno::ESTALE), Some(buffer)),
            };
            match outcome {
                (Ok(()), Some(buffer)) => {
                    self.count(|counts| counts.bytes_read += len as u64);
                    return Ok((buffer, len));
                }
                (Err(Errno::ESTALE), Some(back)) => {
                    buffer = back;
                    drop(lease);
                    inode.refresh();
                }
                (Err(errno), _) => return Err(errno),
                (Ok(()), None) => return Err(Errno::EIO),
            }
        }
        Err(Errno::EIO)
    }

    /// The file's size: ours to know under a lease that covers it, the server's otherwise.
    async fn size(&self, inode: &Rc<Inode>) -> Result<u64, Errno> {
        if let Some(attributes) = inode.cached() {
            return Ok(attributes.size);
        }
        let request = MetaRequest::GetAttributes { inode: inode.number };
        Ok(self.ask_attributes(inode, &request).await?.size)
    }

    async fn read_inline(
        &self,
        inode: &Rc<Inode>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Errno> {
        let copy = |bytes: &[u8], out: &mut [u8]| {
            let begin = (offset as usize).min(bytes.len());
            let here = (bytes.len() - begin).min(out.len());
            out[..here].copy_from_slice(&bytes[begin..begin + here]);
            // Bytes that the row does not have are zeros up to the size.
            out[here..].fill(0);
        };
        {
            let state = inode.state.borrow();
            if let (Some(inline), true) = (&state.inline, state.mode >= LeaseMode::Read) {
                copy(&inline.bytes, out);
                return Ok(());
            }
        }
        let request = MetaRequest::ReadInline { inode: inode.number };
        self.ask(&request, |reply| match reply {
            MetaReply::Inline { bytes, version } => {
                copy(bytes.0, out);
                if inode.mode() >= LeaseMode::Read {
                    inode.state.borrow_mut().take_inline(bytes.0, version);
                }
                Ok(())
            }
            _ => unexpected(),
        })
        .await
    }

    async fn read_striped(
        &self,
        inode: &Rc<Inode>,
        layout: &Layout,
        offset: u64,
        mut buffer: PoolBuffer,
        len: usize,
    ) -> (Result<(), Errno>, Option<PoolBuffer>) {
        let places = match self.places(layout).await {
            Ok(places) => places,
            Err(errno) => return (Err(errno), Some(buffer)),
        };
        // Alone or among readers the written-map is whole: stripes that are not in it are not asked for.
        let (complete, written) = {
            let state = inode.state.borrow();
            (state.mode >= LeaseMode::Read, state.written.clone())
        };
        let pieces = layout
            .pieces(offset, len as u64)
            .filter(|piece| !complete || written.contains(piece.stripe));
        let ranges: Vec<(usize, ObjectRange)> = pieces
            .map(|Piece { stripe, offset: within, len, file_offset }| {
                let range =
                    ObjectRange { stripe, group: places.group(stripe), offset: within, len };
                ((file_offset - offset) as usize, range)
            })
            .collect();
        let covered: usize = ranges.iter().map(|(_, range)| range.len as usize).sum();
        if covered < len {
            fill_gaps(&mut buffer[..len], &ranges);
        }
        let mut tries = self.first_tries(inode, &places, ranges);
        while !tries.is_empty() {
            let (answers, back) = self.transfer_in(inode, &tries, buffer, len).await;
            let Some(back) = back else { return (Err(Errno::EIO), None) };
            buffer = back;
            let mut next = Vec::new();
            for (one, answer) in tries.iter().zip(answers) {
                let outcome = answer.and_then(|answer| {
                    self.take_answer(inode, &one.part, answer, &mut buffer, &written)
                });
                let failed = match outcome {
                    Ok(true) => continue,
                    Ok(false) => Failed::Damaged,
                    Err(errno) => Failed::Errno(errno),
                };
                if failed == Failed::Damaged && one.verify {
                    self.tell_of_damage(inode, &one.part);
                }
                match self.next_tries(inode, &places, (one, failed)) {
                    Ok(tries) => next.extend(tries),
                    Err(errno) => {
                        if failed == Failed::Errno(Errno::EIO) {
                            self.tell_of_lost(inode, &one.part, offset);
                        }
                        return (Err(errno), Some(buffer));
                    }
                }
            }
            tries = next;
        }
        (Ok(()), Some(buffer))
    }

    fn tell_of_damage(&self, inode: &Inode, part: &Part) {
        self.inner.lines.say(&format!(
            "inode {}: data from data server {} does not match its checksums",
            inode.number, part.server
        ));
    }

    /// Tells which bytes a data server does not give: the program that reads the file learns no more than
    /// EIO.
    fn tell_of_lost(&self, inode: &Inode, part: &Part, offset: u64) {
        let begin = offset + part.begin as u64;
        self.inner.lines.say(&format!(
            "inode {}: data server {} cannot read bytes {begin} to {}; 'ropewalk check --read' \
             lists files that are damaged or lost",
            inode.number,
            part.server,
            begin + part.len as u64 - 1
        ));
    }

    async fn transfer_in(
        &self,
        inode: &Rc<Inode>,
        tries: &[Try],
        buffer: PoolBuffer,
        len: usize,
    ) -> (Vec<Result<Answer, Errno>>, Option<PoolBuffer>) {
        let file = self.file_id(inode);
        // The server compares nothing as long as nobody complains: we have to, for what may happen on
        // the way, and once is enough.
        let ask = |one, bulk| {
            let Try { part, verify, .. }: &Try = one;
            let pieces = part.pieces.clone();
            let request = DataRequest::Read { file, pieces, bulk, verify: *verify };
            async move {
                let answer = self.ask_for_bytes(one, &request, |reply| match reply {
                    DataReply::Read { found, bytes, checksums } => Ok(Answer {
                        found,
                        bytes: bulk.is_none().then(|| bytes.0.to_vec()),
                        checksums: checksums.0.to_vec(),
                    }),
                    _ => unexpected(),
                });
                answer.await
            }
        };
        if len <= EMBEDDED_BYTES_MAX as usize {
            let answers = join_all(tries.iter().map(|one| ask(one, None))).await;
            return (answers, Some(buffer));
        }
        let (exposed, key) = match Exposed::new(&self.inner.endpoint, buffer, true) {
            Ok(exposed) => exposed,
            Err(buffer) => {
                let refused = tries.iter().map(|_| Err(Errno::ENOMEM)).collect();
                return (refused, buffer);
            }
        };
        let answers =
            join_all(tries.iter().map(|one| ask(one, Some(bulk(key, one.part.begin))))).await;
        (answers, exposed.end().await)
    }

    /// Puts the bytes of a part in their place; whether they have their checksums.
    fn take_answer(
        &self,
        inode: &Inode,
        part: &Part,
        answer: Answer,
        buffer: &mut PoolBuffer,
        written: &ropewalk_wire::fs::runs::Runs,
    ) -> Result<bool, Errno> {
        if answer.found.len() != part.pieces.len() {
            return Err(Errno::EPROTO);
        }
        let place = part.begin..part.begin + part.len;
        if let Some(bytes) = &answer.bytes {
            if bytes.len() != part.len {
                return Err(Errno::EPROTO);
            }
            buffer[place].copy_from_slice(bytes);
        }
        let mut at = part.begin;
        let mut sums = Vec::with_capacity(answer.checksums.len());
        for (piece, found) in part.pieces.iter().zip(&answer.found) {
            let bytes = &mut buffer[at..at + piece.len as usize];
            at += piece.len as usize;
            if *found == Found::Absent {
                if written.contains(piece.stripe) {
                    self.inner.lines.say(&format!(
                        "inode {}: stripe {} was written, but data server {} does not have it; \
                         see 'ropewalk check'",
                        inode.number, piece.stripe, part.server
                    ));
                    return Err(Errno::EIO);
                }
                bytes.fill(0);
            }
            checksums(bytes, piece.offset, &mut sums);
        }
        Ok(sums == answer.checksums)
    }
}

/// Zeros where no range lies.
fn fill_gaps(bytes: &mut [u8], ranges: &[(usize, ObjectRange)]) {
    let mut at = 0;
    for (begin, range) in ranges {
        bytes[at..*begin].fill(0);
        at = begin + range.len as usize;
    }
    bytes[at..].fill(0);
}
