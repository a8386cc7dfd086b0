//! Puts and gets: what was read is what some put wrote that no other one had replaced for sure.

use std::sync::LazyLock;

use super::ops::{Got, Op, What};
use super::setting::CELLS;

/// Bytes of version 0, which are there at first. In those of others each bit of the version is turned.
static FIRST: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |index: usize| (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8);
    (0..CELLS[CELLS.len() - 1].1).map(byte).collect()
});

const EACH: u64 = u64::MAX / 255;

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Makes all of a buffer that version.
pub fn fill(buffer: &mut [u8], version: u8) {
    buffer.copy_from_slice(&FIRST[..buffer.len()]);
    if version > 0 {
        let mut words = buffer.chunks_exact_mut(8);
        for bytes in &mut words {
            let turned = word(bytes) ^ (EACH * u64::from(version));
            bytes.copy_from_slice(&turned.to_le_bytes());
        }
        words.into_remainder().iter_mut().for_each(|byte| *byte ^= version);
    }
}

/// The versions that some bytes of a cell have.
pub fn versions(bytes: &[u8]) -> [u64; 4] {
    let mut found = [0; 4];
    let mut note = |version: u8| found[usize::from(version / 64)] |= 1 << (version % 64);
    let (first, rest) = bytes.split_at(bytes.len() / 8 * 8);
    for (at, eight) in first.chunks_exact(8).enumerate() {
        let turned = word(eight) ^ word(&FIRST[at * 8..at * 8 + 8]);
        if turned == EACH * (turned & 0xff) {
            note(turned as u8);
        } else {
            turned.to_le_bytes().into_iter().for_each(&mut note);
        }
    }
    rest.iter().zip(&FIRST[first.len()..]).for_each(|(byte, first)| note(byte ^ first));
    found
}

struct Cell<'a> {
    index: usize,
    puts: Vec<&'a Op>,
    /// While a put is under way its bytes may be any.
    spoils: bool,
    context: String,
}

impl Cell<'_> {
    fn put(&self, version: usize) -> Option<&Op> {
        let is_it =
            |op: &&&Op| op.version_of(self.index).is_some_and(|it| usize::from(it) == version);
        self.puts.iter().find(is_it).copied()
    }

    /// Whether some spoiled bytes of a put may be read: while it is under way, or where its end did not come, until another
    /// one replaces them.
    fn may_show(&self, put: &Op, begun: u64, ended: u64) -> bool {
        let replaces = |it: &&Op| it.is_certain() && put.over < it.posted && it.over < begun;
        let is_whole = put.is_certain() || self.puts.iter().copied().any(|it| replaces(&it));
        put.posted < ended && (put.over > begun || !is_whole)
    }

    /// Whether whoever reads in this span of time may find a version.
    fn judge(&self, version: usize, begun: u64, ended: u64, who: &str) {
        let context = &self.context;
        let put = self.put(version);
        if self.spoils && self.puts.iter().any(|put| self.may_show(put, begun, ended)) {
            return;
        }
        if version > 0 {
            let put = put.unwrap_or_else(|| panic!("{context}: {who}: no put wrote {version}"));
            assert!(put.posted < ended, "{context}: {who}: {version} is of a later put, {put:?}");
        }
        let over = put.map_or(0, |put| put.over);
        let newer =
            self.puts.iter().find(|it| it.is_certain() && over < it.posted && it.over < begun);
        assert!(
            newer.is_none(),
            "{context}: {who}: old bytes of {version}, {put:?}, after {newer:?}"
        );
    }

    fn judge_all(&self, found: [u64; 4], begun: u64, ended: u64, who: &str) {
        let has = |version: &usize| found[version / 64] >> (version % 64) & 1 != 0;
        (0..256).filter(has).for_each(|version| self.judge(version, begun, ended, who));
    }
}

/// `regions`: what they are in the end.
pub fn check(ops: &[Op], regions: &[Vec<u8>], spoils: bool) {
    for (target, region) in regions.iter().enumerate() {
        for (index, (at, len)) in CELLS.iter().enumerate() {
            let is_put = |op: &&Op| op.target == target && op.version_of(index).is_some();
            let puts = ops.iter().filter(is_put).collect();
            let cell = Cell { index, puts, spoils, context: format!("cell {index} of {target}") };
            for op in
                ops.iter().filter(|op| op.target == target && op.what == What::Get { cell: index })
            {
                if let (true, Got::Versions(found)) = (op.is_certain(), &op.got) {
                    cell.judge_all(*found, op.posted, op.over, &format!("{op:?}"));
                }
            }
            let end = &region[*at as usize..*at as usize + len];
            cell.judge_all(versions(end), u64::MAX - 1, u64::MAX, "in the end");
        }
    }
}
