//! Items of messages, byte for byte: operations and tokens of an origin, answers of a target.
//!
//! A message is a row of items. Numbers are little-endian. Bytes that a peer sent are never trusted: each length is checked,
//! and what makes no sense is told with a reason.

use std::ops::Range;

use ropewalk_base::memory::{Element, Operator};

use crate::epochs::LockKind;

/// Bytes of an item without its data, at most.
pub(crate) const ITEM_BYTES_MAX: usize = 96;
/// Types that an origin may refer to by number, for each window and target.
pub(crate) const TYPES: usize = 16;
/// Bytes of a lock item.
pub(crate) const LOCK_BYTES: usize = 1 + 4 + 1;

/// Why bytes are no message.
pub(crate) type Malformed = &'static str;

/// Where the bytes of an operation go to, or come from, at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Bytes from the window's begin to where offsets count from.
    pub address: i64,
    /// The number of a type; `None`: bytes without gaps.
    pub layout: Option<u8>,
    /// Instances of the type, or bytes.
    pub count: u64,
    /// The part of all that this item is about: its first byte and its bytes, as the target has them in memory.
    pub from: u64,
    pub bytes: u64,
    /// Of a section of a type that is too long to travel: from the first byte of the whole operation to behind its last one.
    pub whole: Option<(i64, i64)>,
}

/// Where the bytes of an operand are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    /// In this message.
    Inline(Range<usize>),
    /// In a message of their own with this number.
    Apart {
        number: u64,
        bytes: u64,
    },
}

/// The origin's number of a fetch, and how its result comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub fetch: u64,
    /// In a message of its own with this number.
    pub apart: Option<u64>,
}

/// Why a target refused an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    Bounds = 1,
    Window = 2,
    Type = 3,
    Operator = 4,
    /// None of an operation: whoever held the lock before died with it.
    OwnerDied = 5,
    /// Its addresses do not lie in one region that is attached.
    Unattached = 6,
    /// The target has no room for its result. Never sent: results of the yardstick wait for room.
    Room = 7,
}

/// A refusal as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub window: u32,
    pub reason: Reason,
    pub verb: u8,
    pub address: i64,
    pub bytes: u64,
    /// Bytes of the target's window.
    pub window_bytes: u64,
    /// The fetch that ends with it; 0: none.
    pub fetch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// From now on a type has a number.
    Type {
        window: u32,
        slot: u8,
        descriptor: Range<usize>,
    },
    Put {
        window: u32,
        place: Place,
        data: Data,
    },
    Get {
        window: u32,
        place: Place,
        wanted: Wanted,
    },
    Update {
        window: u32,
        element: Element,
        operator: Operator,
        place: Place,
        data: Data,
        wanted: Option<Wanted>,
    },
    Swap {
        window: u32,
        element: Element,
        place: Place,
        expected: [u8; 8],
        desired: [u8; 8],
        wanted: Wanted,
    },
    /// Asks for a lock. `rides`: what follows in this message waits for it, and its holder is not told.
    Lock {
        window: u32,
        kind: LockKind,
        rides: bool,
    },
    /// Ends the lock; answered when everything before it is done.
    Unlock {
        window: u32,
        token: u64,
    },
    /// Answered when everything before it is done.
    Flush {
        window: u32,
        token: u64,
    },
    /// The epoch of a start ends.
    Complete {
        window: u32,
    },
    /// A counter grows by 1 when everything before it is done.
    Notify {
        window: u32,
        counter: u32,
    },
    /// An exposure epoch begins.
    Post {
        window: u32,
    },
    /// A step of a barrier among a window's ranks, or the team's; and a rank that did not come.
    Barrier {
        domain: u32,
        lost: Option<u32>,
    },
    /// What a rank tells all others.
    Exchange {
        round: u64,
        bytes: Range<usize>,
    },
    /// A rank has given a collective call up, since it lost another one meanwhile: it has no window of it.
    GaveUp {
        lost: u32,
        call: u64,
    },
    Done {
        window: u32,
        token: u64,
    },
    Granted {
        window: u32,
    },
    Result {
        fetch: u64,
        bytes: Range<usize>,
    },
    Refused(Refused),
    /// Room that was left for a lock.
    Nothing,
}

