//! Exchanges of a team: each rank gives bytes to all ranks. A collective call makes some of them, one after the other.
//!
//! A rank that finds another one lost gives the call up, and says so: nobody waits for it in later exchanges of that call.
//!
//! Invariant: rounds have the same numbers at all ranks. A call begins with a round of its own number, however far each rank came in
//! the call before.

use std::collections::VecDeque;

use crate::error::Loss;
use crate::messages::wire::Malformed;

/// A round is the number of its call, and in the lower bits that of the exchange within it.
const CALL_SHIFT: u32 = 8;
/// Bytes of a rank that may wait here: it is at most one exchange ahead.
const WAITING_MAX: usize = 2;

/// The bytes of all ranks; or a rank that is missing.
type Ended = Result<Vec<Vec<u8>>, (u32, Loss)>;

/// The exchanges of one rank.
#[derive(Debug)]
pub(crate) struct Exchanges {
    round: u64,
    /// By rank: bytes that came, and their rounds.
    came: Vec<VecDeque<(u64, Vec<u8>)>>,
    /// By rank: the last call that it gave up, and the rank that it had lost.
    given_up: Vec<Option<(u64, u32)>>,
}

impl Exchanges {
    pub fn new(size: u32) -> Exchanges {
        let size = size as usize;
        Exchanges { round: 0, came: vec![VecDeque::new(); size], given_up: vec![None; size] }
    }

    /// The call that is under way, or was the last one.
    pub fn call(&self) -> u64 {
        self.round >> CALL_SHIFT
    }

    pub fn begin_call(&mut self) {
        self.go_to((self.call() + 1) << CALL_SHIFT);
    }

    fn go_to(&mut self, round: u64) {
        self.round = round;
        for came in &mut self.came {
            while came.pop_front_if(|(of, _)| *of < round).is_some() {}
        }
    }

    /// The round of the exchange that is under way.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Bytes of a rank came. Those of a round that is over are passed over.
    ///
    /// # Errors
    /// It is not its turn.
    pub fn came(&mut self, rank: u32, round: u64, bytes: Vec<u8>) -> Result<(), Malformed> {
        if round < self.round {
            return Ok(());
        }
        let is_near = round >> CALL_SHIFT <= self.call() + 1;
        let came = &mut self.came[rank as usize];
        let is_next = came.back().is_none_or(|(last, _)| *last < round);
        if came.len() >= WAITING_MAX || !is_next || !is_near {
            return Err("an exchange out of turn");
        }
        came.push_back((round, bytes));
        Ok(())
    }

    /// A rank has given a call up, since it had lost another one.
    ///
    /// # Errors
    /// There is no such rank, or this rank did not make the call.
    pub fn gave_up(&mut self, rank: u32, call: u64, lost: u32) -> Result<(), Malformed> {
        if lost as usize >= self.given_up.len() {
            return Err("a rank is lost that there is not");
        }
        if call > self.call() {
            return Err("a call was given up before it began");
        }
        self.given_up[rank as usize] = Some((call, lost));
        Ok(())
    }

    /// The bytes of all ranks, if the exchange is over; then the next round begins. `lost` has the ranks that are lost here.
    ///
    /// All ranks that live are waited for, so that none is more than an exchange ahead of another one.
    pub fn end(&mut self, lost: &[Option<Loss>]) -> Option<Ended> {
        let mut missing = None;
        for (rank, came) in self.came.iter().enumerate() {
            if came.front().is_some_and(|(round, _)| *round == self.round) {
                continue;
            }
            let gave_up = self.given_up[rank].filter(|(call, _)| *call >= self.call());
            let loss = |rank: u32| (rank, lost[rank as usize].unwrap_or(Loss::Told));
            let cause = match lost[rank] {
                Some(_) => Some(loss(rank as u32)),
                None => gave_up.map(|(_, lost)| loss(lost)),
            };
            // Nobody is passed over without a cause.
            missing = missing.or(Some(cause?));
        }
        let ended = match missing {
            Some(missing) => Err(missing),
            None => Ok(self.came.iter_mut().filter_map(|it| Some(it.pop_front()?.1)).collect()),
        };
        self.go_to(self.round + 1);
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: [Option<Loss>; 3] = [None; 3];

    /// Three ranks as the first of them sees them, within a call. Gives the round of its first exchange.
    fn begun() -> (Exchanges, u64) {
        let mut exchanges = Exchanges::new(3);
        exchanges.begin_call();
        let round = exchanges.round();
        (exchanges, round)
    }

    fn came(exchanges: &mut Exchanges, round: u64, ranks: &[u32]) {
        for rank in ranks {
            exchanges.came(*rank, round, vec![*rank as u8]).expect("it is its turn");
        }
    }

    #[test]
    fn an_exchange_ends_when_all_have_given_their_bytes() {
        let (mut exchanges, first) = begun();
        came(&mut exchanges, first, &[0, 2]);
        came(&mut exchanges, first + 1, &[2]);
        assert_eq!(exchanges.end(&LIVE), None);
        came(&mut exchanges, first, &[1]);
        assert_eq!(exchanges.end(&LIVE), Some(Ok(vec![vec![0], vec![1], vec![2]])));
        came(&mut exchanges, first + 1, &[0, 1]);
        assert!(exchanges.end(&LIVE).is_some_and(|it| it.is_ok()), "what came early counts");
    }

    #[test]
    fn nobody_waits_for_a_rank_that_gave_the_call_up() {
        let (mut exchanges, first) = begun();
        came(&mut exchanges, first, &[0, 1, 2]);
        exchanges.end(&LIVE).expect("all came").expect("all came");
        // Rank 1 has not had the bytes of rank 2, and is in the next call already.
        came(&mut exchanges, first + 1, &[0]);
        exchanges.gave_up(1, exchanges.call(), 2).expect("the call is under way");
        let next = (exchanges.call() + 1) << CALL_SHIFT;
        came(&mut exchanges, next, &[1]);
        assert_eq!(exchanges.end(&LIVE), None, "rank 2 may still be there");
        let lost = [None, None, Some(Loss::Told)];
        assert_eq!(exchanges.end(&lost), Some(Err((2, Loss::Told))));
        exchanges.begin_call();
        assert_eq!(exchanges.round(), next);
        came(&mut exchanges, next, &[0]);
        assert_eq!(exchanges.end(&lost), Some(Err((2, Loss::Told))), "rank 1 is there again");
        assert_eq!(exchanges.end(&lost), None, "it is waited for");
    }

    #[test]
    fn bytes_out_of_turn_and_calls_that_there_are_not_are_refused() {
        let (mut exchanges, first) = begun();
        came(&mut exchanges, first, &[1]);
        assert!(exchanges.came(1, first, Vec::new()).is_err(), "twice");
        came(&mut exchanges, first + 1, &[1]);
        assert!(exchanges.came(1, first + 2, Vec::new()).is_err(), "too many");
        assert!(exchanges.came(2, first + (2 << CALL_SHIFT), Vec::new()).is_err(), "too far");
        assert!(exchanges.came(2, first - 1, Vec::new()).is_ok(), "passed over");
        assert!(exchanges.gave_up(1, exchanges.call() + 1, 2).is_err());
        assert!(exchanges.gave_up(1, exchanges.call(), 3).is_err());
    }
}
