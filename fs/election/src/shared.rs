//! A voter whose record lies in a register that all metadata servers share, such as a key of etcd: the witness of a site that has
//! an etcd and no data server for it.
//!
//! Such a voter has no process of its own. Each metadata server judges its own ballots by what the register holds, and writes what
//! it grants itself. A register keeps no time, so each server measures for how long the value has stayed as it is.
//!
//! Invariants
//! * a value is replaced only where it still is the one that the ballot was judged by: a ballot that comes late changes nothing;
//! * each grant replaces the value, also where nothing in it changes: so the other servers see that a promise was renewed;
//! * a server takes the term of another one only if it has seen the same version for a whole lease. The holder acts for half a
//!   lease from before it wrote that version, so its time is over.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::Semaphore;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_wire::fs::election::MEMBERS_MAX;
use serde::{Deserialize, Serialize};

use crate::ballot::{Answer, Ballot, Set};
use crate::voter::{Record, Voter};

/// The format of a value.
const FORMAT: u32 = 1;

/// A ballot is judged so many times, if the register changes each time in between.
const TRIES: u32 = 4;

/// Most bytes of a value.
pub const VALUE_MAX: usize = 4096;

/// The content of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Another one with each write; 0: there is nothing.
    pub version: u64,
    pub value: Vec<u8>,
}

/// The result of an operation of a register. None: it did not answer, and a write may have happened or not.
pub type Given<T> = Pin<Box<dyn Future<Output = Option<T>>>>;

/// One value that several servers share. It forgets no write that it confirmed, and reads see each of them.
pub trait Register {
    /// Its content.
    fn read(&self) -> Given<Found>;

    /// Replaces the content that was found by this value. None: it is another one by now.
    fn replace(&self, found: &Found, value: Vec<u8>) -> Given<Option<Found>>;

    /// Says that the register holds something that no metadata server wrote.
    fn complain(&self, error: &ValueError);
}

/// The fields of a value, for people who look at it: JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    format: u32,
    term: u64,
    server: u32,
    /// The server gave its term up.
    is_free: bool,
    set_term: u64,
    set_number: u64,
    members: Vec<u32>,
}

/// The field that all formats have.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Why a value is refused.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("the value has {0} bytes, more than a vote can have")]
    Long(usize),
    #[error("the value is no vote: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the value has format {0}: a newer program wrote it")]
    Format(u32),
    #[error("the value's members are too many, or not in ascending order")]
    Members,
}

/// The record in a value, and whether its term was given up.
pub fn decode(value: &[u8]) -> Result<(Record, bool), ValueError> {
    if value.len() > VALUE_MAX {
        return Err(ValueError::Long(value.len()));
    }
    let Format { format } = serde_json::from_slice(value)?;
    if format != FORMAT {
        return Err(ValueError::Format(format));
    }
    let value: Value = serde_json::from_slice(value)?;
    let ascends = value.members.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascends || value.members.len() > MEMBERS_MAX {
        return Err(ValueError::Members);
    }
    let members: BTreeSet<u32> = value.members.into_iter().collect();
    let set = Set { term: value.set_term, number: value.set_number, members };
    Ok((Record { term: value.term, server: value.server, set }, value.is_free))
}

/// The value of a record.
pub fn encode(record: &Record, is_free: bool) -> Vec<u8> {
    let Record { term, server, set } = record;
    let value = Value {
        format: FORMAT,
        term: *term,
        server: *server,
        is_free,
        set_term: set.term,
        set_number: set.number,
        members: set.members.iter().copied().collect(),
    };
    serde_json::to_vec(&value).expect("numbers can be written")
}

/// A ballot that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub answer: Answer,
    /// The answer counts once this stands in the register.
    pub value: Option<Vec<u8>>,
}

/// The time for which a server has seen the same version.
#[derive(Debug)]
pub struct Observer {
    lease: Duration,
    seen: Option<(u64, Time)>,
}

impl Observer {
    /// Of a server that starts now: it has seen nothing.
    pub fn new(lease: Duration) -> Observer {
        Observer { lease, seen: None }
    }

