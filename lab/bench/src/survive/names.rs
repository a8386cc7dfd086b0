//! Kinds of operations, and the names that creates leave.

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Create,
    Stat,
    Write,
    Read,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Create, Kind::Stat, Kind::Write, Kind::Read];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "create",
            Kind::Stat => "stat",
            Kind::Write => "write",
            Kind::Read => "read",
        }
    }
}

/// The name that the create of this number leaves; `None`: it was removed again.
pub fn name_of(number: u64) -> Option<String> {
    match number % 8 {
        1 => Some(format!("r{number}")),
        3 => None,
        _ => Some(format!("f{number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_numbers_and_are_used_once() {
        let mut names: Vec<String> = (0..1000).filter_map(name_of).collect();
        assert_eq!(names.len(), 875);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 875);
        assert_eq!(
            (name_of(8), name_of(9), name_of(11)),
            (Some("f8".into()), Some("r9".into()), None)
        );
    }
}
