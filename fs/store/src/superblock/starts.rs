//! The last starts on a directory. Others tell which of them they have met: one that is not among them was
//! made on a newer state of the directory, of which this one is an older copy.

/// The number of starts that are remembered.
const COUNT: usize = 48;
pub(super) const BYTES: usize = COUNT * 8;

/// The ids of the last starts on a directory, this one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Starts {
    newest: u64,
    /// Each at the place that its number has; 0 where the format did not know them yet.
    ids: [u64; COUNT],
}

impl Default for Starts {
    fn default() -> Starts {
        Starts { newest: 0, ids: [0; COUNT] }
    }
}

/// The number of a start, from 1; 0 where nobody counts them.
fn number(id: u64) -> u64 {
    id >> 32
}

impl Starts {
    pub(super) fn decode(newest: u64, bytes: &[u8; BYTES]) -> Starts {
        let mut ids = [0; COUNT];
        for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(8)) {
            *id = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Starts { newest, ids }
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        self.ids.iter().for_each(|id| into.extend_from_slice(&id.to_le_bytes()));
    }

    /// With one more start.
    pub(super) fn and(mut self, id: u64) -> Starts {
        self.newest = id;
        self.ids[(number(id) % COUNT as u64) as usize] = id;
        self
    }

    /// With a start that another witness knows. Of two with one number, this one counts.
    pub fn with(mut self, id: u64) -> Starts {
        let place = &mut self.ids[(number(id) % COUNT as u64) as usize];
        if number(id) >= number(*place) {
            *place = id;
        }
        if number(id) >= number(self.newest) {
            self.newest = id;
        }
        self
    }

    /// Whether an id says which start it is of.
    pub fn is_counted(id: u64) -> bool {
        number(id) != 0
    }

    /// Whether a start comes after another one of the same directory.
    pub fn is_later(id: u64, than: u64) -> bool {
        number(id) > number(than)
    }

    /// Whether an id can be one of these starts; 0 is none and always can.
    pub fn may_have(&self, id: u64) -> bool {
        let (asked, newest) = (number(id), number(self.newest));
        let known = self.ids[(asked % COUNT as u64) as usize];
        match asked {
            0 => true,
            _ if newest == 0 || asked + COUNT as u64 <= newest => true,
            _ if asked > newest => false,
            _ => known == id || known == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> u64 {
        number << 32 | (number * 7919 + 1)
    }

    #[test]
    fn own_starts_are_known_and_those_of_a_newer_state_are_not() {
        let mut starts = Starts::default();
        assert!(starts.may_have(0) && starts.may_have(id(3)), "nothing is known yet");
        for number in 1..200 {
            starts = starts.and(id(number));
            let mut bytes = Vec::new();
            starts.encode(&mut bytes);
            let bytes: &[u8; BYTES] = bytes.as_slice().try_into().unwrap();
            assert_eq!(Starts::decode(id(number), bytes), starts);
            assert!((0..=number).all(|number| starts.may_have(id(number))));
            assert!(!starts.may_have(id(number + 1)));
            // The newer state had as many starts, or fewer than were made on the older copy since.
            let others = number.saturating_sub(COUNT as u64 - 1).max(1)..=number;
            assert!(others.into_iter().all(|number| !starts.may_have(id(number) ^ 1)));
        }
        // Two witnesses: the second knows a start of its own and one of the same number as the first.
        let both = Starts::default().and(id(1)).and(id(2)).and(id(3));
        let both = both.with(id(2) ^ 1).with(id(4)).with(id(2) ^ 1);
        assert!([id(1), id(2) ^ 1, id(3), id(4)].into_iter().all(|id| both.may_have(id)));
        assert!(!both.may_have(id(2)) && !both.may_have(id(5)));
        // A directory of the format without them.
        let starts = Starts::default().and(id(9));
        assert!(starts.may_have(id(4)) && starts.may_have(id(9)) && !starts.may_have(id(9) ^ 1));
    }
}
