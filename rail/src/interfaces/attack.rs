//! For fuzzers: a kernel that says whatever the input has, in datagrams of any length, and loses some.

use rustix::io::Errno;

use super::feed::{Feed, Looked};
use super::names::NAME_BYTES_MAX;
use super::side::{LocalFault, LocalSide, Named, Side};
use super::socket::Kernel;

/// A length that stands for datagrams that were lost, and one for a datagram of another process.
const LOST: usize = 0xffff;
const FOREIGN: usize = 0xfffe;
/// Shortest message, in bytes.
const MESSAGE_BYTES_MIN: usize = 16;

struct Liar<'a> {
    input: &'a [u8],
}

impl Kernel for Liar<'_> {
    fn request(&mut self, _bytes: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    /// A datagram is its length in two bytes, and its bytes; the last one may be cut.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        let (length, rest) = self.input.split_at_checked(2).ok_or(Errno::AGAIN)?;
        let length = usize::from(length[0]) << 8 | usize::from(length[1]);
        let bytes = if length < FOREIGN { length.min(rest.len()) } else { 0 };
        let (datagram, rest) = rest.split_at(bytes);
        self.input = rest;
        let fits = bytes.min(buffer.len());
        buffer[..fits].copy_from_slice(&datagram[..fits]);
        match length {
            LOST => Err(Errno::NOBUFS),
            FOREIGN => Ok(None),
            _ => Ok(Some(bytes)),
        }
    }
}

/// Follows such a kernel to the end of the input, and panics where it got more out of it than it has. Returns the numbers
/// of interfaces and addresses that it knows in the end.
pub fn follow(input: &[u8]) -> (usize, usize) {
    let Ok(mut feed) = Feed::new(Liar { input }) else { return (0, 0) };
    let mut followed = None;
    // Each look takes something, unless it is the last one.
    for _ in 0..=input.len() {
        let looked = feed.look();
        let table = feed.table();
        let (links, addresses) = table.counts();
        assert!((links + addresses) * MESSAGE_BYTES_MIN <= input.len(), "out of nothing");
        for link in table.links() {
            let name = link.name.as_bytes();
            assert!((1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0));
        }
        followed = match followed.take() {
            None => Side::find(&LocalSide::on(Named::Index(1)), table),
            Some((side, last)) => {
                let now = side.state(table, &last);
                let was_removed = last.fault == Some(LocalFault::InterfaceRemoved);
                assert!(!was_removed || now == last, "it comes back");
                Some((side, now))
            }
        };
        if looked != Ok(Looked::More) {
            return (links, addresses);
        }
    }
    panic!("it never comes to an end");
}
