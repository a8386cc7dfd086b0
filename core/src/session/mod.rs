//! A session: what a life of ours shares with a life of a peer from its beginning to its end.
//!
//! It lies in the record of its peer, which has one or none. [`begin`] makes it, and [`end`] takes it apart: nobody else
//! does either. What waits for a session stays with the peer, and so do frames that a rail has not released.
//!
//! Its [`paths`] say which links carry it and what becomes of it without one. Who calls whom is the peer's affair
//! (`crate::path`).

mod begin;
mod bundle;
mod confirmation;
mod controllers;
mod counting;
mod end;
mod health;
pub(crate) mod history;
mod in_flight;
mod key;
mod migration;
mod model;
mod pathless;
mod paths;
mod promise;
pub(crate) mod quality;
pub(crate) mod sought;
mod standing;
pub(crate) mod status;

pub(crate) use bundle::Bundle;
pub(crate) use controllers::{Controllers, Route};
pub(crate) use health::{FLOOR_FIRST, floor_of};
pub(crate) use history::History;
pub(crate) use key::{Claim, Key, Prover};
pub(crate) use migration::{Left, Migrating, Step as ProofStep};
pub(crate) use model::Acknowledged;
pub use pathless::PathLoss;
pub(crate) use pathless::{Pathless, SILENCE_MIN};
pub(crate) use paths::{Going, Path, PathId, PathView, Paths};
pub(crate) use promise::PROMISED_MIN;
pub(crate) use status::PathCause;

use key::Share;

use std::num::NonZeroU32;
use std::time::Duration;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Urgency};
use ropewalk_wire::frame::Body;

use crate::api::{CHANNELS, Channel, LOOP_LINK, OperationId};
use crate::credit::{Granted, Lent, Windows};
use crate::operation::AccessState;
use crate::reliable::Reliable;
use crate::remote::{Accesses, OneSided, UnderWay};
use crate::streams::Streams;

/// Announced messages of a peer that are not over, beyond which another announce is in no hurry.
const ANNOUNCES_AHEAD: usize = 8;
/// Messages that are being fetched beside one whose end may be told a little later.
const FETCHES_AHEAD: usize = 4;

/// The number of a session. Frames name it; 0 names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionId(NonZeroU32);

/// The peer of a session. As wide as a word, so that no other field of a [`Session`] has as many values to spare: the
/// compiler tells by one of them that there is no session. A message reads this line in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum PeerKind {
    Ours,
    /// It speaks no frames.
    Foreign,
}

/// What a session begins with.
#[derive(Debug)]
pub(crate) struct NewSession {
    pub id: SessionId,
    pub kind: PeerKind,
    /// The link that it begins with.
    pub link: LinkId,
    /// The credit that the peer grants, and the windows that it is lent, as it was told.
    pub granted: Granted,
    pub windows: Windows,
    /// Frames of its link may be lost, or it outlives its link.
    pub spans: bool,
    /// It goes on without a link, over the next one.
    pub outlives_links: bool,
}

/// The state that a life of ours shares with a life of a peer: numbers, credit, operations under way. Fields that every
/// message reads come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Session {
    pub kind: PeerKind,
    /// The link of short messages that leave within their posts and are placed at once: its only one, where it is up, has
    /// no spans, and leads to another endpoint.
    inline: Option<LinkId>,
    /// Spans, where frames of the link may be lost or the session outlives its link.
    pub reliable: Option<Box<Reliable>>,
    pub id: SessionId,
    pub send_next: [u64; CHANNELS],
    pub receive_next: [u64; CHANNELS],
    pub paths: Paths,
    pub granted: Granted,
    pub lent: Lent,
    /// Sends whose end the receiver will tell, by channel and message number.
    pub unfinished: HashMap<(u8, u64), OperationId>,
    /// Receives that get an announced message, by channel and message number.
    pub fetching: HashMap<(u8, u64), OperationId>,
    /// Messages of the peer's of which fragments are still to come, by channel and message number.
    pub assembling: HashMap<(u8, u64), SlotId>,
    /// Data frames to make.
    pub streams: Streams,
    /// Gets and puts of ours.
    pub accesses: Accesses,
    /// Operations with numbers, both sides'.
    pub one_sided: Option<Box<OneSided>>,
    /// It goes on without a link, over the next one.
    pub outlives_links: bool,
    /// It may have further paths.
    bundle: Option<Box<Bundle>>,
    /// The key that both sides made before it began, where they have keys of their own.
    proven: Option<Box<Key>>,
}

