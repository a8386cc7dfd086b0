//! Rust source split into code and comments, so that a check sees only the part that it needs.
//!
//! Both halves keep the line structure of the source: line n of the code and of the comments come
//! from line n of the file. Literals are blanked out of the code (their quotes stay).
//!
//! Invariant: total on any text; malformed source only makes the split less exact.

/// The two halves.
pub struct Split {
    pub code: String,
    pub comments: String,
}

/// Splits `source`.
pub fn split(source: &str) -> Split {
    let mut splitter = Splitter {
        rest: source.chars().collect(),
        at: 0,
        out: Split { code: String::new(), comments: String::new() },
    };
    splitter.run();
    splitter.out
}

struct Splitter {
    rest: Vec<char>,
    at: usize,
    out: Split,
}

impl Splitter {
    fn run(&mut self) {
        while let Some(this) = self.peek(0) {
            match (this, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(0),
                ('r', Some('"' | '#')) if !self.follows_word() && self.raw_hashes(1).is_some() => {
                    let hashes = self.raw_hashes(1).expect("just seen");
                    self.take_code(1 + hashes);
                    self.raw_string(hashes);
                }
                ('\'', _) => self.quote(),
                _ => self.take_code(1),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn take_code(&mut self, count: usize) {
        for _ in 0..count {
            let Some(this) = self.peek(0) else { return };
            self.out.code.push(this);
            self.out.comments.push(if this == '\n' { '\n' } else { ' ' });
            self.at += 1;
        }
    }

    fn take_comment(&mut self) {
        let Some(this) = self.peek(0) else { return };
        self.out.comments.push(this);
        self.out.code.push(if this == '\n' { '\n' } else { ' ' });
        self.at += 1;
    }

    fn take_blank(&mut self) {
        let Some(this) = self.peek(0) else { return };
        let blank = if this == '\n' { '\n' } else { ' ' };
        self.out.code.push(blank);
        self.out.comments.push(blank);
        self.at += 1;
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|this| this != '\n') {
            self.take_comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.take_comment();
                    continue;
                }
            }
            self.take_comment();
            self.take_comment();
            if depth == 0 {
                return;
            }
        }
    }

    /// A string whose opening quote is `ahead` characters on.
    fn string(&mut self, ahead: usize) {
        self.take_code(ahead + 1);
        loop {
            match self.peek(0) {
                None => return,
                Some('"') => return self.take_code(1),
                Some('\\') => {
                    self.take_blank();
                    self.take_blank();
                }
                Some(_) => self.take_blank(),
            }
        }
    }

    /// Number of `#` between here + `ahead` and the quote of a raw string; none if it is none.
    fn raw_hashes(&self, ahead: usize) -> Option<usize> {
        let hashes = (0..).take_while(|&n| self.peek(ahead + n) == Some('#')).count();
        (self.peek(ahead + hashes) == Some('"')).then_some(hashes)
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take_code(1);
        while self.peek(0).is_some() {
            let ends = self.peek(0) == Some('"')
                && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if ends {
                return self.take_code(1 + hashes);
            }
            self.take_blank();
        }
    }

    /// A character literal, or the tick of a lifetime or label.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            return self.take_code(1);
        }
        self.take_code(1);
        if escaped {
            self.take_blank();
        }
        self.take_blank();
        while self.peek(0).is_some_and(|this| this != '\'' && this != '\n') {
            self.take_blank();
        }
        self.take_code(1);
    }

    /// Whether the character before here belongs to a name other than `b` or `c` (`br"..."`).
    fn follows_word(&self) -> bool {
        let before = |back: usize| self.at.checked_sub(back).map(|at| self.rest[at]);
        match before(1) {
            Some('b' | 'c') => before(2).is_some_and(is_word),
            Some(other) => is_word(other),
            None => false,
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether `word` stands in `text` with no letter, digit or underscore on either side. A `word`
/// that ends in `!` or begins with `/` needs none on that side.
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let begins = !word.starts_with(is_word) || !text[..at].ends_with(is_word);
        let ends = !word.ends_with(is_word) || !text[at + word.len()..].starts_with(is_word);
        begins && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_the_code() {
        let source = "let a = \"one // two\"; // three \"four\"\n\
                      let b = r#\"five \" six\"#; /* seven /* eight */ nine */ let c = 'x';\n\
                      let d: &'static str = br\"ten\"; let e = '\\''; let f = '\"'; for_r(g);\n";
        let split = split(source);
        for gone in ["one", "two", "three", "four", "five", "six", "seven", "nine", "x", "ten"] {
            assert!(!has_word(&split.code, gone), "{gone} in {}", split.code);
        }
        for kept in ["a", "b", "c", "d", "static", "e", "f", "for_r", "g"] {
            assert!(has_word(&split.code, kept), "{kept} not in {}", split.code);
        }
        for comment in ["three", "four", "seven", "eight", "nine"] {
            assert!(has_word(&split.comments, comment), "{comment}");
        }
        assert!(!has_word(&split.comments, "two"));
        assert_eq!(split.code.lines().count(), source.lines().count());
        assert_eq!(split.comments.lines().count(), source.lines().count());
    }

    #[test]
    fn unfinished_source_ends_the_split_without_a_panic() {
        for source in ["\"", "/*", "r##\"", "'", "'\\", "\"\\", "br#\"x\"", "r#"] {
            assert_eq!(split(source).code.chars().count(), source.chars().count());
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(has_word("dbg!(x)", "dbg!"));
        assert!(!has_word("mydbg!(x)", "dbg!"));
    }
}
