//! Windows: memory of each rank that all ranks of a team reach.

mod communicate;
mod dynamic;
mod notify;
mod sharing;
mod synchronise;

pub use communicate::Request;
use dynamic::Attached;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ropewalk_base::memory::Cells;

use crate::check::Checks;
use crate::claims::Claim;
use crate::conflict::Conflict;
use crate::direct::{Direct, Opening, Sharing};
use crate::epochs::{Epochs, Rule};
use crate::error::{BadArgument, Error, WindowName};
use crate::messages::Messages;
use crate::options::{AccumulateOrdering, Implementation, WindowOptions};
use crate::team::shared::Shared;
use crate::way::Way;

/// The highest eager threshold: data, a type and an item fit into a message.
const EAGER_BYTES_MAX: u32 = 32 << 10;
/// Counters of notices.
const COUNTERS_MAX: u32 = 1 << 16;

/// A window at one rank. Threads may call at the same time, as far as the rules of epochs allow it.
///
/// It lives until [`Window::free`], which is collective. One that is dropped without stays open to its peers as long as the
/// team lives.
pub struct Window {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    team: Arc<Shared>,
    name: Mutex<WindowName>,
    /// As the window was made; its name may have changed since, and so may its hints.
    options: WindowOptions,
    /// Those of the options that may change.
    hints: Mutex<Hints>,
    cells: Cells,
    range: Range<usize>,
    /// Of each rank: bytes of its window, and its displacement unit.
    remotes: Vec<(u64, u32)>,
    /// The memory of each rank, where the program loads and stores it.
    shared: Vec<Cells>,
    /// Of a dynamic window.
    attached: Option<Attached>,
    /// Of the checking mode.
    checks: Option<Mutex<Checks>>,
    epochs: Mutex<Epochs>,
    freed: AtomicBool,
    way: Box<dyn Way>,
}

/// Options that may change while there is a window.
#[derive(Debug, Clone, Copy)]
struct Hints {
    same_op: bool,
    ordering: AccumulateOrdering,
    granularity: u32,
}

impl Hints {
    fn of(options: &WindowOptions) -> Hints {
        let WindowOptions { same_op, accumulate_ordering: ordering, granularity, .. } = *options;
        Hints { same_op, ordering, granularity }
    }
}

/// What all ranks have to give alike, then what each has of its own.
struct Card {
    number: u32,
    implementation: u8,
    ordering: u8,
    flags: u8,
    is_dynamic: u8,
    granularity: u32,
    eager_bytes: u32,
    counters: u32,
    bytes: u64,
    unit: u32,
}

impl Card {
    const BYTES: usize = 4 + 4 + 4 + 4 + 4 + 8 + 4;

    fn new(number: u32, bytes: u64, options: &WindowOptions, is_dynamic: bool) -> Card {
        Card {
            number,
            implementation: options.implementation as u8,
            ordering: options.accumulate_ordering as u8,
            flags: u8::from(options.same_op) | u8::from(options.no_locks) << 1,
            is_dynamic: u8::from(is_dynamic),
            granularity: options.granularity,
            eager_bytes: options.eager_bytes,
            counters: options.counters,
            bytes,
            unit: options.displacement_unit,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Card::BYTES);
        out.extend(self.number.to_le_bytes());
        out.extend([self.implementation, self.ordering, self.flags, self.is_dynamic]);
        out.extend(self.granularity.to_le_bytes());
        out.extend(self.eager_bytes.to_le_bytes());
        out.extend(self.counters.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.unit.to_le_bytes());
        out
    }

    /// `None`: the rank found its own arguments wrong, or sent what is none.
    fn decode(from: &[u8]) -> Option<Card> {
        let (number, from) = from.split_first_chunk()?;
        let ([implementation, ordering, flags, is_dynamic], from) = from.split_first_chunk()?;
        let (granularity, from) = from.split_first_chunk()?;
        let (eager_bytes, from) = from.split_first_chunk()?;
        let (counters, from) = from.split_first_chunk()?;
        let (bytes, from) = from.split_first_chunk()?;
        let unit = from.try_into().ok()?;
        Some(Card {
            number: u32::from_le_bytes(*number),
            implementation: *implementation,
            ordering: *ordering,
            flags: *flags,
            is_dynamic: *is_dynamic,
            granularity: u32::from_le_bytes(*granularity),
            eager_bytes: u32::from_le_bytes(*eager_bytes),
            counters: u32::from_le_bytes(*counters),
            bytes: u64::from_le_bytes(*bytes),
            unit: u32::from_le_bytes(unit),
        })
    }

