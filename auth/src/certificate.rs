//! Certificates: the public key of a node, signed by the cluster's key, for a limited time.
//!
//! Layout, little endian: version 1 (1), bytes of the name (1), name, public key (32), epoch (4), first and last second of
//! validity since 1970 (8, 8), signature (64) over "ropewalk node certificate", 0 and everything before.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::name::NodeName;

const VERSION: u8 = 1;
const SIGNATURE_BYTES: usize = 64;
const PURPOSE: &[u8] = b"ropewalk node certificate\0";
/// Clocks of two nodes may differ by so many seconds.
pub(crate) const CLOCK_SKEW_SECONDS: u64 = 300;

/// A node's public key, as the cluster's key signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub name: NodeName,
    pub public: [u8; 32],
    /// Certificates of an earlier epoch than a node's file demands are refused.
    pub epoch: u32,
    /// Seconds since 1970.
    pub valid_from: u64,
    pub valid_until: u64,
    pub(crate) signature: [u8; SIGNATURE_BYTES],
}

/// The conditions under which the proof of a node still holds after the handshake: it may be revoked, or expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The beginning of the key that signed the certificate.
    pub(crate) authority: [u8; 8],
    pub(crate) epoch: u32,
    pub(crate) valid_until: u64,
}

impl Standing {
    /// The first second, since 1970, at which the certificate counts for nothing.
    pub fn ends_at(&self) -> u64 {
        self.valid_until.saturating_add(CLOCK_SKEW_SECONDS).saturating_add(1)
    }

    /// Whether a certificate of this standing still counts.
    pub(crate) fn check(&self, now_seconds: u64, epoch_min: u32) -> Result<(), Doubt> {
        match self.epoch < epoch_min {
            true => Err(Doubt::Revoked),
            false if now_seconds >= self.ends_at() => Err(Doubt::Expired),
            false => Ok(()),
        }
    }
}

/// Why a certificate proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The cluster's key did not sign it.
    Signature,
    /// Its time is over, by our clock.
    Expired,
    /// Its time has not begun, by our clock.
    Early,
    /// Its epoch is revoked.
    Revoked,
}

impl Certificate {
    /// Signs a node's public key.
    pub(crate) fn sign(
        authority: &SigningKey,
        name: NodeName,
        public: [u8; 32],
        epoch: u32,
        (valid_from, valid_until): (u64, u64),
    ) -> Certificate {
        let signature = [0; SIGNATURE_BYTES];
        let unsigned = Certificate { name, public, epoch, valid_from, valid_until, signature };
        let signature = authority.sign(&unsigned.signed_bytes()).to_bytes();
        Certificate { signature, ..unsigned }
    }

    fn body(&self) -> Vec<u8> {
        let name = self.name.as_str().as_bytes();
        let mut bytes = vec![VERSION, name.len() as u8];
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&self.public);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.valid_from.to_le_bytes());
        bytes.extend_from_slice(&self.valid_until.to_le_bytes());
        bytes
    }

    fn signed_bytes(&self) -> Vec<u8> {
        [PURPOSE, &self.body()].concat()
    }

    /// Its bytes, as greetings and key files carry them.
    pub fn encode(&self) -> Vec<u8> {
        [self.body().as_slice(), &self.signature].concat()
    }

    /// Reads what [`Certificate::encode`] wrote, and nothing longer. It is not checked yet.
    pub fn decode(bytes: &[u8]) -> Option<Certificate> {
        let (&[version, name_bytes], rest) = bytes.split_first_chunk::<2>()?;
        if version != VERSION {
            return None;
        }
        let (name, rest) = rest.split_at_checked(name_bytes.into())?;
        let (public, rest) = rest.split_first_chunk::<32>()?;
        let (epoch, rest) = rest.split_first_chunk::<4>()?;
        let (from, rest) = rest.split_first_chunk::<8>()?;
        let (until, rest) = rest.split_first_chunk::<8>()?;
        Some(Certificate {
            name: NodeName::from_bytes(name)?,
            public: *public,
            epoch: u32::from_le_bytes(*epoch),
            valid_from: u64::from_le_bytes(*from),
            valid_until: u64::from_le_bytes(*until),
            signature: rest.try_into().ok()?,
        })
    }

    /// The conditions under which it holds later, if this cluster's key signed it.
    pub(crate) fn standing(&self, authority: &[u8; 32]) -> Standing {
        let Certificate { epoch, valid_until, .. } = *self;
        Standing { authority: beginning_of(authority), epoch, valid_until }
    }

    /// Whether this cluster's key signed it, and it holds now.
    pub(crate) fn check(
        &self,
        authority: &[u8; 32],
        now_seconds: u64,
        epoch_min: u32,
    ) -> Result<(), Doubt> {
        let key = VerifyingKey::from_bytes(authority).map_err(|_| Doubt::Signature)?;
        let signature = Signature::from_bytes(&self.signature);
        key.verify_strict(&self.signed_bytes(), &signature).map_err(|_| Doubt::Signature)?;
        self.standing(authority).check(now_seconds, epoch_min)?;
        if now_seconds.saturating_add(CLOCK_SKEW_SECONDS) < self.valid_from {
            return Err(Doubt::Early);
        }
        Ok(())
    }
}

/// The beginning of a cluster's public key.
pub(crate) fn beginning_of(authority: &[u8; 32]) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = *authority;
    [a, b, c, d, e, f, g, h]
}
