//! Terms of a history: each begins when a metadata server begins to serve, and ends when the next one begins.

/// The id of a term, as replies of the metadata server carry it: the number of the term in the upper half, the rest
/// is random. So two servers that count on from copies of one disk do not have the same terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// The term of this number. `random` has the lower half.
    pub fn new(number: u32, random: u64) -> Term {
        Term(u64::from(number) << 32 | (random & u64::from(u32::MAX)))
    }

    /// Counts the terms, from 1; 0 where the server does not count them.
    pub fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether a server of this term has no say with somebody who has met the term `met`: its term is older, or it is
    /// another one of the same number. The first of two that is met is the one that counts.
    pub fn is_behind(self, met: Term) -> bool {
        let (own, met_number) = (self.number(), met.number());
        // The last number stands for all further terms.
        own < met_number || (own == met_number && self != met && ![0, u32::MAX].contains(&own))
    }

    /// Whether the metadata were restored from a dump since somebody met the term `met`: a restore passes over 2^16 terms, and
    /// nothing else over half as many.
    pub fn is_restored_since(self, met: Term) -> bool {
        met.number() != 0 && self.number().saturating_sub(met.number()) >= RESTORED_TERMS
    }

    /// Whether somebody who has met the term `met` has to note this one.
    pub fn is_ahead_of(self, met: Term) -> bool {
        self != met && self.number() != 0 && !self.is_behind(met)
    }
}

/// Half of the terms that a restore passes over.
const RESTORED_TERMS: u32 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_is_known_by_the_terms_that_it_passed_over() {
        let term = |number| Term::new(number, 9);
        assert!(term(RESTORED_TERMS + 7).is_restored_since(term(7)));
        assert!(!term(RESTORED_TERMS + 6).is_restored_since(term(7)));
        assert!(!term(7).is_restored_since(term(RESTORED_TERMS + 7)), "an older one");
        assert!(!term(u32::MAX).is_restored_since(Term(0)), "nobody was met");
    }

    #[test]
    fn the_newest_term_counts_and_the_first_of_two_with_one_number() {
        let (none, five, other, six) =
            (Term(7), Term::new(5, 1), Term::new(5, 2), Term::new(6, u64::MAX));
        assert_eq!((five.number(), six.number(), none.number()), (5, 6, 0));
        for (term, met, behind, ahead) in [
            (five, none, false, true),
            (none, five, true, false),
            (none, none, false, false),
            (none, Term(8), false, false),
            (five, five, false, false),
            (other, five, true, false),
            (five, other, true, false),
            (five, six, true, false),
            (six, five, false, true),
        ] {
            assert_eq!(term.is_behind(met), behind, "{term:?} {met:?}");
            assert_eq!(term.is_ahead_of(met), ahead, "{term:?} {met:?}");
        }
        let (last, next) = (Term::new(u32::MAX, 1), Term::new(u32::MAX, 2));
        assert!(next.is_ahead_of(last) && !next.is_behind(last), "it does not count on");
    }
}
