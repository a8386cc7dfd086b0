//! A rank that is lost while operations to it are under way: it broke the protocol, its session goes on, and it answers nothing.

mod pair;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, Context, Endpoint, EndpointConfig, Group, Level, Oversize, PeerId};
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, Implementation, Interrupted, LockKind,
    Loss, Operator, Source, Target, Team, Window, WindowOptions,
};

/// Bytes of an operation: sockets and windows do not take all of them.
const BYTES: usize = 8 << 20;
const TEAM: u64 = 8 << 48;
/// The bits of a message of the team.
const MESSAGE: u64 = TEAM | 1 << 40;
/// Of requests that are under way when their target is lost.
const VERBS: [&str; 4] = ["get", "get_accumulate", "put", "accumulate"];
const APART: u64 = 9 << 48;
const LIMIT: Duration = Duration::from_secs(30);

/// The ranks are threads. By this they tell each other things beside their endpoints.
struct Stage {
    addresses: Mutex<Vec<Vec<u8>>>,
    here: Barrier,
    /// Rank 0 has its window, so that rank 1 makes no more progress. That is so.
    is_made: AtomicBool,
    is_still: AtomicBool,
    /// Rank 0 has posted its operations; they are over; it has seen what there is to see.
    is_issued: AtomicBool,
    is_over: AtomicBool,
    is_seen: AtomicBool,
}

struct Rank<'a> {
    stage: &'a Stage,
    endpoint: Endpoint,
    context: Context,
    other: PeerId,
    window: Window,
    /// Accumulates are done at their origin.
    copies: bool,
    /// Each operation is known apart until it is over.
    names_operations: bool,
}

