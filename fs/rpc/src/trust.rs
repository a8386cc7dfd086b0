//! Proof of cluster membership, and the tokens and capabilities that only the metadata server can issue.
//!
//! * [`Secret`]: known to all members of the cluster, and to nobody else;
//! * [`Caller`]: the calling side of a channel: seals calls, checks replies;
//! * [`Gate`]: the server's side: admits calls that are proven;
//! * [`Grantor`]: the tokens of sessions and the capabilities for files. The metadata server gives them to clients,
//!   and data servers check them.
//!
//! Invariants:
//! * neither the secret nor a key made from it leaves the process, also not into a log;
//! * a channel's key depends on both sides' lives and numbers: a message sealed for one server, or one life
//!   of it, is invalid for another;
//! * a call is let in once: its counter is remembered for as long as the server would take the channel
//!   for a new one;
//! * a caller that has only introduced itself is not remembered;
//! * tags are compared in constant time.
//!
//! This module must not know what the calls are about.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hmac::{Hmac, Mac};
use ropewalk_base::ids::Origin;
use ropewalk_base::time::Time;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{Acceptance, Capability, Introduction, LIMITED, Member, Seal, Tag};
use sha2::Sha256;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// A channel has to begin so soon after its acceptance.
const FRESH: Duration = Duration::from_secs(30);
/// Channels that a server remembers. Only members can begin one.
const CHANNELS_MAX: usize = 1024;
/// Calls that may come in another order than they were sealed in.
const WINDOW: u64 = 64;

/// The secret that all members of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The bytes, to be kept where only their owner reads.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    fn tag(&self, purpose: &[u8]) -> Hmac<Sha256> {
        keyed(&self.0, purpose)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

fn keyed(key: &[u8], purpose: &[u8]) -> Hmac<Sha256> {
    let mut tag = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken");
    // Ended by a zero: no purpose is the beginning of another one with what follows it.
    tag.update(purpose);
    tag.update(&[0]);
    tag
}

fn finish(tag: Hmac<Sha256>) -> Tag {
    tag.finalize().into_bytes().into()
}

fn note_origin(tag: &mut Hmac<Sha256>, origin: Origin) {
    tag.update(&origin.endpoint.0.to_le_bytes());
    tag.update(&origin.incarnation.0.to_le_bytes());
}

fn note_member(tag: &mut Hmac<Sha256>, member: Member) {
    tag.update(&[member.role.number()]);
    tag.update(&member.number.to_le_bytes());
}

/// Everything that the two sides of a channel agree on.
#[derive(Debug, Clone, Copy)]
struct Terms {
    member: Member,
    caller: Origin,
    server: Origin,
    nonce: u128,
    time: u64,
    cookie: u128,
}

/// A key of one channel.
#[derive(Clone)]
pub(crate) struct Key(Tag);

impl Key {
    fn of(secret: &Secret, terms: &Terms) -> Key {
        let mut tag = secret.tag(b"ropewalk channel");
        note_member(&mut tag, terms.member);
        note_origin(&mut tag, terms.caller);
        note_origin(&mut tag, terms.server);
        tag.update(&terms.nonce.to_le_bytes());
        tag.update(&terms.time.to_le_bytes());
        tag.update(&terms.cookie.to_le_bytes());
        Key(finish(tag))
    }

    fn acceptance(&self) -> Hmac<Sha256> {
        keyed(&self.0, b"acceptance")
    }

    /// Over the call's head and request, with its counter.
    fn call(&self, counter: u64, message: &[u8]) -> Hmac<Sha256> {
        let mut tag = keyed(&self.0, b"call");
        tag.update(&counter.to_le_bytes());
        tag.update(message);
        tag
    }

    /// Over the reply's head and body, with the counter of the call.
    fn reply(&self, counter: u64, message: &[u8]) -> Hmac<Sha256> {
        let mut tag = keyed(&self.0, b"reply");
        tag.update(&counter.to_le_bytes());
        tag.update(message);
        tag
    }

