//! The feed: what the active server gives to standby servers, and what it knows of them.
//!
//! Invariants:
//! * a standby becomes a member of the store's agreement once it is close behind; it is told to those who elect only when it has
//!   all that is agreed;
//! * a standby gets records only after both sides know what they have in common;
//! * a standby that may be elected gets no copy, for which it would give up what it has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ropewalk_base::task::{Either, Notify, race};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_store::agreement::{Member, Reach};
use ropewalk_store::journal::JournalReader;
use ropewalk_store::{JournaledStore, MetaStore, Position, Snapshot, StoreError};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::standby::{
    CopiedRow, FEED_BYTES, Reached, StandbyReply, StandbyRequest, StandbyResult, StandbyStatus,
    TermBegin,
};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::history::{KnownTerm, Terms, common};
use crate::store_rows::StoreRows;

/// Stands for the standby that there is not, where the active server does not go on without one.
const NOBODY: Member = Member(u32::MAX);

/// The standby servers of one term.
pub(super) struct Feed {
    world: World,
    store: JournaledStore,
    /// The number of the term.
    term: u64,
    history: u128,
    /// An answer without records is given after so long.
    patience: Duration,
    standbys: RefCell<BTreeMap<u32, Standby>>,
    /// The servers that may be elected, also by a set that is only proposed.
    set: RefCell<BTreeSet<u32>>,
    /// Whether the active server goes on without any of them.
    alone: bool,
    next_copy: Cell<u64>,
    /// Told when a standby joins, comes to have all, or wants to leave the set.
    pub changed: Notify,
    ended: Cell<bool>,
    /// A planted bug: what was sent counts as written.
    pub hasty: Cell<bool>,
}

struct Standby {
    heard: Time,
    reach: Reach,
    /// Reads the records that it gets next.
    records: Option<JournalReader>,
    /// A record that was read and does not fit the last answer.
    next: Option<(u64, Vec<u8>)>,
    /// Keeps the records that it did not get for sure.
    kept: Option<JournalReader>,
    copy: Option<Copying>,
    /// An answer came to the last record: it lacks no more than what was written since.
    is_near: bool,
    /// Has to leave the set, for a copy.
    leaves: bool,
    /// The last record that it was told to sync.
    sync_told: u64,
}

/// A copy that a standby is getting.
struct Copying {
    number: u64,
    snapshot: Snapshot,
    part: u64,
    /// The answer with the last part: it may be asked for again.
    last: Vec<u8>,
    /// The pieces of a row that does not fit an answer.
    pieces: VecDeque<(Vec<u8>, Vec<u8>)>,
}

/// The standing of a standby, by which the active server decides on the set.
pub(super) struct Standing {
    pub server: u32,
    /// It has all that is agreed, and is waited for.
    pub has_all: bool,
    pub silence: Duration,
    pub leaves: bool,
    pub reach: Reach,
}

impl Feed {
    /// The store of the active server.
    pub fn store(&self) -> &JournaledStore {
        &self.store
    }

    pub fn new(
        world: &World,
        store: JournaledStore,
        (term, history): (u64, u128),
        patience: Duration,
        alone: bool,
    ) -> Feed {
        Feed {
            world: world.clone(),
            store,
            term,
            history,
            patience,
            standbys: RefCell::default(),
            set: RefCell::default(),
            alone,
            next_copy: Cell::new(1),
            changed: Notify::new(),
            ended: Cell::new(false),
            hasty: Cell::new(false),
        }
    }

    /// These servers may be elected. Those of them that are not known yet are waited for from now on.
    pub fn set_members(&self, members: &BTreeSet<u32>, own: u32) {
        let mut set = self.set.borrow_mut();
        *set = members.iter().copied().filter(|it| *it != own).collect();
        let journal = self.store.journal();
        for server in &*set {
            journal.admit(Member(*server), Reach::default());
        }
        // A member that never confirms anything holds the marks until there is a standby.
        match self.alone || !set.is_empty() {
            true => journal.dismiss(NOBODY),
            false => journal.admit(NOBODY, Reach::default()),
        }
        let mut standbys = self.standbys.borrow_mut();
        for (member, _) in journal.members() {
            if set.contains(&member.0) || member == NOBODY {
                continue;
            }
            // One that has yet to be told to those who elect stays, unless it went away.
            let keeps = standbys.get(&member.0).is_some_and(|it| !it.leaves && it.kept.is_some());
            if !keeps {
                journal.dismiss(member);
            }
        }
        let gone = standbys.iter_mut().filter(|(server, _)| !set.contains(server));
        gone.for_each(|(_, standby)| standby.leaves = false);
    }

