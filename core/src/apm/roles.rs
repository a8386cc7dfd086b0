//! The roles of an association's paths.
//!
//! Invariants
//! * Where there are paths, one is primary; at most one is the alternate.
//! * A drained path never becomes primary by a decision of this side. The peer's newer migration may name one: the path
//!   is primary then, and [`Roles::sending`] still avoids it.

use std::cmp::Reverse;

use super::message::Drain;
use super::path::{Health, PathId, PathRecord};
use super::state::Rule;

/// Weight of a path that nobody weighed, and the largest one.
pub const WEIGHT_MAX: u16 = 1000;
/// The best score of a path, and the best ones of paths that lose some of what they carry, and much of it.
pub const SCORE_MAX: u16 = 1000;
pub const SCORE_DEGRADED: u16 = 500;
pub const SCORE_STANDBY: u16 = 100;
/// Wishes of operators that are kept for paths to come: a session knows as many paths.
const WISHES_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It carries what is sent to one path only.
    Primary,
    /// Specified as the next primary one, loaded or not.
    Alternate,
    /// A further path: data may be striped over it.
    Member,
    /// An operator of either side keeps it out of use.
    Drained,
}

/// A path with its role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub record: PathRecord,
    pub health: Health,
    /// 0 to [`WEIGHT_MAX`]; a higher one is preferred.
    pub weight: u16,
    /// What its packets say of it: 0 to [`SCORE_MAX`]; a higher one is better.
    pub score: u16,
    /// It was primary, or its arming was complete. Only such a path takes over without an arming.
    pub proven: bool,
    /// Its last arming failed, and nothing good was heard of it since. It is not loaded until then, or until a caller
    /// names it.
    pub resting: bool,
    drained_here: bool,
    drained_there: bool,
    /// Orders of this side's operator so far, and the peer's newest one; both wrap.
    orders_here: u16,
    order_there: u16,
}

impl Entry {
    fn is_drained(&self) -> bool {
        self.drained_here || self.drained_there
    }

    fn is_good(&self) -> bool {
        self.health == Health::Good && !self.is_drained()
    }

    /// 0: it loses nothing that is worth a word; 1: it is degraded; 2: it stands by. Scores within one of these count after
    /// weights, which a user gives.
    pub(super) fn badness(&self) -> u8 {
        u8::from(self.score <= SCORE_DEGRADED) + u8::from(self.score <= SCORE_STANDBY)
    }
}

/// A drain and a weight of this side's operator, kept for the ends of a path that has other ends now, or is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Wish {
    local_rail: u8,
    remote_address: u32,
    weight: u16,
    is_drained: bool,
}

impl Wish {
    fn of(entry: &Entry) -> Wish {
        let PathRecord { local_rail, remote_address, .. } = entry.record;
        let (weight, is_drained) = (entry.weight, entry.drained_here);
        Wish { local_rail, remote_address, weight, is_drained }
    }

    fn is_special(&self) -> bool {
        self.is_drained || self.weight != WEIGHT_MAX
    }

    /// 0 stands for an address that was not told.
    fn is_about(&self, record: &PathRecord) -> bool {
        let (ours, theirs) = (self.remote_address, record.remote_address);
        self.local_rail == record.local_rail && (ours == theirs || ours == 0 || theirs == 0)
    }
}

/// The paths of an association, ordered by id. Drains and weights belong to the ends of a path: a path that joins again under
/// another id has those of before, and one that gets other ends leaves them behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Roles {
    entries: Vec<Entry>,
    primary: Option<PathId>,
    alternate: Option<PathId>,
    wishes: Vec<Wish>,
    /// Drains of the peer's operator for paths that did not join here yet.
    early: Vec<Drain>,
}

impl Roles {
    /// Adds a path as a member; the first one is primary. False if its id was given before.
    pub fn add(&mut self, record: PathRecord) -> bool {
        let Err(at) = self.entries.binary_search_by_key(&record.id, |entry| entry.record.id) else {
            return false;
        };
        let entry = Entry {
            record,
            health: Health::Good,
            weight: WEIGHT_MAX,
            score: SCORE_MAX,
            proven: self.primary.is_none(),
            resting: false,
            drained_here: false,
            drained_there: false,
            orders_here: 0,
            order_there: 0,
        };
        self.entries.insert(at, entry);
        self.primary.get_or_insert(record.id);
        if let Some(wish) = self.kept(&record) {
            self.fulfil(record.id, wish);
        }
        let early = self.early.iter().position(|drain| drain.path == record.id);
        if let Some(drain) = early.map(|at| self.early.remove(at)) {
            self.hear_drain(drain);
        }
        true
    }

