//! Groups of data servers: the units of placement.

use serde::{Deserialize, Serialize};

/// Groups of a band. A server that joins gets a band, so it can leave in as many parts.
pub const BAND_GROUPS: u32 = 64;

/// Most copies of a file's stripes.
pub const COPIES_MAX: u8 = 3;

/// The unit of placement: stripes of one group are on the same servers, and move together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group(u64);

/// Groups of bands begin here; below, a group has the number of the server that is alone in it.
const BANDED: u64 = 1 << 32;

impl Group {
    /// The group of a pool of the first format: one server, for ever.
    pub fn of_server(server: u32) -> Group {
        Group(u64::from(server))
    }

    /// Group number `index` of a band.
    pub fn of_band(band: u32, index: u32) -> Group {
        assert!(index < BAND_GROUPS, "a band has {BAND_GROUPS} groups");
        Group(BANDED + u64::from(band) * u64::from(BAND_GROUPS) + u64::from(index))
    }

    /// The group of objects that belong to no file any more: no pool has it.
    pub const NOBODYS: Group = Group(u64::MAX - 1);

    /// Its number, as data servers keep it with objects.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The group of a number.
    pub fn from_number(number: u64) -> Group {
        Group(number)
    }

    /// The server that is alone in it, where it is a group of the first format.
    pub fn server(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }

    /// Its band, and its number there, where it is a group of a band.
    pub fn band(self) -> Option<(u32, usize)> {
        let number = self.0.checked_sub(BANDED)?;
        let band = u32::try_from(number / u64::from(BAND_GROUPS)).ok()?;
        Some((band, (number % u64::from(BAND_GROUPS)) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_bands_are_apart_from_those_of_servers() {
        for (band, index) in [(0, 0), (0, 63), (1, 0), (u32::MAX, 63)] {
            let group = Group::of_band(band, index);
            assert_eq!((group.server(), group.band()), (None, Some((band, index as usize))));
        }
        for server in [0, 7, u32::MAX] {
            let group = Group::of_server(server);
            assert_eq!((group.server(), group.band()), (Some(server), None));
        }
        assert_eq!((Group::NOBODYS.server(), Group::NOBODYS.band()), (None, None));
        // One that no pool names.
        assert_eq!((Group(u64::MAX).server(), Group(u64::MAX).band()), (None, None));
    }
}