    /// Waits no more for a standby that was not told to those who elect. The records that it lacks are kept for it.
    pub fn wait_no_more(&self, server: u32) {
        debug_assert!(!self.set.borrow().contains(&server), "it may be elected");
        if let Some(standby) = self.standbys.borrow_mut().get_mut(&server) {
            standby.is_near = false;
        }
        self.store.journal().dismiss(Member(server));
    }

    /// Goes on without a standby that was not told to those who elect.
    pub fn forget(&self, server: u32) {
        debug_assert!(!self.set.borrow().contains(&server), "it may be elected");
        self.standbys.borrow_mut().remove(&server);
        self.store.journal().dismiss(Member(server));
    }

    /// All standby servers that were heard of in this term.
    pub fn standings(&self) -> Vec<Standing> {
        let (now, journal) = (self.world.now(), self.store.journal());
        let standbys = self.standbys.borrow();
        let standings = standbys.iter().map(|(server, it)| Standing {
            server: *server,
            has_all: it.kept.is_some() && journal.has_all(Member(*server)),
            silence: now.since(it.heard),
            leaves: it.leaves,
            reach: it.reach,
        });
        standings.collect()
    }

    /// The standby servers of this term, as people are told of them.
    pub fn statuses(&self) -> BTreeMap<u32, StandbyStatus> {
        let set = self.set.borrow();
        let standbys = self.standbys.borrow();
        let standings = self.standings().into_iter().map(|it| {
            let (written, durable) = (it.reach.written.0, it.reach.durable.0);
            let status = StandbyStatus {
                reached: Reached { written, durable },
                silence: u64::try_from(it.silence.as_millis()).unwrap_or(u64::MAX),
                has_all: it.has_all,
                may_lead: set.contains(&it.server),
                copies: standbys.get(&it.server).is_some_and(|it| it.copies()),
            };
            (it.server, status)
        });
        standings.collect()
    }

    /// The newest record, and how far the own files have come.
    pub fn own(&self) -> (u64, Reached) {
        known(&self.store)
    }

    /// No answer has records any more: the term ends.
    pub fn end(&self) {
        self.ended.set(true);
        self.standbys.borrow_mut().clear();
    }

    /// The body of the answer to a standby.
    pub async fn answer(&self, server: u32, request: StandbyRequest) -> Vec<u8> {
        let result = match request {
            StandbyRequest::Join { history, position, terms } => {
                self.join(server, history, position, &terms)
            }
            StandbyRequest::Pull { term, from, offset, reached } if term == self.term => {
                return self.pull(server, from, offset, reached).await;
            }
            StandbyRequest::Confirm { term, reached } if term == self.term => {
                self.note(server, reached);
                Ok(StandbyReply::Done)
            }
            StandbyRequest::Copy { term } if term == self.term => self.copy(server).await,
            StandbyRequest::Rows { term, copy, part } if term == self.term => {
                return self.rows(server, copy, part);
            }
            // It has to join the present term first.
            _ => Err(Errno::ESTALE),
        };
        encoded(&result)
    }