impl Rank<'_> {
    fn progress_until(&self, done: &AtomicBool) {
        while !done.load(Ordering::SeqCst) {
            self.endpoint.progress();
        }
    }

    /// The one that is lost.
    fn breaks_the_protocol(self) {
        let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
        let (endpoint, context) = (&self.endpoint, &self.context);
        let last =
            endpoint.post_receive(context, channel, None, APART, u64::MAX, Memory::empty(), cut, 1);
        last.expect("there is room");
        self.progress_until(&self.stage.is_made);
        self.stage.is_still.store(true, Ordering::SeqCst);
        await_flag(&self.stage.is_issued);
        self.sends_what_makes_no_sense();
        let begin = Instant::now();
        while !self.stage.is_over.load(Ordering::SeqCst) && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_time = self.stage.is_over.load(Ordering::SeqCst);
        // It goes on, and serves what it was asked for.
        self.progress_until(&self.stage.is_seen);
        self.endpoint.close();
        assert!(in_time, "operations to a rank that is lost wait for it");
        assert!(is_filled(self.window.cells(), &[0, 1]), "memory was read after the end");
    }

    fn sends_what_makes_no_sense(&self) {
        let (endpoint, context) = (&self.endpoint, &self.context);
        let (wrong, level, channel) =
            (Memory::constant(&[0xff; 64]), Level::Buffered, Channel::Tagged);
        let sent = endpoint.post_send(context, self.other, channel, MESSAGE, wrong, level, 2);
        sent.expect("there is room");
    }

    /// The same, after so many calls, in which it serves what it is asked for. Others are served until they have seen enough.
    fn breaks_the_protocol_after(self, calls: u32) {
        await_flag(&self.stage.is_issued);
        for _ in 0..calls {
            self.endpoint.progress();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sends_what_makes_no_sense();
        let begin = Instant::now();
        while !self.stage.is_seen.load(Ordering::SeqCst) && begin.elapsed() < LIMIT {
            self.endpoint.progress();
        }
        self.endpoint.close();
    }

    /// Accumulates at rank 1 until it is lost. True: so it was.
    fn accumulates(self) -> bool {
        let _ends = Ends(self.stage);
        let word = Datatype::of(Element::U64);
        let (source, count) = (Cells::zeroed(BYTES), (BYTES / 8) as u64);
        let target = Target::new(1, 0, count, &word);
        self.window.lock_all(Asserts::NO_CHECK).expect("it may");
        let elements = Source::cells(&source, 0, count, &word);
        self.window.accumulate(elements, target, Operator::Sum).expect("it fits");
        self.stage.is_issued.store(true, Ordering::SeqCst);
        let flushed = self.window.flush(1);
        self.stage.is_over.store(true, Ordering::SeqCst);
        self.progress_until(&self.stage.is_seen);
        flushed.is_err()
    }

    /// Accumulates at rank 1 after another one has lost it.
    fn accumulates_later(self) {
        let _ends = Ends(self.stage);
        let word = Datatype::of(Element::U64);
        let one = 1u64.to_ne_bytes();
        self.window.lock_all(Asserts::NO_CHECK).expect("it may");
        await_flag(&self.stage.is_over);
        let (elements, target) = (Source::slice(&one, 1, &word), Target::new(1, 0, 1, &word));
        self.window.accumulate(elements, target, Operator::Sum).expect("it fits");
        self.window.flush(1).expect("nobody has the lock for ever");
    }

    /// Puts under rank 1's lock until that rank is lost. True: the lock was there before.
    fn puts_under_a_lock(self) -> bool {
        let _ends = Ends(self.stage);
        let (word, one) = (Datatype::of(Element::U64), 1u64.to_ne_bytes());
        self.stage.is_issued.store(true, Ordering::SeqCst);
        self.window.lock(LockKind::Exclusive, 1, Asserts::NONE).expect("it may");
        let mut flushed = 0;
        let put = || {
            let target = Target::new(1, 0, 1, &word);
            self.window.put(Source::slice(&one, 1, &word), target)?;
            self.window.flush(1)
        };
        while put().is_ok() {
            flushed += 1;
        }
        self.window.unlock(1).expect_err("the rank is lost");
        self.stage.is_over.store(true, Ordering::SeqCst);
        self.progress_until(&self.stage.is_seen);
        flushed > 0
    }

    /// Puts under the same lock after another one has lost that rank.
    fn puts_under_a_lock_later(self) {
        let _ends = Ends(self.stage);
        let (word, one) = (Datatype::of(Element::U64), 1u64.to_ne_bytes());
        await_flag(&self.stage.is_over);
        self.window.lock(LockKind::Exclusive, 1, Asserts::NONE).expect("it may");
        let target = Target::new(1, 0, 1, &word);
        self.window.put(Source::slice(&one, 1, &word), target).expect("it fits");
        self.window.unlock(1).expect("nobody has the lock for ever");
    }

    fn loses(self) {
        let word = Datatype::of(Element::U64);
        let _ends = Ends(self.stage);
        let memory: [Cells; 4] = std::array::from_fn(|_| Cells::zeroed(BYTES));
        let [put, got, sum, before] = &memory;
        [put, sum].into_iter().for_each(|cells| fill(cells, 1));
        let one = 1u64.to_ne_bytes();
        let value = Cells::zeroed(8);
        let (count, window) = ((BYTES / 8) as u64, &self.window);
        let target = |count| Target::new(1, 0, count, &word);
        let source = |cells| Source::cells(cells, 0, count, &word);
        let destination = |cells| Destination::new(cells, 0, count, &word);
        self.stage.is_made.store(true, Ordering::SeqCst);
        await_flag(&self.stage.is_still);
        window.lock_all(Asserts::NO_CHECK).expect("it may");
        let (single, into) = (Source::slice(&one, 1, &word), Destination::new(&value, 0, 1, &word));
        window.fetch_and_op(Some(single), into, target(1), Operator::Sum).expect("it fits");
        let requests = [
            window.rget(destination(got), target(count)),
            window.rget_accumulate(
                Some(source(sum)),
                destination(before),
                target(count),
                Operator::Max,
            ),
            window.rput(source(put), target(count)),
            window.raccumulate(source(sum), target(count), Operator::Max),
        ];
        self.stage.is_issued.store(true, Ordering::SeqCst);
        let flushed = window.flush(1);
        let Err(Error::Lost { rank: 1, operation, .. }) = &flushed else { panic!("{flushed:?}") };
        assert_eq!(operation.is_some(), self.names_operations, "{flushed:?}");
        // They are over, too: the memory is ours again.
        for (number, request) in requests.into_iter().enumerate() {
            let ended = request.expect("it fits").test();
            let is_lost = matches!(ended, Err(Error::Lost { rank: 1, .. }));
            // An accumulate that is done here has a copy of its elements: its source is free at once.
            let has_left = number == 3 && ended == Ok(true) && self.copies;
            assert!(is_lost || has_left, "{number}: {ended:?}");
            if let Err(Error::Lost { operation, .. }) = ended
                && self.names_operations
            {
                let (verb, at, bytes) = (VERBS[number], 0, BYTES as u64);
                assert_eq!(operation, Some(Interrupted { verb, at, bytes }));
            }
        }
        memory.iter().for_each(|cells| fill(cells, 2));
        self.stage.is_over.store(true, Ordering::SeqCst);
        let (endpoint, context, channel) = (&self.endpoint, &self.context, Channel::Tagged);
        let (last, level) = (Memory::empty(), Level::Matched);
        let sent = endpoint.post_send(context, self.other, channel, APART, last, level, 3);
        sent.expect("there is room");
        let matched = endpoint.wait(context, LIMIT).expect("the session goes on");
        assert_eq!(matched.outcome, Ok(()), "behind all that was under way");
        // Also what the rank answers to that comes to nothing.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(200) {
            endpoint.progress();
        }
        memory.iter().for_each(|cells| assert!(is_filled(cells, &[2]), "it was written later"));
        endpoint.check();
    }
}

