//! The first of the paper's modules: which path is the alternate. Each part of it is given, or chosen.

use std::cmp::Reverse;

use super::path::{Family, Health, PathId};
use super::roles::{Entry, Role, Roles};
use super::state::Rule;

/// What the caller wants of the alternate; `None` means any. The default leaves all to the choice by failure domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Wanted {
    pub local_rail: Option<u8>,
    pub remote_address: Option<u32>,
    pub entropy: Option<u32>,
    pub family: Option<Family>,
    /// Shortest packet that the path has to take, in bytes.
    pub mtu_bytes_min: u32,
    /// The path shares no failure domain with the primary one, at neither end.
    pub strict: bool,
}

impl Wanted {
    fn names(&self, entry: &Entry) -> bool {
        let record = &entry.record;
        self.local_rail.is_none_or(|rail| rail == record.local_rail)
            && self.remote_address.is_none_or(|address| address == record.remote_address)
            && self.entropy.is_none_or(|entropy| entropy == record.entropy)
    }

    /// Whether the caller named a path, so that one that rests may be tried again.
    fn is_given(&self) -> bool {
        self.local_rail.is_some() || self.remote_address.is_some() || self.entropy.is_some()
    }

    /// The rule that a path breaks, if one.
    fn broken_by(&self, entry: &Entry, roles: &Roles) -> Option<Rule> {
        let primary = roles.primary().and_then(|id| roles.get(id));
        let role = roles.role(entry.record.id);
        let shares =
            primary.is_some_and(|primary| entry.record.shared_domains(&primary.record) > 0);
        let broken = [
            (role == Some(Role::Primary), Rule::IsPrimary),
            (role == Some(Role::Drained), Rule::IsDrained),
            (self.family.is_some_and(|family| family != entry.record.family), Rule::Family),
            (entry.record.mtu_bytes < self.mtu_bytes_min, Rule::Mtu),
            (self.strict && shares, Rule::SameFailureDomain),
            (entry.health == Health::Failed, Rule::AlternateFailed),
            (entry.resting && !self.is_given(), Rule::AlternateFailed),
        ];
        broken.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, rule)| rule)
    }
}

/// The best path that is as wanted: it shares the fewest failure domains with the primary one, then is not suspected,
/// then loses little, then has the highest weight, then the highest score, then the lowest id.
///
/// # Errors
/// [`Rule::NoRoute`] if no path has these ends, otherwise the rule that the candidate breaks. Of several candidates it
/// is the one that came furthest, in the order primary, drained, family, MTU, failure domain, failed.
pub fn choose(roles: &Roles, wanted: &Wanted) -> Result<PathId, Rule> {
    let primary = roles.primary().and_then(|id| roles.get(id));
    let rank = |entry: &&Entry| {
        let shared = primary.map_or(0, |primary| entry.record.shared_domains(&primary.record));
        let (weight, score) = (Reverse(entry.weight), Reverse(entry.score));
        (shared, entry.health, entry.badness(), weight, score, entry.record.id)
    };
    let named = || roles.entries().iter().filter(|entry| wanted.names(entry));
    let best = named().filter(|entry| wanted.broken_by(entry, roles).is_none()).min_by_key(rank);
    match best {
        Some(entry) => Ok(entry.record.id),
        None => Err(named()
            .filter_map(|entry| wanted.broken_by(entry, roles))
            .max_by_key(|rule| ORDER.iter().position(|other| other == rule))
            .unwrap_or(Rule::NoRoute)),
    }
}

/// The rules in the order in which a candidate is judged.
const ORDER: [Rule; 6] = [
    Rule::IsPrimary,
    Rule::IsDrained,
    Rule::Family,
    Rule::Mtu,
    Rule::SameFailureDomain,
    Rule::AlternateFailed,
];