    fn join(
        &self,
        server: u32,
        history: u128,
        position: u64,
        terms: &[TermBegin],
    ) -> StandbyResult<'static> {
        let is_new = position == 0 && terms.is_empty();
        if history != self.history && !is_new {
            return Err(Errno::EXDEV);
        }
        let own = Terms::read(&StoreRows::new(self.store.clone())).map_err(|_| Errno::EIO)?;
        let terms: Vec<KnownTerm> =
            terms.iter().map(|it| KnownTerm { id: it.id, begin: it.begin }).collect();
        let own_last = self.store.position().0;
        let shared = common((&own.known(), own_last), (&terms, position));
        let journal = self.store.journal();
        let shared = shared.filter(|last| *last + 1 >= journal.oldest().0);
        let heard = self.world.now();
        let mut standbys = self.standbys.borrow_mut();
        let standby = standbys.entry(server).or_insert_with(|| Standby::new(heard));
        *standby = Standby::new(heard);
        standby.kept = shared.map(|last| journal.read_from(Position(last + 1)));
        drop(standbys);
        journal.begin_anew(Member(server));
        self.changed.notify_all();
        Ok(StandbyReply::Joined { term: self.term, history: self.history, common: shared })
    }

    /// Notes how far a standby has come.
    fn note(&self, server: u32, reached: Reached) {
        let Reached { written, durable } = reached;
        let last = self.store.journal().own().written;
        let reach = Reach {
            written: Position(written).min(last),
            durable: Position(durable.min(written)).min(last),
        };
        let mut standbys = self.standbys.borrow_mut();
        let Some(standby) = standbys.get_mut(&server).filter(|it| it.kept.is_some()) else {
            return;
        };
        standby.heard = self.world.now();
        standby.reach = reach;
        let is_near = standby.is_near;
        drop(standbys);
        let journal = self.store.journal();
        if journal.is_member(Member(server)) {
            journal.confirm(Member(server), reach);
        } else if is_near {
            journal.admit(Member(server), reach);
        } else {
            return;
        }
        if !self.set.borrow().contains(&server) && journal.has_all(Member(server)) {
            self.changed.notify_all();
        }
    }

    async fn pull(&self, server: u32, from: u64, offset: u64, reached: Reached) -> Vec<u8> {
        self.note(server, reached);
        let journal = self.store.journal();
        let until = self.world.now() + self.patience;
        loop {
            if self.ended.get() {
                return encoded(&Err(Errno::ESTALE));
            }
            let (written, asked) = (journal.wait_own_written(Position(from)), journal.sync_asked());
            match self.records(server, from, offset) {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(StoreError::Cut { .. }) => return encoded(&Ok(StandbyReply::Cut)),
                Err(StoreError::Busy) => return encoded(&Err(Errno::ESTALE)),
                Err(_) => return encoded(&Err(Errno::EIO)),
            }
            if self.world.now() >= until {
                return self.no_records(server, self.sync_of(from));
            }
            let news = race(race(written, asked), self.world.sleep_until(until)).await;
            if let Either::Left(Either::Left(Err(_))) = news {
                // The journal has failed, and the term ends.
                return encoded(&Err(Errno::EIO));
            }
        }
    }

    /// The last record that a standby, which wants `from`, shall make durable.
    fn sync_of(&self, from: u64) -> u64 {
        let journal = self.store.journal();
        journal.sync_wanted().max(journal.durable()).0.min(from.saturating_sub(1))
    }

    /// The answer with the records from one on, if there is something to say.
    fn records(&self, server: u32, from: u64, offset: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let journal = self.store.journal();
        let mut standbys = self.standbys.borrow_mut();
        // One that was forgotten joins again.
        let standby =
            standbys.get_mut(&server).filter(|it| it.kept.is_some()).ok_or(StoreError::Busy)?;
        if standby.kept.as_ref().is_none_or(|it| it.position().0 != from) {
            standby.kept = Some(journal.read_from(Position(from)));
        }
        let position = match (&standby.next, &standby.records) {
            (Some((position, _)), _) => *position,
            (None, Some(records)) => records.position().0,
            (None, None) => 0,
        };
        if position != from {
            (standby.next, standby.records) = (None, Some(journal.read_from(Position(from))));
        }
        let reader = standby.records.as_mut().expect("it was made");
        let (mut records, mut sum) = (Vec::new(), 0);
        loop {
            let next = match standby.next.take() {
                Some((position, record)) => Some((Position(position), record)),
                None => reader.next_record()?,
            };
            let Some((position, record)) = next else {
                standby.is_near = true;
                break;
            };
            if sum + record.len() > FEED_BYTES {
                standby.next = Some((position.0, record));
                break;
            }
            sum += record.len() + 8;
            records.push(record);
        }
        let sync = self.sync_of(from);
        if records.is_empty() && standby.next.is_none() {
            let is_news = sync > standby.sync_told && sync > standby.reach.durable.0;
            standby.sync_told = standby.sync_told.max(sync);
            return Ok(is_news.then(|| self.no_records(server, sync)));
        }
        standby.sync_told = standby.sync_told.max(sync);
        if let (true, Some((_, record))) = (records.is_empty(), &standby.next) {
            let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(record.len());
            let end = (begin + FEED_BYTES).min(record.len());
            let (bytes, length) = (Bytes(&record[begin..end]), record.len() as u64);
            return Ok(Some(encoded(&Ok(StandbyReply::Part { bytes, length, sync }))));
        }
        if self.hasty.get() {
            let last = Position(from + records.len() as u64 - 1);
            journal.confirm(Member(server), Reach { written: last, durable: last });
        }
        let records = records.iter().map(|record| Bytes(record)).collect();
        let has_all = journal.has_all(Member(server));
        Ok(Some(encoded(&Ok(StandbyReply::Records { records, sync, has_all }))))
    }

    fn no_records(&self, server: u32, sync: u64) -> Vec<u8> {
        let has_all = self.store.journal().has_all(Member(server));
        encoded(&Ok(StandbyReply::Records { records: Vec::new(), sync, has_all }))
    }

    /// Begins a copy for a standby that may not be elected.
    async fn copy(&self, server: u32) -> StandbyResult<'static> {
        let now = self.world.now();
        {
            let mut standbys = self.standbys.borrow_mut();
            let standby = standbys.get_mut(&server).ok_or(Errno::ESTALE)?;
            (standby.heard, standby.leaves) = (now, self.set.borrow().contains(&server));
            if standby.leaves {
                self.changed.notify_all();
                return Err(Errno::EAGAIN);
            }
            // It is waited for again when the copy is there.
            (standby.kept, standby.records, standby.next) = (None, None, None);
            standby.is_near = false;
        }
        self.store.journal().dismiss(Member(server));
        let (snapshot, kept) = self.store.snapshot().await.map_err(|_| Errno::EIO)?;
        let (number, position) = (self.next_copy.get(), snapshot.position().0);
        self.next_copy.set(number + 1);
        let (last, pieces) = (Vec::new(), VecDeque::new());
        let mut standbys = self.standbys.borrow_mut();
        let standby = standbys.get_mut(&server).ok_or(Errno::ESTALE)?;
        standby.copy = Some(Copying { number, snapshot, part: 0, last, pieces });
        (standby.kept, standby.reach) = (Some(kept), Reach::default());
        Ok(StandbyReply::Copying { copy: number, position })
    }

    fn rows(&self, server: u32, copy: u64, part: u64) -> Vec<u8> {
        let mut standbys = self.standbys.borrow_mut();
        let Some(standby) = standbys.get_mut(&server) else { return encoded(&Err(Errno::ESTALE)) };
        standby.heard = self.world.now();
        let Some(copying) = standby.copy.as_mut().filter(|it| it.number == copy) else {
            return encoded(&Err(Errno::ESTALE));
        };
        if part.checked_add(1) == Some(copying.part) {
            return copying.last.clone();
        }
        if part != copying.part {
            return encoded(&Err(Errno::EINVAL));
        }
        let answer = match copying.next_answer() {
            Ok(answer) => answer,
            Err(_) => return encoded(&Err(Errno::EIO)),
        };
        copying.part += 1;
        copying.last.clone_from(&answer);
        answer
    }
}

