//! The MX state of a process between initialize and finalize, and its open endpoints.
//!
//! A handle of an endpoint is a number: its place in the table and how many had this place before. Each
//! thread keeps a copy of the table, and looks at one number to know that it is still the right one.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use ropewalk_base::slots::SlotId;
use ropewalk_face_common::{ForkGuard, HandleBits, Living, Places, ThreadCopy, Versioned};
use ropewalk_host_mx::nics::Nics;

use crate::abi::{API, Handle};
use crate::codes::NOT_INITIALIZED;
use crate::codes::{ALREADY_INITIALIZED, BAD_LIBRARY_VERSION, Code, FAILURE, NO_RESOURCES};
use crate::endpoint::Ep;
use crate::environment::{self, Options};

/// Endpoints of a process.
pub const ENDPOINTS_MAX: usize = 1 << PLACE_BITS;
/// Bits of a handle that say where an endpoint is in the table.
pub const PLACE_BITS: u32 = 12;
/// Handles of endpoints.
const BITS: HandleBits = HandleBits::new(0, PLACE_BITS);

/// The results of initialize.
#[derive(Debug)]
pub struct Process {
    pub nics: Nics,
    pub options: Options,
}

struct Table {
    process: Option<Arc<Process>>,
    /// From initialize to finalize.
    living: Option<Living>,
    endpoints: Places<Arc<Ep>>,
}

static TABLE: Versioned<Table> = Versioned::new(Table {
    process: None,
    living: None,
    endpoints: Places::with_limit(ENDPOINTS_MAX),
});

/// Tells children of this process that the library is their parent's.
static FORKS: ForkGuard = ForkGuard::new();

/// A thread's copy of the table. An endpoint that is closed is gone, even if a thread remembers it.
#[derive(Default)]
struct Seen {
    process: Option<Arc<Process>>,
    endpoints: Places<Weak<Ep>>,
}

thread_local! {
    static SEEN: RefCell<ThreadCopy<Seen>> = const {
        RefCell::new(ThreadCopy::new(Seen { process: None, endpoints: Places::with_limit(0) }))
    };
}

/// Looks at this thread's copy.
#[inline]
fn seen<R>(look: impl Fn(&Seen) -> Option<R>) -> Option<R> {
    ThreadCopy::with(&SEEN, &TABLE, Seen::look_again, look)
}

impl Seen {
    #[inline]
    fn endpoint(&self, handle: Handle) -> Option<Arc<Ep>> {
        self.endpoints.get(find(&self.endpoints, handle)?)?.upgrade()
    }

    fn look_again(&mut self) {
        if is_child() {
            // Its threads are the parent's, and so may be its locks.
            std::mem::forget(self.process.take());
            self.endpoints = Places::default();
            return;
        }
        *self = TABLE.look(|table| Seen {
            process: table.process.clone(),
            endpoints: table.endpoints.map(Arc::downgrade),
        });
    }
}

fn watch_forks() {
    extern "C" fn in_child() {
        if FORKS.in_child() {
            TABLE.outdate();
        }
    }
    // SAFETY: the handler is a function of this object, which stays loaded, and only stores numbers.
    FORKS.watch("libmyriexpress", || unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
}

/// Marks a live object of the library until it is dropped: an endpoint until it is closed. It begins before any lock is
/// taken: a child that is forked meanwhile would find the lock held for ever.
pub fn begin() -> Living {
    FORKS.begin()
}

/// Whether this process is a child that has only a copy of its parent's library, whose locks may be held for ever.
pub fn is_child() -> bool {
    FORKS.is_child()
}

/// Whether initialize was called, and finalize was not.
#[inline]
pub fn is_initialized() -> bool {
    seen(|seen| seen.process.as_ref().map(|_| ())).is_some()
}

/// The results of initialize; `None` before it and after finalize.
pub fn current() -> Option<Arc<Process>> {
    seen(|seen| seen.process.clone())
}

/// The library begins.
pub fn initialize(api: u32) -> Result<(), Code> {
    if api == 0 || api >> 8 != API >> 8 {
        return Err(BAD_LIBRARY_VERSION);
    }
    if is_child() {
        eprintln!(
            "libmyriexpress: this process was forked after mx_init, and only its parent has the \
             threads of the library; fork before mx_init, or after mx_finalize with all endpoints \
             closed, or call exec in the child"
        );
        return Err(FAILURE);
    }
    watch_forks();
    ropewalk_host_mx::module::register();
    let living = begin();
    TABLE.change(|table| {
        if table.process.is_some() {
            return Err(ALREADY_INITIALIZED);
        }
        table.process = Some(Arc::new(Process::find()?));
        table.living = Some(living);
        Ok(())
    })
}

impl Process {
    /// Reads the environment and finds the NICs.
    fn find() -> Result<Process, Code> {
        let options = Options::read();
        let nics = Nics::find().map_err(|error| {
            eprintln!("libmyriexpress: {error}");
            FAILURE
        })?;
        if options.verbose {
            for name in environment::meaningless() {
                eprintln!("libmyriexpress: {name} is ignored: it has no effect in this library");
            }
            for nic in &nics.nics {
                eprintln!("libmyriexpress: board {} is {:?}", nic.name, nic.place);
            }
        }
        Ok(Process { nics, options })
    }
}

/// The library ends. Endpoints that are open stay so until they are closed or the process ends.
pub fn finalize() -> Result<(), Code> {
    if !is_initialized() {
        return Err(NOT_INITIALIZED);
    }
    // The table is unlocked before the process state is dropped.
    let (process, _living) = TABLE.change(|table| (table.process.take(), table.living.take()));
    process.map(drop).ok_or(NOT_INITIALIZED)
}

/// The key of the endpoint that a handle names.
#[inline]
fn find<T>(endpoints: &Places<T>, handle: Handle) -> Option<SlotId> {
    BITS.find(0, handle.addr() as u64, |index| endpoints.id_at(index))
}

/// The endpoint of a handle.
#[inline]
pub fn endpoint(handle: Handle) -> Option<Arc<Ep>> {
    seen(|seen| seen.endpoint(handle))
}

/// The endpoint of a handle; `None` also before initialize and after finalize.
#[inline]
pub fn endpoint_in_life(handle: Handle) -> Option<Arc<Ep>> {
    seen(|seen| seen.process.as_ref().and_then(|_| seen.endpoint(handle)))
}

/// The endpoint at this place of the table, whichever it is.
pub fn endpoint_at(place: usize) -> Option<Arc<Ep>> {
    seen(|seen| seen.endpoints.at(place)?.upgrade())
}

/// All that are open.
pub fn endpoints() -> Vec<Arc<Ep>> {
    TABLE.look(|table| table.endpoints.iter().cloned().collect())
}

/// Adds an endpoint, which `make` makes for its place; its handle.
pub fn add(make: impl FnOnce(usize) -> Result<Arc<Ep>, Code>) -> Result<Handle, Code> {
    let id = TABLE.change(|table| table.endpoints.add(NO_RESOURCES, make))?;
    Ok(std::ptr::without_provenance_mut(BITS.handle(0, id) as usize))
}

/// Takes an endpoint out; false where another thread did.
pub fn remove(handle: Handle) -> bool {
    let removed = TABLE.change(|table| {
        let id = find(&table.endpoints, handle)?;
        table.endpoints.remove(id)
    });
    removed.is_some()
}
