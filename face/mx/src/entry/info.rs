//! Information about the library and its NICs.

use std::ffi::{c_char, c_void};

use ropewalk_host_mx::nics::ENDPOINTS_MAX;
use ropewalk_host_mx::raw::RawCounts;

use super::{ask_process, returned};
use crate::abi::{Handle, LABEL_BYTES};
use crate::codes::{
    BAD_ENDPOINT, BAD_INFO_KEY, BAD_INFO_LENGTH, BAD_INFO_VALUE, BOARD_UNKNOWN, Code, Family,
};
use crate::process::{self, Process};
use crate::raw;

/// Keys of `mx_get_info`.
mod key {
    pub const NIC_COUNT: u32 = 1;
    pub const NIC_IDS: u32 = 2;
    pub const MAX_NATIVE_ENDPOINTS: u32 = 3;
    pub const NATIVE_REQUESTS: u32 = 4;
    pub const COUNTERS_COUNT: u32 = 5;
    pub const COUNTERS_LABELS: u32 = 6;
    pub const COUNTERS_VALUES: u32 = 7;
    pub const PRODUCT_CODE: u32 = 8;
    pub const PART_NUMBER: u32 = 9;
    pub const SERIAL_NUMBER: u32 = 10;
    pub const PORT_COUNT: u32 = 11;
    pub const PIO_SEND_MAX: u32 = 12;
    pub const COPY_SEND_MAX: u32 = 13;
    pub const NUMA_NODE: u32 = 14;
    pub const NET_TYPE: u32 = 15;
    pub const LINE_SPEED: u32 = 16;
}

/// Keys of `omx_get_info`, which are others.
mod native_key {
    pub const BOARD_MAX: u32 = 0;
    pub const ENDPOINT_MAX: u32 = 1;
    pub const BOARD_COUNT: u32 = 2;
    pub const BOARD_IDS: u32 = 3;
    pub const BOARD_HOSTNAME: u32 = 4;
    pub const BOARD_IFACENAME: u32 = 5;
    pub const BOARD_NUMA_NODE: u32 = 6;
    pub const COUNTER_MAX: u32 = 7;
    pub const COUNTER_VALUES: u32 = 8;
    pub const COUNTER_LABEL: u32 = 9;
}

/// Programs go through so many numbers of NICs at least.
const BOARDS_MAX: u32 = 32;

/// Longest message that MX sends without asking the processor for its memory again.
const PIO_SEND_MAX: u32 = 128;
/// A NIC that is next to no memory, or whose place is not known.
const UNKNOWN_NODE: u32 = u32::MAX;
/// Ethernet.
const NET_TYPE: u32 = 1;
/// The line speed of Open-MX.
pub(super) const LINE_SPEED: u32 = 2;

/// Counters of a NIC, over the endpoints that this process has on it.
const LABELS: [&str; 13] = [
    "messages sent before they were asked for",
    "messages announced",
    "messages received",
    "messages that came before their receive",
    "large transfers begun",
    "large transfers served",
    "duplicates dropped",
    "corrupt packets dropped",
    "violations of the protocol",
    "sessions lost",
    "raw packets sent",
    "raw packets received",
    "raw packets dropped",
];

