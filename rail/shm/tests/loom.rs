//! Model of ring and sleeping word: no lost wake-up, no lost, torn or repeated frame. Run with
//! `cargo test -p ropewalk-rail-shm --test loom --release`.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;

#[path = "../src/ring.rs"]
#[allow(dead_code)]
mod ring;
#[path = "../src/sleep.rs"]
#[allow(dead_code)]
mod sleep;

use ring::{Consumer, Medium, Producer, WORD_BYTES};
use sleep::{EpochWord, Sleeper, Waker};

const LINES: usize = 4;
const LINE: usize = 16;

/// A ring of four lines, each a word and a cell of 8 bytes; loom finds racing uses of a cell.
struct Model {
    words: [AtomicU64; LINES],
    cells: [UnsafeCell<u64>; LINES],
    head: AtomicU64,
    epoch: AtomicU32,
    wants_room: AtomicU32,
}

impl Medium for Model {
    const LINE: usize = LINE;
    const CAPACITY: usize = LINES * LINE;

    fn load_word(&self, at: usize) -> u64 {
        self.words[at / LINE].load(Ordering::Acquire)
    }
    fn publish_word(&self, at: usize, word: u64) {
        self.words[at / LINE].store(word, Ordering::Release);
    }
    fn clear_word(&self, at: usize) {
        self.words[at / LINE].store(0, Ordering::Relaxed);
    }
    fn load_head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }
    fn publish_head(&self, head: u64) {
        self.head.store(head, Ordering::Release);
    }
}

struct Epoch<'a>(&'a AtomicU32);

impl EpochWord for Epoch<'_> {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, epoch: u32) {
        self.0.store(epoch, Ordering::Relaxed);
    }
}

fn model() -> Model {
    Model {
        words: std::array::from_fn(|_| AtomicU64::new(0)),
        cells: std::array::from_fn(|_| UnsafeCell::new(0)),
        head: AtomicU64::new(0),
        epoch: AtomicU32::new(0),
        wants_room: AtomicU32::new(0),
    }
}

fn push(model: &Model, producer: &mut Producer, value: u64) -> bool {
    let Some(reserved) = producer.reserve(model, 8).expect("nobody corrupts the model") else {
        return false;
    };
    let line = (reserved.at - WORD_BYTES) / LINE;
    // SAFETY: the reserved room is the producer's alone; loom fails the test where it is not.
    model.cells[line].with_mut(|cell| unsafe { *cell = value });
    producer.commit(model, reserved);
    true
}

fn pop(model: &Model, consumer: &mut Consumer) -> Option<u64> {
    let front = consumer.front(model).expect("nobody corrupts the model")?;
    assert_eq!(front.body, 8);
    let line = (front.at - WORD_BYTES) / LINE;
    // SAFETY: a record at the front is the consumer's until its room is published; loom checks it.
    let value = model.cells[line].with(|cell| unsafe { *cell });
    consumer.pop::<Model>(front);
    Some(value)
}

/// The consumer sleeps whenever the ring is empty: a lost wake-up is a deadlock, which loom reports.
#[test]
fn a_sleeping_consumer_gets_every_frame_once() {
    loom::model(|| {
        const FRAMES: u64 = 2;
        let shared = Arc::new((model(), Notify::new()));
        let peer = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let (model, bell) = &*peer;
            let (mut producer, mut waker) = (Producer::default(), Waker::default());
            for value in 1..=FRAMES {
                assert!(push(model, &mut producer, value), "two frames fit");
                fence(Ordering::SeqCst);
                if waker.due(&Epoch(&model.epoch)) {
                    bell.notify();
                }
            }
        });
        let (model, bell) = &*shared;
        let (mut consumer, mut sleeper) = (Consumer::default(), Sleeper::default());
        let mut expected = 1;
        while expected <= FRAMES {
            if let Some(value) = pop(model, &mut consumer) {
                assert_eq!(value, expected);
                expected += 1;
                continue;
            }
            sleeper.fall_asleep(&Epoch(&model.epoch));
            fence(Ordering::SeqCst);
            if consumer.is_empty(model) {
                bell.wait();
            }
            sleeper.wake_up(&Epoch(&model.epoch));
        }
        sender.join().expect("the sender does not panic");
    });
}

