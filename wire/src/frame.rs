//! Frames between two endpoints of ours: a header of 32 to 104 bytes, then a payload.
//!
//! All numbers are little endian. Every header but one begins with the same 40 bytes ([`Prefix`]); the rest depends on
//! the kind. The exception is [`ShortHeader`]: a small message over a medium that flips no bits and loses nothing, so
//! short that message and header fit a cache line. docs/spec/frames.md has the bytes of this version and of the one before.
//!
//! Invariants: the header's length is fixed by its kind; the header checksum covers the whole header
//! with the checksum field as zero; nothing here allocates.

use std::ops::RangeInclusive;
use std::time::Duration;

use ropewalk_base::checksum;
use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Header, RemoteKey};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything in this file.
pub const VERSION: u16 = 3;
/// Longest payload of a `Hello`, in bytes: addresses and authentication.
pub const HELLO_PAYLOAD_BYTES_MAX: u32 = 4096;

/// Longest payload of a `Prove`, in bytes: no packet of an Ethernet is longer.
pub const PROVE_BYTES_MAX: u32 = 16 << 10;

/// Most runs of spans in an acknowledgement.
pub const ACK_RUNS_MAX: usize = 12;

/// Flag: the payload's checksum is filled in.
pub const FLAG_PAYLOAD_CHECKSUM: u16 = 1;
/// Flag of `Hello`: the sender knows of no other link to this peer; an older one is dead.
pub const FLAG_INSIST: u16 = 2;
/// Flag of `Hello`: the answer of the accepting side.
pub const FLAG_ANSWER: u16 = 4;
/// Flag of `Hello`: this link is to take the place of one that is being set up (same host).
pub const FLAG_UPGRADE: u16 = 8;
/// Flag of `Hello`: this link is to be one more path of the session that the prefix names.
pub const FLAG_JOIN: u16 = 16;
/// Flag of a span: it goes over another path of its session at the same time, and this copy may come in vain.
pub const FLAG_REDUNDANT: u16 = 32;
/// In a greeting's mode: a session goes on after it has lost its link.
pub const MODE_RESUME: u8 = 1;
/// In a greeting's mode: a session that begins over this link may have several paths.
pub const MODE_PATHS: u8 = 2;

/// Bytes of a key share, and of a proof.
pub const SHARE_BYTES: usize = 16;
pub const PROOF_BYTES: usize = 32;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } $bytes:literal)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

