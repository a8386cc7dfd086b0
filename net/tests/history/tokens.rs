//! Tokens and notices: the words that they raise are what the last of them said.

use super::ops::{Op, What};
use super::setting::{NODES, TOKENS};

/// `regions`: what they are in the end. `ends`: sessions end, and what was only sent is lost with them.
pub fn check(ops: &[Op], regions: &[Vec<u8>], ends: bool) {
    for (target, region) in regions.iter().enumerate() {
        for origin in 0..NODES {
            let at = TOKENS as usize + origin * 8;
            let end = u64::from_le_bytes(region[at..at + 8].try_into().expect("a word"));
            let such = ops.iter().filter(|op| op.is_of(origin, target));
            let sent = such.clone().filter_map(Op::token).max().unwrap_or(0);
            // One that was only sent arrives where sessions go on.
            let is_due = |op: &&Op| {
                let is_told = matches!(op.what, What::Notify { applied: true, .. });
                op.outcome == Some(Ok(())) && (is_told || !ends)
            };
            let due = such.filter(is_due).filter_map(Op::token).max().unwrap_or(0);
            let context = format!("tokens of {origin} to {target}");
            assert!(due <= end && end <= sent, "{context}: {end} of {due} to {sent} in the end");
        }
    }
}
