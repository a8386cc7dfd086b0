//! Copies at the ends of memory, and faults that are somebody else's. Those that end a process happen in children: this test
//! program again, told by the environment what to do.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;

/// Pages that are mapped here, behind which nothing is.
pub struct Pages {
    begin: *mut u8,
    bytes: usize,
}

// SAFETY: whoever has it accesses raw memory.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(pages: usize, flags: i32, file: i32) -> Pages {
        let (bytes, nothing) = (pages * PAGE, std::ptr::null_mut());
        // SAFETY: a new mapping, at an address that the kernel chooses; then its last page goes.
        let begin = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let begin = libc::mmap(nothing, bytes + PAGE, rights, flags, file, 0);
            assert_ne!(begin, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(begin.byte_add(bytes), PAGE, libc::PROT_NONE), 0);
            begin.cast()
        };
        Pages { begin, bytes }
    }

    pub fn new(pages: usize) -> Pages {
        Pages::map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Of a file that is cut to so many pages when it was mapped.
    pub fn of_file(pages: usize, left: usize) -> Pages {
        // SAFETY: a new file in memory, which the mapping keeps.
        unsafe {
            let file = libc::memfd_create(c"guard".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0);
            assert_eq!(libc::ftruncate(file, (pages * PAGE) as i64), 0);
            let mapped = Pages::map(pages, libc::MAP_SHARED, file);
            mapped.begin.write_bytes(1, mapped.bytes);
            assert_eq!(libc::ftruncate(file, (left * PAGE) as i64), 0);
            libc::close(file);
            mapped
        }
    }

    pub fn at(&self, byte: usize) -> *mut u8 {
        self.begin.wrapping_add(byte)
    }

    fn fill(&self) {
        // SAFETY: these bytes are mapped, and nobody else has them.
        (0..self.bytes).for_each(|at| unsafe { self.at(at).write(at as u8 ^ 0x5a) });
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody names the mapping any more.
        unsafe { libc::munmap(self.begin.cast(), self.bytes + PAGE) };
    }
}

const LENGTHS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 100, PAGE - 1, PAGE, PAGE + 100];

#[test]
fn a_copy_ends_where_its_source_or_its_target_ends() {
    prepare();
    let (memory, other) = (Pages::new(2), Pages::new(2));
    memory.fill();
    for bytes in LENGTHS {
        // How many bytes of the copy lie behind the end.
        for over in [0, 1, bytes / 2, bytes].into_iter().filter(|over| *over <= bytes) {
            let at = memory.at(memory.bytes + over - bytes);
            let expected = over == 0;
            // SAFETY: both mappings are our own; what is not there ends the copies.
            unsafe {
                let there = copy(at, other.at(3), bytes);
                assert_eq!(there, expected, "from: {bytes} bytes, {over} of them not there");
                if expected {
                    let (from, to) = (at.cast_const(), other.at(3).cast_const());
                    let both = [from, to].map(|it| std::slice::from_raw_parts(it, bytes).to_vec());
                    assert_eq!(both[0], both[1]);
                }
                assert_eq!(copy(other.at(3), at, bytes), expected, "to: {bytes}, {over}");
                assert_eq!(is_there(at, bytes), expected, "look: {bytes}, {over}");
            }
        }
    }
}

#[test]
fn a_file_that_was_cut_is_not_there_on_either_side() {
    prepare();
    let (memory, other) = (Pages::of_file(4, 2), Pages::new(4));
    for bytes in LENGTHS {
        let end = memory.at(2 * PAGE);
        // SAFETY: as above.
        unsafe {
            assert!(copy(end.wrapping_sub(bytes), other.at(0), bytes));
            assert!(copy(other.at(0), end.wrapping_sub(bytes), bytes));
            assert!(is_there(end.wrapping_sub(bytes), bytes));
            assert_eq!(copy(end, other.at(0), bytes), bytes == 0);
            assert_eq!(copy(other.at(0), end, bytes), bytes == 0);
            assert_eq!(is_there(end, bytes), bytes == 0);
        }
    }
    // SAFETY: as above.
    assert!(!unsafe { is_there(memory.at(0), 4 * PAGE) });
}

#[test]
fn memory_that_may_not_be_written_is_not_written() {
    prepare();
    let (memory, other) = (Pages::new(1), Pages::new(1));
    // SAFETY: our own mapping.
    assert_eq!(unsafe { libc::mprotect(memory.begin.cast(), PAGE, libc::PROT_READ) }, 0);
    for bytes in [1, 2, 4, 8, 100] {
        // SAFETY: as above.
        unsafe {
            assert!(copy(memory.at(8), other.at(8), bytes));
            assert!(!copy(other.at(8), memory.at(8), bytes));
        }
    }
}

