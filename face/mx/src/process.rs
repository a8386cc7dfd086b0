//! The MX state of a process between initialize and finalize, and its open endpoints.
//!
//! A handle of an endpoint is a number: its place in the table and how many had this place before. Each
//! thread keeps a copy of the table, and looks at one number to know that it is still the right one.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use ropewalk_net::boards::Boards;

use crate::abi::{API, Handle};
use crate::codes::NOT_INITIALIZED;
use crate::codes::{ALREADY_INITIALIZED, BAD_LIBRARY_VERSION, Code, FAILURE, NO_RESOURCES};
use crate::endpoint::Ep;
use crate::environment::{self, Options};

/// Endpoints of a process.
pub const ENDPOINTS_MAX: usize = 1 << PLACE_BITS;
/// Bits of a handle that say where an endpoint is in the table.
pub const PLACE_BITS: u32 = 12;

/// The results of initialize.
#[derive(Debug)]
pub struct Process {
    pub boards: Boards,
    pub options: Options,
}

struct Table {
    process: Option<Arc<Process>>,
    alive: Option<Alive>,
    places: Vec<Place>,
}

#[derive(Default)]
struct Place {
    endpoint: Option<Arc<Ep>>,
    /// Endpoints that had this place, this one included.
    uses: u64,
}

static TABLE: Mutex<Table> = Mutex::new(Table { process: None, alive: None, places: Vec::new() });
/// This process is a child that has only a copy of its parent's library.
static IS_CHILD: AtomicBool = AtomicBool::new(false);
/// The number of live objects of the library, which would be mere copies in a child.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// Changes with the table.
static LIFE: AtomicU64 = AtomicU64::new(1);

/// Marks a live object of the library: the process from initialize to finalize, or an endpoint until it is
/// closed.
#[derive(Debug)]
pub struct Alive(());

impl Alive {
    /// Until it is dropped.
    pub fn begin() -> Alive {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Alive(())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread's copy of the table. An endpoint that is closed is gone, even if a thread remembers it.
struct Seen {
    life: u64,
    process: Option<Arc<Process>>,
    places: Vec<(Weak<Ep>, u64)>,
}

thread_local! {
    static SEEN: RefCell<Seen> = const {
        RefCell::new(Seen { life: 0, process: None, places: Vec::new() })
    };
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at this thread's copy.
#[inline]
fn seen<R>(look: impl Fn(&Seen) -> Option<R>) -> Option<R> {
    let found = SEEN.try_with(|seen| {
        let mut seen = seen.borrow_mut();
        if seen.life != LIFE.load(Ordering::Acquire) {
            seen.look_again();
        }
        look(&seen)
    });
    found.unwrap_or_else(|_| {
        // A thread that is ending has none any more, and may close its endpoints all the same.
        let mut fresh = Seen { life: 0, process: None, places: Vec::new() };
        fresh.look_again();
        look(&fresh)
    })
}

impl Seen {
    #[cold]
    fn look_again(&mut self) {
        if is_child() {
            // Its threads are the parent's, and so may be its locks.
            std::mem::forget(self.process.take());
            self.places.clear();
            self.life = LIFE.load(Ordering::Acquire);
            return;
        }
        let table = table();
        self.life = LIFE.load(Ordering::Acquire);
        self.process = table.process.clone();
        let weak = |place: &Place| {
            let endpoint = place.endpoint.as_ref().map_or(Weak::new(), Arc::downgrade);
            (endpoint, place.uses)
        };
        self.places = table.places.iter().map(weak).collect();
    }
}

/// Has children of this process told that the library is none of theirs, if it lives when they are forked.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    extern "C" fn in_child() {
        if ALIVE.load(Ordering::SeqCst) > 0 {
            IS_CHILD.store(true, Ordering::Relaxed);
            LIFE.fetch_add(1, Ordering::Release);
        }
    }
    // SAFETY: the handler is a function of this object, which stays loaded, and only stores numbers.
    WATCHED.call_once(|| match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {}
        _ => eprintln!(
            "libmyriexpress: not enough memory to notice forks: a forked child must not call MX \
             functions"
        ),
    });
}

/// Whether this process is a child that has only a copy of its parent's library, whose locks may be held for ever.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
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
    // Before the table is locked: a child would find it so for ever.
    let alive = Alive::begin();
    let mut table = table();
    if table.process.is_some() {
        return Err(ALREADY_INITIALIZED);
    }
    let options = Options::read();
    let boards = Boards::find().map_err(|error| {
        eprintln!("libmyriexpress: {error}");
        FAILURE
    })?;
    if options.verbose {
        for name in environment::meaningless() {
            eprintln!("libmyriexpress: {name} is ignored: it has no effect in this library");
        }
        for board in &boards.boards {
            eprintln!("libmyriexpress: board {} is {:?}", board.name, board.place);
        }
    }
    table.process = Some(Arc::new(Process { boards, options }));
    table.alive = Some(alive);
    LIFE.fetch_add(1, Ordering::Release);
    Ok(())
}

/// The library ends. Endpoints that are open stay so until they are closed or the process ends.
pub fn finalize() -> Result<(), Code> {
    if !is_initialized() {
        return Err(NOT_INITIALIZED);
    }
    // The table is unlocked before the process state is dropped.
    let (process, _alive) = {
        let mut table = table();
        LIFE.fetch_add(1, Ordering::Release);
        (table.process.take(), table.alive.take())
    };
    process.map(drop).ok_or(NOT_INITIALIZED)
}

/// Splits a handle into its place in the table and the number of earlier holders of this place.
fn split(handle: u64) -> (usize, u64) {
    ((handle & (ENDPOINTS_MAX as u64 - 1)) as usize, handle >> PLACE_BITS)
}

/// The endpoint of a handle.
#[inline]
pub fn endpoint(handle: Handle) -> Option<Arc<Ep>> {
    let (place, uses) = split(handle.addr() as u64);
    seen(|seen| seen.places.get(place).filter(|place| place.1 == uses)?.0.upgrade())
}

/// The endpoint at this place of the table, whichever it is.
pub fn endpoint_at(place: usize) -> Option<Arc<Ep>> {
    seen(|seen| seen.places.get(place)?.0.upgrade())
}

/// All that are open.
pub fn endpoints() -> Vec<Arc<Ep>> {
    table().places.iter().filter_map(|place| place.endpoint.clone()).collect()
}

/// Adds an endpoint, which `make` makes for its place; its handle.
pub fn add(make: impl FnOnce(usize) -> Result<Arc<Ep>, Code>) -> Result<Handle, Code> {
    let mut table = table();
    let free = table.places.iter().position(|place| place.endpoint.is_none());
    let index = free.unwrap_or(table.places.len());
    if index >= ENDPOINTS_MAX {
        return Err(NO_RESOURCES);
    }
    let endpoint = make(index)?;
    if index == table.places.len() {
        table.places.push(Place::default());
    }
    let place = &mut table.places[index];
    place.endpoint = Some(endpoint);
    place.uses += 1;
    let handle = place.uses << PLACE_BITS | index as u64;
    LIFE.fetch_add(1, Ordering::Release);
    Ok(std::ptr::without_provenance_mut(handle as usize))
}

/// Takes an endpoint out; false where another thread did.
pub fn remove(handle: Handle) -> bool {
    let (place, uses) = split(handle.addr() as u64);
    let mut table = table();
    let found = table.places.get_mut(place).filter(|place| place.uses == uses);
    let removed = found.and_then(|place| place.endpoint.take());
    LIFE.fetch_add(1, Ordering::Release);
    removed.is_some()
}
