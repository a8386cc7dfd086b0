//! The C functions for callers in Rust: benchmarks, and tests that need no compiler for C.
//!
//! It calls what a C program calls, with the same arguments. Memory is in *areas* that the driver owns,
//! and operations name pieces of them.
//!
//! Invariant: an area with operations under way is neither read, nor written, nor freed here.

use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use crate::addresses::Handle;
use crate::entry::*;
use crate::errors::{self, ErrorCode};
use crate::library::{INIT_SERVER, TCP_BIND_SPECIFIC};
use crate::options::number::TCP_GET_PORT;

/// An error of the interface, with the call that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverError {
    pub call: &'static str,
    pub code: ErrorCode,
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = errors::name(self.code).to_string_lossy();
        write!(f, "{} failed with {name} ({})", self.call, self.code)
    }
}

impl std::error::Error for DriverError {}

type Result<T> = std::result::Result<T, DriverError>;

fn check(call: &'static str, code: c_int) -> Result<c_int> {
    if code < 0 { Err(DriverError { call, code }) } else { Ok(code) }
}

/// Names a piece of memory of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area(usize);

struct Memory {
    address: *mut u8,
    bytes: usize,
    /// The peer for which the library allocated it; `None`: a vector of our own.
    allocated_for: Option<Handle>,
    under_way: usize,
}

/// A completed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    pub user: u32,
    pub error: ErrorCode,
    pub bytes: i64,
}

/// A message that nobody posted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected {
    pub from: Handle,
    pub tag: i32,
    pub bytes: Vec<u8>,
}

/// The peer, tag and memory of a message to send or receive.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub peer: Handle,
    pub tag: i32,
    pub area: Area,
    /// Offsets and lengths within the area; more than one makes a list.
    pub pieces: &'a [(usize, usize)],
    /// Comes back with the completion.
    pub user: u32,
}

/// Posts, and how many of them were complete at once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub posts: u64,
    pub done: u64,
}

impl Tally {
    #[inline]
    fn note(&mut self, done: bool) {
        self.posts += 1;
        self.done += u64::from(done);
    }
}

/// The longest send that is counted: one that has nothing to wait for.
const SMALL: usize = 1024;

/// A user of the library with one context.
pub struct Driver {
    context: i64,
    areas: Vec<Memory>,
    /// Sends of at most 1 KiB.
    pub sends: Tally,
    pub receives: Tally,
    /// The result arrays of the test calls, kept between calls as a program keeps them.
    results: Box<Results>,
    /// Areas are of one thread.
    _not_shared: PhantomData<*mut u8>,
}

const AT_ONCE: usize = 64;

struct Results {
    ids: [i64; AT_ONCE],
    codes: [ErrorCode; AT_ONCE],
    sizes: [i64; AT_ONCE],
    users: [*mut c_void; AT_ONCE],
}
const EXT_ALLOC: c_int = 2;
const PRE_ALLOC: c_int = 1;

impl Driver {
    /// A client; modules are found by the URLs that are looked up.
    pub fn client() -> Result<Driver> {
        // SAFETY: no strings.
        check("BMI_initialize", unsafe { BMI_initialize(ptr::null(), ptr::null(), 0) })?;
        Driver::with_context()
    }

    /// A server that listens at this URL, or at each of a list of them, and nowhere else.
    pub fn server(url: &str) -> Result<Driver> {
        let schemes = url.split(',').filter_map(|url| url.split("://").next());
        let methods: Vec<String> = schemes.map(|scheme| format!("bmi_{scheme}")).collect();
        let methods = CString::new(methods.join(",")).unwrap_or_default();
        let listen = CString::new(url).unwrap_or_default();
        let flags = INIT_SERVER | TCP_BIND_SPECIFIC;
        // SAFETY: both strings end with a zero.
        let code = unsafe { BMI_initialize(methods.as_ptr(), listen.as_ptr(), flags) };
        check("BMI_initialize", code)?;
        Driver::with_context()
    }

    fn with_context() -> Result<Driver> {
        let mut context = 0;
        // SAFETY: it may be written.
        check("BMI_open_context", unsafe { BMI_open_context(&mut context) })?;
        let areas = Vec::new();
        let results = Box::new(Results {
            ids: [0; AT_ONCE],
            codes: [0; AT_ONCE],
            sizes: [0; AT_ONCE],
            users: [ptr::null_mut(); AT_ONCE],
        });
        let (sends, receives) = (Tally::default(), Tally::default());
        Ok(Driver { context, areas, sends, receives, results, _not_shared: PhantomData })
    }

    /// The port of the tcp module.
    pub fn port(&self) -> Result<u16> {
        let mut port: c_int = 0;
        // SAFETY: the option has an int.
        check("BMI_get_info", unsafe { BMI_get_info(0, TCP_GET_PORT, (&raw mut port).cast()) })?;
        Ok(port as u16)
    }

    /// The address of a URL.
    pub fn look_up(&self, url: &str) -> Result<Handle> {
        let text = CString::new(url).unwrap_or_default();
        let mut handle = 0;
        // SAFETY: the handle may be written, the string ends with a zero.
        check("BMI_addr_lookup", unsafe { BMI_addr_lookup(&mut handle, text.as_ptr()) })?;
        Ok(handle)
    }

