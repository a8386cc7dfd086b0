//! Frames between two endpoints of ours: a header of 32 to 104 bytes, then a payload.
//!
//! All numbers are little endian. Every header but one begins with the same 40 bytes ([`Prefix`]); the rest depends on
//! the kind. The exception is [`ShortHeader`]: a small message over a medium that flips no bits and loses nothing, so
//! short that message and header fit a cache line. docs/spec/frames.md has the bytes of this version and of the one before.
//!
//! Invariants: the header's length is fixed by its kind; the header checksum covers the whole header
//! with the checksum field as zero; nothing here allocates.

use ropewalk_base::checksum;
use ropewalk_base::error::Fault;
use ropewalk_base::verb::Header;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything in this file.
pub const VERSION: u16 = 6;
/// Longest payload of a `Hello`, in bytes: addresses and authentication.
pub const HELLO_PAYLOAD_BYTES_MAX: u32 = 4096;

/// Longest payload of a `Prove`, in bytes: no packet of an Ethernet is longer.
pub const PROVE_BYTES_MAX: u32 = 16 << 10;

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

mod messages;
mod paths;
mod remote;
mod sessions;

pub use messages::*;
pub use paths::*;
pub use remote::*;
pub use sessions::*;

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
}

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
    Reply = 27,
    Applied = 28,
    GiveUp = 29,
    Update = 30,
    Atomic = 31,
    Lock = 32,
    Layout = 33,
    Strided = 34,
    Notify = 35,
    Immediate = 36,
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
    Reply(ReplyBody),
    Applied(AppliedBody),
    GiveUp(GiveUpBody),
    Update(UpdateBody),
    Atomic(AtomicBody),
    Lock(LockBody),
    Layout(LayoutBody),
    Strided(StridedBody),
    Notify(NotifyBody),
    Immediate(ImmediateBody),
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
    Reply: ReplyBody,
    Applied: AppliedBody,
    GiveUp: GiveUpBody,
    Update: UpdateBody,
    Atomic: AtomicBody,
    Lock: LockBody,
    Layout: LayoutBody,
    Strided: StridedBody,
    Notify: NotifyBody,
    Immediate: ImmediateBody,
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

impl Arrived<'_> {
    /// Whether such a frame of a running session, other than a message, may have a payload.
    #[inline]
    pub fn takes_payload(&self) -> bool {
        matches!(
            self,
            Arrived::Data(_)
                | Arrived::Put(_)
                | Arrived::Update(_)
                | Arrived::Strided(_)
                | Arrived::Notify(_)
                | Arrived::Immediate(_)
                | Arrived::Reply(_)
                | Arrived::Lock(_)
        )
    }
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
        Body::Reply(_) => Kind::Reply,
        Body::Applied(_) => Kind::Applied,
        Body::GiveUp(_) => Kind::GiveUp,
        Body::Update(_) => Kind::Update,
        Body::Atomic(_) => Kind::Atomic,
        Body::Lock(_) => Kind::Lock,
        Body::Layout(_) => Kind::Layout,
        Body::Strided(_) => Kind::Strided,
        Body::Notify(_) => Kind::Notify,
        Body::Immediate(_) => Kind::Immediate,
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
        Body::Reply(body) => body.as_bytes(),
        Body::Applied(body) => body.as_bytes(),
        Body::GiveUp(body) => body.as_bytes(),
        Body::Update(body) => body.as_bytes(),
        Body::Atomic(body) => body.as_bytes(),
        Body::Lock(body) => body.as_bytes(),
        Body::Layout(body) => body.as_bytes(),
        Body::Strided(body) => body.as_bytes(),
        Body::Notify(body) => body.as_bytes(),
        Body::Immediate(body) => body.as_bytes(),
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
        27 => Arrived::Reply(exact(tail)?),
        28 => Arrived::Applied(exact(tail)?),
        29 => Arrived::GiveUp(exact(tail)?),
        30 => Arrived::Update(exact(tail)?),
        31 => Arrived::Atomic(exact(tail)?),
        32 => Arrived::Lock(exact(tail)?),
        33 => Arrived::Layout(exact(tail)?),
        34 => Arrived::Strided(exact(tail)?),
        35 => Arrived::Notify(exact(tail)?),
        36 => Arrived::Immediate(exact(tail)?),
        _ => return Err(FrameError::Shape),
    };
    Ok((prefix, body))
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
mod tests;
