//! Text of others that people are shown: a name, an address, a stranger's name for himself.
//!
//! Invariant: the output moves no cursor, changes no colour, ends no line and reorders nothing, whatever the input; and
//! it is bounded.

use std::borrow::Cow;

/// `bytes` as a terminal may show them, at most `most` characters and a sign that there were more. Characters that are
/// not printable are written like `\x1b` or `\u{202e}`; a backslash is left alone.
pub fn printable(bytes: &[u8], most: usize) -> String {
    let mut out = String::new();
    let mut left = most;
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let begin = out.len();
            match letter {
                letter if is_plain(letter) => out.push(letter),
                letter => escape(letter, &mut out),
            }
            if !take(&mut out, begin, &mut left) {
                return out;
            }
        }
        for byte in chunk.invalid() {
            let begin = out.len();
            out.push_str(&format!("\\x{byte:02x}"));
            if !take(&mut out, begin, &mut left) {
                return out;
            }
        }
    }
    out
}

/// Text of several lines as a terminal may show it: as [`printable`], but lines end and columns are set.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let harmless = |letter: char| is_plain(letter) || letter == '\n' || letter == '\t';
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if harmless(letter) { out.push(letter) } else { escape(letter, &mut out) }
    }
    Cow::Owned(out)
}

fn escape(letter: char, out: &mut String) {
    let number = letter as u32;
    out.push_str(&if letter.is_ascii() {
        format!("\\x{number:02x}")
    } else {
        format!("\\u{{{number:x}}}")
    });
}

/// Counts what was added from `begin` on; takes it back, and says so, where there is no room for it.
fn take(out: &mut String, begin: usize, left: &mut usize) -> bool {
    let added = out[begin..].chars().count();
    let fits = added <= *left;
    if fits {
        *left -= added;
    } else {
        out.truncate(begin);
        out.push('…');
    }
    fits
}

/// Whether a character shows as itself and does nothing else.
pub fn is_plain(letter: char) -> bool {
    !letter.is_control()
        && !matches!(
            letter,
            // Marks that nobody sees, line ends, and what turns the direction of writing.
            '\u{ad}' | '\u{61c}' | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_shown_and_not_done() {
        let shown = |bytes: &[u8]| printable(bytes, 100);
        assert_eq!(shown("Zoë's host 7, käse/雪".as_bytes()), "Zoë's host 7, käse/雪");
        assert_eq!(shown(b"\x1b[2J\x07a\nb\x7f"), "\\x1b[2J\\x07a\\x0ab\\x7f");
        assert_eq!(shown("a\u{9b}31m\u{202e}txt".as_bytes()), "a\\u{9b}31m\\u{202e}txt");
        assert_eq!(shown(b"\xff\xfeok\xc3"), "\\xff\\xfeok\\xc3");
        assert_eq!(shown(b"a\\b"), "a\\b");
    }

    #[test]
    fn lines_stay_lines() {
        assert!(matches!(printable_lines("a\tb\nc\n"), Cow::Borrowed(_)));
        assert_eq!(printable_lines("a\x1b[0m\r\nb\u{202e}"), "a\\x1b[0m\\x0d\nb\\u{202e}");
    }

    #[test]
    fn it_is_as_long_as_it_may_be() {
        assert_eq!(printable(b"abcdef", 6), "abcdef");
        assert_eq!(printable(b"abcdef", 5), "abcde…");
        assert_eq!(printable(b"abc\x1b", 5), "abc…");
        assert_eq!(printable(&[0x1b; 1 << 20], 64).chars().count(), 65);
    }
}
