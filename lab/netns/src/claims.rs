//! Which faults each cable has, so that those that would undo each other exclude each other.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::plan::Part;

/// The faults of all cables, by host and rail.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    cables: BTreeMap<(usize, usize), Vec<Part>>,
}

impl Claims {
    /// Takes parts of cables of a rail, all of them or none.
    pub fn take(&mut self, rail: usize, parts: &[(usize, Part)]) -> Result<()> {
        let free = |host: usize, part: Part| {
            let taken = self.cables.get(&(host, rail));
            taken.into_iter().flatten().all(|other| fits(part, *other))
        };
        if let Some((host, _)) = parts.iter().find(|(host, part)| !free(*host, *part)) {
            return Err(Error::Busy { host: *host, rail });
        }
        for (host, part) in parts {
            self.cables.entry((*host, rail)).or_default().push(*part);
        }
        Ok(())
    }

    /// Gives back what was taken.
    pub fn give(&mut self, rail: usize, parts: &[(usize, Part)]) {
        for (host, part) in parts {
            let Some(taken) = self.cables.get_mut(&(*host, rail)) else { continue };
            if let Some(place) = taken.iter().position(|other| other == part) {
                taken.swap_remove(place);
            }
        }
    }

    /// Whether a wire can come into a cable now: what is there is at the cable's old end.
    pub fn takes_wire(&self, host: usize, rail: usize) -> bool {
        let taken = self.cables.get(&(host, rail));
        taken.into_iter().flatten().all(|part| matches!(part, Part::Rate | Part::Wire))
    }
}

fn fits(one: Part, other: Part) -> bool {
    let is_shared = |part| matches!(part, Part::Rules | Part::Wire);
    one != Part::Whole && other != Part::Whole && (one != other || is_shared(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_would_undo_each_other_exclude_each_other() {
        let mut claims = Claims::default();
        for part in [Part::Rules, Part::Rules, Part::Structure, Part::Rate, Part::Wire] {
            claims.take(0, &[(1, part)]).expect("they get along");
        }
        for part in [Part::Structure, Part::Rate, Part::Whole] {
            let busy = claims.take(0, &[(0, Part::Structure), (1, part)]);
            assert!(matches!(busy, Err(Error::Busy { host: 1, rail: 0 })));
        }
        assert!(!claims.takes_wire(1, 0) && claims.takes_wire(0, 0), "all or none");
        claims.give(0, &[(1, Part::Structure)]);
        claims.take(0, &[(1, Part::Structure)]).expect("it was given back");
        claims.take(1, &[(1, Part::Whole)]).expect("it is another rail");
        assert!(claims.take(1, &[(1, Part::Rules)]).is_err());
    }
}
