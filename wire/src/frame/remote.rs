//! Bodies of frames about memory of the peer's.

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flag of an operation with a number: tell when it is applied.
pub const TELL: u16 = 1;
/// Flag of `Update` and `Atomic`: answer with what the elements were.
pub const FETCH: u16 = 2;
/// Flag of `Atomic`: it takes effect once all operations with lower numbers are over, and whoever waits for words of that
/// region is to look.
pub const TOKEN: u16 = 4;
/// Flag of `Notify`: the word grows to the value, if it is less. Else it grows by the value.
pub const RAISE_TO: u16 = 8;
/// Flag of `Update`: the payload has puts of their own (`Change::Records` of base), and the bytes are those of the payload.
pub const RECORDS: u16 = 16;
/// Flag of `Put`, `Update` and `Strided`: another piece of the same operation follows, so that this one is not counted.
pub const MORE: u16 = 32;
/// The same in the `into_offset` of a `Get`, whose other bits are the offset.
pub const MORE_ASKED: u64 = 1 << 63;
/// Actions of `Lock`: the request is for a lock to share, or to have alone; it is over, whether it has the lock or waits.
pub const LOCK_SHARED: u8 = 1;
pub const LOCK_EXCLUSIVE: u8 = 2;
pub const LOCK_RELEASE: u8 = 3;
/// Notes of a `Result` about a lock.
pub const NOTE_OWNER_DIED: u8 = 1;
pub const NOTE_PUT: u8 = 2;
/// The operator of an `Atomic` that compares and swaps.
pub const COMPARE_SWAP: u8 = 0xff;

/// Bytes of a node of a descriptor, and nodes in a frame ([`LayoutBody::nodes`]).
pub const NODE_BYTES: usize = 26;
pub const NODES_OF_FRAME: usize = 2;

const _: () = assert!(NODE_BYTES == 26 && NODES_OF_FRAME == 2, "as the layout below says");

