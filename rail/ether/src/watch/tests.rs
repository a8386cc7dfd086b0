use std::os::fd::AsRawFd;

use ropewalk_base::random::Random;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::*;

/// Sleepers, and a counter in the place of the socket: it is readable as that is.
struct Scene {
    watch: Watch,
    socket: OwnedFd,
    sets: Vec<OwnedFd>,
    looks: u64,
}

/// No test waits for longer.
const LIMIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

impl Scene {
    fn new(sleepers: u8) -> Scene {
        let socket = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let watch = Watch::new(vec![socket.try_clone().unwrap()]).unwrap();
        let mut scene = Scene { watch, socket, sets: Vec::new(), looks: 0 };
        for own in 0..sleepers {
            scene.sets.push(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
            scene.enter(own);
        }
        scene
    }

    fn enter(&self, own: u8) {
        self.watch.enter(own, self.sets[usize::from(own)].as_fd()).unwrap();
    }

    fn leave(&self, own: u8) {
        self.watch.leave(own, self.looks);
    }

    fn sleep(&self, own: u8, eager: bool) -> bool {
        self.watch.sleep(own, eager, self.looks)
    }

    fn wake(&self, own: u8) {
        self.watch.wake(own, self.looks);
    }

    fn busy(&self, own: u8) {
        self.watch.busy(own, self.looks);
    }

    fn packet_comes(&self) {
        rustix::io::write(&self.socket, &1u64.to_ne_bytes()).unwrap();
    }

    /// Somebody looks at the ring.
    fn look(&self) {
        rustix::io::read(&self.socket, &mut [0u8; 8]).unwrap();
    }

    /// Whether the set becomes readable before the limit.
    fn is_woken(&self, own: u8, limit: Timespec) -> bool {
        let set = &self.sets[usize::from(own)];
        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    fn is_awake_at_once(&self, own: u8) -> bool {
        self.is_woken(own, Timespec { tv_sec: 0, tv_nsec: 0 })
    }

    /// The kernel's entry for a descriptor in a set: the events, as a number.
    fn events(&self, own: u8, descriptor: i32) -> Option<u32> {
        let set = self.sets[usize::from(own)].as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("tfd:"));
        let mut found = lines.filter_map(|line| {
            let mut words = line.split_whitespace();
            let number: i32 = words.next()?.parse().ok()?;
            let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
            (number == descriptor).then_some(events)
        });
        found.next()
    }

    /// The invariants, and that the kernel has it as the state says.
    fn check(&self, entered: Numbers) {
        let state = self.watch.state();
        let sleeps = |who: Option<u8>| who.is_some_and(|own| state.asleep.contains(own));
        let is_safe = state.asleep.is_empty()
            || sleeps(state.watcher)
            || (sleeps(state.guard) && state.trusted.is_some());
        assert!(is_safe, "{state:?}");
        for own in 0..self.sets.len() as u8 {
            for socket in &state.sockets {
                let socket = self.events(own, socket.as_raw_fd());
                assert_eq!(socket.is_some(), state.watcher == Some(own), "{own} {state:?}");
            }
            let timer = self.events(own, state.timer.as_raw_fd());
            assert_eq!(timer.is_some(), entered.contains(own), "{own} {state:?}");
            let asks = timer.is_some_and(|events| events & EventFlags::IN.bits() != 0);
            assert_eq!(asks, state.guard == Some(own), "{own} {state:?}");
        }
    }
}

#[test]
fn somebody_watches_or_guards_whatever_they_do() {
    for seed in 0..40 {
        let mut random = Random::from_seed(seed);
        let count = 1 + random.below(5) as u8;
        let mut scene = Scene::new(count);
        let mut entered = Numbers::default();
        (0..count).for_each(|own| entered.insert(own));
        for _ in 0..120 {
            let own = random.below(count.into()) as u8;
            match random.below(12) {
                0 if entered.contains(own) => {
                    scene.leave(own);
                    entered.remove(own);
                }
                0 => {
                    scene.enter(own);
                    entered.insert(own);
                }
                1 => std::thread::sleep(TRUST),
                2 => scene.looks += random.below(2 * LOOKS_MIN) * random.below(50),
                3..=7 if entered.contains(own) => drop(scene.sleep(own, random.below(2) == 0)),
                8 if entered.contains(own) => scene.busy(own),
                _ if entered.contains(own) => scene.wake(own),
                _ => {}
            }
            scene.check(entered);
        }
    }
}

#[test]
fn one_alone_is_woken_by_the_socket_and_nothing_is_changed_after_the_first_sleep() {
    let scene = Scene::new(1);
    for _ in 0..3 {
        assert!(scene.sleep(0, false) && !scene.is_awake_at_once(0));
        scene.packet_comes();
        assert!(scene.is_awake_at_once(0));
        scene.wake(0);
        scene.look();
        let state = scene.watch.state();
        assert_eq!((state.watcher, state.trusted), (Some(0), None));
    }
}

#[test]
fn one_who_is_busy_is_not_told_of_packets_until_it_sleeps() {
    let scene = Scene::new(2);
    assert!(scene.sleep(0, true) && !scene.sleep(1, false));
    scene.busy(0);
    scene.packet_comes();
    assert!(scene.is_awake_at_once(0), "it sleeps");
    scene.wake(0);
    scene.busy(1);
    scene.busy(0);
    assert_eq!(scene.watch.state().watcher, None);
    assert!(!scene.is_awake_at_once(0) && scene.is_woken(1, LIMIT), "another is, by the timer");
    scene.look();
    assert!(scene.sleep(0, true));
    scene.packet_comes();
    assert!(scene.is_awake_at_once(0));
}

#[test]
fn beside_a_watcher_who_does_not_look_a_sleeper_is_woken() {
    let scene = Scene::new(2);
    assert!(scene.sleep(0, true) && !scene.sleep(1, false));
    scene.packet_comes();
    assert!(scene.is_awake_at_once(0) && !scene.is_awake_at_once(1), "one is woken");
    // It does something else, and looks at nothing.
    scene.wake(0);
    assert!(scene.is_woken(1, LIMIT), "by the timer");
    scene.wake(1);
    assert!(scene.sleep(1, false) && scene.is_awake_at_once(1), "by the packet");
}

#[test]
fn beside_a_watcher_who_looks_nobody_is_woken_by_packets() {
    let mut scene = Scene::new(3);
    assert!(scene.sleep(0, true) && !scene.sleep(1, false) && !scene.sleep(2, false));
    scene.wake(0);
    for _ in 0..5 {
        scene.packet_comes();
        assert!(scene.is_woken(2, LIMIT), "by the timer: it asks whether the trust was earned");
        assert!(!scene.is_awake_at_once(1));
        scene.looks += LOOKS_MIN;
        scene.wake(2);
        assert!(!scene.sleep(2, false));
        // The next one guards, until it is asked.
        assert!(scene.is_woken(1, LIMIT));
        scene.looks += LOOKS_MIN;
        scene.wake(1);
        assert!(!scene.sleep(1, false));
        assert_eq!(scene.watch.state().watcher, Some(0));
    }
}

#[test]
fn a_watcher_gives_up_beside_one_who_looks_and_watches_again_when_that_ends() {
    let mut scene = Scene::new(1);
    assert!(scene.sleep(0, false));
    // Somebody else looks at the ring all the time, and takes the packets.
    scene.looks += 1_000_000;
    scene.packet_comes();
    assert!(scene.is_awake_at_once(0));
    scene.wake(0);
    scene.look();
    for _ in 0..5 {
        assert!(!scene.sleep(0, false));
        scene.packet_comes();
        scene.look();
        assert!(scene.is_woken(0, LIMIT), "by the timer");
        scene.looks += 1_000_000;
        scene.wake(0);
    }
    assert!(!scene.sleep(0, false));
    // No more.
    assert!(scene.is_woken(0, LIMIT));
    scene.wake(0);
    assert!(scene.sleep(0, false));
    scene.packet_comes();
    assert!(scene.is_awake_at_once(0));
}

#[test]
fn who_looked_and_goes_to_sleep_watches_at_once() {
    let mut scene = Scene::new(2);
    assert!(scene.sleep(0, false));
    scene.looks += 1_000_000;
    scene.wake(0);
    assert!(!scene.sleep(0, false) && scene.sleep(1, true));
    scene.packet_comes();
    assert!(scene.is_awake_at_once(1) && !scene.is_awake_at_once(0));
}

#[test]
fn who_had_packets_takes_the_watch_of_one_who_sleeps() {
    let scene = Scene::new(2);
    assert!(scene.sleep(0, false) && scene.sleep(1, true));
    scene.packet_comes();
    assert!(!scene.is_awake_at_once(0) && scene.is_awake_at_once(1));
}

#[test]
fn a_watcher_that_leaves_has_an_heir() {
    let scene = Scene::new(2);
    assert!(scene.sleep(0, false) && !scene.sleep(1, false));
    scene.packet_comes();
    scene.leave(0);
    assert!(scene.is_awake_at_once(1) && !scene.is_awake_at_once(0));
}