    /// The tag of a reply.
    pub(crate) fn tag_reply(&self, counter: u64, message: &[u8]) -> Tag {
        finish(self.reply(counter, message))
    }
}

fn introduction(secret: &Secret, member: Member, caller: Origin, nonce: u128) -> Hmac<Sha256> {
    let mut tag = secret.tag(b"ropewalk introduction");
    note_member(&mut tag, member);
    note_origin(&mut tag, caller);
    tag.update(&nonce.to_le_bytes());
    tag
}

/// The calling member, and the secret by which it proves its membership.
#[derive(Debug, Clone)]
pub struct Proof {
    pub secret: Secret,
    pub member: Member,
}

/// The calling side of a channel.
pub(crate) struct Caller {
    terms: Terms,
    key: Key,
    counter: Cell<u64>,
}

impl Proof {
    /// The first word to a server.
    pub(crate) fn introduce(&self, own: Origin, nonce: u128) -> Introduction {
        let tag = finish(introduction(&self.secret, self.member, own, nonce));
        Introduction { member: self.member, nonce, tag }
    }

    /// The channel, if the answering party is a member.
    pub(crate) fn accepted(
        &self,
        (own, server): (Origin, Origin),
        nonce: u128,
        answer: &Acceptance,
    ) -> Option<Caller> {
        let Acceptance { time, cookie, tag } = *answer;
        let terms = Terms { member: self.member, caller: own, server, nonce, time, cookie };
        let key = Key::of(&self.secret, &terms);
        key.acceptance().verify_slice(&tag).ok()?;
        Some(Caller { terms, key, counter: Cell::new(0) })
    }
}

impl Caller {
    /// Appends a seal to a message of head and request; the counter by which its reply is known.
    pub fn seal(&self, message: &mut Vec<u8>) -> u64 {
        let counter = self.counter.get() + 1;
        self.counter.set(counter);
        let tag = finish(self.key.call(counter, message));
        let Terms { member, nonce, time, cookie, .. } = self.terms;
        Seal { member, nonce, time, cookie, counter, tag }.encode(message);
        counter
    }

    /// Whether a reply, all but its tag, is the server's answer to the call of this counter.
    pub fn is_answer(&self, counter: u64, message: &[u8], tag: &[u8]) -> bool {
        self.key.reply(counter, message).verify_slice(tag).is_ok()
    }
}

/// A channel that a member began.
struct Channel {
    terms: Terms,
    key: Key,
    newest: u64,
    /// A bit for each of the counters below the newest: it came.
    seen: u64,
    used: Time,
}

impl Channel {
    /// Notes a counter; false where it came before, or so long ago that nobody knows.
    fn note(&mut self, counter: u64) -> bool {
        if counter > self.newest {
            let ahead = counter - self.newest;
            self.seen = if ahead >= WINDOW { 0 } else { self.seen << ahead };
            self.seen |= 1;
            self.newest = counter;
            return true;
        }
        let behind = self.newest - counter;
        let bit = if behind < WINDOW { 1 << behind } else { 0 };
        let new = bit != 0 && counter != 0 && self.seen & bit == 0;
        self.seen |= bit;
        new
    }
}

/// Admits the calls that are proven. One for each server.
pub(crate) struct Gate {
    secret: Secret,
    own: Origin,
    /// Of this life: cookies of an earlier one are none.
    cookies: [u8; 32],
    channels: RefCell<BTreeMap<(Origin, u128), Channel>>,
}

/// A call that a member made.
#[derive(Clone)]
pub(crate) struct Proven {
    pub member: Member,
    pub key: Key,
    pub counter: u64,
}

impl Gate {
    /// The one of a server's life. `random` makes that life differ from others.
    pub fn new(secret: Secret, own: Origin, random: u128) -> Gate {
        // Not even somebody who could foresee the number makes a cookie without the secret.
        let mut cookies = secret.tag(b"ropewalk cookies");
        note_origin(&mut cookies, own);
        cookies.update(&random.to_le_bytes());
        Gate { secret, own, cookies: finish(cookies), channels: RefCell::default() }
    }

