//! Calls that block until something is there, or the time is over.

use std::time::Instant;

/// The end of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep<N> {
    /// There may be something to find. A sleep that takes what it meets (`Endpoint::wait_for`) hands it to the next look.
    News(Option<N>),
    /// The wait ends, whatever its deadline: the endpoint is closed, or another thread told all waiters to leave.
    Over,
}

/// Looks, and sleeps between looks, until `look` finds something. Returns what it found; `None` if the time is over or
/// a sleep says so. It looks once in any case, and at least once after each sleep. Without a deadline it looks once.
///
/// `look` takes what the sleep before it met out of its argument.
///
/// `sleep` sleeps at most until the instant that it gets, which is the deadline. It must not miss news that came after
/// the look: it compares numbers that were read before the look (`Endpoint::arrivals`, a version of the face's own) with
/// what they are when it is about to sleep. [`WaiterElection::sleep`](crate::WaiterElection::sleep) lets one thread
/// sleep at a context, and the others for its news.
#[inline]
pub fn wait<T, N>(
    deadline: Option<Instant>,
    mut look: impl FnMut(&mut Option<N>) -> Option<T>,
    mut sleep: impl FnMut(Instant) -> Sleep<N>,
) -> Option<T> {
    let mut met = None;
    loop {
        let found = look(&mut met);
        if found.is_some() {
            return found;
        }
        let until = deadline.filter(|deadline| Instant::now() < *deadline)?;
        match sleep(until) {
            Sleep::News(news) => met = news,
            Sleep::Over => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn what_is_there_is_found_without_a_sleep() {
        let asleep = |_| -> Sleep<()> { panic!("it need not sleep") };
        assert_eq!(wait(None, |_| Some(1), asleep), Some(1));
        assert_eq!(wait(soon(), |_| Some(2), asleep), Some(2));
        let over = Instant::now();
        assert_eq!(wait(Some(over), |_| Some(3), asleep), Some(3), "it looks once in any case");
    }

    #[test]
    fn without_time_it_looks_once() {
        for deadline in [None, Some(Instant::now())] {
            let looks = Cell::new(0);
            let look = |_: &mut Option<()>| {
                looks.set(looks.get() + 1);
                None::<u32>
            };
            assert_eq!(wait(deadline, look, |_| panic!("no time to sleep")), None);
            assert_eq!(looks.get(), 1);
        }
    }

    #[test]
    fn it_ends_when_the_time_is_over_after_one_more_look() {
        let (limit, looks) = (Duration::from_millis(20), Cell::new(0));
        let begin = Instant::now();
        let look = |_: &mut Option<()>| {
            looks.set(looks.get() + 1);
            None::<u32>
        };
        let sleep = |until: Instant| {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            Sleep::News(None)
        };
        assert_eq!(wait(Some(begin + limit), look, sleep), None);
        assert!(begin.elapsed() >= limit && looks.get() >= 2, "{} looks", looks.get());
    }

    #[test]
    fn what_a_sleep_took_is_looked_at_once() {
        let sleeps = Cell::new(0);
        let met = |met: &mut Option<u32>| met.take().filter(|number| *number == 2);
        let sleep = |_| {
            sleeps.set(sleeps.get() + 1);
            Sleep::News(Some(sleeps.get()))
        };
        assert_eq!(wait(soon(), met, sleep), Some(2));
        assert_eq!(sleeps.get(), 2);
        let seen = Cell::new(0);
        let look = |met: &mut Option<u32>| {
            let met = met.take();
            seen.set(seen.get() + met.unwrap_or(0));
            (met.is_none() && seen.get() > 0).then_some(seen.get())
        };
        let sleep = |_| Sleep::News((seen.get() == 0).then_some(7));
        assert_eq!(wait(soon(), look, sleep), Some(7), "the second sleep took nothing");
    }

    #[test]
    fn it_ends_when_a_sleep_says_that_it_is_over() {
        assert_eq!(wait(soon(), |_: &mut Option<()>| None::<u32>, |_| Sleep::Over), None);
    }
}
