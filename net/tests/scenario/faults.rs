//! The faults of a scenario: how they begin and end, and how many there were.

use std::time::Duration;

use ropewalk_rail_sim::{Cut, Kill};

use super::Scenario;
use super::plan::{Fault, Kind, What};
use super::wire;

impl Scenario {
    pub(super) fn begin(&mut self, index: usize) {
        let fault = self.plan.faults[index];
        // A cut is counted by the links that it meets.
        let is_cut = matches!(fault.what, What::Cut { .. } | What::CutSilently);
        self.faults += u64::from(!is_cut);
        self.tell(|| format!("begins {index}: {fault:?}"));
        match fault.what {
            What::Cut { late } => {
                self.cut(fault, late.map_or(Cut::Both, Cut::FirstThenOther));
            }
            What::CutSilently => self.cut(fault, Cut::Silent),
            What::Pause => self.paused[fault.side] += 1,
            What::Restart { power } => self.restart(fault.side, power),
            _ => {
                self.on[index] = Some(fault);
                self.apply(fault);
            }
        }
    }

    pub(super) fn end(&mut self, index: usize) {
        let fault = self.plan.faults[index];
        self.tell(|| format!("ends {index}: {:?}", fault.what));
        if matches!(fault.what, What::Pause) {
            self.paused[fault.side] -= 1;
        }
        if self.on[index].take().is_some() {
            self.apply(fault);
        }
    }

    /// The pairs of rails that a fault concerns.
    fn concerned(&self, fault: Fault) -> Vec<[String; 2]> {
        let own = |pair: &(usize, usize)| if fault.side == 0 { pair.0 } else { pair.1 };
        let pairs = self.pairs().into_iter();
        let pairs = pairs.filter(|pair| self.plan.is_crossed || pair.0 == pair.1);
        let pairs = pairs.filter(|pair| fault.rail.is_none_or(|rail| own(pair) == rail));
        pairs.map(|(left, right)| [Self::name(0, left), Self::name(1, right)]).collect()
    }

    fn cut(&mut self, fault: Fault, cut: Cut) {
        for names in self.concerned(fault) {
            let (near, far) = (&names[fault.side], &names[1 - fault.side]);
            self.cuts += self.network.cut(near, far, cut) as u64;
        }
    }

    /// Sets the ways of the pairs that a fault concerns to what the faults that are on make of them.
    fn apply(&mut self, fault: Fault) {
        for names in self.concerned(fault) {
            let on: Vec<Fault> = self.on.iter().flatten().copied().collect();
            let on: Vec<Fault> =
                on.into_iter().filter(|other| self.concerned(*other).contains(&names)).collect();
            for (from, to) in [(0, 1), (1, 0)] {
                let mut way = wire::Way::default();
                let (mut refuse, mut path) = (false, ropewalk_rail_sim::Path::default());
                for fault in &on {
                    match fault.what {
                        What::Block { away, towards } => {
                            let is_away = from == fault.side;
                            way.blocked |= if is_away { away } else { towards };
                        }
                        What::Slow { bytes_per_second } => way.bytes_per_second = bytes_per_second,
                        What::Late { by } => way.latency += by,
                        What::Spoil { loss, duplication, reordering, corruption } => {
                            (way.loss, way.duplication) = (loss, duplication);
                            (way.reordering, way.corruption) = (reordering, corruption);
                        }
                        What::Narrow { packet_bytes } => way.packet_bytes_max = packet_bytes,
                        What::Refuse => refuse = true,
                        _ => {}
                    }
                }
                path.latency = way.latency;
                path.bytes_per_second = way.bytes_per_second;
                (path.loss, path.duplication) = (way.loss, way.duplication);
                path.reordering = way.reordering;
                path.header_corruption = way.corruption;
                path.payload_corruption = way.corruption;
                (path.blocked, path.refuse) = (way.blocked, refuse);
                self.network.change_path(&names[from], &names[to], |it| *it = path);
                self.wire.change(&names[from], &names[to], |it| *it = way);
            }
        }
    }

    fn restart(&mut self, side: usize, power: bool) {
        let kill = if power { Kill::Power } else { Kill::Process(Duration::from_micros(100)) };
        for rail in 0..self.plan.kinds.len() {
            let name = Self::name(side, rail);
            match self.plan.kinds[rail] {
                Kind::Packets => self.wire.kill(&name),
                _ => self.network.kill(&name, kill),
            }
        }
        self.lives[side] += 1;
        self.log.restarted(side);
        let node = self.life(side);
        self.nodes[side] = node;
    }
}