/// A link rests while its rail is awake; then the rail sleeps without another look at that link. Every
/// frame has a bell, or is seen when the link begins to rest (`src/attention.rs`).
#[test]
fn a_resting_link_rings_for_its_frames() {
    loom::model(|| {
        let shared = Arc::new((model(), AtomicU32::new(0), Notify::new()));
        let peer = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let (model, resting, bell) = &*peer;
            let mut producer = Producer::default();
            let (mut waker, mut rest_waker) = (Waker::default(), Waker::default());
            assert!(push(model, &mut producer, 1), "a frame fits");
            fence(Ordering::SeqCst);
            if waker.due(&Epoch(&model.epoch)) | rest_waker.due(&Epoch(resting)) {
                bell.notify();
            }
        });
        let (model, resting, bell) = &*shared;
        let (mut consumer, mut rest, mut sleeper) =
            (Consumer::default(), Sleeper::default(), Sleeper::default());
        rest.fall_asleep(&Epoch(resting));
        fence(Ordering::SeqCst);
        while consumer.is_empty(model) {
            sleeper.fall_asleep(&Epoch(&model.epoch));
            fence(Ordering::SeqCst);
            // A bell may ring for nothing.
            bell.wait();
            sleeper.wake_up(&Epoch(&model.epoch));
        }
        rest.wake_up(&Epoch(resting));
        assert_eq!(pop(model, &mut consumer), Some(1), "the bell rang for a frame");
        sender.join().expect("the sender does not panic");
    });
}

/// Frames go through a ring that is too short for them, round its end: whole and in order, and no
/// room is used before it was given back.
#[test]
fn frames_pass_the_end_of_a_full_ring_whole() {
    // Both sides wait for each other again and again, so the interleavings are bounded by the number
    // of preemptions, which finds nearly everything that any number would.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        const FRAMES: u64 = 5;
        let shared = Arc::new(model());
        let peer = Arc::clone(&shared);
        let sender = thread::spawn(move || {
            let mut producer = Producer::default();
            for value in 1..=FRAMES {
                while !push(&peer, &mut producer, value) {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::default();
        let mut expected = 1;
        while expected <= FRAMES {
            match pop(&shared, &mut consumer) {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                    consumer.publish(&*shared);
                }
                None => thread::yield_now(),
            }
        }
        sender.join().expect("the sender does not panic");
    });
}

/// A producer that sleeps on a full ring is woken when there is room.
#[test]
fn a_sleeping_producer_gets_its_room() {
    loom::model(|| {
        let shared = Arc::new((model(), Notify::new()));
        let (model, bell) = &*shared;
        let mut producer = Producer::default();
        let mut sent = 0;
        while push(model, &mut producer, sent + 1) {
            sent += 1;
        }
        let peer = Arc::clone(&shared);
        let receiver = thread::spawn(move || {
            let (model, bell) = &*peer;
            let (mut consumer, mut waker) = (Consumer::default(), Waker::default());
            for expected in 1..=sent {
                assert_eq!(pop(model, &mut consumer), Some(expected));
            }
            consumer.publish(model);
            fence(Ordering::SeqCst);
            if model.wants_room.load(Ordering::Relaxed) != 0 && waker.due(&Epoch(&model.epoch)) {
                bell.notify();
            }
        });
        let mut sleeper = Sleeper::default();
        model.wants_room.store(1, Ordering::Relaxed);
        while !push(model, &mut producer, sent + 1) {
            sleeper.fall_asleep(&Epoch(&model.epoch));
            fence(Ordering::SeqCst);
            if !producer.has_room(model, 8) {
                bell.wait();
            }
            sleeper.wake_up(&Epoch(&model.epoch));
        }
        receiver.join().expect("the receiver does not panic");
    });
}

/// A frame that finds no room while its rail sleeps already, from another thread than the one that sleeps: the peer
/// rings, or the thread that ordered the frame sees the room and rings (`src/rest.rs`).
#[test]
fn a_frame_that_waits_for_room_in_sleep_is_not_forgotten() {
    loom::model(|| {
        let shared = Arc::new((model(), Notify::new()));
        let (model, bell) = &*shared;
        let mut producer = Producer::default();
        let mut sent = 0;
        while push(model, &mut producer, sent + 1) {
            sent += 1;
        }
        let mut sleeper = Sleeper::default();
        sleeper.fall_asleep(&Epoch(&model.epoch));
        fence(Ordering::SeqCst);
        let peer = Arc::clone(&shared);
        let receiver = thread::spawn(move || {
            let (model, bell) = &*peer;
            let (mut consumer, mut waker) = (Consumer::default(), Waker::default());
            for expected in 1..=sent {
                assert_eq!(pop(model, &mut consumer), Some(expected));
            }
            consumer.publish(model);
            fence(Ordering::SeqCst);
            if model.wants_room.load(Ordering::Relaxed) != 0 && waker.due(&Epoch(&model.epoch)) {
                bell.notify();
            }
        });
        if !push(model, &mut producer, sent + 1) {
            model.wants_room.store(1, Ordering::Relaxed);
            assert!(sleeper.is_unrung());
            fence(Ordering::SeqCst);
            if producer.has_room(model, 8) {
                sleeper.ring();
                bell.notify();
            }
            // The sleeping thread; a bell may ring for nothing.
            bell.wait();
            sleeper.wake_up(&Epoch(&model.epoch));
            while !push(model, &mut producer, sent + 1) {
                sleeper.fall_asleep(&Epoch(&model.epoch));
                fence(Ordering::SeqCst);
                if !producer.has_room(model, 8) {
                    bell.wait();
                }
                sleeper.wake_up(&Epoch(&model.epoch));
            }
        }
        receiver.join().expect("the receiver does not panic");
    });
}

/// Reads that no revocation waits for: the bytes that were read count only if the entry is the same afterwards. Then
/// they are the bytes from before the revocation.
#[test]
fn a_read_that_a_revocation_overtook_does_not_count() {
    loom::model(|| {
        // The kernel copies: both words of the region change under its hands.
        let words = [AtomicU64::new(1), AtomicU64::new(1)];
        let shared = Arc::new((AtomicU64::new(7), words));
        let peer = Arc::clone(&shared);
        let origin = thread::spawn(move || {
            let (live, words) = &*peer;
            fence(Ordering::Acquire);
            if live.load(Ordering::Acquire) != 7 {
                return;
            }
            let read = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if live.load(Ordering::Acquire) == 7 {
                assert_eq!(read, [1, 1]);
            }
        });
        let (live, words) = &*shared;
        live.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // It is used for something else, and offered again.
        words.iter().for_each(|word| word.store(2, Ordering::Relaxed));
        live.store(8, Ordering::Release);
        origin.join().expect("the origin does not panic");
    });
}

/// A write to an entry that was read-only, and is another one's by then: the fields are looked at before the last
/// look at the key, and the second owner waits for the origin that announced itself.
#[test]
fn a_write_never_takes_the_rights_of_a_later_region() {
    loom::model(|| {
        let shared = Arc::new([7, 0, 0].map(AtomicU64::new));
        let peer = Arc::clone(&shared);
        let origin = thread::spawn(move || {
            let [live, writable, accessing] = &*peer;
            accessing.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if live.load(Ordering::Acquire) == 7 {
                let may = writable.load(Ordering::Relaxed) == 1;
                fence(Ordering::Acquire);
                let same = live.load(Ordering::Acquire) == 7;
                assert!(!(may && same), "it would write under the key of a region for reading");
            }
            accessing.store(0, Ordering::Release);
        });
        // No revocation of a region for reading waits.
        let [live, writable, _] = &*shared;
        live.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        writable.store(1, Ordering::Relaxed);
        live.store(8, Ordering::Release);
        origin.join().expect("the origin does not panic");
    });
}

/// The guard of writes: after the revocation nobody is inside.
#[test]
fn a_revoked_region_has_no_visitor() {
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(7), AtomicU64::new(0), UnsafeCell::new(1u64)));
        let peer = Arc::clone(&shared);
        let origin = thread::spawn(move || {
            let (live, accessing, region) = &*peer;
            accessing.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if live.load(Ordering::Acquire) == 7 {
                // SAFETY: the guard says that the region is ours to read; loom checks it.
                assert_eq!(region.with(|cell| unsafe { *cell }), 1);
            }
            accessing.store(0, Ordering::Release);
        });
        let (live, accessing, region) = &*shared;
        live.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while accessing.load(Ordering::Acquire) == 1 {
            thread::yield_now();
        }
        // SAFETY: the revocation is confirmed, so the region is the owner's alone; loom checks it.
        region.with_mut(|cell| unsafe { *cell = 2 });
        origin.join().expect("the origin does not panic");
    });
}