    /// What differs that must not.
    fn other_than(&self, own: &Card) -> Option<&'static str> {
        let pairs = [
            (self.number != own.number, "number: not all ranks made the same windows before"),
            (self.implementation != own.implementation, "implementation"),
            (self.ordering != own.ordering, "order of accumulates"),
            (self.is_dynamic != own.is_dynamic, "kind: dynamic, or not"),
            (self.flags != own.flags, "same_op or no_locks"),
            (self.granularity != own.granularity, "granularity"),
            (self.eager_bytes != own.eager_bytes, "eager threshold"),
            (self.counters != own.counters, "number of counters"),
        ];
        pairs.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }
}

impl Window {
    /// Collective: ranks tell each other what they made. A rank whose arguments are wrong says so, and nobody waits for it.
    pub(crate) fn create(
        team: &Arc<Shared>,
        cells: &Cells,
        range: Range<usize>,
        options: &WindowOptions,
        sharing: Sharing,
    ) -> Result<Window, Error> {
        let bytes = range.end.saturating_sub(range.start) as u64;
        let (eager_bytes, taken) = (u64::from(options.eager_bytes), range.clone());
        let counters = options.counters;
        let is_dynamic = matches!(sharing, Sharing::Dynamic);
        let checked = check(cells, &range, options, is_dynamic)
            .and_then(|()| Claim::new(cells, &range, team.executor(options.implementation)));
        let (name, opened) = team.with(|hub| {
            let number = hub.next_window;
            hub.next_window += 1;
            let name = WindowName { number, name: options.name.clone() };
            let opened = match checked {
                Ok(claim) => {
                    let sizes = (eager_bytes, counters);
                    hub.open(name.clone(), (cells, claim), taken, sizes, is_dynamic)
                }
                Err(argument) => {
                    let (window, rank) = (name.clone(), hub.rank);
                    Err(Error::Argument { window, rank, argument })
                }
            };
            (name, opened)
        });
        let own = Card::new(name.number, bytes, options, is_dynamic);
        let card = if opened.is_ok() { own.encode() } else { Vec::new() };
        let agreed = team.exchange(&card);
        let number = name.number;
        let close = |error| {
            // Others may have the window, and have begun to use it.
            let withdrawn = team.until(|hub| Ok(hub.withdraw_memory(number).then_some(())));
            team.with(|hub| hub.shut(number));
            withdrawn.err().unwrap_or(error)
        };
        opened.map_err(close)?;
        let remotes = agreed.and_then(|all| agree(&name, &own, &all)).map_err(close)?;
        let epochs = Epochs::new(team.rank(), team.size(), options.no_locks);
        let shared = match &sharing {
            Sharing::All(cells) => cells.clone(),
            _ => Vec::new(),
        };
        let way: Box<dyn Way> = match options.implementation {
            Implementation::Messages => {
                Box::new(Messages::new(team.clone(), number, !shared.is_empty()))
            }
            _ => {
                let sizes = remotes.iter().map(|(bytes, _)| *bytes).collect();
                let at_origin = options.implementation == Implementation::DirectAccumulateAtOrigin;
                let (range, maps) = (range.clone(), options.map_memory);
                let opening = Opening { cells, range, sharing, sizes, maps, at_origin, counters };
                Box::new(Direct::open(team, number, opening).map_err(close)?)
            }
        };
        let inner = Inner {
            way,
            team: team.clone(),
            name: Mutex::new(name),
            options: options.clone(),
            hints: Mutex::new(Hints::of(options)),
            cells: cells.clone(),
            range,
            remotes,
            shared,
            attached: is_dynamic.then(Attached::default),
            checks: options.check.then(|| Mutex::new(Checks::new(team.rank(), options.same_op))),
            epochs: Mutex::new(epochs),
            freed: AtomicBool::new(false),
        };
        Ok(Window { inner: Arc::new(inner) })
    }

