//! Tells the metadata server each second, or more often, that this server lives, and how much room it has.
//!
//! A metadata server that was started again knows no addresses of data servers: a client that asks it for one
//! waits for a heartbeat. So one is sent at once where the link was lost, and again until it is answered.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::disk::Space;
use ropewalk_base::task::race;
use ropewalk_net::endpoint::PeerEvent;
use ropewalk_wire::fs::map::COPY_SILENCE;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::term::Term;

use crate::membership::{Heard, Herald, PATIENCE, Refusal, describe};
use crate::server::Inner;

const PERIOD: Duration = Duration::from_secs(1);
/// The period while bound sessions call: their end is heard of within it.
const BOUND_PERIOD: Duration = Duration::from_millis(500);
/// The period of a member of groups of several members: a few fit into the silence that costs it its place.
const MIRROR_PERIOD: Duration = Duration::from_millis(250);
/// A member of groups of several members waits so long for the answer.
const MIRROR_PATIENCE: Duration = Duration::from_millis(600);
/// The pause before the map is asked for out of turn.
const MAP_PAUSE: Duration = Duration::from_millis(10);

/// Room as it is told.
pub(crate) fn room_of(space: Space) -> Room {
    let Space { total, free, available, identity } = space;
    Room { total_bytes: total, free_bytes: free, available_bytes: available, file_system: identity }
}

impl Inner {
    /// Sends heartbeats until the server stops or is refused. `replace`: a person ordered that this
    /// store takes the place of the number's former one.
    pub(crate) async fn heartbeat(
        self: Rc<Self>,
        herald: Rc<Herald>,
        mut history: u128,
        mut replace: bool,
    ) {
        let (mut silent, mut noted) = (None, true);
        let mut unwatched_told = 0;
        while !self.stopping.get() {
            let sent = self.world.now();
            let period = match self.groups.borrow().has_mirrored() {
                true => MIRROR_PERIOD,
                // They are to hear soon of sessions that have ended.
                false if self.vouching.borrow().is_busy(sent) => BOUND_PERIOD,
                false => PERIOD,
            };
            let next = sent + period;
            let unwatched = self.store.unwatched();
            if unwatched > 2 * unwatched_told {
                unwatched_told = unwatched;
                self.lines.say(&format!(
                    "{unwatched} objects could not be entered in the list of objects, because the \
                     disk is full or fails: until an object is next used, the server does not \
                     notice if its file is missing or an older copy"
                ));
            }
            // Silence costs a member its place: it does not wait long for an answer before it is heard again.
            let patience = if period != MIRROR_PERIOD { PATIENCE } else { MIRROR_PATIENCE };
            let beat = self.world.timeout(patience, self.beat(&herald, history, replace));
            let heard = match beat.await.unwrap_or(Heard::No) {
                Heard::Taken { history, map, start, .. }
                    if self.is_older_copy(history, map, Term(start)) =>
                {
                    herald.older_metadata()
                }
                heard => heard,
            };
            if let Heard::Taken { history: told, start, map, mib_per_second, clock } = heard {
                self.mirror.pace.set(u64::from(mib_per_second) << 20);
                (history, replace) = (told, false);
                match herald.note(told, start).await {
                    Err(error) if noted => self.lines.say(&error.to_string()),
                    _ => {}
                }
                // Without the note an older term would be believed later.
                noted = herald.is_noted(Term(start));
                if noted {
                    let mut vouching = self.vouching.borrow_mut();
                    vouching.take_clock(Term(start), clock, (sent, self.world.now()));
                }
                // Before it knows its groups, nobody needs it.
                if noted && self.knows_map(&herald, map).await {
                    self.begin_telling(&herald, Term(start));
                    self.groups.borrow_mut().renew(sent + COPY_SILENCE / 2);
                    if !self.joined.replace(true) {
                        self.joining.notify_all();
                    }
                }
                if silent.take().is_some() {
                    self.lines.say(&describe(&heard));
                }
            } else if let Heard::Refused(refusal) = &heard
                && (refusal.is_proven() || !self.joined.get())
            {
                return self.end(refusal.clone());
            } else if silent.as_ref() != Some(&heard) {
                self.lines.say(&describe(&heard));
                silent = Some(heard);
            }
            let asked = race(self.lost(&herald), self.map_asked_for());
            // It may have come into a group of several members by this answer.
            let hurries = self.groups.borrow().has_mirrored();
            let next = if hurries { next.min(sent + MIRROR_PERIOD) } else { next };
            let _ = race(asked, self.world.sleep_until(next)).await;
        }
    }

