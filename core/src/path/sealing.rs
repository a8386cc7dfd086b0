//! The protection of links: which mode both sides agree on, and when a link is sealed.
//!
//! Each greeting says which mode its side demands over the link, and whether its rail can protect it. The stronger demand
//! counts. The caller's proof is the last frame that is not sealed: the caller seals all that it sends behind it, and the
//! accepting side, which sends nothing between its own part of the greeting and this proof, all that it sends afterwards. So both
//! know the byte.
//!
//! Invariants: no link keeps a session that is less protected than one of the sides demands; the keys of a link depend on the
//! session's key, on both greetings' modes, and on random numbers of both sides, so that no two links have the same.

use ropewalk_auth::Untrusted;
use ropewalk_base::payload::{Cipher, LinkKeys, PayloadMode, Sealing};
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{MODE_AES, MODE_AUTH, MODE_PROTECTS, MODE_SECURE};

use super::{Link, LinkStage};
use crate::api::Output;
use crate::engine::Core;
use crate::session::{Claim, Key, PathId};

/// The path and the number in proofs over links that nobody protects.
pub(super) const NO_CHALLENGE: (PathId, u32) = (PathId::FIRST, 0);

/// The protection of a link.
#[derive(Debug)]
pub(crate) struct Protection {
    seal: LinkSeal,
    /// The path and the number that proofs name which carry a session on over it.
    challenge: (PathId, u32),
}

impl Link {
    fn protection(&mut self) -> &mut Protection {
        self.protection.get_or_insert_with(|| {
            Box::new(Protection { seal: LinkSeal::Undecided, challenge: NO_CHALLENGE })
        })
    }

    fn has_seal(&self) -> bool {
        let is_decided = |it: &Protection| !matches!(it.seal, LinkSeal::Undecided);
        self.protection.as_deref().is_some_and(is_decided)
    }

    /// The path and the number that proofs name which carry a session on over it.
    pub(super) fn challenge(&self) -> (PathId, u32) {
        self.protection.as_ref().map_or(NO_CHALLENGE, |it| it.challenge)
    }

    pub(super) fn set_challenge(&mut self, challenge: (PathId, u32)) {
        if challenge != self.challenge() {
            self.protection().challenge = challenge;
        }
    }
}

/// How far the protection of a link is.
#[derive(Debug, Default)]
enum LinkSeal {
    /// Both sides still greet, or there is none.
    #[default]
    Undecided,
    /// The link has its keys, and its rail has not asked for them.
    Due(Box<LinkKeys>),
    /// The rail has them.
    Told,
}

/// The sides cannot protect a link as one of them demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unprotected;

impl Core {
    /// The part of our greeting's mode that is about protection.
    pub(super) fn protection_told(&self, link: LinkId) -> u8 {
        let is_in_memory = self.rails.of(link).is_none_or(|rail| rail.same_host_only);
        if self.trust.is_none() || is_in_memory {
            return 0;
        }
        let protection = self.rails.protection(link.rail);
        let demand = match protection.demand {
            PayloadMode::Crc => 0,
            PayloadMode::Auth => MODE_AUTH,
            PayloadMode::Secure => MODE_SECURE,
        };
        demand
            | match protection.cipher {
                None => 0,
                Some(Cipher::Aes256Gcm) => MODE_PROTECTS | MODE_AES,
                Some(Cipher::ChaCha20Poly1305) => MODE_PROTECTS,
            }
    }

    /// The protection that both greetings of a link name, the caller's first.
    pub(super) fn modes_told(&self, link: LinkId) -> [u8; 2] {
        let told = MODE_AUTH | MODE_SECURE | MODE_PROTECTS | MODE_AES;
        let (ours, state) = (self.protection_told(link), self.links.get(link));
        let theirs = state.and_then(|state| state.hello).map_or(0, |hello| hello.mode & told);
        if state.is_some_and(|state| state.outbound) { [ours, theirs] } else { [theirs, ours] }
    }