fn counters(nic_number: u32) -> [u32; LABELS.len()] {
    let mut sums = [0u64; LABELS.len()];
    for endpoint in process::endpoints().iter().filter(|endpoint| endpoint.nic_number == nic_number)
    {
        let (core, _) = endpoint.net.counters();
        let values = [
            core.messages_eager_sent,
            core.messages_announced,
            core.messages_received,
            core.messages_unmatched,
            core.gets,
            core.gets_served,
            core.duplicates_dropped,
            core.corrupt_dropped,
            core.violations,
            core.resets,
        ];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    for raw in raw::of_nic(nic_number) {
        let RawCounts { sent, received, unsent, no_room, wrong_length } = raw.net.counts();
        let [.., sent_sum, received_sum, dropped_sum] = &mut sums;
        *sent_sum += sent;
        *received_sum += received;
        *dropped_sum += unsent + no_room + wrong_length;
    }
    sums.map(|sum| sum as u32)
}

fn counter_bytes(nic_number: u32) -> Vec<u8> {
    counters(nic_number).into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Writes a text, cut to what there is room for, and a zero.
///
/// # Safety
/// `to` is null or has room for so many bytes.
pub unsafe fn put_text(to: *mut c_char, room: usize, text: &str) {
    if to.is_null() || room == 0 {
        return;
    }
    let bytes = text.len().min(room - 1);
    // SAFETY: at most `room` bytes, and the caller vouches for these.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), bytes);
        to.add(bytes).write(0);
    }
}

/// The output buffer for an answer.
struct Out {
    to: *mut c_void,
    room: usize,
}

impl Out {
    fn has_room(&self, bytes: usize) -> Result<(), Code> {
        match (self.to.is_null(), self.room < bytes) {
            (true, _) => Err(BAD_INFO_VALUE),
            (false, true) => Err(BAD_INFO_LENGTH),
            (false, false) => Ok(()),
        }
    }

    /// # Safety
    /// `self.to` has room for `self.room` bytes.
    unsafe fn bytes(&self, bytes: &[u8]) -> Result<(), Code> {
        self.has_room(bytes.len())?;
        // SAFETY: there is room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.to.cast(), bytes.len()) };
        Ok(())
    }

    /// # Safety
    /// As for `bytes`.
    unsafe fn word(&self, word: u32) -> Result<(), Code> {
        // SAFETY: the caller vouches for it.
        unsafe { self.bytes(&word.to_ne_bytes()) }
    }

    /// A text and a zero, cut to the room there is.
    ///
    /// # Safety
    /// As for `bytes`.
    unsafe fn text(&self, text: &str) -> Result<(), Code> {
        self.has_room(1)?;
        // SAFETY: the caller vouches for it.
        unsafe { put_text(self.to.cast(), self.room, text) };
        Ok(())
    }

    /// The numbers of all cards, and a zero behind them where it fits.
    ///
    /// # Safety
    /// As for `bytes`.
    unsafe fn cards(&self, process: &Process) -> Result<(), Code> {
        let ids = process.nics.nics.iter().map(|it| it.place.nic_id());
        let mut bytes: Vec<u8> = ids.flat_map(u64::to_ne_bytes).collect();
        if self.room >= bytes.len() + size_of::<u64>() {
            bytes.extend(0u64.to_ne_bytes());
        }
        // SAFETY: the caller vouches for it.
        unsafe { self.bytes(&bytes) }
    }
}

/// The information that the caller asks for.
struct Question<'a> {
    process: &'a Process,
    key: u32,
    endpoint: Handle,
    input: *const c_void,
    input_bytes: u32,
}