impl Stage {
    fn new(ranks: usize) -> Stage {
        let no = || AtomicBool::new(false);
        let (addresses, here) = (Mutex::new(vec![Vec::new(); ranks]), Barrier::new(ranks));
        let (is_issued, is_over, is_seen) = (no(), no(), no());
        Stage { addresses, here, is_made: no(), is_still: no(), is_issued, is_over, is_seen }
    }

    /// Rank 1 does nothing but in its calls. The others talk to it, and it to rank 0.
    fn enter(&self, rank: u32, implementation: Implementation) -> Rank<'_> {
        let rail = modules::open("tcp", &Listen::At { address: "127.0.0.1:0", exactly: true });
        let mut config = EndpointConfig::new(ClusterId(9));
        config.service_thread = rank != 1;
        let endpoint = Endpoint::open(config, vec![rail.expect("this host has it")]);
        let endpoint = endpoint.expect("it opens");
        let exchange = |own: &[u8]| {
            self.addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
            self.here.wait();
            Ok::<_, Infallible>(self.addresses.lock().expect("nobody panics").clone())
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        let team = Team::new(&endpoint, &group, TEAM).expect("there is room");
        let options = WindowOptions { implementation, ..WindowOptions::default() };
        let window = team.allocate(BYTES, &options).expect("all make the same");
        let context = endpoint.context(false).expect("there are descriptors");
        let other = group.peer(u32::from(rank != 1));
        let copies = implementation == Implementation::DirectAccumulateAtOrigin;
        let names_operations = implementation != Implementation::Messages;
        Rank { stage: self, endpoint, context, other, window, copies, names_operations }
    }
}

/// Rank 1 waits for nothing more, also where rank 0 failed.
struct Ends<'a>(&'a Stage);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let Stage { is_made, is_issued, is_over, is_seen, .. } = self.0;
        for flag in [is_made, is_issued, is_over, is_seen] {
            flag.store(true, Ordering::SeqCst);
        }
    }
}