layouts! {
    /// The beginning of every header.
    Prefix {
        kind: u8,
        header_bytes: u8,
        flags: U16,
        payload_bytes: U32,
        header_checksum: U32,
        payload_checksum: U32,
        /// Tag of the session, agreed in `Hello`; 0 in `Hello` itself.
        session: U32,
        /// How often the span was sent, this time included; it stays at its highest value. 0 for what is no span.
        attempt: U16,
        version: U16,
        /// Number of the frame on its link, the lower half of it.
        packet: U32,
        /// Of a span: all spans of the other direction are placed up to the one with this lower half of a number.
        acknowledged: U32,
        /// Number of the span in its session and direction; 0 for frames that are never re-sent.
        span: U64,
    } 40
    /// The whole header of a small message where neither checksums nor spans are needed.
    ShortHeader {
        kind: u8,
        header_bytes: u8,
        flags: U16,
        payload_bytes: U32,
        session: U32,
        channel: u8,
        /// The acknowledgement that the sender waits for.
        acknowledge: u8,
        reserved: U16,
        bits: U64,
        message: U64,
    } 32
    /// First frame of a link, both ways.
    HelloBody {
        endpoint: [u8; 16],
        cluster: [u8; 16],
        incarnation: U64,
        /// Identifies host and network namespace; 0 where unknown. A hint, proven by the rail.
        host: U64,
        /// Random; both sides' together make the session tag.
        nonce: U32,
        /// `MODE_RESUME`, `MODE_PATHS`.
        mode: u8,
        /// Of an answer: 0 accepted, else why not (`Refusal`).
        refusal: u8,
        /// Bytes of the payload that are addresses; the rest is authentication.
        address_bytes: U16,
        /// KiB of tagged and untagged messages that may come before the first `Credit`.
        eager_credit: U16,
        /// The same for requests.
        request_credit: U16,
        /// Announces that may come before the first `Credit`.
        rts_credit: U16,
        /// KiB of the longest message that may come without being announced; 0: 64.
        eager_max: U16,
    } 64
    /// A message that comes without being announced, or its first fragment.
    EagerBody {
        bits: U64,
        message: U64,
        channel: u8,
        /// The acknowledgement that the sender waits for (`Acknowledge`).
        acknowledge: u8,
        reserved: [u8; 2],
        /// Bytes of the message that follow in `Fragment` frames.
        more_bytes: U32,
    } 24
    /// Further bytes of a message whose first fragment came before.
    FragmentBody {
        message: U64,
        /// From the beginning of the message: fragments follow each other without a gap.
        offset: U64,
        channel: u8,
        reserved: [u8; 7],
    } 24
    /// A large message: the receiver gets it when it knows where it belongs.
    RtsBody {
        bits: U64,
        message: U64,
        channel: u8,
        /// 1: the sender has no session with anybody else, and would gladly send the bytes itself.
        alone: u8,
        reserved: [u8; 6],
        total_bytes: U64,
        key_slot: U64,
        key_secret: U64,
    } 48
    /// Asks for a part of a region; `Data` frames with the cookie come back, or a `Result`.
    GetBody {
        key_slot: U64,
        key_secret: U64,
        offset: U64,
        len: U64,
        cookie: U64,
        /// Added to the offsets of the `Data` frames: the place of this part at the asker.
        into_offset: U64,
    } 48
    /// Bytes that were asked for.
    DataBody {
        cookie: U64,
        /// From the beginning of the asker's buffer.
        offset: U64,
    } 16
    /// Bytes for a region. The frame can be placed on its own.
    PutBody {
        key_slot: U64,
        key_secret: U64,
        offset: U64,
        cookie: U64,
        /// Bytes of the whole operation; when all arrived, a `Result` goes back.
        total_bytes: U64,
    } 40
    /// The end of a get that was refused, or of a put.
    ResultBody {
        cookie: U64,
        status: u8,
        reserved: [u8; 7],
    } 16
    /// The end of a message whose sender waits: announced, or with an acknowledgement asked for.
    FinBody {
        message: U64,
        channel: u8,
        status: u8,
        reserved: [u8; 6],
        /// Bytes that the receiver took.
        bytes: U64,
    } 24
    /// The sender gives up a message that it announced, or that it has not sent to its end.
    AbortBody {
        message: U64,
        channel: u8,
        reserved: [u8; 7],
    } 16
    /// Limits for the receiver of this frame, counted from the session's beginning.
    CreditBody {
        eager_limit: U64,
        request_limit: U64,
        rts_limit: U64,
        /// 1: no more eager messages before some are received; the rest is to be announced.
        eager_ends: u8,
        /// 1: messages of more than 32 KiB are to be announced: nobody waited for such.
        rts_long: u8,
        reserved: [u8; 6],
    } 32
    /// Spans that are placed: all up to `cumulative`, and runs above it, the lowest first ([`AckBody::ranges`]).
    AckBody {
        cumulative: U64,
        /// The time that the oldest news in this acknowledgement waited, in microseconds.
        delay: U32,
        /// Runs that are filled in.
        count: u8,
        reserved: [u8; 3],
        runs: [AckRun; ACK_RUNS_MAX],
    } 64
    /// A run of spans that are placed.
    AckRun {
        /// Spans between the run before, or `cumulative`, and this one: at least 1.
        missing: U16,
        /// Spans of this run: at least 1.
        placed: U16,
    } 4
    /// The sender takes further paths: its share of the session's key.
    KeyBody {
        share: [u8; SHARE_BYTES],
        /// 1: the sender knows an address of the receiver, and could add paths.
        calls: u8,
        reserved: [u8; 7],
    } 24
    /// After a greeting with `FLAG_JOIN`: of the accepting side, with its answer; of the connecting side, in place of
    /// `Confirm`. The link becomes a path, or carries the session on; then path and counter are 0.
    JoinBody {
        /// The path's number. Its lowest bit is 0 where the side with the lower endpoint id added the path.
        path: U32,
        /// The number of the attempt: grows with each of that side.
        counter: U32,
        /// The sender's rail of this link.
        rail: u8,
        reserved: u8,
        /// Of the connecting side: the source port that its user chose, or 0. A link with one may join beside another one of
        /// the same pair of rails.
        entropy: U16,
        reserved_too: [u8; 4],
        /// Under the session's key, over the session, both greetings' nonces, and what comes before.
        proof: [u8; PROOF_BYTES],
    } 48
    /// Is there anybody? Goes back over the link that it came on.
    ProbeBody {
        /// 1: it is the answer.
        is_answer: u8,
        reserved: [u8; 7],
    } 8
    /// The sender's rail sees that a path of this session is broken. Goes over the other paths, if there are any.
    SuspectBody {
        /// The path's number.
        path: U32,
        /// The cause (`Suspicion::to_wire` of base); receivers take unknown ones for some cause.
        cause: u8,
        reserved: [u8; 3],
        /// The number of a span that came over the path and was spoiled, or 0. It goes again.
        span: U64,
    } 16
    /// Load a path as the alternate. Goes over that path and over the primary one, and is lost with them.
    LoadBody {
        /// The arming's number: grows with each of the side that began it.
        arming: U32,
        path: U32,
        /// The sender's newest migration, as in `Migrate`.
        counter: U32,
        primary: U32,
        alternate: U32,
        /// 1: the side with the higher endpoint id began the arming; the same of the migration.
        arming_by: u8,
        decided_by: u8,
        /// `PATHS_MIGRATED`, `PATHS_ALTERNATE`.
        flags: u8,
        reserved: u8,
    } 24
    /// The answer to `Load`, over the path that it took.
    LoadAnswerBody {
        arming: U32,
        arming_by: u8,
        /// 0: the path is loaded, else the number of the rule that refuses.
        refused: u8,
        reserved: U16,
    } 8
    /// The sender moved to another primary path. A span.
    MigrateBody {
        /// The larger one counts; of equal ones that of the lower endpoint id.
        counter: U32,
        primary: U32,
        alternate: U32,
        decided_by: u8,
        /// `PATHS_ALTERNATE`.
        flags: u8,
        reserved: U16,
    } 16
    /// An arming is over, or the sender's operator drains a path or brings it up again, or both. A span.
    WithdrawBody {
        arming: U32,
        path: U32,
        arming_by: u8,
        /// `PATHS_ARMING`; `PATHS_DRAINED` or `PATHS_RAISED`.
        flags: u8,
        /// Counts the sender's orders about the path; it wraps.
        order: U16,
    } 12
    /// A probe of an arming. Its answer goes back over the link that it came on, with a payload as long.
    ProveBody {
        arming: U32,
        arming_by: u8,
        /// Which one of the arming's probes it is.
        number: u8,
        /// 1: it is the answer; 2: all probes of the round were answered.
        is_answer: u8,
        /// The round of probes.
        round: u8,
    } 8
}

