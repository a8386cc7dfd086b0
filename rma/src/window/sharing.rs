//! Memory that every rank of a team loads and stores (MPI_Win_allocate_shared).
//!
//! Usually it is one piece, which rank 0 makes and all others map: the part of each rank begins where that of the rank before
//! ends. Else each rank makes its own. All ranks agree on whether everybody has mapped everything.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_base::memory::Cells;
use ropewalk_net::Offer;

use super::check_options;
use crate::error::{Error, WindowName};
use crate::options::WindowOptions;
use crate::team::shared::Shared;

/// What a rank tells the others at the end: all is mapped; something is not; it had no memory.
const MAPPED: u8 = 1;
const NOT_MAPPED: u8 = 0;
const NO_MEMORY: u8 = 2;

/// The memory of all ranks, by rank. Collective.
///
/// # Errors
/// The ranks do not share memory, or there is none; the options make no sense, or others have others; a rank is lost.
pub(super) fn allocate(
    team: &Arc<Shared>,
    bytes: usize,
    options: &WindowOptions,
) -> Result<Vec<Cells>, Error> {
    let parts = agree(team, bytes, options)?;
    let total = parts.last().map_or(0, |part| part.end);
    let own = parts[team.rank() as usize].clone();
    let is_whole = !options.noncontiguous;
    // With only one rank nobody needs to map anything.
    if team.size() == 1 {
        let cells = Cells::try_zeroed(bytes).ok_or(Error::Room("the memory of this window"))?;
        return Ok(vec![cells]);
    }
    let makes = !is_whole || team.rank() == 0;
    let wanted = if is_whole { total } else { own.len() };
    let made = makes.then(|| team.endpoint().share_memory(wanted)).flatten();
    let (cells, offer) = made.unzip();
    let cards = team.exchange(&offer.as_ref().map_or(Vec::new(), Offer::card))?;
    let mapped = match is_whole {
        true => map_whole(team, cells, &cards[0], &parts),
        false => map_all(team, cells, &cards, &parts),
    };
    let told = match &mapped {
        Some(_) => MAPPED,
        None if makes && offer.is_none() && team.endpoint().shares_memory() => NO_MEMORY,
        None => NOT_MAPPED,
    };
    // Nobody withdraws an offer before all have taken it.
    let told = team.exchange(&[told])?;
    if told.iter().any(|it| *it == [NO_MEMORY]) {
        return Err(Error::Room("the memory of this window"));
    }
    let missing = told.iter().position(|it| *it != [MAPPED]).map(|rank| rank as u32);
    mapped.filter(|_| missing.is_none()).ok_or(Error::NotShared { rank: missing.unwrap_or(0) })
}

/// The ranges of all ranks in memory that has all.
fn agree(
    team: &Arc<Shared>,
    bytes: usize,
    options: &WindowOptions,
) -> Result<Vec<Range<usize>>, Error> {
    let number = team.look(|hub| hub.next_window);
    let window = WindowName { number, name: options.name.clone() };
    let mut wish = (bytes as u64).to_le_bytes().to_vec();
    wish.push(u8::from(options.noncontiguous));
    let checked = check_options(options);
    let all = team.exchange(if checked.is_ok() { &wish } else { &[] })?;
    let (own, name) = (team.rank(), window.clone());
    checked.map_err(|argument| Error::Argument { window: name, rank: own, argument })?;
    let (mut parts, mut end) = (Vec::with_capacity(all.len()), 0usize);
    for (rank, other) in all.iter().enumerate() {
        let differs = |what| Error::Disagree { window: window.clone(), rank: rank as u32, what };
        let decoded = other.split_first_chunk().and_then(|(bytes, kind)| {
            let bytes = usize::try_from(u64::from_le_bytes(*bytes)).ok()?;
            Some((bytes, *kind.first().filter(|_| kind.len() == 1)?))
        });
        let decoded = decoded.ok_or_else(|| differs("outcome: its arguments are wrong"));
        let (bytes, is_apart) = decoded?;
        if is_apart != u8::from(options.noncontiguous) {
            return Err(differs("layout: contiguous or not"));
        }
        let begin = end;
        end = begin.checked_add(bytes).ok_or(Error::Room("the memory of this window"))?;
        parts.push(begin..end);
    }
    Ok(parts)
}

/// The parts of memory that rank 0 made.
fn map_whole(
    team: &Shared,
    own: Option<Cells>,
    card: &[u8],
    parts: &[Range<usize>],
) -> Option<Vec<Cells>> {
    let total = parts.last()?.end;
    let whole = match team.rank() {
        0 => own?,
        _ => team.endpoint().map_memory(card, total)?,
    };
    parts.iter().map(|part| whole.part(part.clone()).ok()).collect()
}

/// Memory that each rank made.
fn map_all(
    team: &Shared,
    own: Option<Cells>,
    cards: &[Vec<u8>],
    parts: &[Range<usize>],
) -> Option<Vec<Cells>> {
    let map = |(rank, part): (usize, &Range<usize>)| match rank == team.rank() as usize {
        true => own.clone(),
        false => team.endpoint().map_memory(&cards[rank], part.len()),
    };
    parts.iter().enumerate().map(map).collect()
}