#[test]
fn places_may_overlap() {
    prepare();
    for (from, to) in [(0, 3), (3, 0), (2, 4), (5, 5), (0, 40)] {
        for bytes in 0..=40 {
            let mut bytes_there: Vec<u8> = (0..80).collect();
            let mut want = bytes_there.clone();
            want.copy_within(from..from + bytes, to);
            let place = bytes_there.as_mut_ptr();
            // SAFETY: both lie inside of one vector.
            assert!(unsafe { copy(place.add(from), place.add(to), bytes) });
            assert_eq!(bytes_there, want, "{bytes} bytes from {from} to {to}");
        }
    }
    // From behind, over the end: what the program does next copies forwards.
    let memory = Pages::new(2);
    let end = memory.at(memory.bytes);
    // SAFETY: our own mapping.
    assert!(!unsafe { copy(end.wrapping_sub(200), end.wrapping_sub(100), 200) });
    memory.fill();
    let other = Pages::new(2);
    // SAFETY: as above.
    assert!(unsafe { copy(memory.at(0), other.at(0), memory.bytes) });
    // SAFETY: as above; nobody writes there.
    assert_eq!(unsafe { other.at(memory.bytes - 1).read() }, (memory.bytes - 1) as u8 ^ 0x5a);
}

#[test]
fn words_are_swapped_where_they_are_as_expected_and_there() {
    prepare();
    let memory = Pages::new(1);
    for bytes in [1, 2, 4, 8] {
        let (old, new) = (0x1122_3344_5566_7788_u64.to_ne_bytes(), 7_u64.to_ne_bytes());
        let at = memory.at(memory.bytes - bytes);
        // SAFETY: our own mapping.
        unsafe {
            at.copy_from_nonoverlapping(old.as_ptr(), bytes);
            let was = |found: Option<[u8; 8]>| found.map(|it| it[..bytes].to_vec());
            assert_eq!(was(swap(at, bytes, new, new)), Some(old[..bytes].to_vec()));
            assert_eq!(was(swap(at, bytes, old, new)), Some(old[..bytes].to_vec()));
            assert_eq!(was(swap(at, bytes, old, old)), Some(new[..bytes].to_vec()));
            assert_eq!(swap(memory.at(memory.bytes), bytes, old, new), None);
        }
    }
}

#[test]
fn threads_swap_a_word_beside_additions_and_lose_none() {
    const ROUNDS: u64 = 20_000;
    prepare();
    let word = AtomicU64::new(0);
    let place = word.as_ptr().expose_provenance();
    std::thread::scope(|scope| {
        for by_swaps in [true, true, false] {
            let word = &word;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    if !by_swaps {
                        word.fetch_add(1, Relaxed);
                        continue;
                    }
                    let at = std::ptr::with_exposed_provenance_mut(place);
                    let mut seen = word.load(Relaxed);
                    loop {
                        let (old, new) = (seen.to_ne_bytes(), (seen + 1).to_ne_bytes());
                        // SAFETY: the word outlives the scope.
                        let was = unsafe { swap(at, 8, old, new) }.map(u64::from_ne_bytes);
                        match was {
                            Some(was) if was == seen => break,
                            was => seen = was.expect("it is there"),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(word.load(Relaxed), 3 * ROUNDS);
}

/// Threads copy from and to a page that another one takes away and gives back: each copy is whole or fails.
#[test]
fn threads_copy_while_memory_comes_and_goes() {
    prepare();
    let (memory, is_over) = (Pages::new(3), AtomicBool::new(false));
    let outcomes = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut own = vec![7; 2 * PAGE];
                for round in 0.. {
                    let is_enough = outcomes.iter().all(|count| count.load(Relaxed) > 2_000);
                    if is_enough || is_over.load(Relaxed) {
                        break;
                    }
                    let bytes = [1, 8, 100, 2 * PAGE][round % 4];
                    // SAFETY: our own memory; what is not there ends the copies.
                    let there = unsafe {
                        copy(own.as_ptr(), memory.at(PAGE / 2), bytes)
                            && copy(memory.at(PAGE), own.as_mut_ptr(), bytes)
                    };
                    outcomes[usize::from(there)].fetch_add(1, Relaxed);
                }
                is_over.store(true, Relaxed);
            });
        }
        let middle = memory.at(PAGE).cast();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        while !is_over.load(Relaxed) {
            for rights in [libc::PROT_NONE, both] {
                // SAFETY: the page is of our own mapping.
                assert_eq!(unsafe { libc::mprotect(middle, PAGE, rights) }, 0);
                std::thread::yield_now();
            }
        }
    });
    assert!(outcomes.iter().all(|count| count.load(Relaxed) > 0), "{outcomes:?}");
}

