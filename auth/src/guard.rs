//! The guard of an endpoint: makes the blocks of its greetings, and judges those of peers.
//!
//! The caller's block comes with its greeting, the other side's block with the answer. Both sides then have a key that
//! nobody else has. The caller still has to use it: its first block may be an old one that somebody sends again.
//!
//! Invariants: each block covers what its greeting says; the answer also covers the caller's block.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::block::{Head, KeyKind};
use crate::certificate::{Certificate, Doubt, Standing, beginning_of};
use crate::keyring::{Keyring, NodeKeys, PskKeys};
use crate::name::NodeName;
use crate::noise::{Noise, Terms};
use crate::secret::{Secret, SessionKey};

/// Clock and randomness, which a guard gets from outside.
pub trait World: Send + Sync {
    /// 32 bytes that nobody can guess.
    fn chance(&self) -> Secret;
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;
}

/// Why a peer is not believed. The peer is not told which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Untrusted {
    #[error("the peer has no keys: give it a key file of this cluster")]
    NoKeys,
    #[error(
        "the peer's greeting is spoiled, or of a later version: compare the versions of both sides"
    )]
    Malformed,
    #[error("the peer has another key: give both sides key files of one cluster")]
    WrongKey,
    #[error("the peer's certificate is not signed by the cluster's key: sign it anew")]
    Unsigned,
    #[error(
        "the peer's certificate has expired: sign it anew, and compare the clocks of both sides"
    )]
    Expired,
    #[error("the peer's certificate is not valid yet: compare the clocks of both sides")]
    Early,
    #[error("the peer's certificate is of a revoked epoch: sign it anew if the node may come back")]
    Revoked,
    #[error(
        "the peer is another node than its address names: compare the address with `ropewalk key show`"
    )]
    OtherNode,
    #[error(
        "peers of one host greet again and again, and prove nothing then: they have to wait for answers"
    )]
    TooMany,
    #[error(
        "the peer and this side cannot protect payloads as one of them demands: give both the same \
         payload mode, over a network that has it, and compare their versions"
    )]
    Unprotected,
    #[error("our own key file opens no endpoint: make one by `ropewalk key sign`")]
    NoEndpointKey,
}

impl From<Doubt> for Untrusted {
    fn from(doubt: Doubt) -> Untrusted {
        match doubt {
            Doubt::Signature => Untrusted::Unsigned,
            Doubt::Expired => Untrusted::Expired,
            Doubt::Early => Untrusted::Early,
            Doubt::Revoked => Untrusted::Revoked,
        }
    }
}

/// The result of a handshake at both of its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    pub key: SessionKey,
    /// The node that the peer proved to be; `None`: a member that has the cluster's key.
    pub node: Option<NodeName>,
    /// The conditions under which this still holds later; `None`: none, as shared keys have no epoch.
    pub standing: Option<Standing>,
}

/// Makes the blocks of an endpoint's greetings, and judges those of peers.
pub struct Guard {
    ring: Mutex<Arc<Keyring>>,
    /// How often the keys were replaced.
    changes: AtomicU64,
    world: Box<dyn World>,
    /// How many peers were not believed, and why the last one was not.
    refused: Mutex<(u64, Option<Untrusted>)>,
}

/// A call whose answer is awaited.
pub struct Calling {
    noise: Noise,
    ring: Arc<Keyring>,
    node: Option<NodeName>,
}

/// A call that has the key, and waits for our answer.
pub struct Heard {
    noise: Noise,
    ring: Arc<Keyring>,
    node: Option<NodeName>,
    standing: Option<Standing>,
    head: Head,
}

impl Heard {
    /// The node that the caller is, if it then uses the key; `None`: a member.
    pub fn node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Heard(..)")
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calling(..)")
    }
}

impl Guard {
    pub fn new(ring: Keyring, world: Box<dyn World>) -> Guard {
        let ring = Mutex::new(Arc::new(ring));
        Guard { ring, changes: AtomicU64::new(0), world, refused: Mutex::default() }
    }

    /// A peer was not believed: for our own operator.
    pub fn note(&self, why: Untrusted) {
        let mut refused = self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *refused = (refused.0 + 1, Some(why));
    }