    /// The register holds this version at a moment that is over.
    pub fn observe(&mut self, version: u64, now: Time) {
        if self.seen.is_none_or(|(seen, _)| seen != version) {
            self.seen = Some((version, now));
        }
    }

    /// Judges a ballot by what was found.
    pub fn judge(
        &mut self,
        found: &Found,
        ballot: &Ballot,
        now: Time,
    ) -> Result<Judged, ValueError> {
        self.observe(found.version, now);
        let (record, is_free) = match found.version {
            0 => (Record::fresh(), true),
            _ => decode(&found.value)?,
        };
        let since = self.seen.map_or(now, |(_, since)| since);
        let promised = if is_free { now } else { since + self.lease };
        let mut voter = Voter::resumed(record, self.lease, promised);
        let answer = voter.judge(ballot, now).answer;
        let gives_up = matches!(ballot, Ballot::Release { .. });
        let writes = answer.is_granted && !matches!(ballot, Ballot::Ask { .. });
        let value = writes.then(|| encode(voter.record(), gives_up));
        Ok(Judged { answer, value })
    }
}

/// A server's way to the voter in a register.
pub struct SharedVoter {
    world: World,
    register: Rc<dyn Register>,
    observer: RefCell<Observer>,
    /// The content of the register when it answered last.
    known: RefCell<Option<Found>>,
    /// One ballot at a time.
    turn: Semaphore,
}

impl SharedVoter {
    /// `lease`: the time for which a voter promises.
    pub fn new(world: &World, register: Rc<dyn Register>, lease: Duration) -> SharedVoter {
        SharedVoter {
            world: world.clone(),
            register,
            observer: RefCell::new(Observer::new(lease)),
            known: RefCell::default(),
            turn: Semaphore::new(1),
        }
    }

    /// Looks at the register: how long a version stays is measured from when it was seen first. Whether it answered.
    pub async fn observe(&self) -> bool {
        let _turn = self.turn.acquire().await;
        self.read().await.is_some()
    }

    /// Answers a ballot of this server. None: the register does not answer, holds no vote, or others write all the time.
    pub async fn answer(&self, ballot: &Ballot) -> Option<Answer> {
        let _turn = self.turn.acquire().await;
        // A holder that renews knows what it wrote last. A refusal counts only by what is there now.
        let mut known = self.known.borrow().clone();
        for _ in 0..TRIES {
            let (found, is_new) = match known.take() {
                Some(found) => (found, false),
                None => (self.read().await?, true),
            };
            let judged = self.observer.borrow_mut().judge(&found, ballot, self.world.now());
            let judged = judged.inspect_err(|error| self.register.complain(error));
            let Judged { answer, value } = judged.ok()?;
            let Some(value) = value else {
                if is_new {
                    return Some(answer);
                }
                continue;
            };
            if let Some(written) = self.register.replace(&found, value).await? {
                self.note(&written);
                return Some(answer);
            }
            // Another server was faster, or an earlier ballot of this one whose answer was lost.
        }
        None
    }

    async fn read(&self) -> Option<Found> {
        let found = self.register.read().await?;
        self.note(&found);
        Some(found)
    }

    fn note(&self, found: &Found) {
        self.observer.borrow_mut().observe(found.version, self.world.now());
        *self.known.borrow_mut() = Some(found.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_what_it_is_and_others_are_refused() {
        let set = Set { term: 4, number: 2, members: [0, 7].into() };
        let record = Record { term: 5, server: 7, set };
        for is_free in [false, true] {
            let value = encode(&record, is_free);
            assert_eq!(decode(&value).unwrap(), (record.clone(), is_free));
        }
        let newer = br#"{"format":2,"anything":1}"#;
        assert!(decode(newer).unwrap_err().to_string().contains("a newer program wrote it"));
        let text = String::from_utf8(encode(&record, false)).unwrap();
        for bad in [text.replace("[0,7]", "[7,0]"), text.replace("5,", "x,"), "[]".into()] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(matches!(decode(&[b' '; VALUE_MAX + 1]), Err(ValueError::Long(_))));
    }
}
