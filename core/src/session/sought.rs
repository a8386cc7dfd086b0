//! Rails over which a session has never had a path, as its calls there came to nothing so far: for operators.
//!
//! The side that adds paths knows them; the other one calls nobody.
//!
//! Invariant: one entry for each rail, and `RAILS_MAX` at most; nothing is allocated before the first call.

use ropewalk_base::time::Time;

/// Rails that are remembered. Calls over further ones are made, and not shown.
const RAILS_MAX: usize = 16;

/// Why a call for a further path came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallFault {
    /// This host could not call: its interface is down, there is no route, or no descriptor.
    NotCalled,
    /// The network, or the other host, refused the call.
    Refused,
    /// Nobody answered in time.
    NoAnswer,
    /// Another endpoint answered, or the peer, which does not want this path.
    TurnedDown,
}

impl CallFault {
    /// Its name for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            CallFault::NotCalled => "not_called",
            CallFault::Refused => "refused",
            CallFault::NoAnswer => "no_answer",
            CallFault::TurnedDown => "turned_down",
        }
    }
}

/// A path that never came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SoughtPath {
    /// Our rail.
    pub rail: u8,
    /// The way that was tried last, by its number for the driver.
    pub way: u32,
    /// When it was called for the first time.
    pub since: Time,
    /// Why the last call that is over came to nothing.
    pub fault: Option<CallFault>,
}

/// All of a session.
#[derive(Debug, Default)]
pub(crate) struct Sought(Vec<SoughtPath>);

impl Sought {
    pub fn iter(&self) -> impl Iterator<Item = &SoughtPath> {
        self.0.iter()
    }

    /// A call over a rail begins, by this way.
    pub fn begin(&mut self, rail: u8, way: u32, now: Time) {
        let has_room = self.0.len() < RAILS_MAX;
        match self.0.iter_mut().find(|it| it.rail == rail) {
            Some(known) => known.way = way,
            None if !has_room => {}
            None => self.0.push(SoughtPath { rail, way, since: now, fault: None }),
        }
    }

    /// It came to nothing.
    pub fn fail(&mut self, rail: u8, fault: CallFault) {
        let known = self.0.iter_mut().filter(|it| it.rail == rail);
        known.for_each(|it| it.fault = Some(fault));
    }

    /// The rail has a path.
    pub fn forget(&mut self, rail: u8) {
        self.0.retain(|it| it.rail != rail);
    }

    /// No more paths are wanted.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_has_one_entry_from_its_first_call_on_and_few_are_remembered() {
        let mut sought = Sought::default();
        assert_eq!(sought.0.capacity(), 0);
        sought.begin(1, 0, Time(5));
        sought.fail(1, CallFault::Refused);
        sought.begin(1, 3, Time(9));
        sought.fail(2, CallFault::NoAnswer);
        let expected =
            SoughtPath { rail: 1, way: 3, since: Time(5), fault: Some(CallFault::Refused) };
        assert_eq!(sought.iter().copied().collect::<Vec<_>>(), [expected]);
        (0..=u8::MAX).for_each(|rail| sought.begin(rail, 0, Time(10)));
        assert_eq!(sought.iter().count(), RAILS_MAX);
        sought.forget(1);
        assert!(sought.iter().all(|it| it.rail != 1));
        sought.clear();
        assert_eq!((sought.iter().count(), sought.0.capacity()), (0, 0));
    }
}