    /// How many peers were not believed, and why the last one was not.
    pub fn refused(&self) -> (u64, Option<Untrusted>) {
        *self.refused.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Other keys from now on. Sessions go on, as each has a key of its own, except those with nodes that the new keys do not
    /// believe any more: see [`Guard::stands`].
    pub fn replace(&self, ring: Keyring) {
        *self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Arc::new(ring);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often the keys were replaced.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        self.world.unix_seconds()
    }

    /// Whether this process would believe now what a node has proven in an earlier handshake.
    pub fn stands(&self, standing: &Standing) -> Result<(), Untrusted> {
        let ring = self.ring();
        let Keyring::Node(keys) = &*ring else { return Err(Untrusted::WrongKey) };
        let signed = |public: &[u8; 32]| beginning_of(public) == standing.authority;
        if !keys.trusted.iter().any(|trusted| signed(&trusted.public)) {
            return Err(Untrusted::Unsigned);
        }
        Ok(standing.check(self.world.unix_seconds(), keys.epoch_min)?)
    }

    /// Whether our own keys prove this node.
    pub fn is_node(&self, node: &NodeName) -> bool {
        self.ring().node() == Some(node)
    }

    fn ring(&self) -> Arc<Keyring> {
        self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The block of our call. `greeting`: all that the call's greeting says. `node`: who the peer is or has to be, if that is
    /// known. A member of a `psk` cluster needs it, to use that node's key.
    pub fn call(
        &self,
        node: Option<&NodeName>,
        greeting: &[u8],
    ) -> Result<(Vec<u8>, Calling), Untrusted> {
        let ring = self.ring();
        let (head, psk) = match &*ring {
            Keyring::Cluster(keys) => head_of(keys, node, node.is_some())?,
            Keyring::Derived(keys, name) => head_of(keys, Some(name), false)?,
            Keyring::Node(keys) => own_head(keys)?,
            Keyring::Authority(_) => return Err(Untrusted::NoEndpointKey),
        };
        let (private, payload) = own_payload(&ring);
        let mut block = head.encode();
        let prologue = prologue(&block, greeting);
        let chance = self.world.chance();
        let terms = Terms { psk: &psk, private, prologue: &prologue, chance };
        let mut noise = Noise::calling(terms).ok_or(Untrusted::Malformed)?;
        block.extend(noise.write(&payload).ok_or(Untrusted::Malformed)?);
        let node = match &*ring {
            Keyring::Cluster(_) => head.name,
            _ => None,
        };
        Ok((block, Calling { noise, ring, node }))
    }

    /// Judges the block of a caller. `greeting`: all that the caller's greeting says.
    pub fn hear(&self, block: &[u8], greeting: &[u8]) -> Result<Heard, Untrusted> {
        self.hear_if(block, greeting, || true)
    }

    /// The same. `admits` is asked once keyed hashes have shown that the caller, or whoever made its block, has the key, and
    /// before anything on the curve.
    pub fn hear_if(
        &self,
        block: &[u8],
        greeting: &[u8],
        admits: impl FnOnce() -> bool,
    ) -> Result<Heard, Untrusted> {
        if block.is_empty() {
            return Err(Untrusted::NoKeys);
        }
        let ring = self.ring();
        let (head, head_bytes, message) = Head::decode(block).ok_or(Untrusted::Malformed)?;
        let psk = psk_for(&ring, &head).ok_or(Untrusted::WrongKey)?;
        let prologue = prologue(head_bytes, greeting);
        let (private, _) = own_payload(&ring);
        let chance = self.world.chance();
        let terms = Terms { psk: &psk, private, prologue: &prologue, chance };
        let mut noise = Noise::answering(terms).ok_or(Untrusted::Malformed)?;
        let told = noise.read(message).ok_or(Untrusted::WrongKey)?;
        if !admits() {
            return Err(Untrusted::TooMany);
        }
        let (node, standing) = match &*ring {
            Keyring::Node(keys) => {
                let (node, standing) = self.certified(keys, &noise, &told)?;
                (Some(node), Some(standing))
            }
            Keyring::Cluster(_) => (head.name, None),
            _ => (None, None),
        };
        let head = Head { name: None, is_called: false, ..head };
        Ok(Heard { noise, ring, node, standing, head })
    }

    /// The block of our answer, and what is proven if the caller then uses the key. `greeting`: all that our answer says.
    pub fn reply(&self, heard: Heard, greeting: &[u8]) -> Result<(Vec<u8>, Proven), Untrusted> {
        let Heard { mut noise, ring, node, standing, head } = heard;
        let (_, payload) = own_payload(&ring);
        let payload = [Sha256::digest(greeting).as_slice(), &payload].concat();
        let mut block = head.encode();
        block.extend(noise.write(&payload).ok_or(Untrusted::Malformed)?);
        let key = noise.session_key().ok_or(Untrusted::Malformed)?;
        Ok((block, Proven { key, node, standing }))
    }

    /// Judges the block of an answer to our call. `greeting`: all that the answer's greeting says.
    pub fn answered(
        &self,
        calling: Calling,
        block: &[u8],
        greeting: &[u8],
    ) -> Result<Proven, Untrusted> {
        if block.is_empty() {
            return Err(Untrusted::NoKeys);
        }
        let Calling { mut noise, ring, node } = calling;
        let (_, _, message) = Head::decode(block).ok_or(Untrusted::Malformed)?;
        let told = noise.read(message).ok_or(Untrusted::WrongKey)?;
        let (digest, told) = told.split_at_checked(32).ok_or(Untrusted::Malformed)?;
        if !bool::from(digest.ct_eq(&Sha256::digest(greeting))) {
            return Err(Untrusted::Malformed);
        }
        let (node, standing) = match &*ring {
            Keyring::Node(keys) => {
                let (node, standing) = self.certified(keys, &noise, told)?;
                (Some(node), Some(standing))
            }
            _ => (node, None),
        };
        let key = noise.session_key().ok_or(Untrusted::Malformed)?;
        Ok(Proven { key, node, standing })
    }

    /// The node of a certificate, if it holds and its key is the one that the handshake proved.
    fn certified(
        &self,
        keys: &NodeKeys,
        noise: &Noise,
        certificate: &[u8],
    ) -> Result<(NodeName, Standing), Untrusted> {
        let certificate = Certificate::decode(certificate).ok_or(Untrusted::Malformed)?;
        let public = noise.peer_public().ok_or(Untrusted::Malformed)?;
        if !bool::from(public.ct_eq(&certificate.public)) {
            return Err(Untrusted::Unsigned);
        }
        let now = self.world.unix_seconds();
        let mut doubt = Doubt::Signature;
        for trusted in &keys.trusted {
            match certificate.check(&trusted.public, now, keys.epoch_min) {
                Ok(()) => {
                    let standing = certificate.standing(&trusted.public);
                    return Ok((certificate.name, standing));
                }
                Err(Doubt::Signature) => {}
                Err(other) => doubt = other,
            }
        }
        Err(doubt.into())
    }
}

/// The head of a call with a shared key, and that key. `derives`: we have the cluster's key, and use the peer's.
fn head_of(
    keys: &PskKeys,
    name: Option<&NodeName>,
    derives: bool,
) -> Result<(Head, Secret), Untrusted> {
    let key = keys.keys.first().ok_or(Untrusted::NoEndpointKey)?;
    let psk = match name {
        Some(name) if derives => key.derive("ropewalk node", name.as_str().as_bytes()),
        Some(_) => key.clone(),
        None => key.derive("ropewalk members", &[]),
    };
    let (key_id, name) = (psk.key_id(), name.cloned());
    Ok((Head { kind: KeyKind::Shared, key_id, name, is_called: derives }, psk))
}

fn own_head(keys: &NodeKeys) -> Result<(Head, Secret), Untrusted> {
    let door = &keys.trusted.first().ok_or(Untrusted::NoEndpointKey)?.door;
    let head = Head { kind: KeyKind::Own, key_id: door.key_id(), name: None, is_called: false };
    Ok((head, door.clone()))
}

/// Our own key, and the certificate that our messages carry.
fn own_payload(ring: &Keyring) -> (Option<&Secret>, Vec<u8>) {
    match ring {
        Keyring::Node(keys) => (Some(&keys.private), keys.certificate.encode()),
        _ => (None, Vec::new()),
    }
}

/// The key that a caller's head names, if we have it.
fn psk_for(ring: &Keyring, head: &Head) -> Option<Secret> {
    if head.is_called && !matches!(ring, Keyring::Derived(..)) {
        // Members have no names, and signed keys need none here.
        return None;
    }
    let candidates: Vec<Secret> = match (ring, head.kind, &head.name) {
        (Keyring::Cluster(keys), KeyKind::Shared, Some(name)) => keys.derive(name).keys,
        (Keyring::Cluster(keys), KeyKind::Shared, None) => {
            keys.keys.iter().map(|key| key.derive("ropewalk members", &[])).collect()
        }
        (Keyring::Derived(keys, own), KeyKind::Shared, Some(name)) if own == name => {
            keys.keys.clone()
        }
        (Keyring::Node(keys), KeyKind::Own, None) => {
            keys.trusted.iter().map(|trusted| trusted.door.clone()).collect()
        }
        _ => return None,
    };
    candidates.into_iter().find(|key| key.key_id() == head.key_id)
}

fn prologue(head: &[u8], greeting: &[u8]) -> Vec<u8> {
    [b"ropewalk greeting\0", head, greeting].concat()
}
