//! Calls, one by one.

use std::rc::Rc;

use ropewalk_rpc::slots::Verdict;
use ropewalk_rpc::{Answer, Handler, Incoming, Marks, Responder};
use ropewalk_store::objects::{ObjectError, ObjectId, WriteEpoch};
use ropewalk_wire::fs::data::{
    DataReply, DataRequest, DataResult, FileId, ObjectInfo, ObjectRange, PIECES_MAX,
    TRANSFER_BYTES_MAX,
};
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use crate::errors::{errno, is_trouble};
use crate::server::DataServer;

/// Inodes whose epochs are remembered; beyond that the lowest numbers are forgotten, which only
/// means that the fences of their sessions alone protect them.
const EPOCHS_MAX: usize = 1 << 20;

impl Handler for DataServer {
    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        self.count(|counts| counts.requests += 1);
        let head = incoming.head;
        if head.service != Service::Data {
            return responder.send(self.answer(Status::Malformed, Vec::new()));
        }
        let fence = self.fences.borrow().get(&head.session).copied().unwrap_or(0);
        if head.session != 0 && head.epoch < fence {
            return responder.send(self.answer(Status::Fenced, Vec::new()));
        }
        if head.session != 0 {
            let verdict = self.slots.borrow_mut().judge(head.session, head.slot, head.sequence);
            match verdict {
                Verdict::New => {}
                Verdict::Again(body) => return responder.send(self.answer(Status::Done, body)),
                Verdict::Stale => {
                    return responder.send(self.answer(Status::BadSequence, Vec::new()));
                }
            }
        }
        let world = self.world.clone();
        world.spawn(async move {
            let (status, body) = self.serve(&incoming).await;
            if head.session != 0 && status == Status::Done {
                self.slots.borrow_mut().store(head.session, head.slot, head.sequence, &body);
            }
            responder.send(self.answer(status, body));
        });
    }
}

impl DataServer {
    fn answer(&self, status: Status, body: Vec<u8>) -> Answer {
        let marks = Marks {
            boot: self.store.boot(),
            written: self.store.log_durable(),
            durable: self.store.log_durable(),
        };
        Answer { status, body, marks }
    }