/// Flags of `Load`, `Migrate` and `Withdraw`: what is filled in.
pub const PATHS_MIGRATED: u8 = 1;
pub const PATHS_ALTERNATE: u8 = 2;
pub const PATHS_ARMING: u8 = 4;
pub const PATHS_DRAINED: u8 = 8;
pub const PATHS_RAISED: u8 = 16;
pub const PATHS_REPLACES: u8 = 32;

/// Kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Confirm = 2,
    Eager = 3,
    Rts = 4,
    Get = 5,
    Data = 6,
    Put = 7,
    Result = 8,
    Fin = 9,
    Abort = 10,
    Credit = 11,
    Ack = 12,
    Goodbye = 13,
    Short = 14,
    CloseIdle = 15,
    KeepOpen = 16,
    Fragment = 17,
    Key = 18,
    Join = 19,
    Probe = 20,
    Load = 21,
    LoadAnswer = 22,
    Migrate = 23,
    Withdraw = 24,
    Prove = 25,
    Suspect = 26,
}

/// A decoded header: its content after the prefix.
#[derive(Debug, Clone, Copy)]
pub enum Body {
    Hello(HelloBody),
    /// The connecting side has chosen this link: the session begins.
    Confirm,
    Eager(EagerBody),
    Fragment(FragmentBody),
    Rts(RtsBody),
    Get(GetBody),
    Data(DataBody),
    Put(PutBody),
    Result(ResultBody),
    Fin(FinBody),
    Abort(AbortBody),
    Credit(CreditBody),
    Ack(AckBody),
    Key(KeyBody),
    Join(JoinBody),
    Probe(ProbeBody),
    Suspect(SuspectBody),
    Load(LoadBody),
    LoadAnswer(LoadAnswerBody),
    Migrate(MigrateBody),
    Withdraw(WithdrawBody),
    Prove(ProveBody),
    /// The endpoint closes: nothing more will come.
    Goodbye,
    /// The session rests: its sender sends nothing more over this link. Answered by the same, or by `Stay`.
    CloseIdle,
    /// No: the receiver of a `Park` needs the link. Its sender goes on as before.
    KeepOpen,
}