/// A rank stores bytes in memory that its peer maps, then tells of them by a frame (`rma/src/direct/mapped.rs`). The peer's
/// engine grows a word for that; whichever thread of the peer sees the word sees the bytes.
#[test]
fn bytes_that_were_stored_before_a_notice_are_there_with_its_word() {
    loom::model(|| {
        struct Window {
            bytes: AtomicU64,
            word: AtomicU64,
        }
        let window = Window { bytes: AtomicU64::new(0), word: AtomicU64::new(0) };
        let shared = Arc::new((model(), window));
        let origin = Arc::clone(&shared);
        let origin = thread::spawn(move || {
            let (model, window) = &*origin;
            window.bytes.store(7, Ordering::Relaxed);
            assert!(push(model, &mut Producer::default(), 1), "a frame fits");
        });
        let engine = Arc::clone(&shared);
        let engine = thread::spawn(move || {
            let (model, window) = &*engine;
            if let Some(notice) = pop(model, &mut Consumer::default()) {
                window.word.fetch_add(notice, Ordering::AcqRel);
            }
        });
        let (_, window) = &*shared;
        if window.word.load(Ordering::Acquire) == 1 {
            assert_eq!(window.bytes.load(Ordering::Relaxed), 7, "the notice came before its bytes");
        }
        origin.join().expect("the origin does not panic");
        engine.join().expect("the engine does not panic");
    });
}
