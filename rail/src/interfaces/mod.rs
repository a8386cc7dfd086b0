//! The interfaces of this host, as the kernel tells of their changes: for rails, which then need not ask.
//!
//! A rail subscribes to the local side of its paths: an interface, a source address, or both. It reads a counter in each
//! poll, and learns at once when the interface goes down, loses its carrier or its address, takes shorter packets, is
//! renamed, or is removed.
//!
//! * [`LocalWatch`]: of a rail, with the suspicions that follow from its [`Subscription`]; [`LocalSide`] and [`SideState`]: the side that it follows, and its state;
//! * `shared`: a socket for each 32 subscriptions of a process in a network namespace; `subscriber`: whom it tells;
//! * `feed`: dumps and events; `table`: the knowledge from them; `netlink`: the kernel's messages; `filter`: the choice of
//!   those that come; `socket`: system calls.
//!
//! There is no thread. A thread that polls a rail, or was woken by the socket, takes in the news for all that share it, and
//! wakes the sleepers that they concern. A thread that spins asks the kernel once in [`LOOK_EACH`].
//!
//! Invariants:
//! * a subscriber that was armed is woken for each change of its side that comes later, also if another took it in;
//! * a socket belongs to one process and one network namespace;
//! * no poll waits for another thread, nor allocates memory, while nothing has changed.
//!
//! The kernel may tell of a lost carrier up to a second late ([`Subscription::ask`] asks it). A process may be forbidden to
//! have such a socket: then its rails have to ask their interfaces.

pub mod attack;
mod feed;
mod filter;
mod names;
mod netlink;
mod shared;
mod side;
mod socket;
mod subscriber;
mod subscription;
mod table;
mod watch;

pub use names::{HardwareAddress, InterfaceName};
pub use side::{LocalFault, LocalSide, Named, SideState};
pub use subscription::{LOOK_EACH, News, Subscription};
pub use watch::{Change, LocalWatch};

#[cfg(test)]
mod made;
#[cfg(test)]
mod tests;
