use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rustix::io::Errno;

use super::feed::{Broken, DATAGRAMS_MAX, Feed, Looked};
use super::made::{
    CARRIER, DEL_ADDRESS, INTERRUPTED, NEW_ADDRESS, NEW_LINK, UP, address, attribute, done, link,
    link_body, link_removed, message, route,
};
use super::side::{LocalFault, LocalSide, Named, Side};
use super::socket::Kernel;
use super::table;

const READY: u32 = UP | CARRIER;

/// The kernel's next words, and the numbers of the requests that it got.
#[derive(Default)]
struct Script {
    says: VecDeque<Result<Vec<u8>, Errno>>,
    requests: Vec<u32>,
    refuses: Option<Errno>,
}

#[derive(Clone, Default)]
struct Scripted(Rc<RefCell<Script>>);

impl Kernel for Scripted {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let mut script = self.0.borrow_mut();
        let sequence = u32::from_ne_bytes(bytes[8..12].try_into().unwrap());
        script.requests.push(sequence);
        script.refuses.map_or(Ok(()), Err)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        let bytes = self.0.borrow_mut().says.pop_front().unwrap_or(Err(Errno::AGAIN))?;
        let fits = bytes.len().min(buffer.len());
        buffer[..fits].copy_from_slice(&bytes[..fits]);
        Ok(Some(bytes.len()))
    }
}

impl Scripted {
    fn say(&self, parts: &[Vec<u8>]) {
        self.0.borrow_mut().says.push_back(Ok(parts.concat()));
    }

    fn fail(&self, error: Errno) {
        self.0.borrow_mut().says.push_back(Err(error));
    }

    fn last_request(&self) -> u32 {
        *self.0.borrow().requests.last().unwrap()
    }
}

/// A feed after a whole dump of these messages.
fn fed(links: &[Vec<u8>], addresses: &[Vec<u8>]) -> (Scripted, Feed<Scripted>) {
    let kernel = Scripted::default();
    let mut feed = Feed::new(kernel.clone()).unwrap();
    dump(&kernel, &mut feed, links, addresses);
    (kernel, feed)
}

