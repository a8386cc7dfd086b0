//! The kernel IS of the NAS benchmarks: ranks of integers, by buckets that are given to members.

use anyhow::{Context, ensure};

use crate::paths::kernels::class::Class;
use crate::paths::kernels::group::{Group, bytes_of, part, words_of};
use crate::paths::kernels::random::Random;

/// Rankings that count.
const ROUNDS: u32 = 10;
/// Keys whose ranks are checked in each round.
const TESTS: usize = 5;

/// A size with its published results.
#[derive(Debug)]
struct Size {
    keys_log2: u32,
    /// Keys are below this power of two.
    key_log2: u32,
    buckets_log2: u32,
    /// Places of keys, and the ranks of these keys.
    places: [usize; TESTS],
    ranks: [u64; TESTS],
    /// Whether the rank of the place grows with the rounds, or shrinks; and the round that counts as 0.
    grows: [bool; TESTS],
    first: u32,
}

fn size(class: Class) -> Size {
    match class {
        Class::S => Size {
            keys_log2: 16,
            key_log2: 11,
            buckets_log2: 9,
            places: [48_427, 17_148, 23_627, 62_548, 4_431],
            ranks: [0, 18, 346, 64_917, 65_463],
            grows: [true, true, true, false, false],
            first: 0,
        },
        Class::W => Size {
            keys_log2: 20,
            key_log2: 16,
            buckets_log2: 10,
            places: [357_773, 934_767, 875_723, 898_999, 404_505],
            ranks: [1_249, 11_698, 1_039_987, 1_043_896, 1_048_018],
            grows: [true, true, false, false, false],
            first: 2,
        },
        Class::A => Size {
            keys_log2: 23,
            key_log2: 19,
            buckets_log2: 10,
            places: [2_112_377, 662_041, 5_336_171, 3_642_833, 4_250_760],
            ranks: [104, 17_523, 123_928, 8_288_932, 8_388_264],
            grows: [true, true, true, false, false],
            first: 1,
        },
        Class::B => Size {
            keys_log2: 25,
            key_log2: 21,
            buckets_log2: 10,
            places: [41_869, 812_306, 5_102_857, 18_232_239, 26_860_214],
            ranks: [33_422_937, 10_244, 59_149, 33_135_281, 99],
            grows: [false, true, true, false, true],
            first: 0,
        },
    }
}

impl Size {
    /// The rank of a place's key in a round.
    fn rank(&self, test: usize, round: u32) -> u64 {
        // In class W only growing ranks have a first round.
        let shift = match (self.grows[test], self.first) {
            (true, first) => i64::from(round) - i64::from(first),
            (false, 2) => -i64::from(round),
            (false, first) => i64::from(first) - i64::from(round),
        };
        self.ranks[test].wrapping_add_signed(shift)
    }
}

/// Ranks the keys of a class, and checks the ranks.
///
/// # Errors
/// A rank is wrong, or the keys are not sorted.
pub fn run(group: &mut Group, class: Class) -> anyhow::Result<()> {
    let size = size(class);
    let mut keys = keys(&size, group.rank(), group.size());
    let mut sorted = Sorted::default();
    for round in 1..=ROUNDS {
        if group.rank() == 0 {
            keys[round as usize] = round;
            keys[(round + ROUNDS) as usize] = (1 << size.key_log2) - round;
        }
        sorted = rank(group, &size, &keys, round)?;
    }
    check_all(group, &size, &sorted)
}

/// A member's part of all keys.
fn keys(size: &Size, rank: usize, members: usize) -> Vec<u32> {
    let own = part(1 << size.keys_log2, rank, members);
    let mut random = Random::after(4 * own.start as u64);
    let quarter = f64::from(1u32 << size.key_log2) / 4.0;
    let mut key = || {
        let sum = random.next() + random.next() + random.next() + random.next();
        (quarter * sum) as u32
    };
    own.map(|_| key()).collect()
}

/// The keys that a member got, and how many of all are below them.
#[derive(Debug, Default)]
struct Sorted {
    keys: Vec<u32>,
    /// The least key that could be here.
    least: u32,
    /// How many of each key, from the least one on.
    counts: Vec<u64>,
    below: u64,
}

