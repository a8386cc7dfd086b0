//! One link: its socket, its state, the frames that wait to go out, the frame that is coming in.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_base::limits::HEADER_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{Token, Urgency};

use crate::outgoing::Outgoing;
use crate::sealed::LinkSeal;
use crate::stall::Stall;

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A name is being looked up; there is no socket so far.
    Resolving,
    /// The connect is under way.
    Connecting,
    /// Carries frames.
    Up,
    /// The next poll ends it: it was abandoned, or so much waits that the peer cannot be reading.
    Ending,
    /// Closed by us; frames that were ordered before still go out.
    Flushing,
    /// All is sent and the peer was told; data that it still sends is thrown away until it hangs up.
    Lingering,
}

/// The frames that wait on one link.
#[derive(Debug, Default)]
pub struct Outbound {
    pub urgent: VecDeque<Outgoing>,
    pub bulk: VecDeque<Outgoing>,
    /// The queue whose first frame has left in part: it goes on before anything else.
    pub partial: Option<Urgency>,
}

impl Outbound {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.bulk.is_empty()
    }

    /// The queue of an urgency.
    #[inline]
    pub fn queue(&mut self, urgency: Urgency) -> &mut VecDeque<Outgoing> {
        match urgency {
            Urgency::Urgent | Urgency::Patient => &mut self.urgent,
            Urgency::Bulk => &mut self.bulk,
        }
    }

    /// The frame whose outcome goes under this token.
    pub fn find(&mut self, token: Token) -> Option<&mut Outgoing> {
        self.bulk.iter_mut().chain(&mut self.urgent).find(|frame| frame.token == token)
    }

    /// Forgets the frame whose outcome goes under this token. False where there is none, or a part of it has left.
    pub fn forget(&mut self, token: Token) -> bool {
        [&mut self.bulk, &mut self.urgent].into_iter().any(|queue| {
            let at = queue.iter().position(|frame| frame.token == token && frame.sent == 0);
            at.and_then(|at| queue.remove(at)).is_some()
        })
    }

    /// The queue whose first frame goes next.
    #[inline]
    pub fn turn(&self) -> Urgency {
        match self.partial {
            Some(urgency) => urgency,
            None if self.urgent.is_empty() => Urgency::Bulk,
            None => Urgency::Urgent,
        }
    }

    /// All frames in the order in which they go.
    pub fn frames(&self) -> impl Iterator<Item = &Outgoing> {
        let begun = usize::from(self.partial == Some(Urgency::Bulk));
        let first = self.bulk.iter().take(begun);
        first.chain(&self.urgent).chain(self.bulk.iter().skip(begun))
    }
}

/// The payload of a frame that is coming in.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    /// The destination of the payload; bytes beyond it are skipped.
    pub place: Slice,
    /// To be reported when all has arrived.
    pub token: Option<Token>,
    /// Bytes that have arrived.
    pub done: u32,
    /// Bytes of the payload.
    pub total: u32,
    /// The memory of its place went away.
    pub is_gone: bool,
}

impl Incoming {
    /// Bytes that have to land before the rest is skipped.
    #[inline]
    pub fn landing(&self) -> u32 {
        let landing = self.place.len.min(u64::from(self.total)) as u32;
        landing.saturating_sub(self.done)
    }
}

/// The part of an incoming frame that a link has read so far.
#[derive(Debug)]
pub struct Inbound {
    /// The payload, once the header is complete.
    pub payload: Option<Incoming>,
    /// Bytes of the header that came without its end.
    pub header: [u8; HEADER_BYTES_MAX],
    pub header_bytes: u8,
    /// The last frame was a long one: the next header is read alone, so that the payload behind it is
    /// not staged.
    pub bulk: bool,
    /// The size of a read if short frames are expected; it grows while reads are filled.
    pub read_bytes: u32,
}

/// The first read of a link, in bytes.
pub const READ_BYTES_MIN: u32 = 4096;

/// One link.
#[derive(Debug)]
pub struct Link {
    pub socket: Option<OwnedFd>,
    pub state: State,
    /// The peer began it.
    pub accepted: bool,
    /// A complete header came.
    pub greeted: bool,
    /// The kernel had no route to its peer when it was asked last.
    pub lacks_route: bool,
    /// The epoll set waits for room in the socket, too.
    pub wants_room: bool,
    /// Whether what it sends is acknowledged, where it is one of several paths.
    pub stall: Option<Box<Stall>>,
    pub seal: LinkSeal,
    /// Counts successful sends, for the deadline of a close.
    pub progress: u32,
    pub outbound: Outbound,
    pub inbound: Inbound,
    /// Further addresses of the peer's name, to try when this one fails; last first.
    pub candidates: Vec<SocketAddr>,
}

impl Link {
    /// A link in `state`.
    pub fn new(state: State, socket: Option<OwnedFd>) -> Link {
        Link {
            socket,
            state,
            accepted: false,
            greeted: false,
            lacks_route: false,
            wants_room: false,
            stall: None,
            seal: LinkSeal::Undecided,
            progress: 0,
            outbound: Outbound::default(),
            inbound: Inbound {
                payload: None,
                header: [0; HEADER_BYTES_MAX],
                header_bytes: 0,
                bulk: false,
                read_bytes: READ_BYTES_MIN,
            },
            candidates: Vec::new(),
        }
    }

    /// Whether it was reported as up.
    pub fn was_up(&self) -> bool {
        !matches!(self.state, State::Resolving | State::Connecting)
    }

    /// Whether the socket took all that was to be sent.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.outbound.is_empty() && !self.seal.has_waiting()
    }

    /// Its socket, where it has one.
    #[inline]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::verb::Header;

    use super::*;

    #[test]
    fn a_frame_is_forgotten_unless_a_part_of_it_has_left() {
        let frame = |number: u64, sent: u32| Outgoing {
            header: Header::new(&[0; 40]),
            payload: Slice::NONE,
            token: Token(number),
            sent,
            copy: None,
            is_sealed: false,
        };
        let mut out = Outbound { partial: Some(Urgency::Bulk), ..Outbound::default() };
        out.bulk.extend([frame(1, 7), frame(2, 0), frame(3, 0)]);
        out.urgent.push_back(frame(4, 0));
        let forgotten: Vec<u64> = (1..6).filter(|number| out.forget(Token(*number))).collect();
        assert_eq!(forgotten, [2, 3, 4]);
        assert_eq!(out.frames().map(|frame| frame.token.0).collect::<Vec<_>>(), [1]);
    }
}
