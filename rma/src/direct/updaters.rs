//! This rank among those who update elements of memory that several ranks map.

use ropewalk_base::memory::{Cells, Updater};

/// This rank among those who update memory that it has mapped: once for each memory, from the first update on.
#[derive(Debug, Default)]
pub(crate) struct Updaters {
    all: Vec<(Cells, Updater)>,
    /// By rank. Ranks may have parts of the same memory.
    of_rank: Vec<Option<usize>>,
}

impl Updaters {
    /// The one for the memory of a rank; `None` where only its executor updates it.
    #[inline]
    pub fn of(&mut self, rank: usize, cells: &Cells) -> Option<&mut Updater> {
        let number = match self.of_rank.get(rank) {
            Some(Some(number)) => *number,
            _ => self.add(rank, cells)?,
        };
        Some(&mut self.all[number].1)
    }

    #[cold]
    fn add(&mut self, rank: usize, cells: &Cells) -> Option<usize> {
        if !cells.is_shared() {
            return None;
        }
        let known = self.all.iter().position(|(known, _)| known.is_of_same_memory(cells));
        let number = known.unwrap_or_else(|| {
            self.all.push((cells.clone(), cells.updater()));
            self.all.len() - 1
        });
        if self.of_rank.len() <= rank {
            self.of_rank.resize(rank + 1, None);
        }
        self.of_rank[rank] = Some(number);
        Some(number)
    }
}