    fn cookie(&self, member: Member, caller: Origin, nonce: u128, time: u64) -> u128 {
        let mut tag = keyed(&self.cookies, b"cookie");
        note_member(&mut tag, member);
        note_origin(&mut tag, caller);
        tag.update(&nonce.to_le_bytes());
        tag.update(&time.to_le_bytes());
        let tag = finish(tag);
        u128::from_le_bytes(tag[..16].try_into().expect("a tag has more bytes"))
    }

    /// Answers an introduction; None where the caller does not know the secret.
    pub fn accept(&self, caller: Origin, word: &Introduction, now: Time) -> Option<Acceptance> {
        let Introduction { member, nonce, tag } = *word;
        introduction(&self.secret, member, caller, nonce).verify_slice(&tag).ok()?;
        let time = now.0;
        let cookie = self.cookie(member, caller, nonce, time);
        let terms = Terms { member, caller, server: self.own, nonce, time, cookie };
        let key = Key::of(&self.secret, &terms);
        Some(Acceptance { time, cookie, tag: finish(key.acceptance()) })
    }

    /// Judges a sealed call: `message` is its head and its request, without the seal.
    pub fn admit(&self, caller: Origin, message: &[u8], seal: &Seal, now: Time) -> Option<Proven> {
        let mut channels = self.channels.borrow_mut();
        let Seal { member, nonce, time, cookie, counter, tag } = *seal;
        let known = channels.get_mut(&(caller, nonce)).filter(|known| {
            let Terms { member: m, time: t, cookie: c, .. } = known.terms;
            (m, t, c) == (member, time, cookie)
        });
        let key = match known {
            Some(channel) => {
                channel.key.call(counter, message).verify_slice(&tag).ok()?;
                if !channel.note(counter) {
                    return None;
                }
                channel.used = now;
                channel.key.clone()
            }
            None => {
                let fresh = now.since(Time(time)) <= FRESH && Time(time) <= now;
                let ours = cookie == self.cookie(member, caller, nonce, time);
                if !fresh || !ours || channels.contains_key(&(caller, nonce)) {
                    return None;
                }
                let terms = Terms { member, caller, server: self.own, nonce, time, cookie };
                let key = Key::of(&self.secret, &terms);
                key.call(counter, message).verify_slice(&tag).ok()?;
                if !make_room(&mut channels, now) {
                    return None;
                }
                let mut channel =
                    Channel { terms, key: key.clone(), newest: 0, seen: 0, used: now };
                if !channel.note(counter) {
                    return None;
                }
                channels.insert((caller, nonce), channel);
                key
            }
        };
        Some(Proven { member, key, counter })
    }
}

/// Forgets the channel that was silent longest, where there are too many. One that could be taken for a
/// new one again stays: its calls could be let in twice.
fn make_room(channels: &mut BTreeMap<(Origin, u128), Channel>, now: Time) -> bool {
    if channels.len() < CHANNELS_MAX {
        return true;
    }
    let old = |channel: &Channel| now.since(Time(channel.terms.time)) > FRESH;
    let oldest = channels.iter().filter(|(_, channel)| old(channel));
    let oldest = oldest.min_by_key(|(_, channel)| channel.used).map(|(id, _)| *id);
    oldest.is_some_and(|id| channels.remove(&id).is_some())
}

/// Issues the tokens and capabilities that the metadata server gives to clients and data servers check.
#[derive(Clone)]
pub struct Grantor {
    sessions: Hmac<Sha256>,
    files: Hmac<Sha256>,
    recognitions: Hmac<Sha256>,
}

impl fmt::Debug for Grantor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grantor(..)")
    }
}

impl Grantor {
    /// The one of this cluster.
    pub fn new(secret: &Secret) -> Grantor {
        Grantor {
            sessions: secret.tag(b"ropewalk session"),
            files: secret.tag(b"ropewalk file"),
            recognitions: secret.tag(b"ropewalk recognition"),
        }
    }

