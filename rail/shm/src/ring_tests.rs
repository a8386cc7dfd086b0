//! The ring as one thread sees it: reservations that were forgotten, and many records of all lengths.

use std::cell::{Cell, RefCell};

use ropewalk_base::random::Random;

use crate::ring::{Consumer, Medium, Producer, WORD_BYTES};

const BYTES: usize = 4096;

/// The bytes of a ring.
struct Bytes {
    bytes: RefCell<Vec<u8>>,
    head: Cell<u64>,
}

impl Bytes {
    /// A ring whose unused bytes are anything but zeros, as after a lap.
    fn new() -> Bytes {
        let bytes = Bytes { bytes: RefCell::new(vec![0xaa; BYTES]), head: Cell::new(0) };
        bytes.clear_word(0);
        bytes
    }

    fn fill(&self, at: usize, len: usize, byte: u8) {
        self.bytes.borrow_mut()[at..at + len].fill(byte);
    }
}

impl Medium for Bytes {
    const LINE: usize = 64;
    const CAPACITY: usize = BYTES;

    fn load_word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes.borrow()[at..at + 8].try_into().expect("eight bytes"))
    }
    fn publish_word(&self, at: usize, word: u64) {
        self.bytes.borrow_mut()[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    fn clear_word(&self, at: usize) {
        self.publish_word(at, 0);
    }
    fn load_head(&self) -> u64 {
        self.head.get()
    }
    fn publish_head(&self, head: u64) {
        self.head.set(head);
    }
}

#[test]
fn every_record_is_found_and_nothing_behind_the_last() {
    let mut random = Random::from_seed(1);
    for _ in 0..200 {
        let (ring, mut producer, mut consumer) =
            (Bytes::new(), Producer::default(), Consumer::default());
        let mut waiting = std::collections::VecDeque::new();
        for number in 0..400u32 {
            let most = [30, 300, 1900][random.below(3) as usize];
            let body = random.below(most) as usize;
            let byte = number as u8;
            if let Some(room) = producer.reserve(&ring, body).expect("a sound ring") {
                ring.fill(room.at, body, byte);
                // Some are given up after they were written.
                if random.below(5) > 0 {
                    producer.commit(&ring, room);
                    waiting.push_back((body, byte));
                }
            }
            for _ in 0..random.below(4) {
                let front = consumer.front(&ring).expect("a sound ring");
                let expected = waiting.pop_front();
                assert_eq!(front.as_ref().map(|front| front.body), expected.map(|it| it.0));
                let (Some(front), Some((body, byte))) = (front, expected) else { break };
                let bytes = ring.bytes.borrow()[front.at..front.at + body].to_vec();
                assert!(front.at >= WORD_BYTES && bytes.iter().all(|other| *other == byte));
                consumer.pop::<Bytes>(front);
                if random.below(3) == 0 {
                    consumer.publish(&ring);
                }
            }
        }
    }
}
