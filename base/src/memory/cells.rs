//! Memory that its owner and others access at once: of a window, or of an origin's results.
//!
//! Peers, rails and other threads may read and write the bytes whenever they like. So there is never a Rust reference to
//! them. The owner loads and stores values through a shared handle, and lends ranges as [`Memory`].
//!
//! Invariants:
//! * the bytes never move; those of our own begin as zeros, and lie at a page's boundary;
//! * they live as long as a handle or a [`Memory`] made of one does: our own are freed with the last one, a mapping goes with
//!   the last one, and whoever calls [`Cells::promised`] vouches for others. Only those of [`Cells::fleeting`] may go away;
//! * a value at an address that is a multiple of its size is loaded and stored by one access, with acquire and release
//!   order: nobody sees a part of it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use thiserror::Error;

use super::party::{LockWords, Party};
use super::{Kind, Memory, Segment, guard, store};

/// Cells begin at a multiple of this.
const ALIGNMENT: usize = 4096;

/// An access does not lie inside of its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{bytes} bytes from byte {at} on do not lie in memory of {len} bytes")]
pub struct OutOfCells {
    /// The first byte of the access.
    pub at: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Bytes that there are.
    pub len: usize,
}

/// Memory of a fixed length that others may access, too. Cloning gives another handle on the same bytes.
#[derive(Clone)]
pub struct Cells {
    allocation: Arc<Allocation>,
}

/// The owner of the bytes.
struct Allocation {
    address: NonNull<u8>,
    bytes: usize,
    /// This process among those who update shared memory, but for its [`super::Updater`]s. It goes before the owner.
    party: OnceLock<Mutex<Party>>,
    owner: Owner,
    /// See [`Cells::share`].
    is_shared: AtomicBool,
}

/// The owner of the bytes: it keeps them alive.
enum Owner {
    /// They are freed with the allocation.
    Own,
    /// Somebody else, who promised it.
    Promised,
    /// Somebody else, who may take it away.
    Fleeting,
    /// Something that goes with the allocation, and keeps the lock of those who update elements here.
    Kept { lock: Option<NonNull<LockWords>>, _keep: Box<dyn Any + Send + Sync> },
    /// The cells that these are a part of.
    Part(Cells),
}

// SAFETY: whoever has a handle accesses the bytes through raw pointers only, by atomic accesses or by copies that may be
// torn (module). The allocation itself never changes.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `None` for no bytes, which take no memory, and for more than an allocation can have.
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, ALIGNMENT).ok().filter(|_| bytes > 0)
    }

    fn cells(address: NonNull<u8>, bytes: usize, owner: Owner) -> Cells {
        let (party, is_shared) = (OnceLock::new(), AtomicBool::new(false));
        Cells { allocation: Arc::new(Allocation { address, bytes, party, owner, is_shared }) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let is_own = matches!(self.owner, Owner::Own);
        if let Some(layout) = Allocation::layout(self.bytes).filter(|_| is_own) {
            // SAFETY: it was allocated with this layout, and is freed here only.
            unsafe { dealloc(self.address.as_ptr(), layout) };
        }
    }
}

mod sealed {
    /// Nobody else decides what a cell can hold.
    pub trait Sealed {}
}

/// A number that cells hold: an integer or a floating-point number of 1, 2, 4 or 8 bytes, in this machine's byte order.
pub trait Value: Copy + Default + sealed::Sealed {
    /// # Safety
    /// So many bytes are mapped at `at`. No Rust reference to them exists.
    #[doc(hidden)]
    unsafe fn load_at(at: *mut u8) -> Self;
    /// # Safety
    /// As [`Self::load_at`], and they may be written.
    #[doc(hidden)]
    unsafe fn store_at(self, at: *mut u8);
}

macro_rules! values {
    ($($value:ty, $integer:ty, $atomic:ty;)*) => {$(
        impl sealed::Sealed for $value {}

        impl Value for $value {
            #[inline]
            unsafe fn load_at(at: *mut u8) -> Self {
                // SAFETY: the caller vouches for the bytes; what is accessed atomically is aligned.
                Self::from_ne_bytes(unsafe {
                    match at.cast::<$atomic>().is_aligned() {
                        true => <$atomic>::from_ptr(at.cast()).load(Acquire).to_ne_bytes(),
                        false => at.cast::<[u8; size_of::<$value>()]>().read_volatile(),
                    }
                })
            }

            #[inline]
            unsafe fn store_at(self, at: *mut u8) {
                let bytes = self.to_ne_bytes();
                // SAFETY: as above.
                unsafe {
                    match at.cast::<$atomic>().is_aligned() {
                        true => {
                            let word = <$atomic>::from_ptr(at.cast());
                            word.store(<$integer>::from_ne_bytes(bytes), Release);
                        }
                        false => at.cast::<[u8; size_of::<$value>()]>().write_volatile(bytes),
                    }
                }
            }
        }
    )*};
}