    async fn serve(&self, incoming: &Incoming) -> (Status, Vec<u8>) {
        let Ok(request) = decode::<DataRequest<'_>>(incoming.body()) else {
            return (Status::Malformed, Vec::new());
        };
        let mut body = Vec::new();
        if let DataRequest::Read { file, pieces, bulk } = &request {
            // Its reply borrows what it has read.
            self.read(incoming, *file, pieces, *bulk, &mut body).await;
            return (Status::Done, body);
        }
        let result: DataResult<'_> = self.work(incoming, &request).await;
        encode(&result, &mut body);
        (Status::Done, body)
    }

    async fn work<'a>(&self, incoming: &Incoming, request: &DataRequest<'_>) -> DataResult<'a> {
        let by = WriteEpoch { session: incoming.head.session, epoch: incoming.head.epoch };
        match request {
            DataRequest::Write { file, pieces, source, checksums } => {
                self.admit(*file, pieces)?;
                self.write(incoming, *file, pieces, *source, checksums.0, by).await?;
                Ok(DataReply::Written)
            }
            DataRequest::Punch { file, pieces } => {
                self.admit(*file, pieces)?;
                self.make_room().await?;
                for piece in pieces {
                    let (offset, len) = (u64::from(piece.offset), u64::from(piece.len));
                    let punched = self.store.punch(object(*file, piece.stripe), offset, len, by);
                    self.judge(punched)?;
                }
                Ok(DataReply::Written)
            }
            DataRequest::Truncate { file, stripe, offset } => {
                self.raise(file.inode, file.epoch);
                self.make_room().await?;
                let (inode, generation) = (file.inode, file.generation);
                let cut =
                    self.store.truncate_file(inode, generation, *stripe, u64::from(*offset), by);
                self.judge(cut)?;
                Ok(DataReply::Written)
            }
            DataRequest::Sync { files } => {
                let files: Vec<(u64, u32)> =
                    files.iter().map(|file| (file.inode, file.generation)).collect();
                self.judge(self.store.sync_files(&files).await)?;
                Ok(DataReply::Done)
            }
            DataRequest::Reap { inodes } => {
                let mark = self.world.unix_nanos() as u64;
                for (inode, generation) in inodes {
                    self.judge(self.store.remove_inode(*inode, *generation, mark).await)?;
                    self.epochs.borrow_mut().remove(inode);
                }
                Ok(DataReply::Done)
            }
            DataRequest::Fence { session, epoch } => {
                self.fences.borrow_mut().insert(*session, *epoch);
                self.slots.borrow_mut().forget(*session);
                let mark = self.world.unix_nanos() as u64;
                self.judge(self.store.fence(*session, *epoch, mark).await)?;
                Ok(DataReply::Done)
            }
            DataRequest::List { after, bytes_max } => self.list(*after, *bytes_max),
            DataRequest::Status => self.status(),
            DataRequest::Read { .. } => unreachable!("served apart"),
        }
    }

    /// Checks a request's shape and its file's epoch.
    pub(crate) fn admit(&self, file: FileId, pieces: &[ObjectRange]) -> Result<(), Errno> {
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let whole = pieces
            .iter()
            .all(|piece| piece.len > 0 && piece.offset.checked_add(piece.len).is_some());
        if pieces.len() > PIECES_MAX || total > u64::from(TRANSFER_BYTES_MAX) || !whole {
            return Err(Errno::EINVAL);
        }
        let seen = self.epochs.borrow().get(&file.inode).copied().unwrap_or(0);
        if file.epoch < seen {
            return Err(Errno::ESTALE);
        }
        if file.epoch > seen {
            self.raise(file.inode, file.epoch);
        }
        Ok(())
    }

    fn raise(&self, inode: u64, epoch: u32) {
        let mut epochs = self.epochs.borrow_mut();
        let seen = epochs.entry(inode).or_insert(0);
        *seen = (*seen).max(epoch);
        if epochs.len() > EPOCHS_MAX {
            epochs.pop_first();
        }
    }

    /// Waits until the store takes changes.
    pub(crate) async fn make_room(&self) -> Result<(), Errno> {
        let room = self.store.room().await;
        self.judge(room)
    }

    /// A failure of the store as the client sees it; people hear of it where it is trouble.
    pub(crate) fn judge<T>(&self, result: Result<T, ObjectError>) -> Result<T, Errno> {
        result.map_err(|error| {
            if is_trouble(&error) {
                (self.config.log)(&error.to_string());
            }
            errno(&error)
        })
    }

    fn list<'a>(&self, after: Option<(u64, u32, u32)>, bytes_max: u32) -> DataResult<'a> {
        let after = after.map(|(inode, generation, stripe)| ObjectId { inode, generation, stripe });
        let limit = (bytes_max.min(128 << 10) / 32).max(1) as usize;
        let mut objects = Vec::new();
        for found in self.judge(self.store.list(after))? {
            let found = self.judge(found)?;
            let ObjectId { inode, generation, stripe } = found.object;
            objects.push(ObjectInfo { inode, generation, stripe, bytes: found.bytes });
            if objects.len() == limit {
                return Ok(DataReply::Objects { objects, end: false });
            }
        }
        Ok(DataReply::Objects { objects, end: true })
    }

    fn status<'a>(&self) -> DataResult<'a> {
        let space = self.judge(self.store.space())?;
        let usage = self.store.usage();
        Ok(DataReply::Status {
            total_bytes: space.total,
            available_bytes: space.available,
            objects: usage.objects,
            object_bytes: usage.object_bytes,
            requests: self.counts.get().requests,
        })
    }
}

pub(crate) fn object(file: FileId, stripe: u32) -> ObjectId {
    ObjectId { inode: file.inode, generation: file.generation, stripe }
}