fn rank(group: &mut Group, size: &Size, keys: &[u32], round: u32) -> anyhow::Result<Sorted> {
    let (members, own) = (group.size(), group.rank());
    let shift = size.key_log2 - size.buckets_log2;
    let buckets = 1usize << size.buckets_log2;
    let mut counts = vec![0u64; buckets];
    keys.iter().for_each(|key| counts[(key >> shift) as usize] += 1);
    // The keys of the places travel with the counts.
    let here = part(1 << size.keys_log2, own, members);
    let tested = size.places.map(|place| match here.contains(&place) {
        true => u64::from(keys[place - here.start]),
        false => 0,
    });
    let sums = group.all_sum(&[&counts[..], &tested[..]].concat())?;
    let (totals, tested) = sums.split_at(buckets);
    let ends = shares(totals, members);
    let mut blocks: Vec<Vec<u32>> =
        (0..members).map(|member| Vec::with_capacity(keys.len() / members + member)).collect();
    let owner: Vec<usize> =
        (0..buckets).map(|bucket| ends.partition_point(|end| *end <= bucket)).collect();
    keys.iter().for_each(|key| blocks[owner[(key >> shift) as usize]].push(*key));
    let lens = blocks.iter().map(|block| bytes_of(&[block.len() as u64])).collect();
    let lens = group.all_to_all(lens)?;
    let lens: Vec<usize> = lens.iter().map(|len| 4 * words_of::<u64>(len)[0] as usize).collect();
    let blocks = blocks.iter().map(|block| bytes_of(block)).collect();
    let blocks = group.all_to_all_v(blocks, &lens)?;
    let keys: Vec<u32> = blocks.iter().flat_map(|block| words_of::<u32>(block)).collect();
    let first = if own == 0 { 0 } else { ends[own - 1] };
    let below = totals[..first].iter().sum();
    let (least, end) = ((first << shift) as u32, (ends[own] << shift) as u32);
    let mut counts = vec![0u64; (end - least) as usize];
    keys.iter().for_each(|key| counts[(key - least) as usize] += 1);
    for (test, key) in tested.iter().enumerate() {
        let key = *key as u32;
        if (least..end).contains(&key) {
            let found = below + counts[..(key - least) as usize].iter().sum::<u64>();
            let wanted = size.rank(test, round);
            ensure!(found == wanted, "IS: rank {found} instead of {wanted} in round {round}");
        }
    }
    Ok(Sorted { keys, least, counts, below })
}

/// Where the buckets of each member end, so that all have about as many keys.
fn shares(totals: &[u64], members: usize) -> Vec<usize> {
    let all: u64 = totals.iter().sum();
    let mut ends = Vec::with_capacity(members);
    let mut sum = 0;
    for (bucket, count) in totals.iter().enumerate() {
        sum += count;
        while ends.len() + 1 < members && sum * members as u64 >= all * (ends.len() as u64 + 1) {
            ends.push(bucket + 1);
        }
    }
    ends.resize(members, totals.len());
    ends
}

/// Puts each key at its rank, and checks that all keys are there and in order.
fn check_all(group: &mut Group, size: &Size, sorted: &Sorted) -> anyhow::Result<()> {
    let mut next = Vec::with_capacity(sorted.counts.len());
    let mut rank = 0;
    for count in &sorted.counts {
        next.push(rank);
        rank += *count as usize;
    }
    let mut placed = vec![u32::MAX; sorted.keys.len()];
    for key in &sorted.keys {
        let place = &mut next[(key - sorted.least) as usize];
        *placed.get_mut(*place).context("IS: a rank is too large")? = *key;
        *place += 1;
    }
    ensure!(placed.is_sorted(), "IS: keys are out of order");
    let (first, last) = (placed.first().copied(), placed.last().copied());
    let edge = |key: Option<u32>| u64::from(key.unwrap_or(sorted.least));
    let count = placed.len() as u64;
    let all = group.all_gather(&[edge(first), edge(last), count, sorted.below])?;
    let mut below = 0;
    for pair in all.windows(2) {
        ensure!(pair[0][1] <= pair[1][0], "IS: members have keys out of order");
    }
    for member in &all {
        ensure!(member[3] == below, "IS: a member counts keys wrongly");
        below += member[2];
    }
    ensure!(below == 1 << size.keys_log2, "IS: there are {below} keys");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::kernels::group::tests::together;

    #[test]
    fn the_published_ranks_come_out() {
        for members in [2, 8] {
            together(members, 2, |group| run(group, Class::S));
        }
    }

    #[test]
    fn shares_have_about_as_many_keys() {
        assert_eq!(shares(&[5, 5, 5, 5], 2), [2, 4]);
        assert_eq!(shares(&[20, 0, 0, 0], 2), [1, 4]);
        assert_eq!(shares(&[0, 0, 0, 9], 3), [4, 4, 4]);
    }
}
