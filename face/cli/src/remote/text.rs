//! Modes, times and names of users as people read them.

use std::collections::BTreeMap;

use ropewalk_base::text::is_plain;
use ropewalk_client::{InodeKind, Timestamp};
use serde_json::Value;

/// The kind of an inode, as a word.
pub fn kind(kind: InodeKind) -> &'static str {
    match kind {
        InodeKind::File => "file",
        InodeKind::Directory => "directory",
        InodeKind::Symlink => "link",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharacterDevice => "character device",
        InodeKind::BlockDevice => "block device",
    }
}

/// Kind and permission bits in ten letters, as `ls -l` writes them.
pub fn mode(kind: InodeKind, mode: u16) -> String {
    let letter = match kind {
        InodeKind::File => '-',
        InodeKind::Directory => 'd',
        InodeKind::Symlink => 'l',
        InodeKind::Fifo => 'p',
        InodeKind::Socket => 's',
        InodeKind::CharacterDevice => 'c',
        InodeKind::BlockDevice => 'b',
    };
    let mut text = String::from(letter);
    // Set-uid, set-gid and sticky take the place of the execute bit of their class.
    for (shift, special, letters) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (executable, true) => letters.as_bytes()[usize::from(!executable)] as char,
        });
    }
    text
}

/// A moment in UTC, to the second.
pub fn time(at: Timestamp) -> String {
    let (days, second) = (at.seconds.div_euclid(86_400), at.seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// A moment in UTC, to the nanosecond.
pub fn exact_time(at: Timestamp) -> String {
    let text = time(at);
    format!("{}.{:09}Z", text.trim_end_matches('Z'), at.nanos)
}

/// The date of a day counted from 1970-01-01 on, in the Gregorian calendar.
pub fn date(days: i64) -> (i64, i64, i64) {
    // Counted from 0000-03-01 on, leap days come last in their year, and in 400 years there are
    // always as many days.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Names of users or groups by number, as `/etc/passwd` or `/etc/group` have them.
pub struct Names(BTreeMap<u32, String>);

impl Names {
    /// Of users.
    pub fn of_users() -> Names {
        Names::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    /// Of groups.
    pub fn of_groups() -> Names {
        Names::parse(&std::fs::read_to_string("/etc/group").unwrap_or_default())
    }

    fn parse(text: &str) -> Names {
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
            Some((number.parse().ok()?, name.to_string()))
        };
        let mut names = BTreeMap::new();
        for (number, name) in text.lines().filter_map(entry) {
            // The first line counts where several name one number.
            names.entry(number).or_insert(name);
        }
        Names(names)
    }

    /// The name, if there is one.
    pub fn known(&self, number: u32) -> Option<&str> {
        self.0.get(&number).map(String::as_str)
    }

    /// The name, or the number where there is none.
    pub fn get(&self, number: u32) -> String {
        self.known(number).map_or_else(|| number.to_string(), str::to_string)
    }
}

/// Adds a name to an object for programs: as text, and, if it is not UTF-8, as bytes, too.
pub fn add_name(object: &mut Value, key: &str, name: &[u8]) {
    object[key] = String::from_utf8_lossy(name).into();
    if std::str::from_utf8(name).is_err() {
        object[format!("{key}_bytes")] = name.into();
    }
}

/// A name for a terminal: characters that would move its cursor are shown as question marks.
pub fn printable(name: &[u8]) -> String {
    let shown = |c: char| if is_plain(c) { c } else { '?' };
    String::from_utf8_lossy(name).chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_ls_writes_them() {
        assert_eq!(mode(InodeKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode(InodeKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(InodeKind::File, 0o6750), "-rwsr-s---");
        assert_eq!(mode(InodeKind::File, 0o7000), "---S--S--T");
    }

    #[test]
    fn moments_fall_on_the_right_days() {
        let at = |seconds, nanos| exact_time(Timestamp { seconds, nanos });
        assert_eq!(at(0, 7), "1970-01-01 00:00:00.000000007Z");
        assert_eq!(at(-1, 0), "1969-12-31 23:59:59.000000000Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29 00:00:00.000000000Z");
        assert_eq!(at(4_107_542_399, 0), "2100-02-28 23:59:59.000000000Z");
        assert_eq!(time(Timestamp { seconds: 1_795_263_553, nanos: 0 }), "2026-11-21 12:19:13Z");
    }

    #[test]
    fn numbers_get_their_first_name() {
        let names = Names::parse("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbad\n");
        assert_eq!(names.get(0), "root");
        assert_eq!(names.get(7), "7");
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\n\xff"), "a?[2Jb?\u{fffd}");
    }
}
