//! A table of few objects with small numbers, which threads copy: endpoints, contexts, windows. For many objects, which
//! come and go with each message, there is `base::slots`.
//!
//! Invariants
//! * an object gets the smallest number that is free;
//! * a key (number and generation) names one object only: when that is gone, the key finds nothing.

use ropewalk_base::slots::SlotId;

#[derive(Debug, Clone)]
struct Place<T> {
    value: Option<T>,
    /// Objects that had this place, this one included.
    generation: u32,
}

/// Objects by their places.
#[derive(Debug, Clone)]
pub struct Places<T> {
    places: Vec<Place<T>>,
    limit: usize,
}

impl<T> Places<T> {
    /// None, with room for `limit` objects.
    pub const fn with_limit(limit: usize) -> Places<T> {
        assert!(limit < u32::MAX as usize, "a place is 32 bits wide");
        Places { places: Vec::new(), limit }
    }

    /// Adds the object that `make` makes for its place. If all places are taken, returns `full` and calls nothing.
    pub fn add<E>(
        &mut self,
        full: E,
        make: impl FnOnce(usize) -> Result<T, E>,
    ) -> Result<SlotId, E> {
        let is_free = |place: &Place<T>| place.value.is_none() && place.generation < u32::MAX;
        let index = self.places.iter().position(is_free).unwrap_or(self.places.len());
        if index >= self.limit {
            return Err(full);
        }
        let value = make(index)?;
        if index == self.places.len() {
            self.places.push(Place { value: None, generation: 0 });
        }
        let place = &mut self.places[index];
        place.value = Some(value);
        place.generation += 1;
        Ok(SlotId { index: index as u32, generation: place.generation })
    }

    /// The object that a key names.
    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.value.as_ref().filter(|_| place.generation == id.generation)
    }

    /// The object at a place, whichever it is.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        self.places.get(index)?.value.as_ref()
    }

    /// The key of the object at a place.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<SlotId> {
        let place = self.places.get(index as usize)?;
        place.value.as_ref().map(|_| SlotId { index, generation: place.generation })
    }

    /// Takes the object that a key names out; `None` where another thread did.
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.value.take() } else { None }
    }

    /// All objects, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    /// The same table of something else: a thread's copy of `Arc`s has `Weak`s.
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> Places<U> {
        let place = |place: &Place<T>| Place {
            value: place.value.as_ref().map(&of),
            generation: place.generation,
        };
        Places { places: self.places.iter().map(place).collect(), limit: self.limit }
    }
}

/// A table without room: what a thread remembers before it has looked.
impl<T> Default for Places<T> {
    fn default() -> Places<T> {
        Places::with_limit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_object_that_is_gone_finds_nothing() {
        let mut places = Places::with_limit(4);
        let add = |places: &mut Places<usize>| places.add("full", |at| Ok(at * 10)).unwrap();
        let ids = [add(&mut places), add(&mut places), add(&mut places)];
        assert_eq!(ids.map(|id| id.index), [0, 1, 2]);
        assert_eq!(ids.map(|id| places.get(id).copied()), [Some(0), Some(10), Some(20)]);
        assert_eq!(places.remove(ids[1]), Some(10));
        assert_eq!((places.get(ids[1]), places.at(1)), (None, None));
        assert_eq!(places.remove(ids[1]), None);
        let again = add(&mut places);
        assert_eq!(again.index, 1, "the smallest free number");
        assert_eq!(places.get(ids[1]), None);
        assert_eq!(places.remove(ids[1]), None);
        assert_eq!((places.get(again), places.at(1)), (Some(&10), Some(&10)));
        assert_eq!((places.id_at(1), places.id_at(3), places.at(9)), (Some(again), None, None));
        let copy = places.map(|value| value + 1);
        assert_eq!((copy.get(again), copy.get(ids[1])), (Some(&11), None));
        assert_eq!(places.iter().copied().collect::<Vec<_>>(), [0, 10, 20]);
    }

    #[test]
    fn a_full_table_and_an_object_that_cannot_be_made_leave_it_as_it_was() {
        let mut places = Places::with_limit(1);
        assert_eq!(places.add("full", |_| Err::<(), _>("cannot")), Err("cannot"));
        let id = places.add("full", |_| Ok(())).unwrap();
        assert_eq!(id, SlotId { index: 0, generation: 1 });
        assert_eq!(places.add("full", |_| panic!("there is no place")), Err("full"));
        places.remove(id).unwrap();
        assert_eq!(places.add("full", |_| Err::<(), _>("cannot")), Err("cannot"));
        assert_eq!(places.add("full", |_| Ok(())).map(|id| id.generation), Ok(2));
    }

    #[test]
    fn a_place_whose_keys_are_used_up_is_given_to_nobody() {
        let mut places = Places::with_limit(2);
        let id = places.add("full", |_| Ok(())).unwrap();
        places.places[0].generation = u32::MAX;
        places.remove(SlotId { generation: u32::MAX, ..id }).unwrap();
        assert_eq!(places.add("full", |_| Ok(())).map(|id| id.index), Ok(1));
        assert_eq!(places.add("full", |_| Ok(())), Err("full"));
    }
}
