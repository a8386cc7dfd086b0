//! The interface of a port: a network crate that sends and receives packets, and knows no protocol.
//!
//! `net` makes a [`Rail`](crate::Rail) of a port and the packet protocol of `transport`
//! (docs/design/090-packets.md).
//!
//! Invariants that every port keeps:
//! * a packet arrives as it was sent, or not, or more than once, or in another order;
//! * bytes that [`Port::receive`] shows are nobody else's until it returns;
//! * a packet that was committed leaves with the next flush that finds room, in the order of its
//!   station's others;
//! * nothing blocks.

use std::fmt::Debug;
use std::hash::Hash;
use std::os::fd::BorrowedFd;

use ropewalk_base::error::Fault;
use ropewalk_base::shared::Leaving;
use ropewalk_base::verb::PacketDrops;

use crate::Sight;
use crate::interfaces::{LocalSide, Named};

/// A network that carries packets.
pub trait Port: Send {
    /// The address of a packet's source or destination.
    type Station: Copy + Eq + Hash + Debug + Send;

    /// The scheme of its addresses.
    fn scheme(&self) -> &'static str;

    /// The number of its endpoint among those of its station.
    fn endpoint(&self) -> u8;

    /// Longest packet to any station, in bytes of the body.
    fn packet_bytes(&self) -> usize;

    /// Longest packet that the network takes to a station, as far as this host knows: no longer than the longest.
    fn packet_bytes_to(&mut self, station: Self::Station) -> usize {
        let _ = station;
        self.packet_bytes()
    }

    /// Longest packet that its interface takes by now, asked now and then: that may change.
    fn packet_bytes_now(&mut self) -> usize {
        self.packet_bytes()
    }

    /// See [`crate::Rail::bound_to`].
    fn bound_to(&self) -> Option<String> {
        None
    }

    /// See [`crate::Rail::entropy`].
    fn entropy(&self) -> u16 {
        0
    }

    /// Whether its interface was down when it was asked last how long packets may be.
    fn is_down(&self) -> bool {
        false
    }

    /// Whether its interface has been removed, as far as is known: one of the same name that is made later is another.
    fn is_gone(&self) -> bool {
        false
    }

    /// The next station, and endpoint there, that a packet did not leave for since its interface takes none that long
    /// any more; told once.
    fn too_long(&mut self) -> Option<(Self::Station, u8)> {
        None
    }

    /// The number of packets of maximal length that may arrive before they are looked at.
    fn packets_max(&self) -> u32;

    /// Whether peers may call; the addresses (without scheme) under which they do, the most general first.
    fn addresses(&self) -> Vec<String>;

    /// The station that an address names, and the number of the endpoint there.
    fn resolve(&mut self, address: &str) -> Result<(Self::Station, u8), Fault>;

    /// Begins to look up the name in an address that [`Port::resolve`] found invalid: a ticket, and the
    /// station that stands for all that are not known yet, to which nothing is sent.
    fn look_up(&mut self, address: &str) -> Result<(u64, Self::Station), Fault> {
        let _ = address;
        Err(Fault::Invalid)
    }

    /// The next name that was looked up.
    fn found(&mut self) -> Option<Found<Self::Station>> {
        None
    }

    /// The host of a station, as people write it.
    fn host(&self, station: Self::Station) -> Option<String>;

    /// Shows packets that came, about `max` of them.
    fn receive(&mut self, max: usize, to: &mut dyn FnMut(Self::Station, &[u8])) -> Received;

    /// Room for the longest packet, the same until it is committed; `None` where there is none before the next
    /// flush.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// The slot holds a packet of so many bytes.
    fn commit(&mut self, to: Self::Station, bytes: usize);

    /// Likewise around bytes that are kept elsewhere, which together are no longer than the slot.
    fn commit_around(&mut self, to: Self::Station, leaving: Leaving) {
        // The slot exists, since the packet was written to it.
        if let Some(bytes) = self.slot().map(|slot| leaving.join(slot)) {
            self.commit(to, bytes);
        }
    }

    /// Sends the committed packets. False if some of them have to wait for room.
    fn flush(&mut self) -> bool;

    /// The work that a look would find now, without a system call.
    fn look(&self) -> Sight {
        Sight::Blind
    }

    /// Prepares for sleep; as a rail does.
    fn arm(&mut self) -> bool {
        true
    }

    /// The sleep is over.
    fn disarm(&mut self) {}

    /// The epoll set that its user sleeps on, told once. From now on it is readable, after [`Port::arm`] said
    /// true, as soon as there are packets.
    fn attach(&mut self, set: BorrowedFd<'_>) -> std::io::Result<()>;

    /// Its counters.
    fn counters(&self) -> PortCounters;

    /// The number of the interface that it is on, where that is one.
    fn interface(&self) -> Option<u32> {
        None
    }

    /// The local side of its socket, to be followed for changes; `None` where it is bound to nothing.
    fn local_side(&self) -> Option<LocalSide<'_>> {
        self.interface().map(|index| LocalSide::on(Named::Index(index)))
    }

    /// Whether the kernel has a route to a station: asked when routes have changed.
    fn has_route(&self, station: Self::Station) -> bool {
        let _ = station;
        true
    }

    /// The next station to which the kernel refused to send, and the number of the error, where that says something about
    /// the path; told once.
    fn refused(&mut self) -> Option<(Self::Station, i32)> {
        None
    }

    /// The name of that interface, as people write it.
    fn interface_name(&self) -> Option<&str> {
        None
    }
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<S> {
    /// As [`Port::look_up`] gave it.
    pub ticket: u64,
    /// The result that [`Port::resolve`] would have returned; `None` if nobody has that name.
    pub place: Option<(S, u8)>,
}

/// The result of [`Port::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Packets that were shown.
    pub packets: usize,
    /// There was nothing more.
    pub empty: bool,
}

/// Stations to which the kernel refused to send, and that were not told so far: each once, and not too many.
#[derive(Debug)]
pub struct Refusals<S>(Vec<(S, i32)>);

/// Stations of [`Refusals`] at a time.
const REFUSALS_MAX: usize = 16;

impl<S> Default for Refusals<S> {
    fn default() -> Refusals<S> {
        Refusals(Vec::new())
    }
}

impl<S: Copy + Eq> Refusals<S> {
    /// A packet to a station was refused with an error of this number.
    #[cold]
    pub fn note(&mut self, station: S, number: i32) {
        let is_new = self.0.len() < REFUSALS_MAX && !self.0.contains(&(station, number));
        if is_new && crate::host::is_of_path(number) {
            self.0.push((station, number));
        }
    }

    /// The next one.
    #[inline]
    pub fn take(&mut self) -> Option<(S, i32)> {
        self.0.pop()
    }
}

/// Always-on counters of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCounters {
    pub system_calls: u64,
    /// Bytes of packets that were copied before they were shown, or after they were committed.
    pub bytes_copied: u64,
    /// Packets that are known to have been dropped.
    pub drops: PacketDrops,
}
