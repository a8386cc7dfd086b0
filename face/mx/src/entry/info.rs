//! What the library says about itself and its boards.

use std::ffi::{c_char, c_void};

use ropewalk_net::boards::ENDPOINTS_MAX;
use ropewalk_net::raw::RawCounts;

use super::{ask_process, returned};
use crate::abi::{Handle, LABEL_BYTES};
use crate::codes::{BAD_INFO_KEY, BAD_INFO_LENGTH, BOARD_UNKNOWN, Code, Family};
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

/// Longest message that MX sends without asking the processor for its memory again.
const PIO_SEND_MAX: u32 = 128;
/// A board that is next to no memory, or whose place is not known.
const UNKNOWN_NODE: u32 = u32::MAX;
/// Ethernet.
const NET_TYPE: u32 = 1;
/// The line speed of Open-MX.
pub(super) const LINE_SPEED: u32 = 2;

/// Counters of a board, over the endpoints that this process has on it.
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

fn counters(board: u32) -> [u32; LABELS.len()] {
    let mut sums = [0u64; LABELS.len()];
    for endpoint in process::endpoints().iter().filter(|endpoint| endpoint.board == board) {
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
    for raw in raw::of_board(board) {
        let RawCounts { sent, received, unsent, no_room, wrong_length } = raw.net.counts();
        let [.., sent_sum, received_sum, dropped_sum] = &mut sums;
        *sent_sum += sent;
        *received_sum += received;
        *dropped_sum += unsent + no_room + wrong_length;
    }
    sums.map(|sum| sum as u32)
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

/// Where an answer goes.
struct Out {
    to: *mut c_void,
    room: usize,
}

impl Out {
    /// # Safety
    /// `self.to` has room for `self.room` bytes.
    unsafe fn bytes(&self, bytes: &[u8]) -> Result<(), Code> {
        if self.to.is_null() || self.room < bytes.len() {
            return Err(BAD_INFO_LENGTH);
        }
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
}

/// The board that is asked about.
///
/// # Safety
/// `from` is null or has so many bytes.
unsafe fn board_in(from: *const c_void, bytes: u32, process: &Process) -> Result<u32, Code> {
    if from.is_null() || bytes < 4 {
        return Err(BAD_INFO_LENGTH);
    }
    // SAFETY: it has at least four bytes.
    let board = unsafe { from.cast::<u32>().read_unaligned() };
    let count = process.boards.boards.len();
    if (board as usize) < count { Ok(board) } else { Err(BOARD_UNKNOWN) }
}

/// # Safety
/// `input` is null or has `input_bytes` bytes, `out` has the room that it says.
unsafe fn answer(
    process: &Process,
    key: u32,
    input: *const c_void,
    input_bytes: u32,
    out: &Out,
) -> Result<(), Code> {
    // SAFETY: the caller vouches for input and output.
    unsafe {
        match key {
            key::NIC_COUNT => out.word(process.boards.boards.len() as u32),
            key::NIC_IDS => {
                let boards = &process.boards;
                let ids = boards.boards.iter().flat_map(|it| it.place.nic().to_ne_bytes());
                out.bytes(&ids.collect::<Vec<u8>>())
            }
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
            key::COUNTERS_VALUES => {
                let board = board_in(input, input_bytes, process)?;
                let values = counters(board).into_iter().flat_map(u32::to_ne_bytes);
                out.bytes(&values.collect::<Vec<u8>>())
            }
            key::PRODUCT_CODE | key::PART_NUMBER | key::SERIAL_NUMBER => {
                board_in(input, input_bytes, process)?;
                out.bytes(b"N/A\0")
            }
            key::PORT_COUNT => {
                board_in(input, input_bytes, process)?;
                out.word(1)
            }
            key::PIO_SEND_MAX => out.word(PIO_SEND_MAX),
            key::COPY_SEND_MAX => out.word(process.options.copy_bytes()),
            key::NUMA_NODE => {
                let board = board_in(input, input_bytes, process)?;
                let node = process.boards.boards[board as usize].numa_node();
                out.word(node.unwrap_or(UNKNOWN_NODE))
            }
            key::NET_TYPE => out.word(NET_TYPE),
            key::LINE_SPEED => out.word(LINE_SPEED),
            _ => Err(BAD_INFO_KEY),
        }
    }
}

unsafe fn get_info(
    family: Family,
    key: u32,
    input: *const c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    let asked = ask_process(c"get information", |process| {
        let out = Out { to, room: room as usize };
        // SAFETY: the caller vouches for it.
        unsafe { answer(process, key, input, input_bytes, &out) }
    });
    returned(family, asked)
}

/// Answers by key. `endpoint` may be null: nothing depends on it.
///
/// # Safety
/// `input` has `input_bytes` bytes, `to` has room for `room` bytes, or they are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_info(
    _endpoint: Handle,
    key: u32,
    input: *mut c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_info(Family::Mx, key, input, input_bytes, to, room) }
}

/// Native name of [`mx_get_info`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_get_info(
    _endpoint: Handle,
    key: u32,
    input: *const c_void,
    input_bytes: u32,
    to: *mut c_void,
    room: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_info(Family::Native, key, input, input_bytes, to, room) }
}
