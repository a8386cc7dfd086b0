//! The library of this process between `rw_init` and `rw_finalize`: the rank that it is, its windows, types and requests.
//!
//! A window's handle is its place in a table, of which each thread has a copy. Types and requests are behind locks that are
//! held for a look only.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use ropewalk_base::slots::Slots;
use ropewalk_face_common::{ForkGuard, HandleBits, Living, Places, ThreadCopy, Versioned};
use ropewalk_rma::{Datatype, Error, Request, Window};

use crate::codes::{
    ERR_INIT, ERR_NO_MEM, ERR_OTHER, ERR_REQUEST, ERR_RMA_SYNC, ERR_TYPE, ERR_WIN, Failure, failure,
};
use crate::handles::{Handle, MODEL_UNIFIED, handle, number, predefined};
use crate::process::{Process, ProcessError};

const WINDOW_BITS: HandleBits = HandleBits::new(0, 12);
const WINDOWS_MAX: usize = 1 << 12;
/// Numbers of predefined types are below the first one of a derived type.
const TYPE_BITS: HandleBits = HandleBits::new(0, 20);
const TYPES_MAX: usize = 1 << 20;
const REQUEST_BITS: HandleBits = HandleBits::new(0, 22);
const REQUESTS_MAX: usize = 1 << 22;

/// The library of a process that is a rank.
pub struct Library {
    pub process: Process,
    types: RwLock<Slots<Datatype>>,
    requests: Mutex<Slots<Arc<Request>>>,
}

/// A window: calls share it, its end does not.
pub struct Win {
    window: RwLock<Window>,
    numbers: Numbers,
}

/// Numbers of a window that C reads by their addresses. They never change.
#[derive(Debug, Clone, Copy)]
pub struct Numbers {
    pub bytes: i64,
    pub displacement_unit: c_int,
    /// The call that made it.
    pub flavor: c_int,
    /// Loads see what others wrote.
    pub model: c_int,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Before,
    Within,
    Ended,
}

struct Table {
    library: Option<Arc<Library>>,
    windows: Places<Arc<Win>>,
    living: Option<Living>,
    phase: Phase,
}

static TABLE: Versioned<Table> = Versioned::new(Table {
    library: None,
    windows: Places::with_limit(WINDOWS_MAX),
    living: None,
    phase: Phase::Before,
});

/// Tells children of this process that the library is their parent's.
static FORKS: ForkGuard = ForkGuard::new();

/// A thread's copy of the table.
#[derive(Default)]
struct Seen {
    library: Weak<Library>,
    windows: Places<Weak<Win>>,
}

thread_local! {
    static SEEN: RefCell<ThreadCopy<Seen>> = const {
        RefCell::new(ThreadCopy::new(Seen { library: Weak::new(), windows: Places::with_limit(0) }))
    };
}

impl Seen {
    fn look_again(&mut self) {
        if FORKS.is_child() {
            // Its locks may be held by threads that the child does not have.
            *self = Seen::default();
            return;
        }
        *self = TABLE.look(|table| Seen {
            library: table.library.as_ref().map_or(Weak::new(), Arc::downgrade),
            windows: table.windows.map(Arc::downgrade),
        });
    }
}

fn seen<R>(look: impl Fn(&Seen) -> R) -> R {
    ThreadCopy::with(&SEEN, &TABLE, Seen::look_again, look)
}

extern "C" fn in_child() {
    if FORKS.in_child() {
        TABLE.outdate();
    }
}

fn refuse_child() -> Result<(), Failure> {
    match FORKS.is_child() {
        true => Err(failure(
            ERR_INIT,
            "this process was forked by a rank and is none: call exec, or fork before rw_init",
        )),
        false => Ok(()),
    }
}

