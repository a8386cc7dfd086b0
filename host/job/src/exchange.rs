//! Rounds in which each rank gives some bytes, and gets those of all.

/// Bytes that a rank gives in a round at most: a list of addresses has some hundred.
pub const PART_BYTES_MAX: usize = 16 << 10;

/// The round under way. A rank begins the next one when it has got the parts of this one.
#[derive(Debug)]
pub(crate) struct Exchange {
    parts: Vec<Option<Vec<u8>>>,
}

/// Why a part is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PartError {
    #[error("there is no such rank")]
    Rank,
    #[error("it has given its part of this round already")]
    Twice,
    #[error("it gives more than {PART_BYTES_MAX} bytes")]
    Long,
}

impl Exchange {
    pub fn new(size: u32) -> Exchange {
        Exchange { parts: vec![None; size as usize] }
    }

    /// A rank gives its part. The last one's makes the round: the parts of all, as [`decode`] reads them.
    pub fn give(&mut self, rank: u32, part: Vec<u8>) -> Result<Option<Vec<u8>>, PartError> {
        if part.len() > PART_BYTES_MAX {
            return Err(PartError::Long);
        }
        let place = self.parts.get_mut(rank as usize).ok_or(PartError::Rank)?;
        if place.is_some() {
            return Err(PartError::Twice);
        }
        *place = Some(part);
        if self.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for part in self.parts.iter_mut().filter_map(Option::take) {
            all.extend((part.len() as u32).to_le_bytes());
            all.extend(part);
        }
        Ok(Some(all))
    }

    /// Whether ranks wait for this one.
    pub fn is_awaited(&self, rank: u32) -> bool {
        let has_given = |part: &Option<Vec<u8>>| part.is_some();
        self.parts.iter().any(has_given)
            && self.parts.get(rank as usize).is_some_and(|it| !has_given(it))
    }
}

/// The parts of a round, by rank; `None` where the bytes are none of so many.
pub(crate) fn decode(mut bytes: &[u8], size: u32) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    for _ in 0..size {
        let (len, rest) = bytes.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_with_the_last_part_and_the_next_one_begins() {
        let mut exchange = Exchange::new(3);
        for round in 0u8..3 {
            assert!(!exchange.is_awaited(1), "nobody waits");
            assert_eq!(exchange.give(2, vec![round; 2]), Ok(None));
            assert_eq!(exchange.give(2, vec![]), Err(PartError::Twice));
            assert!(exchange.is_awaited(1) && !exchange.is_awaited(2));
            assert_eq!(exchange.give(0, vec![]), Ok(None));
            let all = exchange.give(1, vec![9]).unwrap().expect("the last one");
            assert_eq!(decode(&all, 3), Some(vec![vec![], vec![9], vec![round; 2]]));
            assert_eq!(decode(&all, 2), None);
            assert_eq!(decode(&all, 4), None);
            assert_eq!(decode(&all[..all.len() - 1], 3), None);
        }
        assert_eq!(exchange.give(3, vec![]), Err(PartError::Rank));
        assert_eq!(exchange.give(0, vec![0; PART_BYTES_MAX + 1]), Err(PartError::Long));
    }
}
