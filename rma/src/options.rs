//! The options of a window.

/// How operations reach their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Implementation {
    /// By remote access: the target's calls are not needed.
    #[default]
    Direct = 1,
    /// The same, but accumulates read, reduce and write at the origin, under a lock.
    DirectAccumulateAtOrigin = 2,
    /// By messages that the target executes within its calls on windows.
    Messages = 3,
}

/// The order of accumulates of one origin at one target (MPI's info `accumulate_ordering`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum AccumulateOrdering {
    /// As they were called, at each location.
    #[default]
    Strict = 1,
    /// Any.
    None = 2,
}

/// The options of a window. All ranks give the same, but for `name`, `displacement_unit`, `map_memory` and `check`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowOptions {
    pub implementation: Implementation,
    /// What errors call it.
    pub name: String,
    /// Displacements at this rank count so many bytes. Not 0.
    pub displacement_unit: u32,
    /// All accumulates at one location at a time use one operator, or none (info `accumulate_ops`, `same_op_no_op`): a
    /// promise.
    pub same_op: bool,
    pub accumulate_ordering: AccumulateOrdering,
    /// No rank locks the window (info `no_locks`): such calls are errors.
    pub no_locks: bool,
    /// Bytes that accumulates are atomic for at once (info `mpi_accumulate_granularity`); 0: each element. A hint.
    pub granularity: u32,
    /// Counters of notices ([`Window::put_notify`](crate::Window::put_notify)), at most 65,536.
    pub counters: u32,
    /// `Direct`: this rank offers memory that [`Team::allocate`](crate::Team::allocate) made to ranks of this host, maps theirs,
    /// and loads and stores that by itself (info `alloc_shm`). Without it all goes by the endpoint's rails.
    pub map_memory: bool,
    /// [`Team::allocate_shared`](crate::Team::allocate_shared): the memory of each rank begins at a page of its own (info
    /// `alloc_shared_noncontig`). Without it the memory of the next rank begins where that of the rank before ends.
    pub noncontiguous: bool,
    /// `Messages`: operations with more bytes of data send these in a message of their own. At most 32 KiB.
    pub eager_bytes: u32,
    /// The checking mode: calls of this rank are compared with those before them, and misuse is an error in words
    /// ([`Error::Conflict`](crate::Error::Conflict)). It costs some time for each operation that is not complete.
    pub check: bool,
}

impl Default for WindowOptions {
    fn default() -> WindowOptions {
        WindowOptions {
            implementation: Implementation::default(),
            name: String::new(),
            displacement_unit: 1,
            same_op: false,
            accumulate_ordering: AccumulateOrdering::default(),
            no_locks: false,
            granularity: 0,
            counters: 0,
            map_memory: true,
            noncontiguous: false,
            eager_bytes: 16 << 10,
            check: false,
        }
    }
}