    /// Memory for messages, filled with zeros: of the library for this peer, or of our own.
    pub fn area(&mut self, bytes: usize, allocated_for: Option<Handle>) -> Result<Area> {
        let address = match allocated_for {
            None => Box::into_raw(vec![0u8; bytes].into_boxed_slice()).cast::<u8>(),
            Some(peer) => BMI_memalloc(peer, bytes as i64, 1).cast(),
        };
        if address.is_null() {
            return Err(DriverError { call: "BMI_memalloc", code: -errors::ENOMEM });
        }
        self.areas.push(Memory { address, bytes, allocated_for, under_way: 0 });
        let area = Area(self.areas.len() - 1);
        self.fill(area, 0, bytes, 0);
        Ok(area)
    }

    fn idle(&self, area: Area, offset: usize, bytes: usize) -> &Memory {
        let memory = &self.areas[area.0];
        assert_eq!(memory.under_way, 0, "an area is left alone while operations are under way");
        assert!(offset <= memory.bytes && bytes <= memory.bytes - offset, "inside the area");
        memory
    }

    /// Fills a part of an area.
    pub fn fill(&mut self, area: Area, offset: usize, bytes: usize, value: u8) {
        let memory = self.idle(area, offset, bytes);
        // SAFETY: it lies inside, and no operation is under way.
        unsafe { memory.address.add(offset).write_bytes(value, bytes) };
    }

    /// A byte of an area.
    pub fn byte(&self, area: Area, offset: usize) -> u8 {
        let memory = self.idle(area, offset, 1);
        // SAFETY: it lies inside, and no operation is under way.
        unsafe { memory.address.add(offset).read() }
    }

    /// Copies into an area.
    pub fn write(&mut self, area: Area, bytes: &[u8]) {
        let memory = self.idle(area, 0, bytes.len());
        // SAFETY: it lies inside, and no operation is under way.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), memory.address, bytes.len()) };
    }

    /// Copies out of an area.
    pub fn read(&self, area: Area, bytes: usize) -> Vec<u8> {
        let memory = self.idle(area, 0, bytes);
        // SAFETY: it lies inside, and no operation is under way.
        unsafe { std::slice::from_raw_parts(memory.address, bytes) }.to_vec()
    }

    /// The user pointer and the buffer's type that C functions take.
    #[inline]
    fn arguments(&self, message: &Message<'_>) -> (*mut c_void, c_int) {
        let user = (message.area.0 << 32) | message.user as usize;
        let kind =
            if self.areas[message.area.0].allocated_for.is_some() { PRE_ALLOC } else { EXT_ALLOC };
        (ptr::with_exposed_provenance_mut(user), kind)
    }

    #[inline]
    fn one(&self, message: &Message<'_>) -> Option<(*mut u8, i64)> {
        match message.pieces {
            [(offset, bytes)] => Some((self.address(message.area, *offset, *bytes), *bytes as i64)),
            _ => None,
        }
    }

    #[inline]
    fn address(&self, area: Area, offset: usize, bytes: usize) -> *mut u8 {
        let memory = &self.areas[area.0];
        assert!(offset <= memory.bytes && bytes <= memory.bytes - offset, "inside the area");
        // SAFETY: it lies inside.
        unsafe { memory.address.add(offset) }
    }

    fn list(&self, message: &Message<'_>) -> (Vec<*mut c_void>, Vec<i64>, i64) {
        let address = |(offset, bytes): &(usize, usize)| {
            self.address(message.area, *offset, *bytes).cast::<c_void>()
        };
        let buffers = message.pieces.iter().map(address).collect();
        let sizes: Vec<i64> = message.pieces.iter().map(|(_, bytes)| *bytes as i64).collect();
        let total = sizes.iter().sum();
        (buffers, sizes, total)
    }

    #[inline]
    fn posted(&mut self, call: &'static str, code: c_int, area: Area) -> Result<bool> {
        let done = check(call, code)? == 1;
        self.areas[area.0].under_way += usize::from(!done);
        Ok(done)
    }

    #[inline]
    fn sent(&mut self, call: &'static str, code: c_int, message: &Message<'_>) -> Result<bool> {
        let done = self.posted(call, code, message.area)?;
        if message.pieces.iter().map(|(_, bytes)| bytes).sum::<usize>() <= SMALL {
            self.sends.note(done);
        }
        Ok(done)
    }

    /// Posts a send; true where it is complete.
    #[inline]
    pub fn send(&mut self, message: &Message<'_>) -> Result<bool> {
        let (user, kind) = self.arguments(message);
        let Message { peer, tag, .. } = *message;
        let (context, none) = (self.context, ptr::null_mut());
        let mut id = 0;
        let code = match self.one(message) {
            // SAFETY: the piece lies in its area, which stays until the operation has ended.
            Some((buffer, bytes)) => unsafe {
                let buffer = buffer.cast();
                BMI_post_send(&mut id, peer, buffer, bytes, kind, tag, user, context, none)
            },
            None => {
                let (buffers, sizes, total) = self.list(message);
                let (buffers, count) = (buffers.as_ptr().cast(), sizes.len() as c_int);
                let sizes = sizes.as_ptr();
                // SAFETY: as above; the lists are needed during the call only.
                unsafe {
                    BMI_post_send_list(
                        &mut id, peer, buffers, sizes, count, total, kind, tag, user, context, none,
                    )
                }
            }
        };
        self.sent("BMI_post_send", code, message)
    }

