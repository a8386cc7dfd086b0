//! Who takes part in a cut row.

use crate::paths::cut::row::Row;
use crate::paths::side::System;
use crate::series::OURS;

/// Rails between the hosts.
pub const RAILS: usize = 2;

/// A system in a row, and how it is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    pub name: &'static str,
    pub system: System,
    pub rails: usize,
    pub tuned: bool,
}

/// Ours, and its peers in the kernel if they are wanted.
pub fn parties(row: &Row, peers: bool) -> Vec<Party> {
    let party = |name, system, rails, tuned| Party { name, system, rails, tuned };
    let mut all = vec![party(OURS, System::Ours(row.medium), RAILS, false)];
    if peers {
        all.push(party("tcp", System::Tcp, 1, false));
        all.push(party("mptcp", System::Many, RAILS, false));
        all.push(party("mptcp-tuned", System::Many, RAILS, true));
    }
    all
}