/// This process becomes a rank.
pub fn initialize() -> Result<(), Failure> {
    refuse_child()?;
    // SAFETY: the handler is a function of this object, which stays loaded, and only stores numbers.
    FORKS.watch("libropewalk-rma", || unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    let living = FORKS.begin();
    TABLE.change(|table| {
        match table.phase {
            Phase::Before => {}
            Phase::Within => return Err(failure(ERR_INIT, "the library was initialized already")),
            Phase::Ended => {
                return Err(failure(ERR_INIT, "the library has ended: a process is a rank once"));
            }
        }
        let process = Process::start().map_err(|error| failure(ERR_OTHER, error.to_string()))?;
        let types = RwLock::new(Slots::with_limit(TYPES_MAX));
        let requests = Mutex::new(Slots::with_limit(REQUESTS_MAX));
        table.library = Some(Arc::new(Library { process, types, requests }));
        table.living = Some(living);
        table.phase = Phase::Within;
        Ok(())
    })
}

/// This process is a rank no more.
pub fn finalize() -> Result<(), Failure> {
    let library = library()?;
    // While the others are waited for, threads may still call.
    let ended = library.process.end();
    let windows = TABLE.change(|table| {
        table.library = None;
        table.living = None;
        table.phase = Phase::Ended;
        std::mem::replace(&mut table.windows, Places::with_limit(0))
    });
    drop(windows);
    ended.map_err(|error| match error {
        ProcessError::Team(error) => error.into(),
        other => failure(ERR_OTHER, other.to_string()),
    })
}

/// The library.
pub fn library() -> Result<Arc<Library>, Failure> {
    if let Some(library) = seen(|seen| seen.library.upgrade()) {
        return Ok(library);
    }
    refuse_child()?;
    Err(failure(ERR_INIT, "the library was not initialized, or has ended"))
}

fn no_window(of: Handle) -> Failure {
    failure(ERR_WIN, format!("there is no window {:#x}: it was freed, or never made", number(of)))
}

fn win(of: Handle) -> Result<Arc<Win>, Failure> {
    let found = seen(|seen| {
        let id = WINDOW_BITS.find(0, number(of), |index| seen.windows.id_at(index))?;
        seen.windows.get(id)?.upgrade()
    });
    match found {
        Some(win) => Ok(win),
        None => library().and(Err(no_window(of))),
    }
}

/// Asks a window.
pub fn with_window<T>(
    of: Handle,
    ask: impl FnOnce(&Window) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let win = win(of)?;
    // Nothing is left half-changed: only its end changes it.
    let window = win.window.read().unwrap_or_else(PoisonError::into_inner);
    ask(&window)
}

/// Asks for the numbers of a window, which stay where they are until it is freed.
pub fn with_numbers<T>(
    of: Handle,
    ask: impl FnOnce(&Numbers) -> Result<T, Failure>,
) -> Result<T, Failure> {
    ask(&win(of)?.numbers)
}

/// Whether one more window can be kept: asked before ranks make it together.
pub fn has_window_room() -> Result<(), Failure> {
    TABLE.change(|table| match table.windows.iter().count() < WINDOWS_MAX {
        true => Ok(()),
        false => Err(no_window_room()),
    })
}

fn no_window_room() -> Failure {
    failure(ERR_NO_MEM, format!("{WINDOWS_MAX} windows are there already"))
}

/// Keeps a window that was made, by a number.
pub fn keep_window(window: Window, flavor: c_int) -> Result<Handle, Failure> {
    let (bytes, unit) = match window.is_dynamic() {
        true => (0, 1),
        false => window.extent_of(window.rank()),
    };
    let numbers = Numbers {
        bytes: bytes as i64,
        displacement_unit: unit as c_int,
        flavor,
        model: MODEL_UNIFIED,
    };
    let win = Arc::new(Win { window: RwLock::new(window), numbers });
    let id = TABLE.change(|table| table.windows.add(no_window_room(), |_| Ok(win)))?;
    Ok(handle(WINDOW_BITS.handle(0, id)))
}

/// Ends a window. It stays where the call is wrong; else it is gone, also where the end (the inner result) tells of operations
/// that were refused, or of a rank that is lost.
pub fn free_window(of: Handle) -> Result<Result<(), Failure>, Failure> {
    let win = win(of)?;
    let freed = {
        let busy = |_| failure(ERR_RMA_SYNC, "another thread is within a call on this window");
        win.window.try_write().map_err(busy)?.free()
    };
    if let Err(error @ (Error::Misuse { .. } | Error::Conflict { .. })) = freed {
        return Err(error.into());
    }
    TABLE.change(|table| {
        let id = WINDOW_BITS.find(0, number(of), |index| table.windows.id_at(index));
        id.and_then(|id| table.windows.remove(id))
    });
    Ok(freed.map_err(Failure::from))
}

fn no_type(of: Handle) -> Failure {
    failure(
        ERR_TYPE,
        format!("there is no datatype {:#x}: it was freed, or never made", number(of)),
    )
}

impl Library {
    /// The datatype with this handle.
    pub fn datatype(&self, of: Handle) -> Result<Datatype, Failure> {
        if let Some(datatype) = predefined(number(of)) {
            return Ok(datatype.clone());
        }
        let types = self.types.read().unwrap_or_else(PoisonError::into_inner);
        let id = TYPE_BITS.find(0, number(of), |index| types.id_at(index));
        id.and_then(|id| types.get(id)).cloned().ok_or_else(|| no_type(of))
    }

    pub fn keep_type(&self, datatype: Datatype) -> Result<Handle, Failure> {
        let mut types = self.types.write().unwrap_or_else(PoisonError::into_inner);
        let kept = types.insert(datatype);
        let id = kept.map_err(|_| failure(ERR_NO_MEM, format!("{TYPES_MAX} types are there")))?;
        Ok(handle(TYPE_BITS.handle(0, id)))
    }

    pub fn free_type(&self, of: Handle) -> Result<(), Failure> {
        if predefined(number(of)).is_some() {
            return Err(failure(ERR_TYPE, "a predefined type cannot be freed"));
        }
        let mut types = self.types.write().unwrap_or_else(PoisonError::into_inner);
        let id = TYPE_BITS.find(0, number(of), |index| types.id_at(index));
        id.and_then(|id| types.remove(id)).map(drop).ok_or_else(|| no_type(of))
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, Slots<Arc<Request>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn keep_request(&self, request: Request) -> Result<Handle, Failure> {
        let kept = self.requests().insert(Arc::new(request));
        let full = "the operation has begun, and ends with its epoch, but there is no room for its request";
        Ok(handle(REQUEST_BITS.handle(0, kept.map_err(|_| failure(ERR_NO_MEM, full))?)))
    }

    /// The request with this handle; it stays.
    pub fn request(&self, of: Handle) -> Result<Arc<Request>, Failure> {
        let requests = self.requests();
        let id = REQUEST_BITS.find(0, number(of), |index| requests.id_at(index));
        id.and_then(|id| requests.get(id)).cloned().ok_or_else(|| {
            failure(ERR_REQUEST, format!("there is no request {:#x}: it is over", number(of)))
        })
    }

    /// A request is over.
    pub fn drop_request(&self, of: Handle) {
        let mut requests = self.requests();
        let id = REQUEST_BITS.find(0, number(of), |index| requests.id_at(index));
        id.and_then(|id| requests.remove(id));
    }
}