/// Why an accepting side refuses a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    None = 0,
    /// A link of ours to you survives: wait for it.
    Duplicate = 1,
    /// Another cluster.
    Cluster = 2,
    /// Too many peers.
    Full = 3,
    /// Another version.
    Version = 4,
}

impl Refusal {
    /// From its number; unknown ones refuse like `Full`.
    pub fn from_u8(value: u8) -> Refusal {
        match value {
            0 => Refusal::None,
            1 => Refusal::Duplicate,
            2 => Refusal::Cluster,
            4 => Refusal::Version,
            _ => Refusal::Full,
        }
    }
}

/// A header that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the header is too short, too long or of an unknown kind")]
    Shape,
    #[error("the header's checksum does not hold")]
    Checksum,
    #[error("the frame has version {0}, this program speaks {VERSION}")]
    Version(u16),
}

/// A body of a kind that is known when the program is built: its header is written straight down.
pub trait Content: IntoBytes + Immutable + Copy + Into<Body> {
    /// Of frames with this body.
    const KIND: Kind;
}

macro_rules! contents {
    ($($kind:ident: $name:ident,)*) => {
        /// A body as it arrived, where it lies.
        #[derive(Debug, Clone, Copy)]
        pub enum Arrived<'a> {
            Confirm,
            Goodbye,
            CloseIdle,
            KeepOpen,
            $($kind(&'a $name),)*
        }

        impl From<Arrived<'_>> for Body {
            fn from(arrived: Arrived<'_>) -> Body {
                match arrived {
                    Arrived::Confirm => Body::Confirm,
                    Arrived::Goodbye => Body::Goodbye,
                    Arrived::CloseIdle => Body::CloseIdle,
                    Arrived::KeepOpen => Body::KeepOpen,
                    $(Arrived::$kind(body) => Body::$kind(*body),)*
                }
            }
        }

        $(
            impl Content for $name {
                const KIND: Kind = Kind::$kind;
            }
            impl From<$name> for Body {
                fn from(body: $name) -> Body {
                    Body::$kind(body)
                }
            }
        )*
    };
}

contents! {
    Hello: HelloBody,
    Eager: EagerBody,
    Fragment: FragmentBody,
    Rts: RtsBody,
    Get: GetBody,
    Data: DataBody,
    Put: PutBody,
    Result: ResultBody,
    Fin: FinBody,
    Abort: AbortBody,
    Credit: CreditBody,
    Ack: AckBody,
    Key: KeyBody,
    Join: JoinBody,
    Probe: ProbeBody,
    Suspect: SuspectBody,
    Load: LoadBody,
    LoadAnswer: LoadAnswerBody,
    Migrate: MigrateBody,
    Withdraw: WithdrawBody,
    Prove: ProveBody,
}

fn kind_of(body: &Body) -> Kind {
    match body {
        Body::Hello(_) => Kind::Hello,
        Body::Confirm => Kind::Confirm,
        Body::Eager(_) => Kind::Eager,
        Body::Fragment(_) => Kind::Fragment,
        Body::Rts(_) => Kind::Rts,
        Body::Get(_) => Kind::Get,
        Body::Data(_) => Kind::Data,
        Body::Put(_) => Kind::Put,
        Body::Result(_) => Kind::Result,
        Body::Fin(_) => Kind::Fin,
        Body::Abort(_) => Kind::Abort,
        Body::Credit(_) => Kind::Credit,
        Body::Ack(_) => Kind::Ack,
        Body::Key(_) => Kind::Key,
        Body::Join(_) => Kind::Join,
        Body::Probe(_) => Kind::Probe,
        Body::Suspect(_) => Kind::Suspect,
        Body::Load(_) => Kind::Load,
        Body::LoadAnswer(_) => Kind::LoadAnswer,
        Body::Migrate(_) => Kind::Migrate,
        Body::Withdraw(_) => Kind::Withdraw,
        Body::Prove(_) => Kind::Prove,
        Body::Goodbye => Kind::Goodbye,
        Body::CloseIdle => Kind::CloseIdle,
        Body::KeepOpen => Kind::KeepOpen,
    }
}