impl Standby {
    fn new(heard: Time) -> Standby {
        Standby {
            heard,
            reach: Reach::default(),
            records: None,
            next: None,
            kept: None,
            copy: None,
            is_near: false,
            leaves: false,
            sync_told: 0,
        }
    }
}

impl Standby {
    /// It gets a copy, and has asked for no record since.
    fn copies(&self) -> bool {
        self.copy.is_some() && self.reach == Reach::default()
    }
}

impl Copying {
    fn next_answer(&mut self) -> Result<Vec<u8>, StoreError> {
        if self.pieces.is_empty() {
            let rows = self.snapshot.next_rows(FEED_BYTES)?;
            let sum: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
            if sum <= FEED_BYTES {
                let end = rows.is_empty();
                let rows = rows.iter().map(|(key, value)| row(key, value)).collect();
                return Ok(encoded(&Ok(StandbyReply::Rows { rows, end })));
            }
            // One long row.
            for (key, value) in &rows {
                let pieces =
                    value.chunks(FEED_BYTES / 2).map(|piece| (key.clone(), piece.to_vec()));
                self.pieces.extend(pieces);
            }
        }
        let (key, value) = self.pieces.pop_front().expect("there is one");
        Ok(encoded(&Ok(StandbyReply::Rows { rows: vec![row(&key, &value)], end: false })))
    }
}

/// The newest record of a store, and how far its files have come.
pub(super) fn known(store: &JournaledStore) -> (u64, Reached) {
    let own = store.journal().own();
    let reached = Reached { written: own.written.0, durable: own.durable.0 };
    (store.position().0, reached)
}

fn row<'a>(key: &'a [u8], value: &'a [u8]) -> CopiedRow<'a> {
    CopiedRow { key: Bytes(key), value: Bytes(value) }
}

fn encoded(result: &StandbyResult<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    encode(result, &mut body);
    body
}