fn await_flag(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn fill(cells: &Cells, value: u8) {
    cells.write(0, &vec![value; cells.len()]).expect("it fits");
}

fn is_filled(cells: &Cells, values: &[u8]) -> bool {
    let mut bytes = vec![0; cells.len()];
    cells.read(0, &mut bytes).expect("they are there");
    bytes.iter().all(|byte| values.contains(byte))
}

fn lose(implementation: Implementation) {
    let stage = Stage::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| stage.enter(0, implementation).loses());
        scope.spawn(|| stage.enter(1, implementation).breaks_the_protocol());
    });
}

#[test]
fn what_is_under_way_to_a_rank_that_is_lost_ends_without_it() {
    lose(Implementation::Direct);
}

#[test]
fn accumulates_at_the_origin_end_without_a_target_that_is_lost() {
    lose(Implementation::DirectAccumulateAtOrigin);
}

/// Rank 0 holds the lock of accumulates when it loses its target; the target serves rank 2.
#[test]
fn a_target_that_one_has_lost_is_not_locked_for_others() {
    let mut losses = 0;
    for calls in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
        let implementation = Implementation::DirectAccumulateAtOrigin;
        let stage = Stage::new(3);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| stage.enter(0, implementation).accumulates());
            scope.spawn(|| stage.enter(1, implementation).breaks_the_protocol_after(calls));
            scope.spawn(|| stage.enter(2, implementation).accumulates_later());
            losses += usize::from(first.join().expect("it ends"));
        });
    }
    assert!(losses > 0, "nobody was lost meanwhile");
}

#[test]
fn a_lock_of_a_rank_that_one_has_lost_goes_to_others() {
    let mut held = Vec::new();
    for calls in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
        let implementation = Implementation::Direct;
        let stage = Stage::new(3);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| stage.enter(0, implementation).puts_under_a_lock());
            scope.spawn(|| stage.enter(1, implementation).breaks_the_protocol_after(calls));
            scope.spawn(|| stage.enter(2, implementation).puts_under_a_lock_later());
            held.push(first.join().expect("it ends"));
        });
    }
    assert!(held.contains(&true), "nobody had the lock when the rank was lost: {held:?}");
}

/// Three ranks, of which one dies; the others make collective calls again and again, and each tells of that rank alone.
fn survivors(implementation: Implementation, dies: u32) {
    pair::ranks("tcp", 3, |endpoint, _group, team, rank| {
        let options = WindowOptions { implementation, ..WindowOptions::default() };
        let window = team.allocate(64, &options).expect("all are there");
        team.barrier().expect("all are there");
        if rank == dies {
            team.settle(Duration::from_secs(5));
            return endpoint.close();
        }
        let is_lost = |told: &Result<(), Error>| matches!(told, Err(Error::TeamLost { rank, .. }) if *rank == dies);
        for round in 0..5u64 {
            let exchanged = team.exchange(&round.to_ne_bytes()).map(drop);
            assert!(is_lost(&exchanged), "{exchanged:?}");
            let cells = Cells::zeroed(64);
            let made = team.create(&cells, 0..64, &options).map(drop);
            assert!(is_lost(&made), "{made:?}");
            // Nobody else is lost by that.
            let (word, value) = (Datatype::of(Element::U64), (round + 1).to_ne_bytes());
            let other = 3 - dies - rank;
            window.lock(LockKind::Exclusive, other, Asserts::NONE).expect("it may");
            let target = Target::new(other, 0, 1, &word);
            window.put(Source::slice(&value, 1, &word), target).expect("it fits");
            window.unlock(other).expect("the other one lives");
        }
        let met = team.barrier();
        assert!(is_lost(&met), "{met:?}");
        assert_eq!(window.cells().load::<u64>(0), Some(5));
        team.settle(Duration::from_secs(5));
        endpoint.close();
    });
}

#[test]
fn those_who_are_left_make_collective_calls_without_losing_each_other() {
    for implementation in [Implementation::Direct, Implementation::Messages] {
        (0..3).for_each(|dies| survivors(implementation, dies));
    }
}