fn body_bytes(body: &Body) -> &[u8] {
    match body {
        Body::Hello(body) => body.as_bytes(),
        Body::Confirm | Body::Goodbye | Body::CloseIdle | Body::KeepOpen => &[],
        Body::Eager(body) => body.as_bytes(),
        Body::Fragment(body) => body.as_bytes(),
        Body::Rts(body) => body.as_bytes(),
        Body::Get(body) => body.as_bytes(),
        Body::Data(body) => body.as_bytes(),
        Body::Put(body) => body.as_bytes(),
        Body::Result(body) => body.as_bytes(),
        Body::Fin(body) => body.as_bytes(),
        Body::Abort(body) => body.as_bytes(),
        Body::Credit(body) => body.as_bytes(),
        Body::Ack(body) => body.as_bytes(),
        Body::Key(body) => body.as_bytes(),
        Body::Join(body) => body.as_bytes(),
        Body::Probe(body) => body.as_bytes(),
        Body::Suspect(body) => body.as_bytes(),
        Body::Load(body) => body.as_bytes(),
        Body::LoadAnswer(body) => body.as_bytes(),
        Body::Migrate(body) => body.as_bytes(),
        Body::Withdraw(body) => body.as_bytes(),
        Body::Prove(body) => body.as_bytes(),
    }
}

/// The fields of the prefix that the sender of a frame fills in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Envelope {
    pub flags: u16,
    pub payload_bytes: u32,
    pub session: u32,
    pub attempt: u16,
    pub packet: u32,
    pub acknowledged: u32,
    pub span: u64,
}

/// Encodes a header. Checksums are added by [`seal`], where the medium needs them.
pub fn encode(envelope: Envelope, body: &Body) -> Header {
    let mut header = Header::EMPTY;
    encode_into(&mut header, envelope, body);
    header
}

/// The same, written where the header lies.
pub fn encode_into(header: &mut Header, envelope: Envelope, body: &Body) {
    write(header, envelope, kind_of(body), body_bytes(body));
}

/// The same for a body of a known kind, written where the header lies.
#[inline]
pub fn encode_content<B: Content>(header: &mut Header, envelope: Envelope, body: &B) {
    write(header, envelope, B::KIND, body.as_bytes());
}

#[inline(always)]
fn write(header: &mut Header, envelope: Envelope, kind: Kind, tail: &[u8]) {
    let prefix = Prefix {
        kind: kind as u8,
        header_bytes: (size_of::<Prefix>() + tail.len()) as u8,
        flags: envelope.flags.into(),
        payload_bytes: envelope.payload_bytes.into(),
        header_checksum: 0.into(),
        payload_checksum: 0.into(),
        session: envelope.session.into(),
        attempt: envelope.attempt.into(),
        version: VERSION.into(),
        packet: envelope.packet.into(),
        acknowledged: envelope.acknowledged.into(),
        span: envelope.span.into(),
    };
    header.write(prefix.as_bytes(), tail);
}

/// Writes a small message's header in its short form. There is no room for a checksum in it, and none
/// for the number of a span.
#[inline]
pub fn encode_short(header: &mut Header, session: u32, payload_bytes: u32, body: &EagerBody) {
    let short = ShortHeader {
        kind: Kind::Short as u8,
        header_bytes: size_of::<ShortHeader>() as u8,
        flags: 0.into(),
        payload_bytes: payload_bytes.into(),
        session: session.into(),
        channel: body.channel,
        acknowledge: body.acknowledge,
        reserved: 0.into(),
        bits: body.bits,
        message: body.message,
    };
    header.write(short.as_bytes(), &[]);
}

/// A header in short form; `None` for all others.
#[inline]
pub fn decode_short(header: &[u8]) -> Option<&ShortHeader> {
    let short = ShortHeader::ref_from_bytes(header).ok()?;
    let shape = short.kind == Kind::Short as u8 && usize::from(short.header_bytes) == header.len();
    (shape && short.flags.get() == 0 && short.reserved.get() == 0).then_some(short)
}

