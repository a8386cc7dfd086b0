//! The messages of a stream: numbered, with contents that follow from the number; and the account of those that came.

use std::collections::BTreeSet;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 64 << 10;
/// Bytes of a message before its contents: its number, and how many messages there are (0 in all but the last one).
const HEAD_BYTES: usize = 16;

/// Fills a message. `is_last` tells the receiver that no further one follows.
pub fn fill(message: &mut [u8], number: u64, is_last: bool) {
    let count = if is_last { number + 1 } else { 0 };
    let (head, rest) = message.split_at_mut(HEAD_BYTES);
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..].copy_from_slice(&count.to_le_bytes());
    let mut word = first_word(number);
    for place in rest.chunks_exact_mut(8) {
        place.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(1);
    }
}

fn first_word(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Whether the contents of a message are those that its number demands.
fn is_whole(message: &[u8], number: u64) -> bool {
    let mut word = first_word(number);
    let mut difference = 0;
    for place in message[HEAD_BYTES..].chunks_exact(8) {
        difference |= word ^ word_of(place);
        word = word.wrapping_add(1);
    }
    difference == 0
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// The account of a receiver.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Arrivals {
    /// When each message was there and all earlier ones, too, in nanoseconds of the machine's clock.
    pub times: Vec<u64>,
    /// Messages that were there before an earlier one.
    early: BTreeSet<u64>,
    /// How many messages there are, once that is known.
    count: Option<u64>,
    pub doubled: u64,
    /// Messages that came in the place of another one.
    pub reordered: u64,
    pub corrupt: u64,
}

impl Arrivals {
    /// Takes note of a message that came in this place of the stream.
    pub fn note(&mut self, place: u64, message: &[u8], now: u64) {
        if message.len() != MESSAGE_BYTES {
            self.corrupt += 1;
            return;
        }
        let (number, count) = (word_of(&message[..8]), word_of(&message[8..HEAD_BYTES]));
        if !is_whole(message, number) {
            self.corrupt += 1;
            return;
        }
        let next = self.times.len() as u64;
        if number < next || !self.early.insert(number) {
            self.doubled += 1;
            return;
        }
        if number != place {
            self.reordered += 1;
        }
        if count > 0 {
            self.count = Some(count);
        }
        while self.early.remove(&(self.times.len() as u64)) {
            self.times.push(now);
        }
    }

    /// Whether all messages are there.
    pub fn is_complete(&self) -> bool {
        self.count.is_some_and(|count| self.times.len() as u64 >= count)
    }

    /// For another process: counts, and the times as differences.
    pub fn encode(&self) -> String {
        let mut text = format!("{} {} {}", self.doubled, self.reordered, self.corrupt);
        let mut last = 0;
        for time in &self.times {
            text += &format!(" {:x}", time - last);
            last = *time;
        }
        text
    }

    /// From what [`Arrivals::encode`] says.
    pub fn decode(text: &str) -> Option<Arrivals> {
        let mut words = text.split(' ');
        let mut count = || words.next()?.parse::<u64>().ok();
        let (doubled, reordered, corrupt) = (count()?, count()?, count()?);
        let mut last = 0;
        let times = words.map(|word| {
            last += u64::from_str_radix(word, 16).ok()?;
            Some(last)
        });
        let times = times.collect::<Option<Vec<u64>>>()?;
        Some(Arrivals { times, doubled, reordered, corrupt, ..Arrivals::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, is_last: bool) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE_BYTES];
        fill(&mut bytes, number, is_last);
        bytes
    }

    #[test]
    fn messages_in_order_are_complete_with_the_last_one() {
        let mut arrivals = Arrivals::default();
        for number in 0..4 {
            assert!(!arrivals.is_complete());
            arrivals.note(number, &message(number, number == 3), 100 + number);
        }
        assert!(arrivals.is_complete());
        assert_eq!(arrivals.times, [100, 101, 102, 103]);
        assert_eq!(Arrivals::decode(&arrivals.encode()).expect("a text").times, arrivals.times);
        assert!(Arrivals::decode("1 2").is_none());
    }

    #[test]
    fn a_message_counts_once_all_before_it_are_there() {
        let mut arrivals = Arrivals::default();
        arrivals.note(0, &message(0, false), 10);
        arrivals.note(2, &message(2, true), 20);
        assert!(!arrivals.is_complete());
        arrivals.note(1, &message(1, false), 30);
        assert!(arrivals.is_complete());
        assert_eq!((&arrivals.times[..], arrivals.reordered), (&[10, 30, 30][..], 0));
    }

    #[test]
    fn what_is_doubled_reordered_or_corrupt_is_counted() {
        let mut arrivals = Arrivals::default();
        arrivals.note(0, &message(0, false), 1);
        arrivals.note(1, &message(0, false), 2);
        arrivals.note(2, &message(3, false), 3);
        arrivals.note(3, &message(3, false), 4);
        let mut wrong = message(4, false);
        wrong[40_000] ^= 1;
        arrivals.note(4, &wrong, 5);
        arrivals.note(5, &[0; 10], 6);
        assert_eq!((arrivals.doubled, arrivals.reordered, arrivals.corrupt), (2, 1, 2));
    }
}