    /// The protection of a link on which the peer has greeted; `None`: it has none.
    fn agreed_protection(
        &self,
        link: LinkId,
    ) -> Result<Option<(PayloadMode, Cipher)>, Unprotected> {
        let theirs = self.links.get(link).and_then(|state| state.hello).map_or(0, |it| it.mode);
        let ours = self.protection_told(link);
        let (any, both) = (ours | theirs, ours & theirs);
        let mode = match (any & MODE_SECURE != 0, any & MODE_AUTH != 0) {
            (true, _) => PayloadMode::Secure,
            (false, true) => PayloadMode::Auth,
            (false, false) => return Ok(None),
        };
        let aes = both & MODE_AES != 0;
        let cipher = if aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 };
        if both & MODE_PROTECTS != 0 { Ok(Some((mode, cipher))) } else { Err(Unprotected) }
    }

    /// Whether the sides of a link cannot protect it as one of them demands; that is noted.
    pub(super) fn note_unprotected(&mut self, link: LinkId) -> bool {
        let is_unprotected = self.trust.is_some() && self.agreed_protection(link).is_err();
        if is_unprotected {
            self.note_untrusted(Untrusted::Unprotected);
        }
        is_unprotected
    }

    /// Whether both sides of a link have greeted, and are going to protect it.
    pub(super) fn is_to_be_sealed(&self, link: LinkId) -> bool {
        self.trust.is_some() && matches!(self.agreed_protection(link), Ok(Some(_)))
    }

    /// Whether a link that is to carry a session lacks the protection that it has to have.
    pub(crate) fn lacks_seal(&self, link: LinkId) -> bool {
        let is_sealed = || self.links.get(link).is_some_and(Link::has_seal);
        self.trust.is_some() && !matches!(self.agreed_protection(link), Ok(None)) && !is_sealed()
    }

    /// Our part of the keys of a link that we call: with the other side's nonce and challenge they are new.
    pub(super) fn salt(&mut self, link: LinkId) -> [u8; 4] {
        match self.is_to_be_sealed(link) {
            true => (self.random.next_u64() as u32).to_le_bytes(),
            false => [0; 4],
        }
    }

    /// The number that the caller has to repeat in its proof: so an old proof proves nothing, and no keys come again.
    pub(super) fn challenge(&mut self, link: LinkId) -> (PathId, u32) {
        if self.is_to_be_sealed(link) {
            let number = self.random.next_u64();
            let challenge = (PathId::named(number as u32), (number >> 32) as u32);
            if let Some(state) = self.links.get_mut(link) {
                state.set_challenge(challenge);
            }
        }
        self.links.get(link).map_or(NO_CHALLENGE, Link::challenge)
    }

    /// The caller of a link has proven itself: what both sides send from here on is sealed, if they agreed on that.
    pub(super) fn seal_link(&mut self, link: LinkId, key: &Key, claim: &Claim, salt: [u8; 4]) {
        if self.trust.is_none() {
            return;
        }
        let Ok(Some((mode, cipher))) = self.agreed_protection(link) else { return };
        let modes = self.modes_told(link);
        let Some(state) = self.links.get_mut(link) else { return };
        let [caller, acceptor] = key.link_keys(claim, salt, modes);
        let (send, receive) = if state.outbound { (caller, acceptor) } else { (acceptor, caller) };
        let has_greeted = !state.outbound;
        let keys = Box::new(LinkKeys { mode, cipher, send, receive, has_greeted });
        state.protection().seal = LinkSeal::Due(keys.clone());
        self.counters.links_sealed += 1;
        self.outputs.push(Output::Seal { link, keys });
    }

    /// Whether what follows on a link is sealed: a rail that can protect its links asks before it takes a frame.
    pub fn sealing(&mut self, link: LinkId) -> Sealing {
        if self.trust.is_none() {
            return Sealing::Plain;
        }
        let Some(state) = self.links.get_mut(link) else { return Sealing::Undecided };
        if let Some(Protection { seal: seal @ LinkSeal::Due(_), .. }) =
            state.protection.as_deref_mut()
            && let LinkSeal::Due(keys) = std::mem::replace(seal, LinkSeal::Told)
        {
            return Sealing::Sealed(keys);
        }
        let is_plain = state.stage == LinkStage::Up && !state.has_seal();
        if is_plain { Sealing::Plain } else { Sealing::Undecided }
    }
}