    /// A window over fresh memory that every rank loads and stores. Collective.
    pub(crate) fn allocate_shared(
        team: &Arc<Shared>,
        bytes: usize,
        options: &WindowOptions,
    ) -> Result<Window, Error> {
        let all = sharing::allocate(team, bytes, options)?;
        let own = all[team.rank() as usize].clone();
        Window::create(team, &own, 0..bytes, options, Sharing::All(all))
    }

    /// Ends the window. All ranks call it, none with an epoch open; then nobody reaches the memory any more. Later calls are
    /// errors.
    ///
    /// # Errors
    /// An epoch is open, and the window stays; or a rank is lost, or refused an operation, and the window is freed.
    pub fn free(&mut self) -> Result<(), Error> {
        let (judged, ranks) = {
            let epochs = self.inner.epochs()?;
            (epochs.free(), epochs.ranks())
        };
        if let Err(Rule::AccessOpen { open, .. }) = judged
            && let Some(conflict) = self.inner.checked(|checks| checks.freed(open, ranks))
        {
            return Err(self.inner.conflict(conflict));
        }
        self.inner.rule(judged)?;
        self.inner.freed.store(true, Ordering::SeqCst);
        let _turn = self.inner.team.turn();
        self.inner.way.free()
    }

    /// This rank's memory.
    pub fn cells(&self) -> &Cells {
        &self.inner.cells
    }

    /// The part of the cells that the window has.
    pub fn range(&self) -> Range<usize> {
        self.inner.range.clone()
    }

    /// Operations that the checking mode did not compare with all that they might clash with, since too many were not complete,
    /// or had too many pieces: 4,096 operations are kept, with 65,536 pieces, and 4,096 of one.
    pub fn unchecked(&self) -> u64 {
        self.inner.checked(|checks| checks.unchecked()).unwrap_or(0)
    }

    /// Its options: those it was made with, and later changes.
    pub fn options(&self) -> WindowOptions {
        let Hints { same_op, ordering, granularity } = *self.inner.hints();
        WindowOptions {
            name: self.inner.name().name,
            same_op,
            accumulate_ordering: ordering,
            granularity,
            ..self.inner.options.clone()
        }
    }

    /// Takes over those options that may change: `name`, `same_op`, `accumulate_ordering` and `granularity`. All others stay. It is
    /// a call of one rank; all ranks have to give the same, but for the name.
    ///
    /// # Errors
    /// The window was freed.
    pub fn set_options(&self, options: &WindowOptions) -> Result<(), Error> {
        drop(self.inner.epochs()?);
        self.set_name(&options.name)?;
        *self.inner.hints() = Hints::of(options);
        self.inner.checked(|checks| checks.set_same_op(options.same_op));
        Ok(())
    }

    /// Its number in the team, and its name.
    pub fn name(&self) -> WindowName {
        self.inner.name()
    }

    /// Names it: errors of this rank have the name from now on.
    ///
    /// # Errors
    /// The window was freed.
    pub fn set_name(&self, name: &str) -> Result<(), Error> {
        drop(self.inner.epochs()?);
        let number = self.inner.name().number;
        let named = WindowName { number, name: name.to_string() };
        self.inner.team.with(|hub| hub.rename(named.clone()));
        *self.inner.name.lock().expect("never left half-changed") = named;
        Ok(())
    }

    /// Whether ranks load and store the memory of each other: it is of [`Team::allocate_shared`](crate::Team::allocate_shared).
    pub fn is_shared(&self) -> bool {
        !self.inner.shared.is_empty()
    }

    /// This rank's number.
    pub fn rank(&self) -> u32 {
        self.inner.team.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.inner.team.size()
    }

