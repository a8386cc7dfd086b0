//! A forked process drops objects that its parent still uses.

#[path = "../../../net/tests/namespace/mod.rs"]
mod namespace;

use std::os::fd::AsFd;
use std::time::Duration;

use namespace::{Namespace, card};
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(30);

fn port(address: &str) -> EtherPort {
    EtherPort::open(&EtherConfig::listening(address).expect("an address")).expect("the card is up")
}

/// Runs this in a process that is forked off, which ends with it; the number it ends with.
fn in_child(run: impl FnOnce()) -> i32 {
    // SAFETY: the code in the child takes no lock that another thread may have held, except for those of the memory
    // allocator, which the C library keeps usable.
    match unsafe { libc::fork() } {
        -1 => panic!("no process can be forked off"),
        0 => {
            run();
            // SAFETY: it ends this process and nothing else.
            unsafe { libc::_exit(7) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process, and a place for a number.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "it ended with {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_parent_sleeps_and_is_woken_after_its_child_dropped_the_endpoint() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (mut own, mut other) =
        (port(&format!("{}/1", card(1500))), port(&format!("{}/2", card(1500))));
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
    own.attach(set.as_fd()).expect("a descriptor");
    assert!(own.arm(), "nothing has come yet");
    let address = own.addresses().remove(0);
    let mut own = Some(own);
    assert_eq!(in_child(|| drop(own.take())), 7);
    let mut own = own.expect("the child had a copy");
    let (station, endpoint) = other.resolve(&address).expect("an address");
    let slot = other.slot().expect("nothing waits");
    slot[..60].fill(0);
    (slot[2], slot[3]) = (0xc1, endpoint);
    other.commit(station, 60);
    assert!(other.flush(), "there is room");
    let limit = Timespec::try_from(LIMIT).expect("it is short");
    let mut polled = [PollFd::new(&set, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "the packet wakes nobody");
    own.disarm();
    let mut shown = 0;
    own.receive(8, &mut |_, body| shown += usize::from(body.len() >= 60));
    assert_eq!(shown, 1);
}