layouts! {
    /// Asks for a part of a region; `Data` frames with the cookie come back, or a `Result`.
    GetBody {
        key_slot: U64,
        key_secret: U64,
        offset: U64,
        len: U64,
        cookie: U64,
        /// Added to the offsets of the `Data` frames: the place of this part at the asker. And `MORE_ASKED`.
        into_offset: U64,
    } 48
    /// Bytes that were asked for.
    DataBody {
        cookie: U64,
        /// From the beginning of the asker's buffer.
        offset: U64,
    } 16
    /// Bytes for a region. The frame names the whole operation, and can be placed on its own.
    PutBody {
        key_slot: U64,
        key_secret: U64,
        /// In the region: where the whole operation begins.
        offset: U64,
        /// Of the operation: numbers of a session and direction begin with 1, and have no gap.
        number: U64,
        /// Bytes of the whole operation: at least 1.
        total_bytes: U32,
        /// Where this payload begins in the whole.
        within: U32,
        /// `TELL`, `MORE`.
        flags: U16,
        reserved: [u8; 6],
    } 48
    /// Elements to combine with those of a region; the payload has them, without padding. The frame names the whole
    /// operation, and has a number of its own.
    UpdateBody {
        key_slot: U64,
        key_secret: U64,
        /// In the region: where the whole operation begins.
        offset: U64,
        number: U64,
        /// Elements of the whole operation.
        total: U32,
        /// The first of them that this frame is about, and how many.
        within: U32,
        count: U32,
        /// As memory numbers them (`Operator`, `Element` of base).
        operator: u8,
        element: u8,
        /// `TELL`, `FETCH`, `MORE`.
        flags: U16,
    } 48
    /// Elements to combine with those of a region that lie in instances of a datatype: the payload has them, without padding.
    /// With the operator *replace* and bytes it is a put, with *nothing* a get. The frame names the whole, and has a number of
    /// its own.
    StridedBody {
        key_slot: U64,
        key_secret: U64,
        /// In the region: the offsets of the datatype count from here.
        address: I64,
        number: U64,
        /// Instances of the whole: all of them are judged.
        instances: U64,
        /// Bytes of data, with the padding of elements, before those that this frame is about.
        from: U64,
        /// Elements that it is about.
        count: U32,
        operator: u8,
        element: u8,
        /// `TELL`, `FETCH`, `MORE`.
        flags: U16,
        /// The datatype, by its number in this session and direction.
        layout: u8,
        reserved: [u8; 7],
    } 64
    /// Some nodes of a datatype that the receiver is to know by a number in this session and direction; or the number is
    /// free again. It says in `Credit` how many it has taken.
    LayoutBody {
        /// Bytes from one instance to the next.
        extent: I64,
        /// The number (lowest 8 bits), nodes of the datatype (12 bits; 0: the number is free), and the first one of this
        /// frame (12 bits), a multiple of `NODES_OF_FRAME`.
        place: U32,
        nodes: [[u8; 26]; 2],
    } 64
    /// One element to combine with an operand, or to compare and swap.
    AtomicBody {
        key_slot: U64,
        key_secret: U64,
        offset: U64,
        number: U64,
        /// In the first bytes, as many as the element has.
        operand: [u8; 8],
        compare: [u8; 8],
        operator: u8,
        element: u8,
        /// `TELL`, `FETCH`, `TOKEN`.
        flags: U16,
        reserved: [u8; 4],
    } 56
    /// A put in one frame, and a word of its region that grows after it: once all operations with lower numbers are over,
    /// too, as with a `TOKEN`.
    NotifyBody {
        key_slot: U64,
        key_secret: U64,
        /// In the region: where the payload is put.
        offset: U64,
        number: U64,
        value: U64,
        /// Of 8 bytes, counted from the end of the region: 0 is the last one.
        word: U32,
        /// `TELL`, `RAISE_TO`.
        flags: U16,
        reserved: [u8; 2],
    } 48
    /// Data of 8 bytes for whoever takes the events of a region, about a put: the payload, if there is one, else bytes that are
    /// applied. It takes effect once these are at their place and all operations with lower numbers are over.
    ImmediateBody {
        key_slot: U64,
        key_secret: U64,
        /// In the region: where the put begins.
        offset: U64,
        number: U64,
        data: U64,
        /// Bytes of the put.
        len: U64,
        /// `TELL`.
        flags: U16,
        reserved: [u8; 6],
    } 56
    /// A word about the lock of a region. With a payload, which goes to the region if nobody has or wants the lock: then the
    /// request is over by that.
    LockBody {
        key_slot: U64,
        key_secret: U64,
        /// The request. It is answered by a `Result` once the lock is taken.
        cookie: U64,
        /// Of a release: it takes effect once all operations with lower numbers are over. 0: at once.
        number: U64,
        /// In the region, where the payload is put; 0 without one.
        offset: U64,
        /// `LOCK_SHARED`, `LOCK_EXCLUSIVE`, `LOCK_RELEASE`.
        action: u8,
        reserved: [u8; 7],
    } 48
    /// The end of a get that was refused, or a lock that is taken.
    ResultBody {
        cookie: U64,
        status: u8,
        /// Of a lock, 1: a session ended while it had it; 2: the payload is at its place, and the lock is given back.
        note: u8,
        reserved: [u8; 6],
    } 16
    /// The end of an operation that was refused, that fetches, or that is applied before one with a lower number. The
    /// payload has what the elements of an `Update` were.
    ReplyBody {
        number: U64,
        /// All operations up to this number are applied, or refused.
        applied: U64,
        /// What the element of an `Atomic` was, in the first bytes.
        value: [u8; 8],
        status: u8,
        reserved: [u8; 7],
    } 32
    /// Operations that are applied, or refused.
    AppliedBody {
        /// All up to this number.
        applied: U64,
    } 8
    /// The sender gives operations up, of which it may not have sent all frames: they count as applied.
    GiveUpBody {
        /// The first one.
        number: U64,
        /// How many follow each other: at least 1.
        count: U32,
        reserved: [u8; 4],
    } 16
}

/// A remote key as its two wire fields.
pub fn key_to_wire(key: RemoteKey) -> (U64, U64) {
    (key.slot.to_u64().into(), key.secret.into())
}

/// A remote key from its two wire fields.
pub fn key_from_wire(slot: U64, secret: U64) -> RemoteKey {
    RemoteKey { slot: SlotId::from_u64(slot.get()), secret: secret.get() }
}

impl LayoutBody {
    /// Number, nodes of the datatype, and the first one of this frame.
    pub fn place(&self) -> [u32; 3] {
        let place = self.place.get();
        [place & 0xff, place >> 8 & 0xfff, place >> 20]
    }

    /// The inverse of [`Self::place`].
    pub fn placed(number: u8, nodes: u32, first: u32) -> U32 {
        debug_assert!(nodes < 1 << 12 && first < 1 << 12, "twelve bits have room");
        (u32::from(number) | nodes << 8 | first << 20).into()
    }
}