/// Closes an endpoint after a time, unless the sender that it returns is dropped before.
fn close_after(endpoint: &Endpoint, time: Duration) -> mpsc::Sender<()> {
    let (ends, ended) = mpsc::channel::<()>();
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        if ended.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
            endpoint.close();
        }
    });
    ends
}

/// Rank 2 dies while all make a window: rank 0 has heard from it before, and rank 1 has not.
fn dies_within_a_creation(
    scheme: &str,
    implementation: Implementation,
    make: impl Fn(&Team, &WindowOptions) -> Result<Window, Error> + Sync,
) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let nobody = pair::endpoint(scheme, &format!("nobody{}-{number}", std::process::id()));
    // Rank 2 takes another endpoint for rank 1.
    let seen = |rank: u32, mut addresses: Vec<Vec<u8>>| {
        if rank == 2 {
            addresses[1] = nobody.addresses().as_bytes().to_vec();
        }
        addresses
    };
    pair::ranks_that_see(scheme, 3, seen, |endpoint, _group, team, rank| {
        let options = WindowOptions { implementation, ..WindowOptions::default() };
        let is_first = rank == 0;
        if rank == 2 {
            let _dies = close_after(&endpoint, Duration::from_millis(300));
            make(&team, &options).map(drop).expect_err("rank 1 is not there");
            return;
        }
        let _hangs = close_after(&endpoint, LIMIT);
        let is_lost =
            |told: &Result<(), Error>| matches!(told, Err(Error::TeamLost { rank: 2, .. }));
        match make(&team, &options) {
            // All that was asked for came here, but rank 1 has no such window.
            Ok(mut window) => {
                assert!(is_first && implementation == Implementation::Messages);
                let (word, value) = (Datatype::of(Element::U64), 1u64.to_ne_bytes());
                let without = |told: Result<(), Error>| {
                    let is_told =
                        matches!(told, Err(Error::Lost { rank: 1, loss: Loss::Without, .. }));
                    assert!(is_told, "{told:?}");
                };
                window.lock(LockKind::Exclusive, 1, Asserts::NONE).expect("it may");
                let (to, target) =
                    (Cells::zeroed(BYTES), Target::new(1, 0, BYTES as u64 / 8, &word));
                let all = Destination::new(&to, 0, BYTES as u64 / 8, &word);
                // Issued before it is known, it ends all the same.
                if let Ok(request) = window.rget(all, target) {
                    drop(request.wait());
                }
                let put = || {
                    window.put(Source::slice(&value, 1, &word), Target::new(1, 0, 1, &word))?;
                    window.flush(1)
                };
                while put().is_ok() {}
                without(put());
                without(window.unlock(1));
                window.fence(Asserts::NONE).expect_err("two ranks are not there");
                window.free().expect_err("two ranks are not there");
            }
            Err(told) => assert!(is_lost(&Err(told.clone())), "{told:?}"),
        }
        // They have not lost each other, and wait for each other.
        for _ in 0..3 {
            let met = team.barrier();
            assert!(is_lost(&met), "{met:?}");
            let made = make(&team, &options).map(drop);
            assert!(is_lost(&made), "{made:?}");
            let exchanged = team.exchange(&[0]).map(drop);
            assert!(is_lost(&exchanged), "{exchanged:?}");
        }
        team.settle(Duration::from_secs(5));
        endpoint.close();
    });
}

#[test]
fn a_rank_that_dies_within_the_creation_of_a_window_lets_nobody_wait_for_another_one() {
    let allocate = |team: &Team, options: &WindowOptions| team.allocate(BYTES, options);
    for scheme in ["tcp", "shm"] {
        for implementation in [Implementation::Direct, Implementation::Messages] {
            dies_within_a_creation(scheme, implementation, allocate);
        }
    }
    let share = |team: &Team, options: &WindowOptions| team.allocate_shared(BYTES, options);
    dies_within_a_creation("shm", Implementation::Direct, share);
}
