//! Valid messages of any type, made out of its own description. They have today's layout. Kept inputs may have an
//! older one, which decoders refuse at their first bytes.
//!
//! Invariant: the random numbers alone determine the messages.

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::random::Random;
use ropewalk_wire::fs::data::{DataReply, DataRequest, DataResult};
use ropewalk_wire::fs::election::{Answer, Ballot};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::handover;
use ropewalk_wire::fs::head::{CallHead, ReplyHead, Service, Status};
use ropewalk_wire::fs::meta::{Callback, MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::session::{SessionRequest, SessionResult};
use ropewalk_wire::fs::standby::{StandbyRequest, StandbyResult};
use ropewalk_wire::fs::trust::{Capability, SEAL_BYTES};
use serde::de::value::U32Deserializer;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};

/// Messages that are made for each target before each run.
const MESSAGES: usize = 256;
/// Most elements of a list, and most bytes of a name.
const ELEMENTS_MAX: u64 = 3;
const NAME: &[u8] = b"name\0of\x1b\xffsomething";

type Make = fn(&mut Random) -> Vec<u8>;

/// The generator of valid inputs for each target.
const MAKERS: &[(&str, Make)] = &[
    ("call_head", call_head),
    ("reply_head", reply_head),
    ("meta_request", message::<MetaRequest<'_>>),
    ("meta_reply", message::<MetaReply<'_>>),
    ("meta_result", message::<MetaResult<'_>>),
    ("data_request", message::<DataRequest<'_>>),
    ("data_reply", message::<DataReply<'_>>),
    ("data_result", message::<DataResult<'_>>),
    ("callback", message::<Callback>),
    ("session_request", message::<SessionRequest<'_>>),
    ("session_result", message::<SessionResult>),
    ("election_ballot", message::<Ballot>),
    ("election_answer", message::<Answer>),
    ("standby_request", message::<StandbyRequest>),
    ("standby_result", message::<StandbyResult<'_>>),
    ("handover_frame", handover_frame),
    ("handover_state", message::<handover::State>),
    ("descriptor", descriptor),
    ("window_message", window_message),
];

/// Valid inputs for a target; none if nothing is made for it.
pub fn inputs(target: &str, seed: u64) -> Vec<Vec<u8>> {
    // Of these there are a few good ones.
    match target {
        "key_handshake" => return ropewalk_auth::attack::handshakes(),
        "sealed_records" => return ropewalk_seal::attack::streams(),
        "key_file" => return ropewalk_auth::attack::key_files(),
        _ => {}
    }
    let Some((_, make)) = MAKERS.iter().find(|(name, _)| *name == target) else {
        return Vec::new();
    };
    let mut random = Random::from_seed(seed);
    (0..MESSAGES).map(|_| make(&mut random)).collect()
}

fn message<'a, T: Deserialize<'a> + Serialize>(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A type may refuse values that do not go together.
    while bytes.is_empty() {
        if let Ok(value) = T::deserialize(&mut Maker { random }) {
            encode(&value, &mut bytes);
        }
    }
    bytes
}

fn handover_frame(random: &mut Random) -> Vec<u8> {
    use handover::Kind;
    let words = [Kind::Hello, Kind::Go, Kind::Ready, Kind::Yours, Kind::Serving];
    let facts = message::<handover::Facts>(random);
    let (kind, body) = match random.below(4) {
        0 => (words[random.below(words.len() as u64) as usize], Vec::new()),
        1 => (Kind::Refused, [&[name(random).len() as u8][..], name(random)].concat()),
        _ => (Kind::Facts, facts),
    };
    let head = handover::FrameHead::of(kind, &body).encode();
    [&head.expect("it is short")[..], &body].concat()
}

/// A datatype with loops in loops, and neighbours with gaps.
fn descriptor(random: &mut Random) -> Vec<u8> {
    let mut shape = Descriptor::contiguous(1 + random.below(9)).expect("it is short");
    for _ in 0..random.below(5) {
        let (count, stride) = (1 + random.below(5), random.below(200) as i64 - 60);
        shape = shape.repeated(count, stride).expect("it is near");
        let by = random.below(1000) as i64 - 200;
        shape = Descriptor::joined(&[(0, &shape), (by, &shape)]).expect("it is near");
        shape = shape.resized(random.below(2000) as i64 - 500).expect("it is near");
    }
    shape.encode()
}

/// Items of windows: a type, operations with it, and tokens.
fn window_message(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(4) {
        let kind = [1, 2, 3, 4, 6, 7, 8, 9, 10, 13, 20, 21, 30][random.below(13) as usize];
        bytes.extend([kind, 1, 0, 0, 0]);
        match kind {
            1 => {
                let shape = descriptor(random);
                bytes.push(random.below(16) as u8);
                bytes.extend((shape.len() as u32).to_le_bytes());
                bytes.extend(shape);
            }
            2..=4 => {
                let flags = random.below(8) as u8;
                // A sum of numbers of 64 bits.
                bytes.extend([8, 1, 0].into_iter().filter(|_| kind == 4));
                bytes.push(flags);
                bytes.extend((0..16).map(|at| u8::from(at % 8 == 0)));
                bytes.extend((flags & 1 > 0).then_some(3));
                bytes.extend(vec![0; 16 * usize::from(flags >> 1 & 1)]);
                bytes.extend(vec![0; 16 * usize::from(flags >> 2)]);
                match kind {
                    3 => bytes.extend([7, 0, 0, 0, 0, 0, 0, 0, 0]),
                    _ => bytes.extend([1, 1, 0, 0, 0, 9]),
                }
            }
            6 => bytes.push(random.below(4) as u8),
            7 | 8 | 20 => bytes.extend([5; 8]),
            13 => bytes.extend([0; 4]),
            30 => bytes.push(30),
            _ => {}
        }
    }
    bytes
}

fn call_head(random: &mut Random) -> Vec<u8> {
    let services = [
        Service::Meta,
        Service::Data,
        Service::Session,
        Service::Callback,
        Service::Trust,
        Service::Election,
        Service::Standby,
    ];
    let service = services[random.below(services.len() as u64) as usize];
    let head = CallHead {
        retry: random.chance(500_000),
        sealed: random.chance(500_000),
        session: number(random),
        slot: random.below(64) as u16,
        sequence: number(random),
        reply_bits: number(random),
        epoch: number(random) as u32,
        token: number(random),
        capability: random.chance(500_000).then(|| Capability {
            reads: random.chance(500_000),
            writes: random.chance(500_000),
            expires: number(random) as u32,
            tag: u128::from(number(random)).to_le_bytes(),
        }),
        term: number(random),
        map: number(random) as u32,
        newest: 10 + random.below(9) as u16,
        ..CallHead::free(service)
    };
    let mut bytes = Vec::new();
    head.encode(&mut bytes);
    bytes.extend_from_slice(name(random));
    bytes.extend_from_slice(if head.sealed { &[7; SEAL_BYTES] } else { &[] });
    bytes
}

fn reply_head(random: &mut Random) -> Vec<u8> {
    let statuses = [
        Status::Done,
        Status::NoSession,
        Status::Fenced,
        Status::BadSequence,
        Status::Malformed,
        Status::Unavailable,
        Status::Unproven,
        Status::Starting,
        Status::OtherMap,
        Status::OlderTerm,
    ];
    let head = ReplyHead {
        status: statuses[random.below(statuses.len() as u64) as usize],
        sealed: random.chance(500_000),
        slot: random.below(64) as u16,
        sequence: number(random),
        boot: number(random),
        era: number(random),
        written: number(random),
        durable: number(random),
        map: number(random) as u32,
        newest: 10 + random.below(9) as u16,
    };
    let mut bytes = Vec::new();
    head.encode(&mut bytes);
    bytes.extend_from_slice(name(random));
    bytes.extend_from_slice(if head.sealed { &[7; SEAL_BYTES] } else { &[] });
    bytes
}

/// Small ones are as likely as those that fill many bytes.
fn number(random: &mut Random) -> u64 {
    let bits = random.below(65) as u32;
    random.next_u64().checked_shr(64 - bits).unwrap_or(0)
}

fn name(random: &mut Random) -> &'static [u8] {
    &NAME[..random.below(NAME.len() as u64 + 1) as usize]
}

/// Answers whatever a type asks for.
struct Maker<'r> {
    random: &'r mut Random,
}

type Refused = serde::de::value::Error;

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ty),*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
            visitor.$visit(number(self.random) as $type)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Maker<'_> {
    type Error = Refused;

    /// Nothing on the wire is text: addresses have their bytes.
    fn is_human_readable(&self) -> bool {
        false
    }

    numbers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let (high, low) = (number(self.random), number(self.random));
        visitor.visit_u128(u128::from(high) << 64 | u128::from(low))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_bool(self.random.chance(500_000))
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_borrowed_bytes(name(self.random))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_string(String::from_utf8_lossy(name(self.random)).into_owned())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.random.chance(300_000) {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let left = self.random.below(ELEMENTS_MAX + 1) as usize;
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Elements { maker: self, left: fields.len() })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let choice = self.random.below(variants.len() as u64) as u32;
        visitor.visit_enum(Variant { maker: self, choice })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Refused> {
        panic!("no message has such a field")
    }

    forward_to_deserialize_any! {
        i128 f32 f64 char str byte_buf unit_struct map identifier ignored_any
    }
}

struct Elements<'m, 'r> {
    maker: &'m mut Maker<'r>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Refused;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Refused> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.maker).map(Some)
    }
}

struct Variant<'m, 'r> {
    maker: &'m mut Maker<'r>,
    choice: u32,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Refused> {
        let choice: U32Deserializer<Refused> =
            serde::de::IntoDeserializer::into_deserializer(self.choice);
        Ok((seed.deserialize(choice)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Refused> {
        seed.deserialize(self.maker)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_seq(Elements { maker: self.maker, left })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_seq(Elements { maker: self.maker, left: fields.len() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ropewalk_wire::fs::decode;

    use super::*;
    use crate::corpus;

    type Accepts = fn(&[u8]) -> bool;

    const DECODERS: &[(&str, Accepts)] = &[
        ("call_head", |bytes| CallHead::decode(bytes).is_ok()),
        ("reply_head", |bytes| ReplyHead::decode(bytes).is_ok()),
        ("meta_request", |bytes| decode::<MetaRequest<'_>>(bytes).is_ok()),
        ("meta_reply", |bytes| decode::<MetaReply<'_>>(bytes).is_ok()),
        ("meta_result", |bytes| decode::<MetaResult<'_>>(bytes).is_ok()),
        ("data_request", |bytes| decode::<DataRequest<'_>>(bytes).is_ok()),
        ("data_reply", |bytes| decode::<DataReply<'_>>(bytes).is_ok()),
        ("data_result", |bytes| decode::<DataResult<'_>>(bytes).is_ok()),
        ("callback", |bytes| decode::<Callback>(bytes).is_ok()),
        ("session_request", |bytes| decode::<SessionRequest<'_>>(bytes).is_ok()),
        ("session_result", |bytes| decode::<SessionResult>(bytes).is_ok()),
        ("election_ballot", |bytes| decode::<Ballot>(bytes).is_ok()),
        ("election_answer", |bytes| decode::<Answer>(bytes).is_ok()),
        ("standby_request", |bytes| decode::<StandbyRequest>(bytes).is_ok()),
        ("standby_result", |bytes| decode::<StandbyResult<'_>>(bytes).is_ok()),
        ("handover_frame", |bytes| {
            let head = bytes.first_chunk().map(handover::FrameHead::decode);
            head.is_some_and(|head| head.is_ok_and(|head| head.is_of(&bytes[16..])))
        }),
        ("handover_state", |bytes| decode::<handover::State>(bytes).is_ok()),
        ("descriptor", |bytes| Descriptor::decode(bytes).is_ok()),
        ("window_message", ropewalk_rma::attack::message),
    ];

    #[test]
    fn what_is_made_is_accepted_and_of_every_kind() {
        assert_eq!(DECODERS.len(), MAKERS.len());
        for (name, accepts) in DECODERS {
            let made = inputs(name, 1);
            assert!(made.iter().all(|input| accepts(input)), "{name}");
            assert!(made.iter().collect::<BTreeSet<_>>().len() > 30, "{name}: always the same");
        }
        // The first byte names the kind.
        let all_kinds = [
            ("meta_request", 43),
            ("meta_reply", 22),
            ("data_request", 9),
            ("election_ballot", 4),
            ("standby_request", 7),
        ];
        for (name, kinds) in all_kinds {
            let firsts: BTreeSet<u8> = inputs(name, 1).iter().map(|input| input[0]).collect();
            assert!(firsts.len() >= kinds, "{name}: {} kinds", firsts.len());
        }
    }

    /// A kept input of an older layout is refused at once, and tests nothing.
    #[test]
    fn kept_inputs_reach_behind_the_decoders() {
        for (name, accepts) in DECODERS {
            let kept = corpus::read(name).expect("it has a corpus");
            let accepted = kept.iter().filter(|input| accepts(input)).count();
            // Inputs found by a coverage-guided search are mostly refused late.
            assert!(accepted * 8 >= kept.len(), "{name}: {accepted} of {}", kept.len());
        }
    }

    /// The same message, encoded by this program.
    macro_rules! again {
        ($type:ty) => {
            |bytes| {
                let value: $type = decode(bytes).ok()?;
                let mut again = Vec::new();
                ropewalk_wire::fs::encode(&value, &mut again);
                Some(again)
            }
        };
    }

    type Again = fn(&[u8]) -> Option<Vec<u8>>;

    const MESSAGES: &[(&str, Again)] = &[
        ("meta_request", again!(MetaRequest<'_>)),
        ("meta_result", again!(MetaResult<'_>)),
        ("data_request", again!(DataRequest<'_>)),
        ("data_result", again!(DataResult<'_>)),
        ("callback", again!(Callback)),
        ("session_request", again!(SessionRequest<'_>)),
        ("session_result", again!(SessionResult)),
        ("election_ballot", again!(Ballot)),
        ("election_answer", again!(Answer)),
        ("standby_request", again!(StandbyRequest)),
        ("standby_result", again!(StandbyResult<'_>)),
    ];

    /// Versions only add (docs/design/128-upgrade.md): what version 10 sent means the same, and is sent in the same form.
    #[test]
    fn what_version_10_sent_is_understood_and_has_the_same_form() {
        let place = tempfile::tempdir().unwrap();
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../images/wire-10.tar.gz");
        let unpacked = std::process::Command::new("tar")
            .args(["-xzf", image, "-C"])
            .arg(place.path())
            .status()
            .expect("tar runs");
        assert!(unpacked.success());
        let inputs = |name: &str| -> Vec<Vec<u8>> {
            let folder = std::fs::read_dir(place.path().join(name)).expect(name);
            folder.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
        };
        for (name, again) in MESSAGES {
            let sent = inputs(name);
            assert_eq!(sent.len(), 64, "{name}");
            assert!(sent.iter().all(|bytes| again(bytes).as_ref() == Some(bytes)), "{name}");
        }
        for bytes in inputs("call_head") {
            let (head, _) = CallHead::decode(&bytes).expect("a call of version 10");
            assert_eq!(head.newest, 10);
        }
        for bytes in inputs("reply_head") {
            let (head, _) = ReplyHead::decode(&bytes).expect("a reply of version 10");
            assert_eq!(head.newest, 10);
        }
    }
}
