//! The rails of an endpoint, by their indices.

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;
use ropewalk_rail::{Rail, RailOption, Report, Sight};

pub(crate) struct Rails {
    rails: Vec<Box<dyn Rail>>,
    /// They were prepared for a sleep and not told of its end.
    armed: bool,
}

impl Rails {
    pub fn new(rails: Vec<Box<dyn Rail>>) -> Rails {
        Rails { rails, armed: false }
    }

    /// One more rail, under the next index.
    pub fn add(&mut self, rail: Box<dyn Rail>) {
        self.rails.push(rail);
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rails.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &dyn Rail> {
        self.rails.iter().map(|rail| &**rail)
    }

    /// The rails that speak a scheme, with their indices.
    pub fn of_scheme(&self, scheme: &str) -> impl Iterator<Item = (usize, &dyn Rail)> {
        self.iter().enumerate().filter(move |(_, rail)| rail.scheme() == scheme)
    }

    /// The rail of a link; `None` for the endpoint's link to itself.
    #[inline(always)]
    pub fn of(&self, link: LinkId) -> Option<&dyn Rail> {
        self.rails.get(usize::from(link.rail)).map(|rail| &**rail)
    }

    /// The same, to give it an order.
    #[inline(always)]
    pub fn of_mut(&mut self, link: LinkId) -> Option<&mut dyn Rail> {
        match self.rails.get_mut(usize::from(link.rail)) {
            Some(rail) => Some(&mut **rail),
            None => None,
        }
    }

    /// The rail of this index, which exists.
    #[inline(always)]
    pub fn at(&mut self, index: usize) -> &mut dyn Rail {
        &mut *self.rails[index]
    }

    /// Sets an option of all rails of a scheme; false where none has it.
    pub fn set_option(&mut self, scheme: &str, option: RailOption) -> bool {
        let rails = self.rails.iter_mut().filter(|rail| rail.scheme() == scheme);
        rails.fold(false, |any, rail| rail.set(option) | any)
    }

    /// The most that any of them sees.
    #[inline(always)]
    pub fn look(&self) -> Sight {
        self.rails.iter().map(|rail| rail.look()).max().unwrap_or(Sight::Blind)
    }

    /// When one has to be polled at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.rails.iter().filter_map(|rail| rail.deadline()).min()
    }

    /// Whether one has a payload in part, whose rest is on its way.
    pub fn is_receiving(&self) -> bool {
        self.rails.iter().any(|rail| rail.is_receiving())
    }

    /// Whether one has something that is not at its peer yet.
    pub fn owe(&self) -> bool {
        self.rails.iter().any(|rail| rail.owes())
    }

    /// Lets all send the frames that they keep.
    pub fn push(&mut self, report: &mut dyn Report) {
        self.rails.iter_mut().for_each(|rail| {
            rail.push(report);
        });
    }

    /// Whether they were armed, and not disarmed since.
    #[inline]
    pub fn are_armed(&self) -> bool {
        self.armed
    }

    /// Prepares all for a sleep. False where one has work: then the caller disarms them.
    pub fn arm(&mut self) -> bool {
        self.armed = true;
        self.rails.iter_mut().all(|rail| rail.arm())
    }

    /// The sleep is over. `quiet`: no rail's descriptor had anything to say.
    pub fn disarm(&mut self, quiet: bool) {
        self.armed = false;
        self.rails.iter_mut().for_each(
            |rail| {
                if quiet { rail.disarm_quiet() } else { rail.disarm() }
            },
        );
    }
}