values! {
    u8, u8, AtomicU8;
    i8, u8, AtomicU8;
    u16, u16, AtomicU16;
    i16, u16, AtomicU16;
    u32, u32, AtomicU32;
    i32, u32, AtomicU32;
    f32, u32, AtomicU32;
    u64, u64, AtomicU64;
    i64, u64, AtomicU64;
    f64, u64, AtomicU64;
}

impl Cells {
    /// So many bytes, all of them zero.
    ///
    /// # Panics
    /// There is no such memory.
    pub fn zeroed(bytes: usize) -> Cells {
        Cells::try_zeroed(bytes).unwrap_or_else(|| match Allocation::layout(bytes) {
            Some(layout) => handle_alloc_error(layout),
            None => panic!("{bytes} bytes are more than memory has"),
        })
    }

    /// The same; `None` where there is no such memory.
    pub fn try_zeroed(bytes: usize) -> Option<Cells> {
        let address = match Allocation::layout(bytes) {
            // SAFETY: the layout has a size above zero.
            Some(layout) => NonNull::new(unsafe { alloc_zeroed(layout) })?,
            None if bytes == 0 => NonNull::dangling(),
            None => return None,
        };
        Some(Allocation::cells(address, bytes, Owner::Own))
    }

    /// Cells over memory of somebody else: of a caller from C. Dropping them frees nothing.
    ///
    /// # Safety
    /// As long as a handle on these cells or a [`Memory`] made of one lives, every byte that is accessed through it is mapped,
    /// and may be written where it is written; and no Rust reference to such a byte exists. Bytes that nobody accesses need
    /// not be there. `address + bytes` is an address.
    pub unsafe fn promised(address: *mut u8, bytes: usize) -> Cells {
        let address = NonNull::new(address).unwrap_or(NonNull::dangling());
        Allocation::cells(address, bytes, Owner::Promised)
    }

    /// Cells over memory of somebody else, who may take it away while others reach it: of a window of a caller from C. Copies and
    /// jobs of a [`super::BufferTable`] fail where the memory is gone. The methods of these cells do not: who loads, stores, reads
    /// or writes by them needs the bytes to be there.
    ///
    /// The first such cells install handlers of SIGSEGV and SIGBUS in the process. They hand on every fault that is not one of these
    /// copies. On processors other than x86-64 there are none, and a fault ends the process.
    ///
    /// # Safety
    /// As long as a handle on these cells or a [`Memory`] made of one lives, a byte that is mapped there may be read and written, and
    /// no Rust reference to it exists. `address + bytes` is an address.
    pub unsafe fn fleeting(address: *mut u8, bytes: usize) -> Cells {
        let address = NonNull::new(address).unwrap_or(NonNull::dangling());
        guard::prepare();
        Allocation::cells(address, bytes, Owner::Fleeting)
    }

    /// Cells over memory that `keep` keeps: a mapping of memory that several processes have.
    ///
    /// # Safety
    /// As long as `keep` lives, all bytes are mapped and may be written, and no Rust reference to one of them exists.
    pub unsafe fn kept(address: NonNull<u8>, bytes: usize, keep: impl Any + Send + Sync) -> Cells {
        Allocation::cells(address, bytes, Owner::Kept { lock: None, _keep: Box::new(keep) })
    }

    /// The same with a lock, by which one of those who share the memory updates whole blocks of elements at a time. All of them
    /// have this lock, which begins as zeros.
    ///
    /// # Safety
    /// As [`Cells::kept`], and for the bytes of the lock, too, but that references to its atomics may exist.
    pub unsafe fn kept_with_lock(
        address: NonNull<u8>,
        bytes: usize,
        lock: NonNull<LockWords>,
        keep: impl Any + Send + Sync,
    ) -> Cells {
        Allocation::cells(address, bytes, Owner::Kept { lock: Some(lock), _keep: Box::new(keep) })
    }

    /// A range of the bytes as cells of their own, which keep all of them alive.
    ///
    /// # Errors
    /// The range does not lie inside.
    pub fn part(&self, range: Range<usize>) -> Result<Cells, OutOfCells> {
        let bytes = range.end.saturating_sub(range.start);
        let place = self.place(range.start, bytes)?;
        let address = NonNull::new(place.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Ok(Allocation::cells(address, bytes, Owner::Part(self.clone())))
    }

    /// From now on others, of other processes too, update elements here by the processor's atomic operations, or blocks of them
    /// under the memory's lock ([`super::Updater`]), and whoever executes jobs on this memory does, too. It never ends, and holds for all handles on these
    /// bytes, and for those on the cells that they are a part of.
    ///
    /// # Panics
    /// The memory may go away ([`Cells::fleeting`]): nobody else maps such memory.
    pub fn share(&self) {
        let root = self.root();
        assert!(!matches!(root.owner, Owner::Fleeting), "memory that others map stays");
        root.is_shared.store(true, Release);
    }

    /// Whether others do.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.root().is_shared.load(Acquire)
    }

    /// The cells that these are a part of, or themselves.
    pub(super) fn whole(&self) -> &Cells {
        let mut cells = self;
        while let Owner::Part(of) = &cells.allocation.owner {
            cells = of;
        }
        cells
    }

