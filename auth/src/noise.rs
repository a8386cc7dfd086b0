//! The Noise protocol, as the library `snow` has it, with chance from outside.
//!
//! `NNpsk0` where both sides share a key, `IXpsk0` where each has its own. The key at position 0 comes before everything
//! else: whoever does not have it is found out by keyed hashes alone.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroize;

use crate::block::BLOCK_BYTES_MAX;
use crate::secret::{Secret, SessionKey};

const SHARED: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const OWN: &str = "Noise_IXpsk0_25519_ChaChaPoly_SHA256";

/// The parts of a handshake.
pub(crate) struct Terms<'a> {
    pub psk: &'a Secret,
    /// Our own key, where each side has one.
    pub private: Option<&'a Secret>,
    /// Both sides have to see the same.
    pub prologue: &'a [u8],
    /// Random bytes, used once.
    pub chance: Secret,
}

/// One side of a handshake between its two messages.
pub(crate) struct Noise(Box<HandshakeState>);

/// Gives the 32 bytes of one ephemeral key, and no more.
struct Once(Option<Secret>);

struct Resolver(Secret);

impl Random for Once {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self.0.take().ok_or(snow::Error::Rng)?;
        let bytes = bytes.bytes().get(..into.len()).ok_or(snow::Error::Rng)?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// The public key of a private one.
pub(crate) fn public_of(private: &Secret) -> [u8; 32] {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("the feature is on");
    dh.set(private.bytes());
    dh.pubkey().try_into().expect("32 bytes")
}

impl Noise {
    pub fn calling(terms: Terms<'_>) -> Option<Noise> {
        Noise::begin(terms, true)
    }

    pub fn answering(terms: Terms<'_>) -> Option<Noise> {
        Noise::begin(terms, false)
    }

    fn begin(terms: Terms<'_>, calls: bool) -> Option<Noise> {
        let Terms { psk, private, prologue, chance } = terms;
        let pattern = if private.is_some() { OWN } else { SHARED };
        let params: NoiseParams = pattern.parse().expect("a pattern of the library");
        let builder = Builder::with_resolver(params, Box::new(Resolver(chance)));
        let builder = builder.psk(0, psk.bytes()).ok()?.prologue(prologue).ok()?;
        let builder = match private {
            Some(private) => builder.local_private_key(private.bytes()).ok()?,
            None => builder,
        };
        let state = if calls { builder.build_initiator() } else { builder.build_responder() };
        state.ok().map(Box::new).map(Noise)
    }

    /// Our message, with this payload.
    pub fn write(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        let mut message = vec![0; BLOCK_BYTES_MAX];
        let bytes = self.0.write_message(payload, &mut message).ok()?;
        message.truncate(bytes);
        Some(message)
    }

    /// The payload of the peer's message, if the peer has the key.
    pub fn read(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if message.len() > BLOCK_BYTES_MAX {
            return None;
        }
        let mut payload = vec![0; BLOCK_BYTES_MAX];
        let bytes = self.0.read_message(message, &mut payload).ok()?;
        payload.truncate(bytes);
        Some(payload)
    }

    /// The peer's public key, once its message was read.
    pub fn peer_public(&self) -> Option<[u8; 32]> {
        self.0.get_remote_static()?.try_into().ok()
    }

    /// The key that both sides have after both messages.
    pub fn session_key(mut self) -> Option<SessionKey> {
        if !self.0.is_handshake_finished() {
            return None;
        }
        let (mut first, mut second) = self.0.dangerously_get_raw_split();
        let mut mac = Hmac::<Sha256>::new_from_slice(&first).expect("keys of any length are taken");
        mac.update(b"ropewalk session\0");
        mac.update(&second);
        mac.update(self.0.get_handshake_hash());
        first.zeroize();
        second.zeroize();
        Some(SessionKey(Secret::new(mac.finalize().into_bytes().into())))
    }
}