const _: () = assert!(size_of::<Option<Session>>() == size_of::<Session>(), "see `PeerKind`");

impl SessionId {
    /// The number that both sides make of what they drew for their greetings.
    pub fn agreed(ours: u32, theirs: u32) -> SessionId {
        SessionId::own(ours.wrapping_add(theirs))
    }

    /// The number of a session whose other side needs to know none.
    pub fn own(drawn: u32) -> SessionId {
        SessionId(NonZeroU32::MIN | drawn)
    }

    /// The session that a frame names.
    pub fn named(name: u32) -> Option<SessionId> {
        NonZeroU32::new(name).map(SessionId)
    }

    /// Its name in a frame.
    #[inline]
    pub fn name(self) -> u32 {
        self.0.get()
    }
}

impl Session {
    /// A session in which nothing was sent yet. `lent`: the windows of `new`.
    pub fn new(new: NewSession, lent: Lent, hash: &HashSeed) -> Session {
        let NewSession { id, kind, link, granted, windows: _, spans, outlives_links } = new;
        let mut session = Session {
            kind,
            inline: None,
            reliable: spans.then(|| Box::new(Reliable::new())),
            id,
            send_next: [0; CHANNELS],
            receive_next: [0; CHANNELS],
            paths: Paths::over(link),
            granted,
            lent,
            unfinished: HashMap::with_hasher(hash.clone()),
            fetching: HashMap::with_hasher(hash.clone()),
            assembling: HashMap::with_hasher(hash.clone()),
            streams: Streams::default(),
            accesses: Accesses::default(),
            one_sided: None,
            outlives_links,
            bundle: None,
            proven: None,
        };
        session.choose();
        session
    }

    /// Its ways are others than before.
    fn choose(&mut self) {
        let only = self.paths.only().filter(|_| self.reliable.is_none());
        self.inline = only.filter(|link| *link != LOOP_LINK);
    }

    /// The link of short messages, where there is one.
    #[inline]
    pub fn inline(&self) -> Option<LinkId> {
        self.inline
    }

    /// Its name in frames.
    #[inline]
    pub fn name(&self) -> u32 {
        self.id.name()
    }