impl EagerBody {
    /// Of a message that comes whole.
    #[inline]
    pub fn whole(bits: u64, message: u64, channel: u8, acknowledge: u8) -> EagerBody {
        EagerBody {
            bits: bits.into(),
            message: message.into(),
            channel,
            acknowledge,
            reserved: [0; 2],
            more_bytes: 0.into(),
        }
    }
}

impl ShortHeader {
    /// Of a message on the first channel whose arrival nobody waits for.
    pub fn of(session: u32, payload_bytes: u32, bits: u64, message: u64) -> ShortHeader {
        ShortHeader {
            kind: Kind::Short as u8,
            header_bytes: size_of::<ShortHeader>() as u8,
            flags: 0.into(),
            payload_bytes: payload_bytes.into(),
            session: session.into(),
            channel: 0,
            acknowledge: 0,
            reserved: 0.into(),
            bits: bits.into(),
            message: message.into(),
        }
    }

    /// The same in the form that the other headers have.
    pub fn expand(&self) -> (Prefix, EagerBody) {
        let prefix = Prefix {
            kind: Kind::Eager as u8,
            header_bytes: self.header_bytes,
            flags: 0.into(),
            payload_bytes: self.payload_bytes,
            header_checksum: 0.into(),
            payload_checksum: 0.into(),
            session: self.session,
            attempt: 0.into(),
            version: VERSION.into(),
            packet: 0.into(),
            acknowledged: 0.into(),
            span: 0.into(),
        };
        let (bits, message) = (self.bits.get(), self.message.get());
        let body = EagerBody::whole(bits, message, self.channel, self.acknowledge);
        (prefix, body)
    }
}

impl AckBody {
    /// Of all spans up to `cumulative`, whose oldest news waited for `delay`.
    pub fn new(cumulative: u64, delay: Duration) -> AckBody {
        AckBody {
            cumulative: cumulative.into(),
            delay: u32::try_from(delay.as_micros()).unwrap_or(u32::MAX).into(),
            count: 0,
            reserved: [0; 3],
            runs: [AckRun { missing: 0.into(), placed: 0.into() }; ACK_RUNS_MAX],
        }
    }

    /// Adds a run above all others, with at least one span between. False where there is no room for it.
    pub fn push(&mut self, missing: u16, placed: u16) -> bool {
        let Some(run) = self.runs.get_mut(usize::from(self.count)) else { return false };
        *run = AckRun { missing: missing.into(), placed: placed.into() };
        self.count += 1;
        true
    }

    /// The runs above `cumulative`, lowest first: those before the first one that is none.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        let runs = self.runs.iter().take(self.count.into());
        let mut last = self.cumulative.get();
        runs.map_while(move |run| {
            let (missing, placed) = (u64::from(run.missing.get()), u64::from(run.placed.get()));
            let first = last.checked_add(missing + 1)?;
            last = last.checked_add(missing + placed)?;
            (missing > 0 && placed > 0).then_some(first..=last)
        })
    }
}

/// Fills in the checksums: the payload's, where it is given, and the header's.
pub fn seal(header: &mut Header, payload_checksum: Option<u32>) {
    let bytes = header.as_bytes_mut();
    if let Some(checksum) = payload_checksum {
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]) | FLAG_PAYLOAD_CHECKSUM;
        bytes[2..4].copy_from_slice(&flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes[8..12].fill(0);
    let checksum = checksum::crc32c(bytes);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
}

/// Whether the header checksum holds.
pub fn verify(header: &[u8]) -> bool {
    let Some(stored) = header.get(8..12) else { return false };
    let computed =
        checksum::append(checksum::append(checksum::crc32c(&header[..8]), &[0; 4]), &header[12..]);
    computed.to_le_bytes() == stored
}