    /// A path has got other ends: the wish for the former ones is kept. True if this side's drain changes.
    pub fn renew(&mut self, record: PathRecord) -> bool {
        let Some(entry) = self.get_mut(record.id) else { return false };
        let before = Wish::of(entry);
        entry.record = record;
        if before.local_rail == record.local_rail {
            return false;
        }
        self.keep(before);
        // The path that had these ends may be known yet, though nobody will carry it on.
        let gone = |entry: &&Entry| {
            let is_other = entry.record.id != record.id && entry.health == Health::Failed;
            is_other && Wish::of(entry).is_about(&record)
        };
        let of_gone = self.entries.iter().find(gone).map(Wish::of);
        let wish = self.kept(&record).or(of_gone).unwrap_or(Wish {
            weight: WEIGHT_MAX,
            is_drained: false,
            ..before
        });
        self.fulfil(record.id, wish);
        wish.is_drained != before.is_drained
    }

    /// Removes a path that has no role but that of a member.
    pub fn forget(&mut self, path: PathId) {
        let Some(gone) = self.get(path).cloned() else { return };
        self.entries.retain(|entry| entry.record.id != path);
        // Another path may have its ends by now, and what is wanted of them.
        let has_ends = |entry: &Entry| {
            entry.health != Health::Failed && Wish::of(entry).is_about(&gone.record)
        };
        if !self.entries.iter().any(has_ends) {
            self.keep(Wish::of(&gone));
        }
    }

    /// The newest wish counts.
    fn keep(&mut self, wish: Wish) {
        let ends = |wish: &Wish| (wish.local_rail, wish.remote_address);
        self.wishes.retain(|kept| ends(kept) != ends(&wish));
        if wish.is_special() && self.wishes.len() < WISHES_MAX {
            self.wishes.push(wish);
        }
    }

    /// Takes the wish that is kept for these ends.
    fn kept(&mut self, record: &PathRecord) -> Option<Wish> {
        let kept = self.wishes.iter().enumerate().filter(|(_, wish)| wish.is_about(record));
        let nearest = kept.max_by_key(|(_, wish)| wish.remote_address == record.remote_address);
        nearest.map(|(at, _)| at).map(|at| self.wishes.remove(at))
    }

    fn fulfil(&mut self, path: PathId, Wish { weight, is_drained, .. }: Wish) {
        let Some(entry) = self.get_mut(path) else { return };
        entry.weight = weight;
        if entry.drained_here != is_drained {
            entry.drained_here = is_drained;
            entry.orders_here = entry.orders_here.wrapping_add(1);
        }
    }

    pub fn primary(&self) -> Option<PathId> {
        self.primary
    }

    /// The specified path, if it is not drained.
    pub fn alternate(&self) -> Option<PathId> {
        self.alternate
    }