    /// Whether it is the session that a frame names.
    #[inline]
    pub fn is_named(&self, name: u32) -> bool {
        self.id.name() == name
    }

    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.kind == PeerKind::Foreign
    }

    /// Takes credit and the next number for an eager message, where there is credit.
    #[inline]
    pub fn take_eager(&mut self, channel: Channel, payload_bytes: u64) -> Option<u64> {
        self.granted.take_eager(channel, payload_bytes).then(|| self.next_number(channel))
    }

    /// The same for a rendezvous.
    pub fn take_rts(&mut self, channel: Channel) -> Option<u64> {
        self.granted.take_rts().then(|| self.next_number(channel))
    }

    #[inline]
    fn next_number(&mut self, channel: Channel) -> u64 {
        let number = self.send_next[channel as usize];
        self.send_next[channel as usize] += 1;
        number
    }

    /// Whether so many messages wait for the peer's receives, or for their turn there, that another announce is
    /// in no hurry.
    pub fn has_enough_to_do(&self) -> bool {
        self.unfinished.len() > ANNOUNCES_AHEAD
    }

    /// Whether we fetch so many messages of the peer's that it need not know at once of one that is done.
    pub fn has_more_to_do(&self) -> bool {
        self.fetching.len() >= FETCHES_AHEAD
    }

    /// The session that a new link would carry on, if any. `lossy`: frames of the link get lost.
    pub fn kept(&self, lossy: bool) -> Option<SessionId> {
        let kept = match self.reliable {
            Some(_) => self.outlives_links,
            None => !lossy && !self.paths.has_link(),
        };
        kept.then_some(self.id)
    }

    /// When something is due.
    pub fn due(&self) -> Time {
        let spans = self.reliable.as_ref().and_then(|reliable| reliable.deadline());
        let bundle = self.bundle().filter(|_| self.paths.is_up());
        let (joins, looks) =
            bundle.map_or((Time::NEVER, Time::NEVER), |it| (it.due(), it.looks_at()));
        let marks = self.one_sided.as_ref().filter(|_| self.paths.is_up());
        let marks = marks.map_or(Time::NEVER, |it| it.taken.tell_at());
        self.paths.due(spans).min(joins).min(looks).min(marks)
    }

    pub fn bundle(&self) -> Option<&Bundle> {
        self.bundle.as_deref()
    }

    pub fn bundle_mut(&mut self) -> Option<&mut Bundle> {
        self.bundle.as_deref_mut()
    }

    /// A span goes over a link. Returns when its paths are judged next, where that may be sooner than before.
    #[inline]
    pub fn goes(
        &mut self,
        link: LinkId,
        span: Going,
        controllers: &mut Controllers,
        now: Time,
    ) -> Time {
        let judged = self.paths.goes(link, span, controllers, now);
        match &mut self.bundle {
            Some(bundle) if self.paths.are_several() => judged.min(bundle.standing.hurry(now)),
            _ => judged,
        }
    }

    /// When its paths are to be judged, whatever else is due.
    pub fn judged_at(&self) -> Time {
        self.paths.judged_at().min(self.bundle().map_or(Time::NEVER, Bundle::looks_at))
    }

    /// Whether it is time to look at the paths over which nothing goes, and how often that is.
    pub fn take_look(&mut self, now: Time) -> Option<Duration> {
        let reliable = self.reliable.as_ref()?;
        let (traffic, owes) = (reliable.traffic(), reliable.sent.are_awaited());
        let standing = &mut self.bundle.as_mut()?.standing;
        standing.take(now, traffic, owes).then(|| standing.every())
    }

    /// How often its paths are looked at.
    pub fn looks_every(&self) -> Duration {
        self.bundle().map_or(Duration::MAX, |bundle| bundle.standing.every())
    }

    /// Its key: that of the handshake, or the one that both sides have told shares of.
    pub fn key(&self) -> Option<&Key> {
        self.proven.as_deref().or_else(|| self.bundle()?.key())
    }

    /// It began with a handshake, which made this key.
    pub fn set_proven(&mut self, key: Key) {
        self.proven = Some(Box::new(key));
    }

    /// Whether the peer is known to have the key, too.
    pub fn is_key_shared(&self) -> bool {
        if self.proven.is_some() {
            return true;
        }
        let answered = self.reliable.as_ref().map_or(0, |reliable| reliable.sent.answered());
        self.bundle().is_some_and(|bundle| bundle.is_shared(answered))
    }

    /// Whether it may have further paths, and none can join yet: the peer may not have the key.
    pub fn is_early(&self) -> bool {
        let answered = self.reliable.as_ref().map_or(0, |reliable| reliable.sent.answered());
        let is_shared = self.bundle().is_none_or(|bundle| bundle.is_shared(answered));
        !is_shared && !self.paths.are_several()
    }

    /// Its migration, once it has, or had, several paths.
    pub fn migrating_mut(&mut self) -> Option<&mut Migrating> {
        self.bundle.as_mut()?.migrating.as_deref_mut()
    }

    /// Drained paths are left out from now on, and no others.
    pub fn keep_out_drained(&mut self) {
        let Some(bundle) = &self.bundle else { return };
        let Some(migrating) = &bundle.migrating else { return };
        let roles = migrating.machine.roles();
        self.paths.keep_out(|path| roles.is_drained(path));
    }

    /// It may have further paths. `share`: ours of its key. `offers`: we say that we can call for them.
    pub fn may_have_paths(&mut self, share: Share, offers: bool) {
        let mut bundle = Bundle::new(share);
        bundle.offers = offers;
        self.bundle = Some(Box::new(bundle));
    }

    /// The path that a link of ours becomes, and the number of our attempt: the path over this rail that has lost its
    /// link, or a new one.
    pub fn name_path(&mut self, link: LinkId) -> Option<(PathId, u32)> {
        let lost = self.paths.lost_over(link.rail);
        let bundle = self.bundle.as_mut()?;
        let counter = bundle.attempt_over(link)?.counter;
        Some((lost.unwrap_or_else(|| bundle.name_path()), counter))
    }

    /// The path that a link of the peer's becomes: `None` if the attempt is an old one, another path has this rail, or the
    /// peer has named too many. `is_apart`: by its source port it differs from all others over this rail.
    pub fn take_path(
        &mut self,
        link: LinkId,
        named: (PathId, u32),
        is_apart: bool,
    ) -> Option<(PathId, u32)> {
        let is_free = is_apart || !self.paths.is_up_beside(named.0, link.rail);
        let is_newer = self.bundle.as_mut()?.is_newer(named.1);
        (is_free && is_newer && self.paths.has_place(named.0)).then_some(named)
    }

    /// A link becomes a path of its own. Returns the link that this path had.
    pub fn join(
        &mut self,
        path: PathId,
        link: LinkId,
        controllers: &mut Controllers,
        now: Time,
    ) -> Option<LinkId> {
        self.paths.leave_part(path, controllers);
        let before = self.paths.join(path, link, now);
        self.choose();
        if let Some(bundle) = self.bundle.as_mut().filter(|_| self.paths.are_several()) {
            bundle.standing.begin(now);
            // Its peer lives.
            bundle.silent_until = None;
        }
        before
    }

    /// A new link carries it on, in place of all that it had. True where it rested until then, or until it was called for.
    pub fn begin_over(&mut self, link: LinkId, controllers: &mut Controllers, now: Time) -> bool {
        let rested = self.paths.is_resting() || self.paths.is_woken();
        self.paths.leave_parts(controllers);
        self.paths.begin(link);
        if let Some(reliable) = &mut self.reliable {
            // What the others had goes over this one. Their numbers may come again.
            let (first, in_flight) = self.paths.first();
            reliable.sent.count_against(first, |order| {
                let is_bulk = order.is_bulk();
                in_flight.begin(if is_bulk { Urgency::Bulk } else { Urgency::Urgent });
            });
        }
        self.choose();
        if let Some(bundle) = &mut self.bundle {
            bundle.lose_path(now);
            bundle.standing.end();
            bundle.end_doubt();
            // Its peer lives.
            bundle.silent_until = None;
        }
        rested
    }

    /// The peer was asked, at the latest then, to do without a link.
    pub fn ask_idle(&mut self, link: LinkId, until: Time) {
        self.paths.ask_idle(link, until);
        self.choose();
    }

    /// The peer needs the link that it was asked to do without: control frames that waited for the answer. `None` where
    /// it was not asked.
    pub fn keep_open(&mut self, link: LinkId) -> Option<Vec<Body>> {
        let deferred = self.paths.keep_open(link);
        self.choose();
        deferred
    }

    /// It is idle-closed, if it is not already, after so many posts of receives.
    pub fn rest(&mut self, now: Time, posts: u64, controllers: &mut Controllers) {
        self.paths.leave_parts(controllers);
        self.paths.rest(now, posts);
        self.choose();
        if let Some(bundle) = &mut self.bundle {
            bundle.standing.end();
            bundle.end_doubt();
            bundle.silent_until = None;
        }
    }

    /// The path of a link rests, while others stay.
    pub fn rest_over(
        &mut self,
        link: LinkId,
        controllers: &mut Controllers,
        now: Time,
        posts: u64,
    ) {
        self.paths.leave_part_over(link, controllers);
        self.paths.rest_over(link, now, posts);
        let traffic = self.traffic();
        self.bundle.iter_mut().for_each(|bundle| bundle.narrow(traffic));
    }

    /// Somebody sends, and it rests, or its peer may: it looks for a link from now on.
    pub fn wake(&mut self, now: Time, retry_at: Time, posts: u64) {
        self.paths.wake(now, retry_at, posts);
    }

    /// Whether it has paths that rest, or lost them all and has one again: others are to join.
    pub fn awaits_paths(&self) -> bool {
        let has_one = !self.paths.are_several() && self.bundle().is_some_and(Bundle::has_lost);
        self.paths.has_resting() || self.paths.is_woken() || has_one
    }

    /// Changes with every message, access and answer.
    pub fn traffic(&self) -> u64 {
        let messages = self.send_next.iter().chain(&self.receive_next);
        messages.fold(self.accesses.begun, |sum, next| sum.wrapping_add(*next))
    }

    /// Whether nothing is under way that the other side waits for, or could.
    pub fn is_settled(&self) -> bool {
        self.paths.is_settled()
            && self.accesses.under_way == UnderWay::default()
            && self.unfinished.is_empty()
            && self.assembling.is_empty()
            && self.lent.has_no_rendezvous()
            && self.one_sided.as_ref().is_none_or(|it| it.is_settled())
    }

    /// Its operations with numbers, from the first one on.
    pub fn one_sided(&mut self) -> &mut OneSided {
        self.one_sided.get_or_insert_default()
    }

    /// Whether a data frame of what has so many bytes left may leave now. Chooses its path, where there are several.
    pub fn has_data_room(&mut self, left: u64, controllers: &Controllers, now: Time) -> bool {
        let Some(reliable) = &self.reliable else { return self.paths.has_bulk_room(left) };
        let bytes = left.min(self.granted.frame_bytes());
        self.paths.with_room().is_some()
            && reliable.sent.has_bulk_room(self.paths.bulk_bytes_max(controllers))
            && (!self.paths.are_several()
                || self.paths.plan(bytes, self.streams.left_bytes(), controllers, now))
    }

    /// Whether a get or put may begin.
    pub fn has_access_room(&self, access: &AccessState) -> bool {
        let numbers = access.numbers();
        let has_numbers = self.one_sided.as_ref().is_none_or(|it| it.issued.has_room(numbers));
        has_numbers
            && self.accesses.under_way.has_room(access.segments())
            && self.is_turn_of(access)
    }

    /// Whether nothing of ours is under way with the peer's memory.
    #[cold]
    fn has_no_access(&self) -> bool {
        let has_numbers = self.one_sided.as_ref().is_some_and(|it| !it.issued.is_settled());
        self.accesses.under_way.accesses == 0 && !has_numbers
    }

    /// Whether all is over that an access has to follow.
    fn is_turn_of(&self, access: &AccessState) -> bool {
        if access.access.terms.fenced && !self.has_no_access() {
            return false;
        }
        let Some(one_sided) = &self.one_sided else {
            return !access.is_token() || self.accesses.under_way.unnumbered == 0;
        };
        one_sided.is_turn_of(access, self.reliable.is_none(), self.accesses.under_way)
    }

    /// Whether the peer lacks a span, as far as it has said.
    pub fn is_awaited(&self) -> bool {
        self.reliable.as_ref().is_some_and(|reliable| reliable.sent.are_awaited())
    }

    /// Whether nothing is under way of what spans and several paths need: all is acknowledged, no path is being joined,
    /// proven or doubted.
    pub fn is_calm(&self) -> bool {
        let spans = self.reliable.as_ref().is_none_or(|reliable| reliable.is_quiet());
        let bundle = self.bundle.as_ref().is_none_or(|bundle| bundle.is_calm());
        spans && bundle && !self.paths.have_suspects()
    }

    /// A link is lost; the session goes on over another one, or over the next.
    pub fn lose(&mut self, link: LinkId, retry_at: Time, controllers: &mut Controllers, now: Time) {
        self.paths.leave_part_over(link, controllers);
        self.paths.lose(link, now, retry_at);
        self.choose();
        self.bundle.iter_mut().for_each(|bundle| bundle.lose_path(now));
    }
}
