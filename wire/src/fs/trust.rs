//! The mutual proof of membership in a cluster: by the cluster's secret, which never travels.
//!
//! A caller introduces itself (`Service::Trust`, outside of any session) with a number that it never used before. The
//! server answers with a number of its own. From both numbers, the endpoints of both sides and the secret, either side
//! computes the key of a *channel*. A call in it ends in a [`Seal`], its reply in a tag. An observer of seals and tags
//! can neither make another one nor use one again. `docs/design/071-trust.md` has the reasons, `fs/rpc/src/trust.rs`
//! the computation.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;

/// Bytes of a tag: of HMAC-SHA-256.
pub const TAG_BYTES: usize = 32;
/// Bytes of a seal, at the end of the body of a call.
pub const SEAL_BYTES: usize = 88;

/// The bit of a session's token that says that the session is limited to the rights of one user.
pub const LIMITED: u64 = 1;
/// Bytes of a capability, behind the head of a call.
pub const CAPABILITY_BYTES: usize = 24;
/// The time for which a capability counts after it was given.
pub const CAPABILITY_SECONDS: u32 = 300;
/// The bits of a capability's rights.
const READS: u8 = 1;
const WRITES: u8 = 2;

/// A tag under a key that only members of the cluster can compute.
pub type Tag = [u8; TAG_BYTES];

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// The metadata server.
    Metadata,
    /// A data server.
    Data,
    /// A person's command.
    Administrator,
}

/// The member that proves itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    pub role: Role,
    /// The server's number; 0 for an administrator.
    pub number: u32,
}

/// The first word of a member to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    pub member: Member,
    /// Never used before.
    pub nonce: u128,
    /// Shows that the secret is known, though not when: a wrong secret is noticed on both sides.
    pub tag: Tag,
}

/// The server's answer: it is a member, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// The server's clock: the channel has to begin soon.
    pub time: u64,
    /// The server knows its own numbers by it, and keeps nothing for a member that only introduces itself.
    pub cookie: u128,
    pub tag: Tag,
}

/// The end of a call in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    pub member: Member,
    /// Of the introduction.
    pub nonce: u128,
    /// Of the acceptance.
    pub time: u64,
    pub cookie: u128,
    /// Counts the calls of the channel, from 1.
    pub counter: u64,
    /// Over head and body of the call, and the rest of the seal.
    pub tag: Tag,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SealBytes {
    nonce: [u8; 16],
    cookie: [u8; 16],
    time: U64,
    counter: U64,
    number: U32,
    role: u8,
    reserved: [u8; 3],
    tag: Tag,
}

const _: () = assert!(size_of::<SealBytes>() == SEAL_BYTES);

/// The right of a session to read or write a file's bytes, as the metadata server gave it. Data servers check it alone
/// (`docs/design/127-capabilities.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub reads: bool,
    pub writes: bool,
    /// Seconds since 1970, by the clock of the metadata server.
    pub expires: u32,
    /// Under a key that only members of the cluster can compute.
    pub tag: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CapabilityBytes {
    tag: [u8; 16],
    expires: U32,
    rights: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<CapabilityBytes>() == CAPABILITY_BYTES);

impl Capability {
    /// The rights as one number.
    pub fn rights(&self) -> u8 {
        let bit = |holds: bool, bit: u8| if holds { bit } else { 0 };
        bit(self.reads, READS) | bit(self.writes, WRITES)
    }

    /// Whether it is to all that another one is to.
    pub fn covers(&self, other: &Capability) -> bool {
        other.rights() & !self.rights() == 0
    }

    /// Appends the capability to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bytes = CapabilityBytes {
            tag: self.tag,
            expires: self.expires.into(),
            rights: self.rights(),
            reserved: [0; 3],
        };
        out.extend_from_slice(bytes.as_bytes());
    }

    /// Takes a capability from the front of `bytes`.
    pub fn split(bytes: &[u8]) -> Result<(Capability, &[u8]), Malformed> {
        let (bytes, rest) = CapabilityBytes::ref_from_prefix(bytes).map_err(|_| Malformed)?;
        if bytes.rights > READS | WRITES || bytes.reserved != [0; 3] {
            return Err(Malformed);
        }
        let capability = Capability {
            reads: bytes.rights & READS != 0,
            writes: bytes.rights & WRITES != 0,
            expires: bytes.expires.get(),
            tag: bytes.tag,
        };
        Ok((capability, rest))
    }
}

impl Role {
    /// As seals and tags have it.
    pub fn number(self) -> u8 {
        match self {
            Role::Metadata => 1,
            Role::Data => 2,
            Role::Administrator => 3,
        }
    }
}

impl Seal {
    /// Appends the seal to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bytes = SealBytes {
            nonce: self.nonce.to_le_bytes(),
            cookie: self.cookie.to_le_bytes(),
            time: self.time.into(),
            counter: self.counter.into(),
            number: self.member.number.into(),
            role: self.member.role.number(),
            reserved: [0; 3],
            tag: self.tag,
        };
        out.extend_from_slice(bytes.as_bytes());
    }

    /// Splits the body of a sealed call into the request and the seal.
    pub fn split(body: &[u8]) -> Result<(&[u8], Seal), Malformed> {
        let (bytes, request) = SealBytes::ref_from_suffix(body)
            .map(|(request, bytes)| (bytes, request))
            .map_err(|_| Malformed)?;
        let role = match bytes.role {
            1 => Role::Metadata,
            2 => Role::Data,
            3 => Role::Administrator,
            _ => return Err(Malformed),
        };
        if bytes.reserved != [0; 3] {
            return Err(Malformed);
        }
        let seal = Seal {
            member: Member { role, number: bytes.number.get() },
            nonce: u128::from_le_bytes(bytes.nonce),
            time: bytes.time.get(),
            cookie: u128::from_le_bytes(bytes.cookie),
            counter: bytes.counter.get(),
            tag: bytes.tag,
        };
        Ok((request, seal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_found_at_the_end_of_a_body() {
        let member = Member { role: Role::Data, number: 7 };
        let seal = Seal { member, nonce: 1, time: 2, cookie: 3, counter: 4, tag: [5; 32] };
        let mut body = b"request".to_vec();
        seal.encode(&mut body);
        assert_eq!(body.len(), 7 + SEAL_BYTES);
        assert_eq!(Seal::split(&body), Ok((&b"request"[..], seal)));
        assert_eq!(Seal::split(&body[8..]), Err(Malformed));
        body[7 + 52] = 9;
        assert_eq!(Seal::split(&body), Err(Malformed));
    }
}
