//! How much a line for people matters.
//!
//! Code that tells something by a function of its caller's may begin the line with the mark of its level; a line
//! without one is a warning.

/// The levels, as syslog(3) numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something does not work, and somebody has to do something.
    Error,
    /// Something is not as it should be.
    Warning,
    /// Something happened as it should.
    Note,
}

const LEVELS: [Level; 3] = [Level::Error, Level::Warning, Level::Note];

impl Level {
    /// The beginning of a line of this level, as sd-daemon(3) has it.
    pub fn mark(self) -> &'static str {
        match self {
            Level::Error => "<3>",
            Level::Warning => "<4>",
            Level::Note => "<6>",
        }
    }

    /// The word for it in a log.
    pub fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        }
    }

    /// The level of that word.
    pub fn of_word(word: &str) -> Option<Level> {
        LEVELS.into_iter().find(|level| level.word() == word)
    }

    /// Takes a line apart.
    pub fn split(line: &str) -> (Level, &str) {
        let marked = |level: Level| Some((level, line.strip_prefix(level.mark())?));
        LEVELS.into_iter().find_map(marked).unwrap_or((Level::Warning, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_mark_is_a_warning() {
        for level in LEVELS {
            assert_eq!(Level::split(&format!("{}text", level.mark())), (level, "text"));
            assert_eq!(Level::of_word(level.word()), Some(level));
        }
        assert_eq!(Level::split("<7>text"), (Level::Warning, "<7>text"));
        assert_eq!(Level::of_word("panic"), None);
    }
}