impl Question<'_> {
    /// The number that the input is: a word, or, from who gives fewer bytes, one byte. `None`: there is no input.
    ///
    /// # Safety
    /// `self.input` is null or has so many bytes.
    unsafe fn number(&self) -> Result<Option<u32>, Code> {
        match self.input_bytes {
            _ if self.input.is_null() => Ok(None),
            0 => Err(BAD_INFO_LENGTH),
            // SAFETY: it has at least one byte.
            1..4 => Ok(Some(unsafe { self.input.cast::<u8>().read() }.into())),
            // SAFETY: it has at least four bytes.
            4.. => Ok(Some(unsafe { self.input.cast::<u32>().read_unaligned() })),
        }
    }

    /// The NIC of the endpoint, if one is given.
    fn nic_number_of_endpoint(&self) -> Result<Option<u32>, Code> {
        if self.endpoint.is_null() {
            return Ok(None);
        }
        let endpoint = process::endpoint(self.endpoint).ok_or(BAD_ENDPOINT)?;
        Ok(Some(endpoint.nic_number))
    }

    fn checked(&self, nic_number: u32) -> Result<u32, Code> {
        let count = self.process.nics.nics.len();
        if (nic_number as usize) < count { Ok(nic_number) } else { Err(BOARD_UNKNOWN) }
    }

    /// The NIC that is asked about. If both are given, MX takes the NIC that is named, and Open-MX the
    /// endpoint's.
    ///
    /// # Safety
    /// As for `number`.
    unsafe fn nic_number(&self, family: Family) -> Result<u32, Code> {
        // SAFETY: the caller vouches for it.
        let named = || unsafe { self.number() };
        let nic_number = match family {
            Family::Mx => {
                named()?.map_or_else(|| self.nic_number_of_endpoint(), |it| Ok(Some(it)))?
            }
            Family::Native => {
                self.nic_number_of_endpoint()?.map_or_else(named, |it| Ok(Some(it)))?
            }
        };
        self.checked(nic_number.ok_or(BAD_INFO_VALUE)?)
    }

    /// Checks a NIC that the caller need not name: a NIC that is named has to exist.
    ///
    /// # Safety
    /// As for `number`.
    unsafe fn check_nic_number(&self) -> Result<(), Code> {
        // SAFETY: the caller vouches for it.
        match unsafe { self.number() }? {
            Some(nic_number) => self.checked(nic_number).map(drop),
            None => Ok(()),
        }
    }

    fn numa_node(&self, nic_number: u32) -> u32 {
        self.process.nics.nics[nic_number as usize].numa_node().unwrap_or(UNKNOWN_NODE)
    }

    /// # Safety
    /// `self.input` is null or has `self.input_bytes` bytes, `out` has the room that it says.
    unsafe fn answer_mx(&self, out: &Out) -> Result<(), Code> {
        let process = self.process;
        // SAFETY: the caller vouches for input and output.
        unsafe {
            match self.key {
                key::NIC_COUNT => out.word(process.nics.nics.len() as u32),
                key::NIC_IDS => out.cards(process),
                key::MAX_NATIVE_ENDPOINTS => out.word(ENDPOINTS_MAX),
                key::NATIVE_REQUESTS => out.word(u32::MAX),
                key::COUNTERS_COUNT => out.word(LABELS.len() as u32),
                key::COUNTERS_LABELS => {
                    let mut labels = vec![0u8; LABELS.len() * LABEL_BYTES];
                    for (room, label) in labels.chunks_mut(LABEL_BYTES).zip(LABELS) {
                        room[..label.len()].copy_from_slice(label.as_bytes());
                    }
                    out.bytes(&labels)
                }
                key::COUNTERS_VALUES => out.bytes(&counter_bytes(self.nic_number(Family::Mx)?)),
                key::PRODUCT_CODE | key::PART_NUMBER | key::SERIAL_NUMBER => {
                    self.check_nic_number()?;
                    out.bytes(b"N/A\0")
                }
                key::PORT_COUNT => {
                    self.check_nic_number()?;
                    out.word(1)
                }
                key::PIO_SEND_MAX => out.word(PIO_SEND_MAX),
                key::COPY_SEND_MAX => out.word(process.options.copy_bytes()),
                key::NUMA_NODE => out.word(self.numa_node(self.nic_number(Family::Mx)?)),
                key::NET_TYPE => out.word(NET_TYPE),
                key::LINE_SPEED => out.word(LINE_SPEED),
                _ => Err(BAD_INFO_KEY),
            }
        }
    }

    /// # Safety
    /// As for `answer_mx`.
    unsafe fn answer_native(&self, out: &Out) -> Result<(), Code> {
        let nics = &self.process.nics;
        // SAFETY: the caller vouches for input and output.
        unsafe {
            match self.key {
                native_key::BOARD_MAX => out.word(BOARDS_MAX.max(nics.nics.len() as u32)),
                native_key::ENDPOINT_MAX => out.word(ENDPOINTS_MAX),
                native_key::BOARD_COUNT => out.word(nics.nics.len() as u32),
                native_key::BOARD_IDS => out.cards(self.process),
                native_key::BOARD_HOSTNAME => {
                    let nic_number = self.nic_number(Family::Native)?;
                    let nic_id = nics.nics[nic_number as usize].place.nic_id();
                    out.text(&nics.name_of_nic(nic_id).unwrap_or_default())
                }
                native_key::BOARD_IFACENAME => {
                    let nic_number = self.nic_number(Family::Native)?;
                    // A NIC over UDP is an address, whichever interface has it.
                    let name = &nics.nics[nic_number as usize].interface;
                    out.text(if name.is_empty() { "udp" } else { name })
                }
                native_key::BOARD_NUMA_NODE => {
                    out.word(self.numa_node(self.nic_number(Family::Native)?))
                }
                native_key::COUNTER_MAX => out.word(LABELS.len() as u32),
                native_key::COUNTER_VALUES => {
                    out.bytes(&counter_bytes(self.nic_number(Family::Native)?))
                }
                native_key::COUNTER_LABEL => {
                    let index = self.number()?.ok_or(BAD_INFO_VALUE)?;
                    let label = LABELS.get(index as usize).ok_or(BAD_INFO_VALUE)?;
                    out.has_room(label.len() + 1)?;
                    out.text(label)
                }
                _ => Err(BAD_INFO_KEY),
            }
        }
    }
}

unsafe fn get_info(
    family: Family,
    endpoint: Handle,
    key: u32,
    input: *const c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    let asked = ask_process(c"get information", |process| {
        let out = Out { to, room: room as usize };
        let question = Question { process, key, endpoint, input, input_bytes };
        match family {
            // SAFETY: the caller vouches for it.
            Family::Mx => unsafe { question.answer_mx(&out) },
            // SAFETY: the caller vouches for it.
            Family::Native => unsafe { question.answer_native(&out) },
        }
    });
    returned(family, asked)
}

/// Answers by key. `endpoint` may be null: its NIC is meant where a key is about a NIC, and none is named.
///
/// # Safety
/// `input` has `input_bytes` bytes, `to` has room for `room` bytes, or they are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_info(
    endpoint: Handle,
    key: u32,
    input: *mut c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_info(Family::Mx, endpoint, key, input, input_bytes, to, room) }
}

/// Native name of [`mx_get_info`], with keys of its own.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_get_info(
    endpoint: Handle,
    key: u32,
    input: *const c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_info(Family::Native, endpoint, key, input, input_bytes, to, room) }
}
