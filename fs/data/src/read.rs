//! Reads: bytes come from the store and go with the reply or into the client's region. The client
//! verifies them; where they differ from their checksums it asks once more, and then the store does,
//! which knows the object's name.
//!
//! A piece whose object does not exist is `Absent`; zeros stand for it, with their checksums, so that
//! the places of the other pieces do not depend on it.

use ropewalk_base::checksum::crc32c;
use ropewalk_store::objects::ReadOutcome;
use ropewalk_wire::fs::data::{BLOCK_BYTES, DataReply, DataResult, FileId, Found};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::bulk::{Moving, Region};
use crate::failure::Failure;
use crate::groups::ELSEWHERE;
use crate::plan::{Chunk, Part, Plan};
use crate::server::{Call, Inner};
use crate::write::object;

/// Bytes cannot be read from the disk, or are not those that were written.
const UNREADABLE: Failure = Failure::Errno(Errno::EIO);

/// A read that was checked.
pub(crate) struct Read {
    pub file: FileId,
    pub plan: Plan,
    pub verify: bool,
    /// For the orderer of the groups, which has locked what it reads.
    pub for_orderer: bool,
}

/// The reply's statements about the bytes.
struct Outcome {
    found: Vec<Found>,
    checksums: Vec<u32>,
}

impl Outcome {
    fn new(plan: &Plan) -> Outcome {
        let found = vec![Found::Present; plan.pieces.len()];
        Outcome { found, checksums: Vec::with_capacity(plan.checksums) }
    }

    /// The body of the reply.
    fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let checksums: Vec<u8> = self.checksums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let mut body =
            Vec::with_capacity(bytes.len() + checksums.len() + 2 * self.found.len() + 16);
        let (bytes, checksums) = (Bytes(bytes), Bytes(&checksums));
        let reply: DataResult<'_> = Ok(DataReply::Read { found: self.found, bytes, checksums });
        encode(&reply, &mut body);
        body
    }
}

impl Inner {
    /// A read whose bytes travel in the reply; the reply's body.
    pub(crate) fn read_embedded(&self, read: &Read) -> Result<Vec<u8>, Failure> {
        let mut outcome = Outcome::new(&read.plan);
        let mut bytes = self.scratch.take();
        bytes.resize(read.plan.bytes as usize, 0);
        let filled = read.plan.chunks().iter().try_for_each(|chunk| {
            let into = &mut bytes[chunk.start as usize..][..chunk.len as usize];
            self.fill(read, chunk, into, &mut outcome)
        });
        let body = filled.map(|()| outcome.encode(&bytes));
        self.scratch.replace(bytes);
        body
    }

    /// As [`Inner::read_embedded`], of groups of several members: what may still come to nothing is waited for.
    pub(crate) async fn read_copied(&self, call: Call, read: &Read) -> Result<Vec<u8>, Failure> {
        self.check_epoch(&call, read).await?;
        self.readable(read.file, &read.plan.pieces).await;
        self.check_reader(call, read)?;
        let body = match self.read_embedded(read) {
            Err(UNREADABLE) if self.mend_ranges(read.file, &read.plan.pieces).await? => {
                self.read_embedded(read)
            }
            body => body,
        };
        // It is, so it was when the bytes were read.
        self.check_reader(call, read)?;
        body
    }

    /// Whether this server still is the one to read from.
    fn check_reader(&self, call: Call, read: &Read) -> Result<(), Failure> {
        let groups = read.plan.pieces.iter().map(|piece| piece.group);
        self.check_readable(&call.head, groups)
    }

    /// A read whose bytes are put into the client's region; the reply's body. One chunk is under
    /// way while the next one is read.
    pub(crate) async fn read_bulk(
        &self,
        call: Call,
        read: &Read,
        region: Region,
    ) -> Result<Vec<u8>, Failure> {
        self.check_epoch(&call, read).await?;
        let mut outcome = Outcome::new(&read.plan);
        let mut before: Option<Moving> = None;
        for chunk in read.plan.chunks() {
            let mut lent = match self.transfers.spare_buffer(chunk.len) {
                Some(lent) => lent,
                None => {
                    // None may be waited for while one is held.
                    if let Some(moving) = before.take() {
                        self.transfers.end(moving).await?;
                    }
                    self.transfers.buffer(chunk.len).await?
                }
            };
            // The groups may have got another member since the last chunk.
            let mirrored = self.are_mirrored(&read.plan.pieces);
            if mirrored {
                self.readable(read.file, &read.plan.pieces).await;
            }
            let sums = outcome.checksums.len();
            match self.fill(read, &chunk, &mut lent.buffer, &mut outcome) {
                Err(UNREADABLE)
                    if mirrored && self.mend_ranges(read.file, &read.plan.pieces).await? =>
                {
                    outcome.checksums.truncate(sums);
                    self.fill(read, &chunk, &mut lent.buffer, &mut outcome)?;
                }
                filled => filled?,
            }
            let moving = self.transfers.put(region, chunk.start, lent);
            if let Some(moving) = before.replace(moving) {
                self.transfers.end(moving).await?;
            }
        }
        if let Some(moving) = before {
            self.transfers.end(moving).await?;
        }
        // It is, so it was when the bytes were read: also where the group got another member meanwhile.
        self.check_reader(call, read)?;
        Ok(outcome.encode(&[]))
    }

    /// Reads one chunk.
    fn fill(
        &self,
        read: &Read,
        chunk: &Chunk,
        mut into: &mut [u8],
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        for part in &chunk.parts {
            let (own, rest) = into.split_at_mut(part.len as usize);
            into = rest;
            let group = read.plan.pieces[part.piece].group;
            let follows = || !read.for_orderer && self.groups.borrow().follows(group);
            if !read.for_orderer {
                self.check_open(read.file, group, part)?;
            }
            let (object, offset) = (object(read.file, part.stripe), u64::from(part.offset));
            let sums = &mut outcome.checksums;
            let found = match read.verify {
                true => self.store.read(object, offset, own, sums),
                false => self.store.read_unverified(object, offset, own, sums),
            };
            let found = found.map_err(|error| self.failed("read", &error));
            match found {
                Ok(ReadOutcome::Present { .. }) => {}
                // Whether that is a hole or a loss, the orderer knows.
                Ok(ReadOutcome::Absent) if follows() => return Err(ELSEWHERE),
                Err(UNREADABLE) if follows() => {
                    self.tell_of_unreadable(group, object);
                    return Err(ELSEWHERE);
                }
                Err(failure) => return Err(failure),
                Ok(ReadOutcome::Absent) => {
                    own.fill(0);
                    push_checksums(part, own, &mut outcome.checksums);
                    outcome.found[part.piece] = Found::Absent;
                }
            }
        }
        self.activities.read(chunk.len);
        Ok(())
    }
}

/// The checksums of a part's runs of bytes within each block.
fn push_checksums(part: &Part, mut bytes: &[u8], checksums: &mut Vec<u32>) {
    let mut run = (BLOCK_BYTES - part.offset % BLOCK_BYTES) as usize;
    while !bytes.is_empty() {
        let (own, rest) = bytes.split_at(run.min(bytes.len()));
        checksums.push(crc32c(own));
        bytes = rest;
        run = BLOCK_BYTES as usize;
    }
}
