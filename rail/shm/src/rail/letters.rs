//! Letters between rails of one process: how their links begin and end.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

use crate::link::{Parts, Presence};
use crate::local::{self, Letter, Peer};
use crate::mapping::Mapping;
use crate::meeting::{Meeting, Outcome, Stage};
use crate::native::PeerMemory;
use crate::rail::{Entry, ShmRail};
use crate::segment::{SEGMENT_BYTES, Segment, Side};

impl ShmRail {
    /// Reads the letters of other rails of this process.
    #[cold]
    pub(super) fn take_letters(&mut self) {
        for letter in self.inbox.take() {
            match letter {
                Letter::Connect { segment, from } => self.accept_local(segment, from),
                Letter::Accepted { link, from } => {
                    let waiting = match self.links.get(link) {
                        Some(Entry::Meeting(meeting)) => match &meeting.stage {
                            Stage::Letter { segment, own_bell } => {
                                Some((Arc::clone(segment), Arc::clone(own_bell)))
                            }
                            _ => None,
                        },
                        _ => None,
                    };
                    match waiting {
                        Some((segment, own_bell)) => {
                            let parts = self.local_parts(segment, Side(0), own_bell, from);
                            self.link_up(link, parts, false);
                        }
                        // Given up meanwhile.
                        None => drop(from.inbox.post(Letter::Gone { link: from.link })),
                    }
                }
                Letter::Gone { link: slot } => match self.links.get_mut(slot) {
                    Some(Entry::Up(link)) => {
                        link.peer_gone();
                        self.attend(slot);
                    }
                    Some(Entry::Meeting(_)) => self.downs.push((slot, Fault::Unreachable)),
                    None => {}
                },
            }
        }
    }

    fn accept_local(&mut self, segment: Arc<Segment>, from: Peer) {
        let meeting = Meeting { since: Time::NEVER, stage: Stage::Failed };
        let entry = Entry::Meeting(Box::new(meeting));
        let (Ok(bell), Ok(slot)) = (local::bell(), self.links.insert(entry)) else {
            from.inbox.post(Letter::Gone { link: from.link });
            return;
        };
        self.meetings.push(slot);
        let bell = Arc::new(bell);
        let own = self.own_end(slot, &bell);
        from.inbox.post(Letter::Accepted { link: from.link, from: own });
        let parts = self.local_parts(segment, Side(1), bell, from);
        self.link_up(slot, parts, true);
    }

    /// A link of ours, for the rail at its other end.
    fn own_end(&self, link: SlotId, bell: &Arc<OwnedFd>) -> Peer {
        Peer { link, inbox: Arc::clone(&self.inbox), bell: Arc::clone(bell) }
    }

    fn local_parts(
        &self,
        segment: Arc<Segment>,
        side: Side,
        own_bell: Arc<OwnedFd>,
        peer: Peer,
    ) -> Parts {
        Parts {
            segment,
            side,
            board: Arc::clone(&peer.inbox.board),
            bell: Arc::clone(&peer.bell),
            own_bell,
            asymmetric: self.common.rest.asymmetric,
            memory: PeerMemory::Own,
            presence: Presence::Local(peer),
        }
    }

    pub(super) fn connect_local(&mut self, slot: SlotId, name: &str) -> Outcome {
        let Some(inbox) = local::find(name) else { return Outcome::Failed(Fault::Unreachable) };
        let (Ok(mapping), Ok(own_bell)) = (Mapping::private(SEGMENT_BYTES), local::bell()) else {
            return Outcome::Failed(Fault::Busy);
        };
        let (segment, own_bell) = (Arc::new(Segment(mapping)), Arc::new(own_bell));
        let from = self.own_end(slot, &own_bell);
        if inbox.post(Letter::Connect { segment: Arc::clone(&segment), from }) {
            Outcome::Waits(Stage::Letter { segment, own_bell })
        } else {
            Outcome::Failed(Fault::Unreachable)
        }
    }
}