    /// The memory of a rank, which this one may load and store: bytes, displacement unit, and cells. No rank: that of the first
    /// one that has any. Loads and stores of several ranks are ordered by [`Window::sync`] at both sides of a barrier, or of
    /// another message; and by locks, which are here when `lock` returns.
    ///
    /// # Errors
    /// The window was not made by [`Team::allocate_shared`](crate::Team::allocate_shared), or was freed; or there is no such
    /// rank.
    pub fn shared_query(&self, rank: Option<u32>) -> Result<(u64, u32, Cells), Error> {
        drop(self.inner.epochs()?);
        let (all, size) = (&self.inner.shared, self.size());
        let first = || all.iter().position(|cells| !cells.is_empty()).unwrap_or(0) as u32;
        let rank = rank.unwrap_or_else(first);
        let found = match all.get(rank as usize) {
            Some(cells) => Ok(cells.clone()),
            None if all.is_empty() => Err(BadArgument::NotShared),
            None => Err(BadArgument::NoRank { rank, size }),
        };
        let cells = self.inner.argument(found)?;
        let (bytes, unit) = self.inner.remotes[rank as usize];
        Ok((bytes, unit, cells))
    }

    /// Bytes of a rank's window, and the bytes that its displacements count.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn extent_of(&self, rank: u32) -> (u64, u32) {
        self.inner.remotes[rank as usize]
    }
}

impl Inner {
    /// The epochs of a window that was not freed.
    fn epochs(&self) -> Result<MutexGuard<'_, Epochs>, Error> {
        if self.freed.load(Ordering::SeqCst) {
            return self.rule(Err(Rule::Freed));
        }
        Ok(self.epochs.lock().expect("epochs are never left half-changed"))
    }

    /// Asks the checking mode, where it is on.
    fn checked<T>(&self, ask: impl FnOnce(&mut Checks) -> T) -> Option<T> {
        let checks = self.checks.as_ref()?;
        Some(ask(&mut checks.lock().expect("checks are never left half-changed")))
    }

    fn name(&self) -> WindowName {
        self.name.lock().expect("never left half-changed").clone()
    }

    fn hints(&self) -> MutexGuard<'_, Hints> {
        self.hints.lock().expect("never left half-changed")
    }

    fn conflict(&self, conflict: Conflict) -> Error {
        let (window, rank) = (self.name(), self.team.rank());
        Error::Conflict { window, rank, conflict: Box::new(conflict) }
    }

    fn rule<T>(&self, judged: Result<T, Rule>) -> Result<T, Error> {
        let rank = self.team.rank();
        judged.map_err(|rule| Error::Misuse { window: self.name(), rank, rule })
    }

    fn argument<T>(&self, judged: Result<T, BadArgument>) -> Result<T, Error> {
        let rank = self.team.rank();
        judged.map_err(|argument| Error::Argument { window: self.name(), rank, argument })
    }
}

fn check(
    cells: &Cells,
    range: &Range<usize>,
    options: &WindowOptions,
    is_dynamic: bool,
) -> Result<(), BadArgument> {
    cells.memory(range.clone())?;
    let unit = options.displacement_unit;
    if is_dynamic && unit > 1 {
        return Err(BadArgument::DynamicUnit(unit));
    }
    check_options(options)
}

fn check_options(options: &WindowOptions) -> Result<(), BadArgument> {
    if options.displacement_unit == 0 {
        return Err(BadArgument::Unit);
    }
    let (bytes, most) = (options.eager_bytes, EAGER_BYTES_MAX);
    if bytes > most {
        return Err(BadArgument::Eager { bytes, most });
    }
    let (counters, most) = (options.counters, COUNTERS_MAX);
    if counters > most { Err(BadArgument::Counters { counters, most }) } else { Ok(()) }
}

/// The windows of all ranks, if they fit together.
fn agree(name: &WindowName, own: &Card, all: &[Vec<u8>]) -> Result<Vec<(u64, u32)>, Error> {
    let each = |(rank, bytes): (usize, &Vec<u8>)| {
        let differs = |what| Error::Disagree { window: name.clone(), rank: rank as u32, what };
        let card = Card::decode(bytes).ok_or(differs("outcome: its arguments are wrong"))?;
        match card.other_than(own) {
            Some(what) => Err(differs(what)),
            None => Ok((card.bytes, card.unit)),
        }
    };
    all.iter().enumerate().map(each).collect()
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.inner.range.len();
        write!(f, "{} at rank {}, {bytes} bytes", self.name(), self.rank())
    }
}

#[cfg(test)]
mod tests;
