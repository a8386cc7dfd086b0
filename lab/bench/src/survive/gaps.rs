//! Moments of acknowledged operations: the longest gap between two, and how many there are in each piece of time.
//!
//! Times are nanoseconds of the machine's monotonic clock, in order.

/// The longest time in ms between two moments that follow each other, of which the second is later than `from`. `None` if
/// none is.
pub fn longest_after(times: &[u64], from: u64) -> Option<f64> {
    let gaps = times.windows(2).filter(|pair| pair[1] > from).map(|pair| pair[1] - pair[0]);
    gaps.max().map(|gap| gap as f64 / 1e6)
}

/// The same of moments up to `until`; 0 if there are no two.
pub fn longest_before(times: &[u64], until: u64) -> f64 {
    let gaps = times.windows(2).filter(|pair| pair[1] <= until).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or(0) as f64 / 1e6
}

/// All moments of several lists, in order.
pub fn together(all: &[Vec<u64>]) -> Vec<u64> {
    let mut times = all.concat();
    times.sort_unstable();
    times
}

/// Moments a second in each piece of `bin` nanoseconds from `from` on. What is left of the time before `to` is no piece.
pub fn rates(times: &[u64], (from, to): (u64, u64), bin: u64) -> Vec<f64> {
    let mut counts = vec![0u64; (to.saturating_sub(from) / bin) as usize];
    for time in times.iter().filter(|time| **time >= from) {
        if let Some(count) = counts.get_mut(((time - from) / bin) as usize) {
            *count += 1;
        }
    }
    counts.into_iter().map(|count| count as f64 * 1e9 / bin as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_gap_around_a_fault_counts_from_the_last_moment_before_it() {
        let times = [0, 10 * MS, 12 * MS, 30 * MS, 31 * MS];
        assert_eq!(longest_after(&times, 13 * MS), Some(18.0));
        // An answer that was under way at the fault is no end of the gap, only a moment in it.
        assert_eq!(longest_after(&times, 11 * MS), Some(18.0));
        assert_eq!(longest_after(&times, 30 * MS), Some(1.0));
        assert_eq!((longest_after(&times, 31 * MS), longest_after(&[], 0)), (None, None));
    }

    #[test]
    fn the_gap_before_a_fault_ends_with_it() {
        let times = [0, 10 * MS, 12 * MS, 30 * MS];
        assert_eq!(longest_before(&times, 29 * MS), 10.0);
        assert_eq!(longest_before(&times, 30 * MS), 18.0);
        assert_eq!(longest_before(&times[..1], 30 * MS), 0.0);
    }

    #[test]
    fn several_clients_together_have_shorter_gaps() {
        let all = [vec![0, 10 * MS], vec![4 * MS, 11 * MS]];
        assert_eq!(longest_after(&together(&all), 0), Some(6.0));
        assert_eq!(longest_after(&all[0], 0), Some(10.0));
    }

    #[test]
    fn a_timeline_has_a_rate_for_each_whole_piece() {
        let times = [0, 5 * MS, 10 * MS, 19 * MS, 25 * MS, 31 * MS];
        assert_eq!(rates(&times, (5 * MS, 31 * MS), 10 * MS), [200.0, 100.0]);
        assert_eq!(rates(&times, (0, 0), MS), [] as [f64; 0]);
        // Nothing at all is a rate, too.
        assert_eq!(rates(&[], (0, 3 * MS), MS), [0.0, 0.0, 0.0]);
    }
}
