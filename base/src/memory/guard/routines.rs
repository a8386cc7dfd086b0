//! The routines for x86-64 that a fault may leave at any instruction.
//!
//! Each answers 1. The handler goes on at `ropewalk_guard_recover`, which answers 0. They use registers that a callee may
//! change, and no stack.

use std::arch::global_asm;
use std::ops::Range;

// The names are hidden: several libraries of a process may have routines of their own.
global_asm!(
    ".pushsection .text.ropewalk_guard,\"ax\",@progbits",
    ".p2align 4",
    ".macro ropewalk_guard_name name",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name,@function",
    "\\name:",
    ".endm",
    ".cfi_startproc",
    "ropewalk_guard_name ropewalk_guard_begin",
    // rdi: to, rsi: from, rdx: bytes.
    "ropewalk_guard_name ropewalk_guard_copy",
    "mov rcx, rdx",
    "rep movsb",
    "mov eax, 1",
    "ret",
    // The same from the last byte on: rdi and rsi are the last bytes' places.
    "ropewalk_guard_name ropewalk_guard_copy_back",
    "mov rcx, rdx",
    "std",
    "rep movsb",
    "cld",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_copy_1",
    "movzx eax, byte ptr [rsi]",
    "mov byte ptr [rdi], al",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_copy_2",
    "movzx eax, word ptr [rsi]",
    "mov word ptr [rdi], ax",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_copy_4",
    "mov eax, dword ptr [rsi]",
    "mov dword ptr [rdi], eax",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_copy_8",
    "mov rax, qword ptr [rsi]",
    "mov qword ptr [rdi], rax",
    "mov eax, 1",
    "ret",
    // rdi: the word, rsi: the value that it has to have, rdx: the new one, rcx: the place for what it was.
    "ropewalk_guard_name ropewalk_guard_swap_1",
    "mov eax, esi",
    "lock cmpxchg byte ptr [rdi], dl",
    "mov byte ptr [rcx], al",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_swap_2",
    "mov eax, esi",
    "lock cmpxchg word ptr [rdi], dx",
    "mov word ptr [rcx], ax",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_swap_4",
    "mov eax, esi",
    "lock cmpxchg dword ptr [rdi], edx",
    "mov dword ptr [rcx], eax",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_swap_8",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "mov qword ptr [rcx], rax",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_touch",
    "movzx eax, byte ptr [rdi]",
    "mov eax, 1",
    "ret",
    "ropewalk_guard_name ropewalk_guard_end",
    "ropewalk_guard_name ropewalk_guard_recover",
    "cld",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".purgem ropewalk_guard_name",
    ".popsection",
);

// SAFETY: the routines above have these names and take these arguments.
unsafe extern "C" {
    fn ropewalk_guard_begin();
    fn ropewalk_guard_end();
    fn ropewalk_guard_recover();
    fn ropewalk_guard_copy(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    fn ropewalk_guard_copy_back(to: *mut u8, from: *const u8, bytes: usize) -> u32;
    fn ropewalk_guard_copy_1(to: *mut u8, from: *const u8) -> u32;
    fn ropewalk_guard_copy_2(to: *mut u8, from: *const u8) -> u32;
    fn ropewalk_guard_copy_4(to: *mut u8, from: *const u8) -> u32;
    fn ropewalk_guard_copy_8(to: *mut u8, from: *const u8) -> u32;
    fn ropewalk_guard_swap_1(word: *mut u8, expected: u64, desired: u64, was: *mut u8) -> u32;
    fn ropewalk_guard_swap_2(word: *mut u8, expected: u64, desired: u64, was: *mut u8) -> u32;
    fn ropewalk_guard_swap_4(word: *mut u8, expected: u64, desired: u64, was: *mut u8) -> u32;
    fn ropewalk_guard_swap_8(word: *mut u8, expected: u64, desired: u64, was: *mut u8) -> u32;
    fn ropewalk_guard_touch(at: *const u8) -> u32;
}

/// The addresses of the instructions that may be left.
pub fn instructions() -> Range<usize> {
    let begin = ropewalk_guard_begin as *const () as usize;
    begin..ropewalk_guard_end as *const () as usize
}

/// The instruction at which a routine goes on that was left.
pub fn recovery() -> usize {
    ropewalk_guard_recover as *const () as usize
}

/// # Safety
/// As [`super::copy`].
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool {
    let is_ahead = to.addr().wrapping_sub(from.addr()) < bytes && to.addr() != from.addr();
    // SAFETY: as the caller vouches; what is not there ends a routine.
    let done = unsafe {
        match bytes {
            0 => return true,
            1 => ropewalk_guard_copy_1(to, from),
            2 => ropewalk_guard_copy_2(to, from),
            4 => ropewalk_guard_copy_4(to, from),
            8 => ropewalk_guard_copy_8(to, from),
            // The target begins within the source: its bytes are read before they are written.
            _ if is_ahead => {
                let last = bytes - 1;
                ropewalk_guard_copy_back(to.wrapping_add(last), from.wrapping_add(last), bytes)
            }
            _ => ropewalk_guard_copy(to, from, bytes),
        }
    };
    done == 1
}

/// # Safety
/// As [`super::swap`].
pub unsafe fn swap(
    word: *mut u8,
    bytes: usize,
    expected: [u8; 8],
    desired: [u8; 8],
) -> Option<[u8; 8]> {
    let (expected, desired) = (u64::from_ne_bytes(expected), u64::from_ne_bytes(desired));
    let mut was = [0; 8];
    let to = was.as_mut_ptr();
    // SAFETY: as the caller vouches; `was` has room for the longest word.
    let done = unsafe {
        match bytes {
            1 => ropewalk_guard_swap_1(word, expected, desired, to),
            2 => ropewalk_guard_swap_2(word, expected, desired, to),
            4 => ropewalk_guard_swap_4(word, expected, desired, to),
            _ => ropewalk_guard_swap_8(word, expected, desired, to),
        }
    };
    (done == 1).then_some(was)
}

/// Whether the byte at an address is there.
///
/// # Safety
/// As [`super::is_there`].
pub unsafe fn touch(at: *const u8) -> bool {
    // SAFETY: as the caller vouches.
    unsafe { ropewalk_guard_touch(at) == 1 }
}