    /// Completes soon after somebody was refused who knows a newer map: calls make no more heartbeats than this.
    async fn map_asked_for(&self) {
        self.map_wanted.notified().await;
        self.world.sleep(MAP_PAUSE).await;
    }

    /// Whether a metadata server does not know a map that one of an earlier term told, so that its rows are an older copy.
    pub(crate) fn is_older_copy(&self, history: u128, map: u32, term: Term) -> bool {
        self.groups.borrow().is_older_copy(map, term)
            || self.map_note.is_older_copy(history, map, term)
    }

    /// Fetches the map where it is another than the one of this epoch; whether it is known now.
    async fn knows_map(&self, herald: &Herald, epoch: u32) -> bool {
        if self.groups.borrow().epoch() == epoch {
            return true;
        }
        self.fetch_map(herald).await;
        self.groups.borrow().epoch() >= epoch
    }

    /// Fetches the map; whether it came.
    pub(crate) async fn fetch_map(&self, herald: &Herald) -> bool {
        let Some((map, term)) = herald.map().await else { return false };
        let now = self.world.now();
        self.groups.borrow_mut().take_of(term, &map, now);
        let groups = self.groups.borrow();
        self.mirror.leave(|group| groups.ordered(group).is_some());
        self.map_note.changed.notify_all();
        true
    }

    /// Notes the map that is known, durably. An error: nobody knows whether it is noted.
    pub(crate) async fn note_map(&self) -> io::Result<()> {
        let Some(herald) = &self.herald else { return Ok(()) };
        let known = self.groups.borrow().known();
        self.map_note.note(&self.world, herald.history(), known).await
    }

    /// Notes each map soon after it is known, until this server stops.
    pub(crate) async fn keep_map_noted(self: Rc<Self>) {
        while !self.stopping.get() {
            let changed = self.map_note.changed.notified();
            if self.groups.borrow().epoch() <= self.map_note.noted().epoch {
                changed.await;
                continue;
            }
            let noted = self.note_map().await;
            let pause = self.map_note.pause(&noted, |line| self.lines.say(line));
            self.world.sleep(pause).await;
        }
    }

    /// Serves nobody any more.
    fn end(&self, refusal: Refusal) {
        self.stopping.set(true);
        *self.refusal.borrow_mut() = Some(refusal);
        self.refused.notify_all();
    }

    /// Completes when the link to the metadata server is lost.
    async fn lost(&self, herald: &Herald) {
        loop {
            let PeerEvent::Down(peer, _) = self.endpoint.event().await else { continue };
            if herald.is_meta(peer) {
                return;
            }
        }
    }

    /// The newest map that this server has known, in this life or before, by a term up to this one.
    fn newest_map(&self, history: u128, met: Term) -> u32 {
        self.groups.borrow().epoch().max(self.map_note.former_epoch(history, met))
    }

    async fn beat(&self, herald: &Herald, history: u128, replace: bool) -> Heard {
        match self.store.space() {
            Ok(space) => {
                let map = self.newest_map(history, herald.met());
                herald.beat(room_of(space), history, replace, map).await
            }
            Err(_) => {
                // Silence is right: a disk that does not even tell its size has no room to offer.
                self.lines.say(
                    "cannot find the free space of the disk: no heartbeat is sent to the metadata \
                     server",
                );
                Heard::No
            }
        }
    }
}