    /// A party of its own among those who update this memory; `None` where it has no lock.
    pub(super) fn new_party(&self) -> Option<Party> {
        match &self.root().owner {
            // SAFETY: the owner keeps the lock; whoever has the party keeps the cells, or is their allocation, which drops the
            // party first.
            Owner::Kept { lock: Some(lock), .. } => Some(unsafe { Party::new(*lock) }),
            _ => None,
        }
    }

    /// The party of this process, for all who have none of their own.
    pub(super) fn party(&self) -> Option<MutexGuard<'_, Party>> {
        let root = self.root();
        if !matches!(root.owner, Owner::Kept { lock: Some(_), .. }) {
            return None;
        }
        let make = || Mutex::new(self.new_party().expect("the memory has a lock"));
        Some(root.party.get_or_init(make).lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `update`, which changes elements word by word, while nobody updates a block.
    pub(super) fn by_words<T>(&self, update: impl FnOnce() -> T) -> T {
        match self.party() {
            Some(mut party) => party.update(false, |_| update()),
            None => update(),
        }
    }

    pub(super) fn forbid_blocks(&self) {
        if let Some(party) = self.party() {
            party.forbid_blocks();
        }
    }

    fn root(&self) -> &Allocation {
        &self.whole().allocation
    }

    /// The address of the first byte, for callers from C, who access the memory as they like; that of nothing where there
    /// are no bytes.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.allocation.address.as_ptr()
    }

    /// Cells with a copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Cells {
        let cells = Cells::zeroed(bytes.len());
        cells.write(0, bytes).expect("they have as many bytes");
        cells
    }

    /// Bytes that there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.allocation.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another handle is one on the same bytes.
    pub fn is_same(&self, other: &Cells) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// The value at a byte; `None` where it does not lie inside. One access where its address is a multiple of its size.
    #[inline]
    pub fn load<T: Value>(&self, at: usize) -> Option<T> {
        let place = self.place(at, size_of::<T>()).ok()?;
        // SAFETY: the place lies inside of the allocation, to which no reference exists.
        Some(unsafe { T::load_at(place.as_mut_ptr()) })
    }

    /// Stores a value at a byte; `None` where it does not lie inside. One access where its address is a multiple of its
    /// size.
    #[inline]
    pub fn store<T: Value>(&self, at: usize, value: T) -> Option<()> {
        let place = self.place(at, size_of::<T>()).ok()?;
        // SAFETY: as in `load`; the allocation may be written.
        unsafe { value.store_at(place.as_mut_ptr()) };
        Some(())
    }

    /// Copies bytes from here. Bytes that others write meanwhile may be seen in part.
    ///
    /// # Errors
    /// They do not lie inside; nothing was copied.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), OutOfCells> {
        let place = self.place(at, to.len())?;
        // SAFETY: the place is alive and no reference to it exists; `to` is the caller's own, and as long.
        unsafe { store::copy(place.as_mut_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes to here. Others who read meanwhile may see a part of them.
    ///
    /// # Errors
    /// They do not lie inside; nothing was copied.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), OutOfCells> {
        let place = self.place(at, from.len())?;
        // SAFETY: as in `read`, the other way round.
        unsafe { store::copy(from.as_ptr(), place.as_mut_ptr(), from.len()) };
        Ok(())
    }

    /// A range as writable memory for operations and peers, which keeps the bytes alive.
    ///
    /// # Errors
    /// The range does not lie inside.
    pub fn memory(&self, range: Range<usize>) -> Result<Memory, OutOfCells> {
        let bytes = range.end.saturating_sub(range.start);
        let segment = self.place(range.start, bytes)?;
        Ok(self.memory_of(segment))
    }

    /// All bytes as writable memory.
    pub fn all(&self) -> Memory {
        self.memory_of(Segment::new(self.allocation.address.as_ptr(), self.len()))
    }

    /// Whether the memory may go away: see [`Self::fleeting`].
    pub fn is_fleeting(&self) -> bool {
        guard::is_in_use() && matches!(self.root().owner, Owner::Fleeting)
    }

    /// Whether bytes lie inside and are there at this moment. Of fleeting memory each page is looked at.
    pub fn is_there(&self, at: usize, bytes: usize) -> bool {
        let place = self.place(at, bytes);
        place.is_ok_and(|place| !self.is_fleeting() || place.is_there())
    }

    fn memory_of(&self, segment: Segment) -> Memory {
        let keep = self.clone();
        let kind = match self.is_fleeting() {
            true => Kind::Fleeting { segment, _keep: keep },
            false => Kind::Cells { segment, keep },
        };
        Memory { kind }
    }

    /// A range of bytes, if there is one.
    #[inline]
    pub(super) fn place(&self, at: usize, bytes: usize) -> Result<Segment, OutOfCells> {
        let len = self.len();
        if at > len || bytes > len - at {
            return Err(OutOfCells { at, bytes, len });
        }
        Ok(Segment::new(self.allocation.address.as_ptr(), len).part(at, bytes))
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cells({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests;