/// Answers the dump that runs.
fn dump(kernel: &Scripted, feed: &mut Feed<Scripted>, links: &[Vec<u8>], addresses: &[Vec<u8>]) {
    kernel.say(links);
    kernel.say(&[done(kernel.last_request())]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert!(!feed.is_whole());
    kernel.say(addresses);
    kernel.say(&[done(kernel.last_request())]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert!(feed.is_whole());
    feed.table_mut().take_changed();
}

fn names(feed: &Feed<Scripted>) -> Vec<String> {
    feed.table().links().map(|link| link.name.as_str().to_string()).collect()
}

#[test]
fn a_dump_and_events_keep_the_table() {
    let lo = address(NEW_ADDRESS, 1, "127.0.0.1");
    let (kernel, mut feed) = fed(&[link(1, READY, "lo", 65536), link(2, 0, "eth0", 1500)], &[lo]);
    assert_eq!(names(&feed), ["lo", "eth0"]);
    assert_eq!(feed.table().index_of("eth0"), Some(2));
    assert_eq!(feed.table().holder("127.0.0.1".parse().unwrap()), Some(1));
    kernel.say(&[link(2, READY, "eth1", 9000), link(3, UP, "eth2", 1500), link_removed(1)]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert_eq!(names(&feed), ["eth1", "eth2"]);
    let renamed = feed.table().link(2).unwrap();
    assert!(renamed.is_up && renamed.has_carrier && renamed.mtu == 9000);
    assert_eq!(feed.table().holder("127.0.0.1".parse().unwrap()), None, "gone with its interface");
    assert!(feed.table_mut().take_changed());
    // The same again is no change; nor is one property of an interface that is unknown.
    let partial = link_body(0, 9, UP, &[attribute(3, b"wlan0\0")]);
    kernel.say(&[link(2, READY, "eth1", 9000), message(NEW_LINK, 0, 0, &partial)]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert!(!feed.table_mut().take_changed() && feed.table().link(9).is_none());
}

#[test]
fn lost_events_lead_to_a_dump_that_removes_what_it_does_not_list() {
    let both = [link(1, READY, "lo", 65536), link(2, READY, "eth0", 1500)];
    let (kernel, mut feed) = fed(&both, &[address(NEW_ADDRESS, 2, "10.0.0.1")]);
    kernel.fail(Errno::NOBUFS);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert!(!feed.is_whole() && feed.dumped_again() == 1);
    // An event in the midst of the dump counts as listed.
    kernel.say(&[link(3, READY, "eth2", 1500)]);
    dump(&kernel, &mut feed, &both[..1], &[]);
    assert_eq!(names(&feed), ["lo", "eth2"]);
    assert_eq!(feed.table().counts(), (2, 0));
}

#[test]
fn a_dump_that_was_disturbed_removes_nothing_and_is_made_again() {
    let both = [link(1, READY, "lo", 65536), link(2, READY, "eth0", 1500)];
    let (kernel, mut feed) = fed(&both, &[]);
    kernel.fail(Errno::NOBUFS);
    feed.look().unwrap();
    let disturbed = link_body(0, 1, READY, &[]);
    kernel.say(&[message(NEW_LINK, INTERRUPTED, kernel.last_request(), &disturbed)]);
    kernel.say(&[done(kernel.last_request())]);
    feed.look().unwrap();
    assert_eq!((names(&feed).len(), feed.dumped_again()), (2, 2));
    // Events that are lost during a dump disturb it, too.
    kernel.fail(Errno::NOBUFS);
    kernel.say(&[done(kernel.last_request())]);
    feed.look().unwrap();
    assert_eq!((names(&feed).len(), feed.dumped_again()), (2, 3));
    dump(&kernel, &mut feed, &both[1..], &[]);
    assert_eq!(names(&feed), ["eth0"]);
}

#[test]
fn a_kernel_of_which_no_dump_is_whole_is_not_followed() {
    let kernel = Scripted::default();
    let mut feed = Feed::new(kernel.clone()).unwrap();
    let mut looks = 0;
    loop {
        kernel.fail(Errno::NOBUFS);
        kernel.say(&[done(kernel.last_request())]);
        looks += 1;
        if feed.look().is_err() {
            break;
        }
        assert!(looks < 100);
    }
    assert!(looks > 3, "some disturbances are usual");
}

#[test]
fn what_cannot_be_understood_is_not_followed() {
    let broken: [&[u8]; 3] = [&[1, 2, 3], &link(0, UP, "eth0", 1500), &done(1)[..15]];
    for bytes in broken {
        let (kernel, mut feed) = fed(&[], &[]);
        kernel.say(&[bytes.to_vec()]);
        assert_eq!(feed.look(), Err(Broken));
    }
    // The kernel refuses the dump.
    let kernel = Scripted::default();
    let mut feed = Feed::new(kernel.clone()).unwrap();
    kernel.say(&[message(2, 0, kernel.last_request(), &(-1i32).to_ne_bytes())]);
    assert_eq!(feed.look(), Err(Broken));
    kernel.0.borrow_mut().refuses = Some(Errno::PERM);
    assert!(Feed::new(kernel.clone()).is_err());
    // An interface that was asked for may be gone: that breaks nothing.
    let (kernel, mut feed) = fed(&[], &[]);
    feed.ask(7).unwrap();
    kernel.say(&[message(2, 0, kernel.last_request(), &(-19i32).to_ne_bytes())]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
}

#[test]
fn a_kernel_without_memory_is_asked_again_later() {
    let (kernel, mut feed) = fed(&[link(1, READY, "lo", 65536)], &[]);
    kernel.0.borrow_mut().refuses = Some(Errno::NOBUFS);
    kernel.fail(Errno::NOMEM);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert_eq!(feed.look(), Ok(Looked::Empty));
    kernel.0.borrow_mut().refuses = None;
    assert_eq!(feed.look(), Ok(Looked::Empty));
    dump(&kernel, &mut feed, &[], &[]);
    assert_eq!(feed.table().counts(), (0, 0));
}

#[test]
fn a_datagram_without_room_is_read_by_another_dump() {
    let (kernel, mut feed) = fed(&[link(1, READY, "lo", 65536)], &[]);
    kernel.say(&[message(99, 0, 0, &vec![0; 100_000])]);
    assert_eq!(feed.look(), Ok(Looked::Empty));
    assert_eq!(feed.dumped_again(), 1);
    kernel.say(&[message(99, 0, 0, &vec![0; 100_000])]);
    dump(&kernel, &mut feed, &[link(1, READY, "lo", 65536)], &[]);
    assert_eq!((names(&feed), feed.dumped_again()), (vec!["lo".to_string()], 1));
    kernel.say(&[message(99, 0, 0, &vec![0; 2 << 20])]);
    assert_eq!(feed.look(), Err(Broken), "nobody needs so much room");
}

#[test]
fn a_look_has_an_end_though_there_is_more() {
    let (kernel, mut feed) = fed(&[], &[]);
    (0..=DATAGRAMS_MAX).for_each(|_| kernel.say(&[link_removed(1)]));
    assert_eq!((feed.look(), feed.look()), (Ok(Looked::More), Ok(Looked::Empty)));
}

#[test]
fn a_table_has_an_end_too() {
    let (kernel, mut feed) = fed(&[], &[]);
    let mut index = 0;
    let broken = loop {
        index += 1;
        kernel.say(&[link(index, UP, "eth0", 1500)]);
        if feed.look().is_err() {
            break index;
        }
    };
    assert_eq!(broken as usize, table::LINKS_MAX + 1);
    assert_eq!(feed.table().counts().0, table::LINKS_MAX);
}

/// The faults of a side after each of the messages.
fn told(side: &LocalSide<'_>, messages: &[Vec<u8>]) -> Vec<Option<LocalFault>> {
    let links = [link(1, READY, "lo", 65536), link(2, READY, "eth0", 1500)];
    let addresses = [("127.0.0.1", 1), ("10.0.0.1", 2), ("10.9.9.9", 1)];
    let addresses = addresses.map(|(text, index)| address(NEW_ADDRESS, index, text));
    let (kernel, mut feed) = fed(&links, &addresses);
    let (side, mut state) = Side::find(side, feed.table()).expect("it is there");
    assert_eq!(state.fault, None);
    let tell = |message: &Vec<u8>| {
        kernel.say(std::slice::from_ref(message));
        feed.look().unwrap();
        state = side.state(feed.table(), &state);
        state.fault
    };
    messages.iter().map(tell).collect()
}

#[test]
fn a_side_says_why_it_is_not_there() {
    use LocalFault::{AddressRemoved, CarrierLost, InterfaceDown, InterfaceRemoved};
    let on = LocalSide::on(Named::Name("eth0"));
    let own = LocalSide { source: Some("10.0.0.1".parse().unwrap()), ..on };
    let gone = address(DEL_ADDRESS, 2, "10.0.0.1");
    let messages = [
        link(2, UP, "eth0", 1500),
        link(2, 0, "eth0", 1500),
        gone.clone(),
        link(2, READY, "eth7", 1500),
        address(NEW_ADDRESS, 1, "10.0.0.1"),
        address(NEW_ADDRESS, 2, "10.0.0.1"),
        link_removed(2),
        link(2, READY, "eth0", 1500),
    ];
    let (carrier, down) = (Some(CarrierLost), Some(InterfaceDown));
    let (address_gone, removed) = (Some(AddressRemoved), Some(InterfaceRemoved));
    assert_eq!(
        told(&own, &messages),
        [carrier, down, down, address_gone, address_gone, None, removed, removed],
        "an interface of the same index or name is another one"
    );
    assert_eq!(told(&on, &messages), [carrier, down, down, None, None, None, removed, removed]);
    // An address of another interface may be used on this one.
    let foreign = LocalSide { source: Some("10.9.9.9".parse().unwrap()), ..on };
    assert_eq!(told(&foreign, std::slice::from_ref(&gone)), [None]);
    assert_eq!(told(&foreign, &[address(DEL_ADDRESS, 1, "10.9.9.9")]), [address_gone]);
}

#[test]
fn an_address_is_followed_to_another_interface() {
    let at = LocalSide::at("10.0.0.1".parse().unwrap());
    let messages = [
        link(2, UP, "eth0", 1500),
        link_removed(2),
        address(NEW_ADDRESS, 1, "10.0.0.1"),
        address(DEL_ADDRESS, 1, "10.0.0.1"),
    ];
    let gone = Some(LocalFault::AddressRemoved);
    assert_eq!(told(&at, &messages), [Some(LocalFault::CarrierLost), gone, None, gone]);
}

#[test]
fn an_interface_that_was_removed_and_made_again_between_two_looks_is_another_one() {
    let again = [link_removed(2), link(2, READY, "eth0", 1500)].concat();
    let side = LocalSide::on(Named::Index(2));
    assert_eq!(told(&side, &[again]), [Some(LocalFault::InterfaceRemoved)]);
}

#[test]
fn routes_count_for_their_interface_or_for_all() {
    let (kernel, mut feed) = fed(&[link(1, READY, "lo", 65536), link(2, READY, "e", 1500)], &[]);
    kernel.say(&[route(Some(2)), route(Some(9)), route(None)]);
    feed.look().unwrap();
    let counts = [1, 2, 9].map(|index| feed.table().route_changes(index));
    assert_eq!(counts, [2, 3, 2]);
}

#[test]
fn nothing_is_found_that_is_not_there() {
    let (_, feed) = fed(&[link(1, READY, "lo", 65536)], &[]);
    let sides = [
        LocalSide::on(Named::Index(2)),
        LocalSide::on(Named::Name("eth0")),
        LocalSide::at("10.0.0.1".parse().unwrap()),
    ];
    assert!(sides.iter().all(|side| Side::find(side, feed.table()).is_none()));
}
