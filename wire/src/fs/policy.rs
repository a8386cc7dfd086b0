//! The policy of a directory: how files that are made in it are kept.
//!
//! A directory has the policy of the directory in which it is made, until its owner gives it another one. Files keep the
//! number of copies with which they were made, also where they are truncated or move to another directory.

use serde::{Deserialize, Serialize};

use super::group::COPIES_MAX;

/// The extended attribute by which people see and set policies.
pub const POLICY: &[u8] = b"ropewalk.policy";

/// How the stripes of new files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// This many copies, on servers of as many failure domains.
    Copies(u8),
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::Copies(1)
    }
}

impl Policy {
    /// Copies of each stripe.
    pub fn copies(self) -> u8 {
        let Policy::Copies(copies) = self;
        copies
    }

    /// Whether the values make a policy at all (they may come from a disk).
    pub fn is_valid(self) -> bool {
        (1..=COPIES_MAX).contains(&self.copies())
    }

    /// As the extended attribute has it.
    pub fn text(self) -> String {
        format!("copies={}", self.copies())
    }

    /// From the value of the extended attribute.
    pub fn parse(text: &[u8]) -> Option<Policy> {
        let digits = std::str::from_utf8(text).ok()?.trim_ascii().strip_prefix("copies=")?;
        let policy = Policy::Copies(digits.parse().ok()?);
        policy.is_valid().then_some(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_policy_is_read_back_and_others_are_refused() {
        for copies in 1..=COPIES_MAX {
            let policy = Policy::Copies(copies);
            assert_eq!(Policy::parse(policy.text().as_bytes()), Some(policy));
        }
        assert_eq!(Policy::parse(b"copies=2\n"), Some(Policy::Copies(2)));
        for bad in
            ["", "2", "copies=", "copies=0", "copies=4", "copies=256", "copies=-1", "erasure=4"]
        {
            assert_eq!(Policy::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Policy::parse(&[0xff]), None);
    }
}