/// Decodes a header whose checksum was verified, where it has one.
#[inline]
pub fn decode(header: &[u8]) -> Result<(&Prefix, Arrived<'_>), FrameError> {
    #[inline(always)]
    fn exact<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        bytes: &[u8],
    ) -> Result<&T, FrameError> {
        T::ref_from_bytes(bytes).map_err(|_| FrameError::Shape)
    }
    let (prefix, tail) = Prefix::ref_from_prefix(header).map_err(|_| FrameError::Shape)?;
    if usize::from(prefix.header_bytes) != header.len() {
        return Err(FrameError::Shape);
    }
    if prefix.version.get() != VERSION {
        return Err(FrameError::Version(prefix.version.get()));
    }
    let body = match prefix.kind {
        1 => Arrived::Hello(exact(tail)?),
        2 if tail.is_empty() => Arrived::Confirm,
        3 => Arrived::Eager(exact(tail)?),
        4 => Arrived::Rts(exact(tail)?),
        5 => Arrived::Get(exact(tail)?),
        6 => Arrived::Data(exact(tail)?),
        7 => Arrived::Put(exact(tail)?),
        8 => Arrived::Result(exact(tail)?),
        9 => Arrived::Fin(exact(tail)?),
        10 => Arrived::Abort(exact(tail)?),
        11 => Arrived::Credit(exact(tail)?),
        12 => Arrived::Ack(exact(tail)?),
        13 if tail.is_empty() => Arrived::Goodbye,
        15 if tail.is_empty() => Arrived::CloseIdle,
        16 if tail.is_empty() => Arrived::KeepOpen,
        17 => Arrived::Fragment(exact(tail)?),
        18 => Arrived::Key(exact(tail)?),
        19 => Arrived::Join(exact(tail)?),
        20 => Arrived::Probe(exact(tail)?),
        21 => Arrived::Load(exact(tail)?),
        22 => Arrived::LoadAnswer(exact(tail)?),
        23 => Arrived::Migrate(exact(tail)?),
        24 => Arrived::Withdraw(exact(tail)?),
        25 => Arrived::Prove(exact(tail)?),
        26 => Arrived::Suspect(exact(tail)?),
        _ => return Err(FrameError::Shape),
    };
    Ok((prefix, body))
}

/// A remote key as its two wire fields.
pub fn key_to_wire(key: RemoteKey) -> (U64, U64) {
    (key.slot.to_u64().into(), key.secret.into())
}

/// A remote key from its two wire fields.
pub fn key_from_wire(slot: U64, secret: U64) -> RemoteKey {
    RemoteKey { slot: SlotId::from_u64(slot.get()), secret: secret.get() }
}

/// The status byte of an outcome; 0 is success.
pub fn status_to_wire(outcome: Result<(), Fault>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(Fault::Cancelled) => 1,
        Err(Fault::Oversize) => 2,
        Err(Fault::Truncated) => 3,
        Err(Fault::BadKey) => 4,
        Err(Fault::Corrupt) => 5,
        Err(Fault::Busy) => 6,
        Err(_) => 7,
    }
}