const ROLE: &str = "ROPEWALK_GUARD_ROLE";
const CHILD: &str = "memory::guard::tests::a_child_does_what_it_is_told";
/// The exit status of a handler that was reached.
const REACHED: i32 = 42;

/// This program again, with a role.
fn child(role: &str) -> Output {
    let program = std::env::current_exe().expect("a running program");
    let mut command = Command::new(program);
    command.args(["--exact", CHILD, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.output().expect("the child starts")
}

fn ends(role: &str) -> ExitStatus {
    child(role).status
}

extern "C" fn told(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both, and `_exit` may be called here.
    unsafe {
        let is_whole = !context.is_null() && (*info).si_signo == libc::SIGSEGV;
        libc::_exit(if is_whole { REACHED } else { 1 });
    }
}

extern "C" fn untold(_: i32) {
    // SAFETY: it may be called here.
    unsafe { libc::_exit(REACHED) };
}

fn act(signal: i32, handler: usize, flags: i32) {
    // SAFETY: an action is plain data, and the handler has the type that its flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// An access that no routine makes.
fn fault() {
    let nowhere = std::hint::black_box(8_usize);
    // SAFETY: none: this is the fault.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(nowhere).write_volatile(1) };
}

fn bus_fault() {
    let memory = Pages::of_file(1, 0);
    // SAFETY: none, as above.
    unsafe { memory.at(0).write_volatile(1) };
}

fn send(signal: i32) {
    // SAFETY: a signal for this process.
    unsafe { libc::raise(signal) };
}

/// Copies that fail, with handlers of others before and no alternate stack: they are nobody's but ours.
fn fail_copies() {
    let (memory, cut) = (Pages::new(1), Pages::of_file(1, 0));
    let mut own = [0; 100];
    // SAFETY: our own memory; what is not there ends the copies.
    unsafe {
        assert!(!copy(memory.at(PAGE - 50), own.as_mut_ptr(), 100));
        assert!(!copy(cut.at(0), own.as_mut_ptr(), 8));
    }
}

fn overflow(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 512]);
    let is_endless = std::hint::black_box(true);
    room[(depth % 512) as usize] + if is_endless { overflow(depth + 1) } else { 0 }
}

#[test]
fn a_child_does_what_it_is_told() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (informed, plain) = (told as *const () as usize, untold as *const () as usize);
    match role.split_once('-').map_or("", |(earlier, _)| earlier) {
        "informed" => act(libc::SIGSEGV, informed, libc::SA_SIGINFO | libc::SA_RESETHAND),
        "plain" => [libc::SIGSEGV, libc::SIGBUS].map(|it| act(it, plain, 0)).into_iter().collect(),
        "default" => {
            [libc::SIGSEGV, libc::SIGBUS].map(|it| act(it, libc::SIG_DFL, 0)).into_iter().collect()
        }
        "ignored" => act(libc::SIGSEGV, libc::SIG_IGN, 0),
        _ => {}
    }
    prepare();
    prepare();
    fail_copies();
    match role.split_once('-').map_or("", |(_, what)| what) {
        "fault" => fault(),
        "bus" => bus_fault(),
        "sent" => send(libc::SIGSEGV),
        "overflow" => drop(overflow(0)),
        // An instruction of ours is not the cause of a signal that somebody sends.
        _ => {}
    }
    fail_copies();
    println!("child goes on");
}

#[test]
fn faults_elsewhere_are_those_of_the_handler_that_was_there_before() {
    for role in ["informed-fault", "plain-fault", "plain-bus", "plain-sent", "informed-sent"] {
        assert_eq!(ends(role).code(), Some(REACHED), "{role}");
    }
}

#[test]
fn faults_elsewhere_end_a_process_that_handles_none() {
    for (role, signal) in [
        ("default-fault", libc::SIGSEGV),
        ("default-bus", libc::SIGBUS),
        ("default-sent", libc::SIGSEGV),
        ("ignored-fault", libc::SIGSEGV),
        // The standard library's handler.
        ("std-fault", libc::SIGSEGV),
    ] {
        assert_eq!(ends(role).signal(), Some(signal), "{role}");
    }
}

#[test]
fn a_stack_that_overflows_is_told_as_ever() {
    let output = child("std-overflow");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("has overflowed its stack"), "{said}");
}

#[test]
fn who_ignores_signals_that_are_sent_ignores_them_still() {
    let output = child("ignored-sent");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("child goes on"), "{said}");
}