impl Item {
    /// A result of so many bytes, which are still to be written.
    pub fn result(fetch: u64, bytes: usize) -> Item {
        Item::Result { fetch, bytes: 0..bytes }
    }
}

const TYPE: u8 = 1;
const PUT: u8 = 2;
const GET: u8 = 3;
const UPDATE: u8 = 4;
const SWAP: u8 = 5;
const LOCK: u8 = 6;
const UNLOCK: u8 = 7;
const FLUSH: u8 = 8;
const COMPLETE: u8 = 9;
const POST: u8 = 10;
const BARRIER: u8 = 11;
const EXCHANGE: u8 = 12;
const NOTIFY: u8 = 13;
const DONE: u8 = 20;
const GRANTED: u8 = 21;
const RESULT: u8 = 22;
const REFUSED: u8 = 23;
const GAVE_UP: u8 = 24;
const NOTHING: u8 = 30;

/// Of a place: a layout follows, and the item is about a part of all.
const TYPED: u8 = 1;
const PART: u8 = 2;
const SECTION: u8 = 4;

/// Writes items; data are written behind theirs by the caller.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// From this byte of a message on.
    pub fn new(to: &'a mut [u8], at: usize) -> Writer<'a> {
        Writer { to, at }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.to[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn head(&mut self, kind: u8, window: u32) {
        self.u8(kind);
        self.u32(window);
    }

    fn place(&mut self, place: &Place) {
        let whole = if place.layout.is_some() { None } else { Some(place.count) };
        let is_part = place.from > 0 || whole != Some(place.bytes);
        let flags = [(place.layout.is_some(), TYPED), (is_part, PART)];
        let flags = flags.into_iter().chain([(place.whole.is_some(), SECTION)]);
        self.u8(flags.filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag));
        self.u64(place.address as u64);
        self.u64(place.bytes);
        if let Some(slot) = place.layout {
            self.u8(slot);
        }
        if is_part {
            self.u64(place.count);
            self.u64(place.from);
        }
        if let Some((start, end)) = place.whole {
            self.u64(start as u64);
            self.u64(end as u64);
        }
    }

    fn data(&mut self, data: &Data) {
        match data {
            Data::None => self.u8(0),
            Data::Inline(range) => {
                self.u8(1);
                self.u32(range.len() as u32);
            }
            Data::Apart { number, bytes } => {
                self.u8(2);
                self.u64(*number);
                self.u64(*bytes);
            }
        }
    }

    fn wanted(&mut self, wanted: &Wanted) {
        self.u64(wanted.fetch);
        self.u8(u8::from(wanted.apart.is_some()));
        if let Some(number) = wanted.apart {
            self.u64(number);
        }
    }

    /// Writes an item up to its data, of which only the length is looked at. Returns where they begin.
    pub fn item(mut self, item: &Item) -> usize {
        match item {
            Item::Type { window, slot, descriptor } => {
                self.head(TYPE, *window);
                self.u8(*slot);
                self.u32(descriptor.len() as u32);
            }
            Item::Put { window, place, data } => {
                self.head(PUT, *window);
                self.place(place);
                self.data(data);
            }
            Item::Get { window, place, wanted } => {
                self.head(GET, *window);
                self.place(place);
                self.wanted(wanted);
            }
            Item::Update { window, element, operator, place, data, wanted } => {
                self.head(UPDATE, *window);
                self.bytes(&[*element as u8, *operator as u8, u8::from(wanted.is_some())]);
                self.place(place);
                if let Some(wanted) = wanted {
                    self.wanted(wanted);
                }
                self.data(data);
            }
            Item::Swap { window, element, place, expected, desired, wanted } => {
                self.head(SWAP, *window);
                self.u8(*element as u8);
                self.place(place);
                self.bytes(expected);
                self.bytes(desired);
                self.wanted(wanted);
            }
            Item::Result { fetch, bytes } => {
                self.u8(RESULT);
                self.u64(*fetch);
                self.u32(bytes.len() as u32);
            }
            Item::Exchange { round, bytes } => {
                self.u8(EXCHANGE);
                self.u64(*round);
                self.u32(bytes.len() as u32);
            }
            Item::Nothing => self.bytes(&[NOTHING; LOCK_BYTES]),
            token => self.token(token),
        }
        self.at
    }

    fn token(&mut self, item: &Item) {
        match *item {
            Item::Lock { window, kind, rides } => {
                self.head(LOCK, window);
                self.u8(u8::from(kind == LockKind::Exclusive) | u8::from(rides) << 1);
            }
            Item::Unlock { window, token } => {
                self.head(UNLOCK, window);
                self.u64(token);
            }
            Item::Flush { window, token } => {
                self.head(FLUSH, window);
                self.u64(token);
            }
            Item::Complete { window } => self.head(COMPLETE, window),
            Item::Post { window } => self.head(POST, window),
            Item::Notify { window, counter } => {
                self.head(NOTIFY, window);
                self.u32(counter);
            }
            Item::Barrier { domain, lost } => {
                self.head(BARRIER, domain);
                self.u32(lost.unwrap_or(u32::MAX));
            }
            Item::Done { window, token } => {
                self.head(DONE, window);
                self.u64(token);
            }
            Item::Granted { window } => self.head(GRANTED, window),
            Item::GaveUp { lost, call } => {
                self.head(GAVE_UP, lost);
                self.u64(call);
            }
            Item::Refused(it) => {
                self.head(REFUSED, it.window);
                self.bytes(&[it.reason as u8, it.verb]);
                self.u64(it.address as u64);
                self.u64(it.bytes);
                self.u64(it.window_bytes);
                self.u64(it.fetch);
            }
            _ => unreachable!("an item with data is written elsewhere"),
        }
    }
}

/// Reads the items of a message.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    from: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(from: &'a [u8]) -> Reader<'a> {
        Reader { from, at: 0 }
    }

    fn range(&mut self, bytes: usize) -> Result<Range<usize>, Malformed> {
        if bytes > self.from.len() - self.at {
            return Err("a message ends within an item");
        }
        let range = self.at..self.at + bytes;
        self.at = range.end;
        Ok(range)
    }

    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Malformed> {
        let mut array = [0; BYTES];
        array.copy_from_slice(&self.from[self.range(BYTES)?]);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither set nor clear"),
        }
    }

    fn counted(&mut self) -> Result<Range<usize>, Malformed> {
        let bytes = self.u32()?;
        self.range(bytes as usize)
    }

    fn place(&mut self) -> Result<Place, Malformed> {
        let flags = self.u8()?;
        if flags & !(TYPED | PART | SECTION) != 0 {
            return Err("a place has unknown flags");
        }
        let (address, bytes) = (self.u64()? as i64, self.u64()?);
        let layout = if flags & TYPED > 0 { Some(self.u8()?) } else { None };
        let (count, from) = if flags & PART > 0 { (self.u64()?, self.u64()?) } else { (bytes, 0) };
        if bytes == 0 || from.checked_add(bytes).is_none() {
            return Err("a place has no bytes, or ends beyond all addresses");
        }
        let is_section = flags & SECTION > 0;
        let whole = if is_section { Some((self.u64()? as i64, self.u64()? as i64)) } else { None };
        Ok(Place { address, layout, count, from, bytes, whole })
    }

    fn data(&mut self) -> Result<Data, Malformed> {
        match self.u8()? {
            0 => Ok(Data::None),
            1 => Ok(Data::Inline(self.counted()?)),
            2 => Ok(Data::Apart { number: self.u64()?, bytes: self.u64()? }),
            _ => Err("data are neither here nor apart"),
        }
    }

    fn wanted(&mut self) -> Result<Wanted, Malformed> {
        let fetch = self.u64()?;
        let apart = if self.flag()? { Some(self.u64()?) } else { None };
        Ok(Wanted { fetch, apart })
    }

    fn element(&mut self) -> Result<Element, Malformed> {
        Element::numbered(self.u8()?).ok_or("an element has an unknown type")
    }

    fn refused(&mut self, window: u32) -> Result<Refused, Malformed> {
        let reason = match self.u8()? {
            1 => Reason::Bounds,
            2 => Reason::Window,
            3 => Reason::Type,
            4 => Reason::Operator,
            5 => Reason::OwnerDied,
            6 => Reason::Unattached,
            _ => return Err("a refusal has an unknown reason"),
        };
        let (verb, address, bytes) = (self.u8()?, self.u64()? as i64, self.u64()?);
        let (window_bytes, fetch) = (self.u64()?, self.u64()?);
        Ok(Refused { window, reason, verb, address, bytes, window_bytes, fetch })
    }

    fn operation(&mut self, kind: u8, window: u32) -> Result<Item, Malformed> {
        Ok(match kind {
            PUT => Item::Put { window, place: self.place()?, data: self.data()? },
            GET => Item::Get { window, place: self.place()?, wanted: self.wanted()? },
            UPDATE => {
                let element = self.element()?;
                let operator = Operator::numbered(self.u8()?).ok_or("an operator is unknown")?;
                let fetches = self.flag()?;
                let place = self.place()?;
                let wanted = if fetches { Some(self.wanted()?) } else { None };
                Item::Update { window, element, operator, place, data: self.data()?, wanted }
            }
            _ => Item::Swap {
                window,
                element: self.element()?,
                place: self.place()?,
                expected: self.array()?,
                desired: self.array()?,
                wanted: self.wanted()?,
            },
        })
    }

    fn lock(&mut self, window: u32) -> Result<Item, Malformed> {
        let flags = self.u8()?;
        if flags > 3 {
            return Err("a lock has unknown flags");
        }
        let kind = if flags & 1 > 0 { LockKind::Exclusive } else { LockKind::Shared };
        Ok(Item::Lock { window, kind, rides: flags & 2 > 0 })
    }

    /// The next item; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Item>, Malformed> {
        if self.at == self.from.len() {
            return Ok(None);
        }
        let kind = self.u8()?;
        match kind {
            RESULT => return Ok(Some(Item::Result { fetch: self.u64()?, bytes: self.counted()? })),
            EXCHANGE => {
                return Ok(Some(Item::Exchange { round: self.u64()?, bytes: self.counted()? }));
            }
            NOTHING => {
                self.range(LOCK_BYTES - 1)?;
                return Ok(Some(Item::Nothing));
            }
            _ => {}
        }
        let window = self.u32()?;
        Ok(Some(match kind {
            TYPE => Item::Type { window, slot: self.u8()?, descriptor: self.counted()? },
            PUT | GET | UPDATE | SWAP => self.operation(kind, window)?,
            LOCK => self.lock(window)?,
            UNLOCK => Item::Unlock { window, token: self.u64()? },
            FLUSH => Item::Flush { window, token: self.u64()? },
            COMPLETE => Item::Complete { window },
            POST => Item::Post { window },
            NOTIFY => Item::Notify { window, counter: self.u32()? },
            BARRIER => {
                let lost = Some(self.u32()?).filter(|rank| *rank != u32::MAX);
                Item::Barrier { domain: window, lost }
            }
            DONE => Item::Done { window, token: self.u64()? },
            GRANTED => Item::Granted { window },
            GAVE_UP => Item::GaveUp { lost: window, call: self.u64()? },
            REFUSED => Item::Refused(self.refused(window)?),
            _ => return Err("an item has an unknown kind"),
        }))
    }
}

#[cfg(test)]
mod tests;
