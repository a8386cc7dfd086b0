//! A voter and its file.
//!
//! Invariants
//! * no answer leaves before the record that it speaks of is durable: ballots are judged one at a time, and each waits until the
//!   one before it is stored;
//! * a ballot that is given up is stored all the same before the next one is judged;
//! * after a write that failed nothing is answered until the server starts again.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Permit, Semaphore, oneshot};
use ropewalk_base::world::World;

use crate::ballot::{Answer, Ballot};
use crate::record::{self, Noted, VoteError};
use crate::voter::{Record, Voter};

/// A voter that forgets nothing.
pub struct VoterKeeper {
    world: World,
    directory: PathBuf,
    voter: RefCell<Voter>,
    /// The content of the file.
    stored: RefCell<Noted>,
    has_failed: Cell<bool>,
    /// One ballot at a time.
    turn: Semaphore,
}

impl VoterKeeper {
    /// Takes up the voter of a directory, which nobody else may use. `first` is its record where there is no file; the file is
    /// made with the first ballot that changes it.
    ///
    /// `first` has members only for the server that makes a new file system. Any other one, also the server of an emptied directory,
    /// begins without.
    pub async fn open(
        world: &World,
        directory: PathBuf,
        lease: Duration,
        first: Record,
    ) -> Result<Rc<VoterKeeper>, VoteError> {
        let (disk, place) = (world.disk(), directory.clone());
        let found = world.offload(move || {
            let Some(noted) = record::read(&*disk, &place)? else { return Ok(None) };
            let confirmed = record::confirm(&*disk, &place, &noted);
            let path = record::path(&place);
            confirmed.map_err(|cause| VoteError::Io { doing: "write", path, cause })?;
            Ok(Some(noted))
        });
        let found = found.await.unwrap_or(Err(VoteError::Closed))?;
        let noted = found.unwrap_or(Noted { record: first, whole: 0 });
        Ok(Rc::new(VoterKeeper {
            world: world.clone(),
            directory,
            voter: RefCell::new(Voter::new(noted.record.clone(), lease, world.now())),
            stored: RefCell::new(noted),
            has_failed: Cell::new(false),
            turn: Semaphore::new(1),
        }))
    }

    /// Answers a ballot, once the record that the answer speaks of is durable.
    pub async fn answer(self: &Rc<Self>, ballot: &Ballot) -> Result<Answer, VoteError> {
        let turn = self.turn().await?;
        let verdict = self.voter.borrow_mut().judge(ballot, self.world.now());
        if verdict.is_new {
            let record = self.voter.borrow().record().clone();
            self.store(turn, |noted| noted.record = record).await?;
        }
        Ok(verdict.answer)
    }

    /// The record as it is on the disk.
    pub fn record(&self) -> Record {
        self.stored.borrow().record.clone()
    }

    /// The number that was noted by [`VoterKeeper::note_whole`]; 0: none was.
    pub fn whole(&self) -> u64 {
        self.stored.borrow().whole
    }

    /// Stores durably that the server's metadata store has all that was acknowledged, in this era of it.
    pub async fn note_whole(self: &Rc<Self>, era: u64) -> Result<(), VoteError> {
        let turn = self.turn().await?;
        if self.whole() == era {
            return Ok(());
        }
        self.store(turn, |noted| noted.whole = era).await
    }

    /// Completes when nothing is being stored any more.
    pub async fn settled(&self) {
        self.turn.acquire().await;
    }

    async fn turn(&self) -> Result<Permit, VoteError> {
        let turn = self.turn.acquire().await;
        if self.has_failed.get() {
            return Err(VoteError::Failed { path: record::path(&self.directory) });
        }
        Ok(turn)
    }

    /// Stores a change in a task of its own, which has the turn to its end.
    async fn store(
        self: &Rc<Self>,
        turn: Permit,
        change: impl FnOnce(&mut Noted),
    ) -> Result<(), VoteError> {
        let mut noted = self.stored.borrow().clone();
        change(&mut noted);
        let (sender, stored) = oneshot();
        let keeper = self.clone();
        self.world.spawn(async move {
            let done = keeper.write(noted).await;
            keeper.has_failed.set(done.is_err());
            drop(turn);
            sender.send(done);
        });
        stored.await.unwrap_or(Err(VoteError::Closed))
    }

    async fn write(&self, noted: Noted) -> Result<(), VoteError> {
        let (disk, directory, copy) = (self.world.disk(), self.directory.clone(), noted.clone());
        let written = self.world.offload(move || record::write(&*disk, &directory, &copy));
        match written.await {
            Some(Ok(())) => {
                *self.stored.borrow_mut() = noted;
                Ok(())
            }
            Some(Err(cause)) => {
                let path = record::path(&self.directory);
                Err(VoteError::Io { doing: "write", path, cause })
            }
            None => Err(VoteError::Closed),
        }
    }
}
