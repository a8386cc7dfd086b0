//! What a stream did around a fault: the longest gap, the goodput over time, and when that was back.

use std::ops::Range;

use crate::paths::stream::MESSAGE_BYTES;

/// The part of the usual goodput at which a stream counts as back.
const BACK: f64 = 0.95;

/// The completions of a stream, and the moments of a fault in it, all in nanoseconds of the machine's clock.
#[derive(Debug, Clone)]
pub struct Trace {
    /// When each message was complete, with all before it.
    pub times: Vec<u64>,
    /// From here to the fault the stream is undisturbed.
    pub begin: u64,
    /// When the first command was given that injected the fault.
    pub cut: u64,
    /// When the last command had mended it.
    pub mended: u64,
    /// Nothing later counts.
    pub end: u64,
}

impl Trace {
    /// The longest time without a completion that ends in the span, in ms. Where the last completion is before the end
    /// of the span, the rest of the span is a gap, too.
    fn gap(&self, span: Range<u64>) -> f64 {
        let ends = self.times.iter().filter(|time| span.contains(*time)).copied();
        let mut last = self.last_before(span.start);
        let mut longest = 0;
        for time in ends.chain([span.end]) {
            longest = longest.max(time - last);
            last = time;
        }
        longest as f64 / 1e6
    }

    fn last_before(&self, moment: u64) -> u64 {
        let count = self.times.partition_point(|time| *time < moment);
        count.checked_sub(1).map_or(moment, |last| self.times[last])
    }

    /// The longest gap from the fault on, in ms.
    pub fn stall(&self) -> f64 {
        self.gap(self.cut..self.end)
    }

    /// The longest gap before the fault, in ms.
    pub fn control_gap(&self) -> f64 {
        self.gap(self.begin..self.cut)
    }

    /// The longest gap from the mending on, in ms.
    pub fn gap_after(&self) -> f64 {
        self.gap(self.mended..self.end)
    }

    /// How long the fault lasted, in ms.
    pub fn outage(&self) -> f64 {
        (self.mended - self.cut) as f64 / 1e6
    }

    fn bytes(&self, span: Range<u64>) -> f64 {
        let until = |moment: u64| self.times.partition_point(|time| *time < moment);
        (until(span.end) - until(span.start).min(until(span.end))) as f64 * MESSAGE_BYTES as f64
    }

    /// The goodput before the fault, in MB/s.
    pub fn goodput(&self) -> f64 {
        self.bytes(self.begin..self.cut) * 1e3 / (self.cut - self.begin).max(1) as f64
    }

    /// The goodput while the fault lasts, from so many nanoseconds after its beginning on, in MB/s.
    pub fn goodput_after(&self, nanos: u64) -> f64 {
        let from = (self.cut + nanos).min(self.mended);
        self.bytes(from..self.mended) * 1e3 / (self.mended - from).max(1) as f64
    }

    /// The time from the mending until the goodput was 95 % of that before the fault, over two windows of so many
    /// nanoseconds, in ms. Without such a moment, the time to the end, and `false`.
    pub fn back(&self, window: u64) -> (f64, bool) {
        self.regained(self.mended..self.end, self.goodput(), window)
    }

    /// The same from the fault on, with a part of the usual goodput, while the fault lasts.
    pub fn failover(&self, part: f64, window: u64) -> (f64, bool) {
        self.regained(self.cut..self.mended, part * self.goodput(), window)
    }

    fn regained(&self, span: Range<u64>, goodput: f64, window: u64) -> (f64, bool) {
        let least = BACK * goodput * window as f64 / 1e3;
        let is_back = |moment: u64| {
            let (middle, end) = (moment + window, moment + 2 * window);
            // A queue that is let go at once is not the goodput yet: so there are two windows.
            self.bytes(moment..middle) >= least && self.bytes(middle..end) >= least
        };
        let from = self.times.partition_point(|time| *time < span.start);
        let later = self.times[from..].iter().copied();
        let mut moments = std::iter::once(span.start).chain(later);
        let found = moments.find(|moment| moment + 2 * window > span.end || is_back(*moment));
        match found.filter(|moment| moment + 2 * window <= span.end) {
            Some(moment) => ((moment - span.start) as f64 / 1e6, true),
            None => (span.end.saturating_sub(span.start) as f64 / 1e6, false),
        }
    }

    /// The goodput in bins of so many nanoseconds from the beginning to the end, in MB/s.
    pub fn timeline(&self, bin: u64) -> Vec<f64> {
        let count = (self.end - self.begin) / bin;
        let of = |number: u64| self.begin + number * bin..self.begin + (number + 1) * bin;
        (0..count).map(|number| self.bytes(of(number)) * 1e3 / bin as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A message each millisecond from 0 to 1 s, but none between 500 and 700 ms, and half as many until 800 ms.
    fn trace() -> Trace {
        let times = (0..1000).filter(|ms| !(500..700).contains(ms));
        let times = times.filter(|ms| !(700..800).contains(ms) || ms % 2 == 0);
        let times = times.map(|ms| ms * MS).collect();
        Trace { times, begin: 100 * MS, cut: 500 * MS, mended: 650 * MS, end: 990 * MS }
    }

    #[test]
    fn gaps_are_the_longest_before_and_after_the_fault() {
        let trace = trace();
        assert_eq!((trace.control_gap(), trace.stall()), (1.0, 201.0));
        assert_eq!((trace.outage(), trace.gap_after()), (150.0, 201.0));
        assert_eq!(trace.goodput_after(50 * MS), 0.0);
        let hung = Trace { times: vec![0, 499 * MS], ..trace };
        assert_eq!(hung.stall(), 491.0);
    }

    #[test]
    fn goodput_is_back_when_it_stays_as_it_was() {
        let trace = trace();
        let message = MESSAGE_BYTES as f64;
        assert!((trace.goodput() - message / 1e3).abs() < 0.01);
        let (back, found) = trace.back(20 * MS);
        assert!(found && (145.0..=152.0).contains(&back), "{back}");
        let failover = trace.failover(0.5, 20 * MS);
        assert_eq!(failover, (150.0, false));
        let hung = Trace { times: trace.times[..400].to_vec(), ..trace };
        assert_eq!(hung.back(20 * MS), (340.0, false));
    }

    #[test]
    fn the_timeline_has_each_bin() {
        let bins = trace().timeline(10 * MS);
        assert_eq!(bins.len(), 89);
        let usual = MESSAGE_BYTES as f64 / 1e3;
        assert!((bins[0] - usual).abs() < 0.01 && bins[45] == 0.0);
        assert!((bins[65] - usual / 2.0).abs() < 0.01);
    }
}