/// The inverse of [`status_to_wire`]; unknown numbers are a peer that failed in a way of its own.
pub fn status_from_wire(status: u8) -> Result<(), Fault> {
    match status {
        0 => Ok(()),
        1 => Err(Fault::Cancelled),
        2 => Err(Fault::Oversize),
        3 => Err(Fault::Truncated),
        4 => Err(Fault::BadKey),
        5 => Err(Fault::Corrupt),
        6 => Err(Fault::Busy),
        _ => Err(Fault::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_header_decodes_to_itself_and_any_flipped_bit_is_noticed() {
        let body = Body::Put(PutBody {
            key_slot: 1.into(),
            key_secret: 2.into(),
            offset: 3.into(),
            cookie: 4.into(),
            total_bytes: 5.into(),
        });
        let envelope = Envelope {
            payload_bytes: 77,
            session: 8,
            attempt: 6,
            packet: 9,
            acknowledged: 5,
            span: 10,
            ..Envelope::default()
        };
        let mut header = encode(envelope, &body);
        seal(&mut header, Some(0xdead_beef));
        assert!(verify(header.as_bytes()));
        let (prefix, decoded) = decode(header.as_bytes()).unwrap();
        assert_eq!(prefix.payload_bytes.get(), 77);
        assert_eq!(prefix.payload_checksum.get(), 0xdead_beef);
        assert_eq!(prefix.flags.get(), FLAG_PAYLOAD_CHECKSUM);
        assert_eq!((prefix.attempt.get(), prefix.acknowledged.get()), (6, 5));
        assert_eq!((prefix.packet.get(), prefix.span.get()), (9, 10));
        assert!(matches!(decoded, Arrived::Put(put) if put.total_bytes.get() == 5));
        for bit in 0..header.as_bytes().len() * 8 {
            let mut bytes = header.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&bytes), "bit {bit}");
        }
    }

    #[test]
    fn a_short_header_says_what_the_long_one_does() {
        let body = EagerBody::whole(0x0102_0304_0506_0708, u64::MAX, 1, 2);
        let mut header = Header::EMPTY;
        encode_short(&mut header, 77, 24, &body);
        assert_eq!(header.as_bytes().len(), 32);
        let (prefix, decoded) = decode_short(header.as_bytes()).expect("short").expand();
        assert_eq!((prefix.session.get(), prefix.payload_bytes.get()), (77, 24));
        assert_eq!((prefix.span.get(), prefix.flags.get()), (0, 0));
        assert_eq!(decoded.as_bytes(), body.as_bytes());
        assert!(decode(header.as_bytes()).is_err(), "the two forms are not taken for each other");
        for len in 0..32 {
            assert!(decode_short(&header.as_bytes()[..len]).is_none());
        }
        let long = encode(Envelope::default(), &Body::Eager(body));
        assert!(decode_short(long.as_bytes()).is_none());
        assert!(decode_short(&long.as_bytes()[..32]).is_none());
    }

    #[test]
    fn an_acknowledgement_names_runs_of_spans_until_one_that_is_none() {
        let mut ack = AckBody::new(10, Duration::from_micros(250));
        assert!(ack.push(2, 3) && ack.push(1, 1) && ack.push(u16::MAX, u16::MAX));
        let far = 17 + u64::from(u16::MAX);
        let ranges: Vec<_> = ack.ranges().collect();
        assert_eq!(ranges, [13..=15, 17..=17, far + 1..=far + u64::from(u16::MAX)]);
        assert_eq!(ack.delay.get(), 250);
        ack.runs[1].placed = 0.into();
        assert_eq!(ack.ranges().collect::<Vec<_>>(), [13..=15]);
        ack.runs[0].missing = 0.into();
        assert_eq!(ack.ranges().count(), 0);
        let mut ack = AckBody::new(u64::MAX - 3, Duration::MAX);
        assert!((0..ACK_RUNS_MAX).all(|_| ack.push(1, 1)) && !ack.push(1, 1));
        assert_eq!(ack.ranges().collect::<Vec<_>>(), [u64::MAX - 1..=u64::MAX - 1], "no overflow");
        ack.count = u8::MAX;
        assert_eq!(ack.ranges().count(), 1, "no more than there are");
        let header = encode(Envelope::default(), &Body::Ack(ack));
        assert_eq!(header.as_bytes().len(), 104);
    }

    #[test]
    fn a_word_about_a_broken_path_has_its_own_length_only() {
        let (path, span) = (0x0102_0304.into(), 0x0506.into());
        let body = SuspectBody { path, cause: 3, reserved: [0; 3], span };
        let header = encode(Envelope::default(), &Body::Suspect(body));
        let bytes = header.as_bytes();
        assert_eq!(
            (bytes[0], &bytes[40..]),
            (Kind::Suspect as u8, &[4, 3, 2, 1, 3, 0, 0, 0, 6, 5, 0, 0, 0, 0, 0, 0][..])
        );
        let (_, decoded) = decode(bytes).unwrap();
        assert!(matches!(decoded, Arrived::Suspect(it) if it.path.get() == 0x0102_0304));
        for length in 40..64 {
            let mut other = bytes.to_vec();
            other.resize(length, 0);
            other[1] = length as u8;
            assert_eq!(decode(&other).is_ok(), length == 56, "{length} bytes");
        }
    }

    #[test]
    fn another_version_is_told_from_what_is_malformed() {
        let mut header = encode(Envelope::default(), &Body::Confirm);
        header.as_bytes_mut()[22] = 2;
        assert_eq!(decode(header.as_bytes()).err(), Some(FrameError::Version(2)));
    }

    #[test]
    fn every_length_but_the_right_one_is_refused() {
        let header = encode(Envelope::default(), &Body::Confirm);
        for len in 0..header.as_bytes().len() {
            assert!(decode(&header.as_bytes()[..len]).is_err());
        }
        let mut longer = header.as_bytes().to_vec();
        longer.push(0);
        assert!(decode(&longer).is_err());
        longer[1] += 1;
        assert!(decode(&longer).is_err());
    }
}