    /// Posts a receive; true where it is complete.
    #[inline]
    pub fn receive(&mut self, message: &Message<'_>) -> Result<bool> {
        let (user, kind) = self.arguments(message);
        let Message { peer, tag, area, .. } = *message;
        let (context, none) = (self.context, ptr::null_mut());
        let (mut id, mut got) = (0, 0);
        let code = match self.one(message) {
            // SAFETY: the piece lies in its area, which stays until the operation has ended.
            Some((buffer, bytes)) => unsafe {
                let buffer = buffer.cast();
                BMI_post_recv(
                    &mut id, peer, buffer, bytes, &mut got, kind, tag, user, context, none,
                )
            },
            None => {
                let (buffers, sizes, total) = self.list(message);
                let count = sizes.len() as c_int;
                let (buffers, sizes) = (buffers.as_ptr(), sizes.as_ptr());
                // SAFETY: as above; the lists are needed during the call only.
                unsafe {
                    BMI_post_recv_list(
                        &mut id, peer, buffers, sizes, count, total, &mut got, kind, tag, user,
                        context, none,
                    )
                }
            }
        };
        let done = self.posted("BMI_post_recv", code, area)?;
        self.receives.note(done);
        Ok(done)
    }

    /// Sends an unexpected message of the first piece; true where it is complete.
    pub fn send_unexpected(&mut self, message: &Message<'_>) -> Result<bool> {
        let (user, kind) = self.arguments(message);
        let Message { peer, tag, .. } = *message;
        let Some((buffer, bytes)) = self.one(message) else {
            return Err(DriverError { call: "BMI_post_sendunexpected", code: -errors::EINVAL });
        };
        let (context, none) = (self.context, ptr::null_mut());
        let mut id = 0;
        // SAFETY: the piece lies in its area, which stays until the operation has ended.
        let code = unsafe {
            let buffer = buffer.cast();
            BMI_post_sendunexpected(&mut id, peer, buffer, bytes, kind, tag, user, context, none)
        };
        self.sent("BMI_post_sendunexpected", code, message)
    }

    /// Takes what has ended, waiting for the first for at most `idle` milliseconds.
    #[inline]
    pub fn test(&mut self, idle: c_int, mut report: impl FnMut(Finished)) -> Result<usize> {
        let Results { ids, codes, sizes, users } = &mut *self.results;
        let mut count: c_int = 0;
        // SAFETY: all arrays have room for as many.
        let code = unsafe {
            BMI_testcontext(
                AT_ONCE as c_int,
                ids.as_mut_ptr(),
                &mut count,
                codes.as_mut_ptr(),
                sizes.as_mut_ptr(),
                users.as_mut_ptr(),
                idle,
                self.context,
            )
        };
        check("BMI_testcontext", code)?;
        for index in 0..count as usize {
            let user = users[index].addr();
            self.areas[user >> 32].under_way -= 1;
            let (error, bytes) = (codes[index], sizes[index]);
            report(Finished { user: user as u32, error, bytes });
        }
        Ok(count as usize)
    }

    /// The next unexpected message, waiting for it for at most `idle` milliseconds.
    pub fn unexpected(&mut self, idle: c_int) -> Result<Option<Unexpected>> {
        let none =
            BmiUnexpectedInfo { error_code: 0, addr: 0, buffer: ptr::null_mut(), size: 0, tag: 0 };
        let (mut info, mut count) = ([none], 0);
        // SAFETY: the array has room for one.
        let code = unsafe { BMI_testunexpected(1, &mut count, info.as_mut_ptr(), idle) };
        check("BMI_testunexpected", code)?;
        if count == 0 {
            return Ok(None);
        }
        let BmiUnexpectedInfo { addr, buffer, size, tag, .. } = info[0];
        // SAFETY: the buffer has so many bytes until it is given back.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size as usize) };
        let bytes = bytes.to_vec();
        check("BMI_unexpected_free", BMI_unexpected_free(addr, buffer))?;
        Ok(Some(Unexpected { from: addr, tag, bytes }))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        BMI_close_context(self.context);
        for memory in self.areas.drain(..).filter(|memory| memory.under_way == 0) {
            match memory.allocated_for {
                Some(peer) => {
                    BMI_memfree(peer, memory.address.cast(), memory.bytes as i64, 1);
                }
                None => {
                    let slice = ptr::slice_from_raw_parts_mut(memory.address, memory.bytes);
                    // SAFETY: it was a boxed slice of this length, and nobody uses it any more. Areas
                    // with operations under way are never freed.
                    drop(unsafe { Box::from_raw(slice) });
                }
            }
        }
        BMI_finalize();
    }
}