    /// The secret by which the owner of a session recognises the cluster: told once, when the session is
    /// opened.
    pub fn recognition(&self, session: u64, owner: Origin) -> u128 {
        let mut tag = self.recognitions.clone();
        tag.update(&session.to_le_bytes());
        note_origin(&mut tag, owner);
        wide_number(tag)
    }

    /// The token of a session: a number that only members can compute, by which data servers know in
    /// whose name calls may come.
    pub fn token(&self, session: u64, owner: Origin, limited: bool) -> u64 {
        let mut tag = self.sessions.clone();
        tag.update(&session.to_le_bytes());
        note_origin(&mut tag, owner);
        tag.update(&[u8::from(limited)]);
        number(tag) & !LIMITED | if limited { LIMITED } else { 0 }
    }

    /// Whether this is the token of a session of `owner`, and if it is, whether the session is limited.
    pub fn check_token(&self, session: u64, owner: Origin, token: u64) -> Option<bool> {
        let limited = token & LIMITED != 0;
        is_same(self.token(session, owner, limited), token).then_some(limited)
    }

    /// The capability of a session to read or write the bytes of a file (inode and generation) until a second since 1970.
    pub fn capability(
        &self,
        session: u64,
        file: (u64, u32),
        (reads, writes): (bool, bool),
        expires: u32,
    ) -> Capability {
        let bare = Capability { reads, writes, expires, tag: [0; 16] };
        Capability { tag: self.capability_tag(session, file, &bare), ..bare }
    }

    /// Whether a capability was given to this session, for this inode and generation.
    pub fn check_capability(
        &self,
        session: u64,
        file: (u64, u32),
        capability: &Capability,
    ) -> bool {
        let own = self.capability_tag(session, file, capability);
        let differing = u128::from_le_bytes(own) ^ u128::from_le_bytes(capability.tag);
        std::hint::black_box(differing) == 0
    }

    fn capability_tag(
        &self,
        session: u64,
        (inode, generation): (u64, u32),
        capability: &Capability,
    ) -> [u8; 16] {
        let mut tag = self.files.clone();
        tag.update(&session.to_le_bytes());
        tag.update(&inode.to_le_bytes());
        tag.update(&generation.to_le_bytes());
        tag.update(&capability.expires.to_le_bytes());
        tag.update(&[capability.rights()]);
        wide_number(tag).to_le_bytes()
    }
}

fn number(tag: Hmac<Sha256>) -> u64 {
    u64::from_le_bytes(finish(tag)[..8].try_into().expect("a tag has more bytes"))
}

/// The answer of a server of the cluster to a nonce (`SessionRequest::Recognise`): the first 16 bytes of an
/// HMAC-SHA-256, under the session's `recognition`, of the nonce and the term in which the server serves.
pub fn recognised(recognition: u128, nonce: u128, term: Term) -> u128 {
    let mut tag = keyed(&recognition.to_le_bytes(), b"ropewalk recognised");
    tag.update(&nonce.to_le_bytes());
    tag.update(&term.0.to_le_bytes());
    wide_number(tag)
}

/// The proof of a session's owner that the session is to move to another endpoint (`SessionRequest::Move`): the
/// first 16 bytes of an HMAC-SHA-256, under the session's `recognition`, of the session and that endpoint.
pub fn moved(recognition: u128, session: u64, to: Origin) -> u128 {
    let mut tag = keyed(&recognition.to_le_bytes(), b"ropewalk moved");
    tag.update(&session.to_le_bytes());
    note_origin(&mut tag, to);
    wide_number(tag)
}

/// Whether two tags are the same; compares all bits, whatever the first ones are.
pub fn is_same_tag(a: u128, b: u128) -> bool {
    std::hint::black_box(a ^ b) == 0
}

fn wide_number(tag: Hmac<Sha256>) -> u128 {
    u128::from_le_bytes(finish(tag)[..16].try_into().expect("a tag has more bytes"))
}

/// Compares all bits, whatever the first ones are.
fn is_same(a: u64, b: u64) -> bool {
    std::hint::black_box(a ^ b) == 0
}

pub mod attack;
#[cfg(test)]
mod tests;
