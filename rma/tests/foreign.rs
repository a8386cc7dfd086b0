//! A peer that sends what makes no sense is told of in words, and harms nobody.

use std::convert::Infallible;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, Endpoint, EndpointConfig, Group, Level, Posted};
use ropewalk_rma::{Error, Loss, Team, WindowOptions};

const TAG: u64 = 8 << 48;

fn endpoint() -> Endpoint {
    let listen = Listen::At { address: "127.0.0.1:0", exactly: true };
    let rail = modules::open("tcp", &listen).expect("the loopback interface has it");
    Endpoint::open(EndpointConfig::new(ClusterId(9)), vec![rail]).expect("it opens")
}

/// Runs a rank that makes a team, beside one that sends messages of its own making to it.
fn beside(foreign: impl Fn(&dyn Fn(u64, &[u8])) + Sync, own: impl Fn(&Team) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); 2]);
    let (all_here, all_done) = (Barrier::new(2), Barrier::new(2));
    let run = |rank: u32| {
        let endpoint = endpoint();
        let exchange = |address: &[u8]| {
            addresses.lock().expect("nobody panics")[rank as usize] = address.to_vec();
            all_here.wait();
            Ok::<_, Infallible>(addresses.lock().expect("nobody panics").clone())
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        if rank == 0 {
            let team = Team::new(&endpoint, &group, TAG).expect("there is room");
            own(&team);
        } else {
            let (pool, context) = (Pool::with_budget(1 << 20), endpoint.context(false).unwrap());
            foreign(&|kind, bytes| {
                let memory = Memory::pooled(pool.copy_of(bytes).unwrap());
                let (peer, bits) = (group.peer(0), TAG | kind << 40);
                let sent = endpoint
                    .post_send(&context, peer, Channel::Tagged, bits, memory, Level::Buffered, 0)
                    .map_err(|(_, fault)| fault);
                if let Posted::Pending(_) = sent.unwrap() {
                    endpoint.wait(&context, Duration::from_secs(10));
                }
            });
        }
        all_done.wait();
        endpoint.close();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
}

/// The error of a rank that waits for one which speaks nonsense.
fn refused(messages: &[&[u8]]) -> String {
    let text = Mutex::new(String::new());
    let send = |send: &dyn Fn(u64, &[u8])| messages.iter().for_each(|it| send(1, it));
    beside(send, |team| {
        let error = team.exchange(b"own").unwrap_err();
        assert!(matches!(error, Error::TeamLost { rank: 1, loss: Loss::Protocol(_) }), "{error}");
        *text.lock().unwrap() = error.to_string();
    });
    text.into_inner().unwrap()
}

#[test]
fn messages_that_make_no_sense_are_told_in_words() {
    let told = |why: &str| format!("rank 1 of the team sent what makes no sense: {why}");
    assert_eq!(refused(&[&[99, 0, 0, 0, 0]]), told("an item has an unknown kind"));
    assert_eq!(refused(&[&[2, 0, 0]]), told("a message ends within an item"));
    // A post, and an answer, of a window that there is not.
    assert_eq!(refused(&[&[10, 5, 0, 0, 0]]), told("a token for a window that is not there"));
    let done = [&[20, 0, 0, 0, 0][..], &[1; 8]].concat();
    assert_eq!(refused(&[&done]), told("a token for a window that is not there"));
    // A result that nobody asked for.
    let result = [&[22][..], &[1; 8], &[2, 0, 0, 0, 7, 7]].concat();
    assert_eq!(refused(&[&result]), told("a result that nobody asked for"));
    // Exchanges of a call that is far away, and twice the same one.
    let exchange = |call: u8| [&[12, 0, call][..], &[0; 6], &[0; 4]].concat();
    assert_eq!(refused(&[&exchange(3)]), told("an exchange out of turn"));
    let (next, same) = (exchange(2), exchange(2));
    assert_eq!(refused(&[&next, &same]), told("an exchange out of turn"));
    // A call that did not begin is given up, and one for a rank that there is not.
    let gave_up = |lost: u8, call: u8| [&[24, lost, 0, 0, 0, call][..], &[0; 7]].concat();
    assert_eq!(refused(&[&gave_up(0, 9)]), told("a call was given up before it began"));
    assert_eq!(refused(&[&gave_up(7, 1)]), told("a rank is lost that there is not"));
    // Longer than any message.
    assert_eq!(refused(&[&vec![30; 70_000]]), told("a message is too long"));
}

/// A number that is small, or far from everything.
fn number(random: &mut Random) -> [u8; 8] {
    let edges = [0, 1, 8, 64, 65, 1 << 20, u64::MAX, i64::MAX as u64, 1 << 63, (1 << 56) + 1];
    let value = match random.next_u64() % 3 {
        0 => edges[random.next_u64() as usize % edges.len()],
        1 => random.next_u64() % 100,
        _ => random.next_u64() % 9,
    };
    value.to_le_bytes()
}

/// An operation with a header that is one, and any numbers in it.
fn operation(random: &mut Random) -> Vec<u8> {
    let below = |random: &mut Random, limit: u64| (random.next_u64() % limit) as u8;
    let kind = 2 + below(random, 4);
    let mut item = vec![kind, 0, 0, 0, 0];
    match kind {
        4 => item.extend([1 + below(random, 21), 1 + below(random, 14), below(random, 2)]),
        5 => item.push(1 + below(random, 21)),
        _ => {}
    }
    let fetches = kind == 3 || kind == 5 || kind == 4 && item[7] == 1;
    let [is_typed, is_part, is_section] = [2, 2, 8].map(|of| below(random, of) == 0);
    item.push(u8::from(is_typed) | u8::from(is_part) << 1 | u8::from(is_section) << 2);
    item.extend(number(random));
    item.extend(number(random));
    if is_typed {
        item.push(below(random, 3));
    }
    for _ in 0..2 * (u8::from(is_part) + u8::from(is_section)) {
        item.extend(number(random));
    }
    if kind == 5 {
        item.extend([below(random, 3); 16]);
    }
    if fetches {
        item.extend(number(random));
        let apart = below(random, 4) == 0;
        item.push(u8::from(apart));
        item.extend(number(random).into_iter().filter(|_| apart));
    }
    if kind == 2 || kind == 4 {
        let bytes = below(random, 9);
        item.extend([1, bytes, 0, 0, 0]);
        item.extend(std::iter::repeat_n(7, usize::from(bytes)));
    }
    item
}

/// A type for a place of the table: one that is sound, mostly, with any offsets and strides.
fn layout(random: &mut Random, slot: u8) -> Vec<u8> {
    let any = |random: &mut Random| u64::from_le_bytes(number(random)) as i64;
    let mut sound = Descriptor::contiguous(1 + random.next_u64() % 9).expect("it is short");
    for _ in 0..random.next_u64() % 4 {
        let (count, stride) = (random.next_u64() % 5, any(random));
        sound = sound.repeated(count, stride).unwrap_or(sound);
        let by = any(random);
        sound = Descriptor::joined(&[(0, &sound), (by, &sound)]).unwrap_or(sound);
        sound = sound.clone().resized(any(random)).unwrap_or(sound);
    }
    let mut bytes = sound.encode();
    if random.next_u64().is_multiple_of(16) {
        let at = random.next_u64() as usize % bytes.len();
        bytes[at] ^= 1 << (random.next_u64() % 8);
    }
    let head = [1, 0, 0, 0, 0, slot];
    [&head[..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat()
}

#[test]
fn operations_with_any_numbers_are_refused_or_executed_and_break_nothing() {
    let mut random = Random::from_seed(1);
    for _ in 0..60 {
        let types = (0..3).map(|slot| layout(&mut random, slot)).collect::<Vec<_>>();
        let operations = (0..10).map(|_| operation(&mut random));
        let messages: Vec<Vec<u8>> = types.into_iter().chain(operations).collect();
        let send = |send: &dyn Fn(u64, &[u8])| {
            messages.iter().for_each(|it| send(1, it));
            // The last word makes no sense, whatever came before.
            send(1, &[99, 0, 0, 0, 0]);
        };
        let begin = Instant::now();
        beside(send, |team| {
            // It waits for the other one, which never makes the window, and gets operations on it meanwhile.
            let error = team.allocate(64, &WindowOptions::default()).map(drop).unwrap_err();
            assert!(matches!(error, Error::TeamLost { rank: 1, .. }), "{error}");
        });
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
