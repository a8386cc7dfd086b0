//! The members of a group that a read asks, one after the other.
//!
//! A client has its own first choice for each file and group, so that the reads of many clients, and those of a large file,
//! spread. A member that does not know whether all members have its bytes refuses: then the orderer is asked. One that is silent or
//! has bad bytes is passed over. The orderer is the last one, and gets all the time there is.
//!
//! Invariants:
//! * a part is asked for at most once of each member, once more of those with bad bytes, and then of the orderer.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::task::{Either, race};
use ropewalk_wire::fs::data::{DataReply, DataRequest, ObjectRange, READS_VERSION};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::value::Errno;

use crate::client::Client;
use crate::inode::Inode;
use crate::places::Places;
use crate::write::{Part, parts_by};

/// A member that is not the last choice has so long to answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// And longer for many bytes.
const BYTES_PER_MICROSECOND: u64 = 16;
/// The pause between two looks at its link.
const LINK_PAUSE: Duration = Duration::from_millis(25);
/// One that did not answer is among the last choices for so long.
const SLOW_TIME: Duration = Duration::from_secs(2);

/// A part of a read, and the server that is asked for it.
pub(crate) struct Try {
    pub part: Part,
    passed: Passed,
    /// The orderer is asked, and nobody after it.
    last: bool,
    /// The server compares the bytes with their checksums.
    pub verify: bool,
}

/// The members that were passed over.
#[derive(Debug, Clone, Default)]
struct Passed {
    /// They were asked, and did not give good bytes.
    servers: Vec<u32>,
    /// All members that do not order the group.
    all: bool,
}

/// The reason to ask once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    Errno(Errno),
    /// The bytes do not have their checksums.
    Damaged,
}

/// A choice of a server.
#[derive(Debug, Clone, Copy)]
struct Choice {
    server: u32,
    last: bool,
}

impl Client {
    /// The servers to ask first.
    pub(crate) fn first_tries(
        &self,
        inode: &Inode,
        places: &Places,
        ranges: Vec<(usize, ObjectRange)>,
    ) -> Vec<Try> {
        self.tries(inode, places, ranges, &Passed::default(), false)
    }

    /// The servers to ask after one of them has not given good bytes; an error if nobody else is left.
    pub(crate) fn next_tries(
        &self,
        inode: &Inode,
        places: &Places,
        failed: (&Try, Failed),
    ) -> Result<Vec<Try>, Errno> {
        let (Try { part, passed, last, verify }, why) = failed;
        let passed = match why {
            Failed::Damaged if !*verify => passed.clone(),
            Failed::Damaged if *last => return Err(Errno::EIO),
            // Both sides know the same state of the group, or the server will know it soon.
            Failed::Errno(Errno::EAGAIN) if *last => return Err(Errno::ESTALE),
            Failed::Errno(Errno::EAGAIN) => Passed { all: true, ..passed.clone() },
            Failed::Errno(errno) if *last || !matches!(errno, Errno::ETIMEDOUT | Errno::EIO) => {
                return Err(errno);
            }
            Failed::Errno(_) | Failed::Damaged => {
                let servers = passed.servers.iter().copied().chain([part.server]).collect();
                Passed { servers, all: passed.all }
            }
        };
        let mut begin = part.begin;
        let ranges = part.pieces.iter().map(|range| {
            let at = begin;
            begin += range.len as usize;
            (at, *range)
        });
        let verify = *verify || why == Failed::Damaged;
        Ok(self.tries(inode, places, ranges.collect(), &passed, verify))
    }

    fn tries(
        &self,
        inode: &Inode,
        places: &Places,
        ranges: Vec<(usize, ObjectRange)>,
        passed: &Passed,
        verify: bool,
    ) -> Vec<Try> {
        let choice = |group| self.choice(inode, places, group, passed);
        let (last, others): (Vec<_>, Vec<_>) =
            ranges.into_iter().partition(|(_, range)| choice(range.group).last);
        let tries = |ranges: Vec<(usize, ObjectRange)>, last| {
            let parts = parts_by(ranges.into_iter(), |group| choice(group).server);
            parts.into_iter().map(move |part| Try { part, passed: passed.clone(), last, verify })
        };
        tries(others, false).chain(tries(last, true)).collect()
    }

    /// The server to ask when these were passed over. Where all that are left were slow lately, it is the orderer's turn: more
    /// servers that read the same bytes would make them slower.
    fn choice(&self, inode: &Inode, places: &Places, group: Group, passed: &Passed) -> Choice {
        let mut readers = places.readers(group);
        let orderer = Choice { server: places.server_of(group), last: true };
        readers.retain(|it| *it == orderer.server || self.may_read_from(*it));
        if passed.all || readers.len() < 2 {
            return orderer;
        }
        let seed = self.inner.number as u64 ^ inode.number.rotate_left(32) ^ group.number();
        let begin = Random::from_seed(seed).below(readers.len() as u64) as usize;
        readers.rotate_left(begin);
        let (now, slow) = (self.inner.world.now(), self.inner.slow.borrow());
        let is_slow = |server: &u32| slow.get(server).is_some_and(|until| now < *until);
        let next = readers.iter().find(|it| !passed.servers.contains(it) && !is_slow(it));
        next.map_or(orderer, |server| Choice { server: *server, last: false })
    }

    /// Whether a server may serve reads of groups that it does not order: not, if it is known to be of a former version.
    fn may_read_from(&self, server: u32) -> bool {
        let servers = self.inner.servers.borrow();
        let newest = servers.get(&server).and_then(|known| known.connection.newest());
        newest.is_none_or(|newest| newest >= READS_VERSION)
    }

    /// Completes when a server had so long to answer, or has no link any more.
    async fn late(&self, server: u32, limit: Duration) {
        let until = self.inner.world.now() + limit;
        let mut was_linkless = false;
        while self.inner.world.now() < until {
            self.inner.world.sleep(LINK_PAUSE.min(until.since(self.inner.world.now()))).await;
            let is_linkless = self.is_linkless(server);
            if was_linkless && is_linkless {
                return;
            }
            was_linkless = is_linkless;
        }
    }

    /// Asks for a part.
    pub(crate) async fn ask_for_bytes<T>(
        &self,
        one: &Try,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Part { server, len, .. } = one.part;
        if one.last {
            return self.ask_data(server, request, read).await.map(|(answer, _)| answer);
        }
        let limit = ANSWER_LIMIT + Duration::from_micros(len as u64 / BYTES_PER_MICROSECOND);
        let late = self.late(server, limit);
        match race(self.ask_member(server, request, read), late).await {
            // It was not known yet that it serves only what it orders.
            Either::Left(Err(Errno::ESTALE)) if !self.may_read_from(server) => Err(Errno::EAGAIN),
            Either::Left(answer) => answer,
            Either::Right(()) => {
                let until = self.inner.world.now() + SLOW_TIME;
                self.inner.slow.borrow_mut().insert(server, until);
                Err(Errno::ETIMEDOUT)
            }
        }
    }
}