    pub fn get(&self, path: PathId) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&path, |entry| entry.record.id).ok()?;
        Some(&self.entries[at])
    }

    pub fn get_mut(&mut self, path: PathId) -> Option<&mut Entry> {
        let at = self.entries.binary_search_by_key(&path, |entry| entry.record.id).ok()?;
        Some(&mut self.entries[at])
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn role(&self, path: PathId) -> Option<Role> {
        let entry = self.get(path)?;
        Some(if self.primary == Some(path) {
            Role::Primary
        } else if entry.is_drained() {
            Role::Drained
        } else if self.alternate == Some(path) {
            Role::Alternate
        } else {
            Role::Member
        })
    }

    pub fn health(&self, path: PathId) -> Option<Health> {
        self.get(path).map(|entry| entry.health)
    }

    pub fn is_drained(&self, path: PathId) -> bool {
        self.get(path).is_some_and(Entry::is_drained)
    }

    pub fn is_good(&self, path: PathId) -> bool {
        self.get(path).is_some_and(Entry::is_good)
    }

    /// The path that may take over without an arming: the alternate, or the best other one that is proven. One that loses
    /// less than the alternate comes before it.
    pub fn spare(&self) -> Option<PathId> {
        let able = |entry: &&Entry| {
            entry.proven && entry.is_good() && Some(entry.record.id) != self.primary
        };
        let best = |entry: &&Entry| {
            let (id, badness) = (entry.record.id, Reverse(entry.badness()));
            (badness, self.alternate == Some(id), entry.weight, entry.score, Reverse(id))
        };
        self.entries.iter().filter(able).max_by_key(best).map(|entry| entry.record.id)
    }

    /// The path that carries what this side sends. It differs from the primary one while that is bad in this side's
    /// view and a spare is not: each sender chooses for its own direction.
    pub fn sending(&self) -> Option<PathId> {
        match self.primary {
            Some(primary) if self.is_good(primary) => Some(primary),
            primary => self.spare().or(primary),
        }
    }

    /// Makes a member the alternate; the former alternate is a member again. The path rests no more.
    ///
    /// # Errors
    /// The path is unknown, primary or drained.
    pub fn set_alternate(&mut self, path: PathId) -> Result<(), Rule> {
        self.fit_for_alternate(path)?;
        self.alternate = Some(path);
        if let Some(entry) = self.get_mut(path) {
            entry.resting = false;
        }
        Ok(())
    }

    /// Whether a path may become the alternate.
    ///
    /// # Errors
    /// The path is unknown, primary or drained.
    pub fn fit_for_alternate(&self, path: PathId) -> Result<(), Rule> {
        match self.role(path) {
            None => Err(Rule::UnknownPath),
            Some(Role::Primary) => Err(Rule::IsPrimary),
            Some(Role::Drained) => Err(Rule::IsDrained),
            Some(Role::Alternate | Role::Member) => Ok(()),
        }
    }

    /// Makes a path primary. The former primary one becomes the alternate if that place is free then.
    ///
    /// # Errors
    /// The path is unknown or drained.
    pub fn promote(&mut self, path: PathId) -> Result<(), Rule> {
        match self.get(path) {
            None => return Err(Rule::UnknownPath),
            Some(entry) if entry.is_drained() => return Err(Rule::IsDrained),
            Some(_) => {}
        }
        if self.primary == Some(path) {
            return Ok(());
        }
        if self.alternate == Some(path) {
            self.alternate = None;
        }
        let former = self.primary.replace(path).filter(|former| !self.is_drained(*former));
        self.alternate = self.alternate.or(former);
        self.prove(path);
        Ok(())
    }

    /// Takes the roles that a newer migration of the peer says.
    ///
    /// # Errors
    /// The primary path is unknown.
    pub fn follow(&mut self, primary: PathId, alternate: Option<PathId>) -> Result<(), Rule> {
        self.get(primary).ok_or(Rule::UnknownPath)?;
        self.primary = Some(primary);
        self.alternate = alternate.filter(|path| self.fit_for_alternate(*path).is_ok());
        self.prove(primary);
        Ok(())
    }

    /// Keeps a path out of use, by a request of this side or of the peer. A primary path stays primary until another is
    /// promoted; an alternate gives its place up.
    pub fn drain(&mut self, path: PathId, by: DrainedBy) {
        if let Some(entry) = self.get_mut(path) {
            match by {
                DrainedBy::Us => {
                    entry.drained_here = true;
                    entry.orders_here = entry.orders_here.wrapping_add(1);
                }
                DrainedBy::Peer => entry.drained_there = true,
            }
            self.alternate = self.alternate.filter(|alternate| *alternate != path);
        }
    }

    /// Takes a drain back: the path is a member again, unless the other side still drains it.
    pub fn bring_up(&mut self, path: PathId, by: DrainedBy) {
        if let Some(entry) = self.get_mut(path) {
            match by {
                DrainedBy::Us => {
                    entry.drained_here = false;
                    entry.orders_here = entry.orders_here.wrapping_add(1);
                }
                DrainedBy::Peer => entry.drained_there = false,
            }
        }
    }

    /// What this side's operator wants of a path, for the peer.
    pub fn drain_of(&self, path: PathId) -> Option<Drain> {
        let entry = self.get(path)?;
        Some(Drain { path, is_drained: entry.drained_here, order: entry.orders_here })
    }

    /// Takes an order of the peer's operator, unless a newer one came before. True if the path changes by it.
    pub fn hear_drain(&mut self, drain: Drain) -> bool {
        let Some(entry) = self.get_mut(drain.path) else {
            self.early.retain(|early| early.path != drain.path);
            if self.early.len() < WISHES_MAX {
                self.early.push(drain);
            }
            return false;
        };
        let ahead = drain.order.wrapping_sub(entry.order_there);
        if ahead > u16::MAX / 2 {
            return false;
        }
        entry.order_there = drain.order;
        let changes = entry.drained_there != drain.is_drained;
        if drain.is_drained {
            self.drain(drain.path, DrainedBy::Peer);
        } else {
            self.bring_up(drain.path, DrainedBy::Peer);
        }
        changes
    }

    pub fn is_drained_by(&self, path: PathId, by: DrainedBy) -> bool {
        self.get(path).is_some_and(|entry| match by {
            DrainedBy::Us => entry.drained_here,
            DrainedBy::Peer => entry.drained_there,
        })
    }

    /// Says that a path may take over without an arming.
    pub fn prove(&mut self, path: PathId) {
        if let Some(entry) = self.get_mut(path) {
            entry.proven = true;
            entry.resting = false;
        }
    }
}

/// Whose operator keeps a path out of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DrainedBy {
    Us,
    Peer,
}
