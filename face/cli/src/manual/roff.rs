//! The form of manual pages: text becomes lines that man(1) formats.
//!
//! Invariants: text is text, whatever signs it has; a line that begins with two spaces stays as it is laid out.

use std::fmt::Write as _;

/// A page that is being written.
pub struct Page {
    text: String,
    /// The last line was a heading: a paragraph begins there anyway.
    is_fresh: bool,
}

impl Page {
    /// Begins a page: `name` in section `section`, of a day.
    pub fn new(name: &str, section: u8, date: &str, about: &str) -> Page {
        let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
        let mut page = Page { text: String::new(), is_fresh: true };
        let title = escaped(&title);
        page.line(&format!(".TH {title} {section} {date} \"Ropewalk {version}\" \"Ropewalk\""));
        page.section("NAME");
        page.line(&format!("{} \\- {}", escaped(name), escaped(about)));
        page
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        self.line(&format!(".SH {}", escaped(title)));
        self.is_fresh = true;
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        self.line(&format!(".SS {}", escaped(title)));
        self.is_fresh = true;
    }

    /// Paragraphs: each line is one, except those that are laid out by hand.
    pub fn text(&mut self, text: &str) {
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            if line.trim().is_empty() {
                continue;
            }
            self.paragraph();
            if !line.starts_with("  ") {
                self.flowing(line);
                continue;
            }
            self.line(".EX");
            self.flowing(line);
            while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
                self.flowing(line);
            }
            self.line(".EE");
        }
    }

    /// A term, which is bold but for the words in capitals, and its explanation.
    pub fn term(&mut self, term: &str, about: &str) {
        self.line(".TP");
        let words: Vec<String> = term.split(' ').map(marked).collect();
        self.line(&words.join(" "));
        let mut lines = about.lines().filter(|line| !line.trim().is_empty());
        self.flowing(lines.next().unwrap_or_default());
        let rest: Vec<&str> = lines.collect();
        if !rest.is_empty() {
            self.line(".RS");
            self.is_fresh = false;
            self.text(&rest.join("\n"));
            self.line(".RE");
        }
        self.is_fresh = false;
    }

    /// References to other pages, such as `mount(8)`.
    pub fn see_also(&mut self, pages: &[&str]) {
        self.section("SEE ALSO");
        for (number, page) in pages.iter().enumerate() {
            let comma = if number + 1 < pages.len() { "," } else { "" };
            let (name, section) = page.split_once('(').unwrap_or((page, ""));
            self.line(&format!(".BR {} ({section}{comma}", escaped(name)));
        }
    }

    pub fn finish(self) -> String {
        self.text
    }

    fn paragraph(&mut self) {
        if !self.is_fresh {
            self.line(".PP");
        }
        self.is_fresh = false;
    }

    fn flowing(&mut self, text: &str) {
        let text = escaped(text);
        // A line that begins with one of these is an order.
        let guard = if text.starts_with(['.', '\'']) { "\\&" } else { "" };
        self.line(&format!("{guard}{text}"));
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }
}

/// A word of a term: options and names are bold, values are not.
fn marked(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=').filter(|(name, _)| !name.is_empty()) {
        return format!("{}={}", marked(name), marked(value));
    }
    let is_value = word.chars().any(char::is_uppercase) && !word.contains(['-', '_']);
    let font = if is_value || word.starts_with(['<', '[']) { 'I' } else { 'B' };
    format!("\\f{font}{}\\fR", escaped(word))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            '"' => escaped.push_str("\\(dq"),
            '…' => escaped.push_str("..."),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_examples_stay_laid_out() {
        let mut page = Page::new("x", 1, "2026-01-02", "does x");
        page.section("TEXT");
        page.text(".so it -s\n\n  one\n   two\nlast");
        page.term("--to FILE", "Goes there.\nMore.");
        let text = page.finish();
        assert!(
            text.contains("\n\\&.so it \\-s\n.PP\n.EX\n  one\n   two\n.EE\n.PP\nlast\n"),
            "{text}"
        );
        let term = ".TP\n\\fB\\-\\-to\\fR \\fIFILE\\fR\nGoes there.\n.RS\n.PP\nMore.\n.RE\n";
        assert!(text.ends_with(term), "{text}");
    }
}
